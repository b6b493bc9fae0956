"""Recent results of a worker, kept for repeated orders, and what was sent to each aggregator."""

from __future__ import annotations

from collections.abc import Mapping

from scavenger.elastic.view import Piece
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.messages.data import Contributed, Evaluation, Lacking
from scavenger.train.transport.replication import Outbox, Send, piece_payload
from scavenger.train.transport.shared_memory import Block

__all__ = ["Results"]


class Results:
    """Cache of one worker's recent results.

    Args:
        block: The worker's shared-memory block, which holds its gradients.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._computed: dict[tuple[str, int, int], Contributed | Evaluation] = {}
        self._in_slot: dict[int, tuple[int, Piece]] = {}
        self._outboxes: dict[int, Outbox] = {}

    def begin(self, action: str, step: int, piece: Piece) -> Contributed | Evaluation | None:
        """Return the result if it was computed already, else None; drop results of older steps.

        Args:
            action: `train` or `evaluate`.
            step: The step to compute, or the step after which to evaluate.
        """
        self._computed = {key: result for key, result in self._computed.items() if key[1] >= step - 1}
        for outbox in self._outboxes.values():
            outbox.forget_before(step - 1)
        return self._computed.get((action, step, piece.number))

    def add_gradient(self, step: int, piece: Piece, result: Contributed) -> None:
        """Record that the piece's gradient is in its slot."""
        self._computed["train", step, piece.number] = result
        self._in_slot[piece.slot] = (step, piece)

    def add_evaluation(self, step: int, piece: Piece, result: Evaluation) -> None:
        """Record the evaluation of a piece of the validation data."""
        self._computed["evaluate", step, piece.number] = result

    def push(self, result: Contributed, senders: Mapping[int, Send]) -> None:
        """Send a piece's gradient to the aggregators on other hosts, then ask each what is missing.

        Args:
            result: The contribution that announces the gradient.
            senders: Send function of each such aggregator, by index.
        """
        _, piece = self._in_slot_of(result.piece)
        for index, send in senders.items():
            if piece is not None:
                outbox = self._outboxes.setdefault(index, Outbox())
                outbox.push(piece_payload(self._block, index, result, piece), send)
            fail_here("worker.pushed_some")

    def resend(self, index: int, answer: Lacking, send: Send) -> Contributed | None:
        """Send the missing chunks of a gradient that is still in its slot.

        Returns:
            The contribution to repeat to the sequencer after the chunks; None if nothing was sent.
        """
        step, piece = self._in_slot_of(answer.piece)
        result = self._computed.get(("train", step, answer.piece))
        outbox = self._outboxes.get(index)
        if piece is None or outbox is None or not isinstance(result, Contributed):
            return None
        payload = piece_payload(self._block, index, result, piece)
        return result if outbox.resend(answer, payload, send) else None

    def _in_slot_of(self, number: int) -> tuple[int, Piece | None]:
        """Return step and piece for a piece number; `(0, None)` if its gradient was overwritten."""
        for step, piece in self._in_slot.values():
            if piece.number == number:
                return step, piece
        return 0, None
