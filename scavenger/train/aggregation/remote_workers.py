"""Workers on other hosts, to which weights are sent, and aggregators there, to which buckets are copied."""

from __future__ import annotations

import functools
from collections.abc import Callable

from scavenger.train.transport.messages.data import Lacking, Pull, PullBuckets
from scavenger.train.transport.replication import Outbox, Payload, Send

_Pull = Pull | PullBuckets


class RemoteWorkers:
    """Sends the weights, or the whole state of some buckets, to processes that do not share the aggregator's memory.

    Args:
        send: Sends a message, and a payload with it, to a worker.
        drop: Takes back what is queued for an aggregator, and was not begun to be sent.
    """

    def __init__(self, send: Callable[..., None], drop: Callable[[str], None] = lambda _: None) -> None:
        self._send, self._drop = send, drop
        self._weights: Callable[[_Pull], Payload] | None = None
        self._pulls: dict[str, _Pull] = {}
        self._served: dict[str, _Pull] = {}
        self._outboxes: dict[str, Outbox] = {}

    def open(self, weights: Callable[[_Pull], Payload]) -> None:
        """Begin, as the aggregator holds its model shard; requests for weights that came earlier have waited.

        Args:
            weights: Makes the payload that answers a request.
        """
        self._weights = weights

    def forget(self, worker: str) -> None:
        """Drop what is known of a lost worker."""
        self._pulls.pop(worker, None)
        self._served.pop(worker, None)
        self._outboxes.pop(worker, None)

    def pull(self, worker: str, pull: _Pull) -> None:
        """Record a worker's request for weights, instead of an earlier one; `answer` answers it."""
        served = self._served.get(worker)
        if isinstance(pull, PullBuckets) and served is not None and pull.number > served.number:
            self._drop(worker)  # of a copy that is void
        self._pulls[worker] = pull

    def answer(self, applied: int, overwritten: int | None = None) -> None:
        """Send the weights to the workers that wait for them, as soon as they exist.

        Args:
            applied: The last applied step.
            overwritten: The step whose weights are being written; None for none.
        """
        if self._weights is None:
            return
        for worker, pull in list(self._pulls.items()):
            if pull.step > applied:
                continue
            del self._pulls[worker]
            if _is_served(pull, applied, overwritten):
                outbox = self._outboxes.setdefault(worker, Outbox())
                outbox.forget_before(pull.step)
                self._served[worker] = pull
                outbox.push(self._weights(pull), self._sender(worker))

    def resend(self, worker: str, answer: Lacking, applied: int, overwritten: int | None = None) -> None:
        """Send the chunks of the weights that a worker reports as missing, if they still exist."""
        pull = self._served.get(worker)
        if pull is None or (pull.step, pull.number) != (answer.step, answer.number):
            return
        if self._weights is not None and _is_served(pull, applied, overwritten):
            self._outboxes[worker].resend(answer, self._weights(pull), self._sender(worker))

    def _sender(self, worker: str) -> Send:
        return functools.partial(self._send, worker)


def _is_served(pull: _Pull, applied: int, overwritten: int | None) -> bool:
    """Return whether the weights that a worker requests are available.

    The step before the last is still needed when a restarted sequencer repeats a step. Only workers that no longer take
    part ask for older weights, and newer ones do not exist yet. The weights that are being written take the place of
    those two steps before, for which nobody asks who takes part in this step.
    """
    gone = overwritten is not None and (pull.step - overwritten) % 2 == 0
    return applied - 1 <= pull.step <= applied and not gone
