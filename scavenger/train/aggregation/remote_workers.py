"""Workers on other hosts: their gradients arrive in chunks, and weights are sent to them."""

from __future__ import annotations

import functools
from collections.abc import Callable

from scavenger.train.transport.messages.data import Check, Chunk, Lacking, Pull
from scavenger.train.transport.replication import Inbox, Outbox, Payload, Send
from scavenger.train.transport.shared_memory import Block

__all__ = ["RemoteWorkers"]


class RemoteWorkers:
    """Copies gradients and weights between an aggregator and the workers that do not share its memory.

    Args:
        index: The aggregator's index.
        send: Sends a message, and a payload with it, to a worker.
    """

    def __init__(self, index: int, send: Callable[..., None]) -> None:
        self._index, self._send = index, send
        self._weights: Callable[[Pull], Payload] | None = None
        self._inbox: Inbox | None = None
        self._pulls: dict[str, Pull] = {}
        self._outboxes: dict[str, Outbox] = {}

    def open(self, block: Block, weights: Callable[[Pull], Payload]) -> None:
        """Begin, as the aggregator holds its model shard; requests for weights that came earlier have waited.

        Args:
            block: The aggregator's block.
            weights: Makes the payload that answers a request.
        """
        self._weights, self._inbox = weights, Inbox(block, self._index)

    def forget(self, worker: str, *, free: bool) -> None:
        """Drop what is known of a lost worker.

        Args:
            worker: Its name.
            free: Whether to free the memory of its slots, which no other process has.
        """
        self._pulls.pop(worker, None)
        self._outboxes.pop(worker, None)
        if self._inbox is not None and free:
            self._inbox.forget(worker)

    # ---- gradients -----------------------------------------------------------------------------------------

    def take(self, worker: str, chunk: Chunk, payload: bytes) -> bool:
        """Store a chunk of a gradient; returns whether the aggregator's whole share has arrived with it."""
        return self._inbox is not None and self._inbox.take(worker, chunk, payload)

    def holds(self, worker: str, piece: int) -> bool:
        """Whether all of a worker's piece has arrived."""
        return self._inbox is not None and self._inbox.holds(worker, piece)

    def check(self, worker: str, check: Check) -> Lacking | None:
        """List the chunks of a gradient that have not arrived; None for none."""
        return None if self._inbox is None else self._inbox.check(worker, check)

    # ---- weights -------------------------------------------------------------------------------------------

    def pull(self, worker: str, pull: Pull) -> None:
        """Record a worker's request for weights, instead of an earlier one; `answer` answers it."""
        self._pulls[worker] = pull

    def answer(self, applied: int) -> None:
        """Send the weights to the workers that wait for them, as soon as they exist.

        Args:
            applied: The last applied step.
        """
        if self._weights is None:
            return
        for worker, pull in list(self._pulls.items()):
            if pull.step > applied:
                continue
            del self._pulls[worker]
            if _is_served(pull, applied):
                outbox = self._outboxes.setdefault(worker, Outbox())
                outbox.forget_before(pull.step)
                outbox.push(self._weights(pull), self._sender(worker))

    def resend(self, worker: str, answer: Lacking, applied: int) -> None:
        """Send the chunks of the weights that a worker reports as missing, if they still exist."""
        # with the optimizer's state, since the offsets tell what was requested
        pull = Pull(answer.step, answer.piece, optimizer=True)
        if self._weights is not None and worker in self._outboxes and _is_served(pull, applied):
            self._outboxes[worker].resend(answer, self._weights(pull), self._sender(worker))

    def _sender(self, worker: str) -> Send:
        return functools.partial(self._send, worker)


def _is_served(pull: Pull, applied: int) -> bool:
    """Return whether the weights that a worker requests are available.

    The step before the last is still needed when a restarted sequencer repeats a step. Only workers that no longer take
    part ask for older weights, and newer ones do not exist yet.
    """
    return applied - 1 <= pull.step <= applied
