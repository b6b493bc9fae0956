"""Recent results of a worker, kept for repeated orders, and what was sent to each aggregator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scavenger.elastic.sums import unasked
from scavenger.elastic.view import SLOTS_PER_WORKER, Piece
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.buckets import buckets, budget_bytes, numbers_of, packed
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.data import (
    AskBuckets,
    BucketsSent,
    Contributed,
    Evaluation,
    GradientBucket,
)
from scavenger.train.transport.replication import Send
from scavenger.train.transport.shared_memory import Block


class Results:
    """Cache of one worker's recent results.

    Args:
        block: The worker's shared-memory block, which holds its gradients.
        rounded: The tensors whose gradients are rounded, by index.
    """

    def __init__(self, block: Block, rounded: Collection[int] = ()) -> None:
        self._block = block
        segments = enumerate(block.layout.segments)
        self._rounded = frozenset(number for number, one in segments if one.tensor in rounded)
        self._computed: dict[tuple[str, int, int], Contributed | Evaluation] = {}
        self._in_slot: dict[int, tuple[int, Piece]] = {}
        self._pushed: dict[tuple[int, int], int] = {}
        """The pieces of which the first buckets were sent to an aggregator, and their steps."""
        self._buckets = buckets(block.layout)
        self._layout = block.layout

    def take(self, layout: Layout) -> None:
        """Use another map of buckets from now on."""
        self._layout = layout

    def begin(self, action: str, step: int, piece: Piece) -> Contributed | Evaluation | None:
        """Return the result if it was computed already, else None; drop results of older steps.

        Args:
            action: `train` or `evaluate`.
            step: The step to compute, or the step after which to evaluate.
        """
        self._computed = {key: result for key, result in self._computed.items() if key[1] >= step - 1}
        self._pushed = {key: pushed for key, pushed in self._pushed.items() if pushed >= step - 1}
        return self._computed.get((action, step, piece.number))

    def add_gradient(self, step: int, piece: Piece, result: Contributed) -> None:
        """Record that the piece's gradient is in its slot."""
        self._computed["train", step, piece.number] = result
        self._in_slot[piece.slot] = (step, piece)

    def add_evaluation(self, step: int, piece: Piece, result: Evaluation) -> None:
        """Record the evaluation of a piece of the validation data."""
        self._computed["evaluate", step, piece.number] = result

    def push(self, result: Contributed, senders: Mapping[int, Send], workers: int) -> None:
        """Send the first buckets of a gradient, for which aggregators on other hosts do not ask, once.

        Args:
            result: The contribution that announces the gradient; it is to follow.
            senders: Send function of each such aggregator, by index.
            workers: Number of workers of the view.
        """
        _, piece = self._in_slot_of(result.piece)
        for index, send in senders.items():
            first = piece is not None and result.samples and (index, result.piece) not in self._pushed
            if piece is not None and first and piece.slot % SLOTS_PER_WORKER == 0:
                self._pushed[index, result.piece] = result.step
                numbers = numbers_of(self._layout, self._buckets, index)
                sizes = [self._buckets[number].bytes for number in numbers]
                count = unasked(sizes, budget_bytes(self._layout, index), workers)
                self._send(piece, result, numbers[:count], send)
            fail_here("worker.pushed_some")

    def answer(self, index: int, ask: AskBuckets, send: Send) -> None:
        """Send what an aggregator asks for of a gradient, if that is still in its slot."""
        step, piece = self._in_slot_of(ask.piece)
        result = self._computed.get(("train", step, ask.piece))
        if piece is None or not isinstance(result, Contributed):
            return
        self._send(piece, result, ask.buckets, send)
        send(BucketsSent(ask.piece, ask.question), None)

    def _send(self, piece: Piece, result: Contributed, numbers: Iterable[int], send: Send) -> None:
        at = self._layout.slot_at(piece.slot)
        for number in numbers:
            if 0 <= number < len(self._buckets):
                counts, data = packed(self._block, at, result.rows, self._buckets[number], self._rounded)
                send(GradientBucket(piece.number, number, counts), data)

    def _in_slot_of(self, number: int) -> tuple[int, Piece | None]:
        """Return step and piece for a piece number; `(0, None)` if its gradient was overwritten."""
        for step, piece in self._in_slot.values():
            if piece.number == number:
                return step, piece
        return 0, None
