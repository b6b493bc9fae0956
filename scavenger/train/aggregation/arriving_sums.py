"""The sums of gradients that arrive from workers which do not share the aggregator's memory.

`scavenger.elastic.sums` decides what to ask for, to keep and to add; this module carries it out. Where all workers of a
step share the aggregator's memory, nothing is done here: the step is applied from their slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from scavenger.elastic import sum_events
from scavenger.elastic import sums as s
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.view import SLOTS_PER_WORKER
from scavenger.train.aggregation.mean_gradient import Gradient
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.buckets import Values, budget_bytes, numbers_of, read, unpacked
from scavenger.train.transport.messages.data import (
    ApplyPart,
    AskBuckets,
    BucketsSent,
    Contributed,
    ExpectPieces,
    GradientBucket,
    SumsFormed,
)
from scavenger.train.transport.messages.values import RowCounts

_ASK_AGAIN_S = 1.0


class ArrivingSums:
    """Forms the sums of one aggregator's shard.

    Args:
        own: Names of the workers that share its memory; may grow.
        ask: Sends a message to a worker.
        formed: Called when the sums of a list of pieces are complete.
        ready: Called with an order to apply a step for which sums had to be formed.
    """

    def __init__(
        self,
        shard: ModelShard,
        own: set[str],
        *,
        ask: Callable[[str, AskBuckets], None],
        formed: Callable[[SumsFormed], None],
        ready: Callable[[ApplyPart], None],
    ) -> None:
        self._shard, self._own = shard, own
        self._ask, self._tell_formed, self._ready = ask, formed, ready
        self._buckets = shard.held.buckets
        self._sums = s.Sums([bucket.bytes for bucket in self._buckets], 0)
        self._kept: dict[tuple[int, int], tuple[GradientBucket, bytes]] = {}
        self._slots: dict[int, int] = {}
        self._rows: dict[int, RowCounts] = {}
        self._waiting: ApplyPart | None = None
        self._begun = -1
        self._moved_at = 0.0
        self._forming = shard.sums
        self.hold()

    def hold(self) -> None:
        """Form the sums of what the shard holds from now on; of what it has gained, from the next list on."""
        layout, index = self._shard.layout, self._shard.index
        self._numbers = numbers_of(layout, self._buckets, index)
        """The buckets of this aggregator, among those of all."""
        self._budget = budget_bytes(layout, index)
        before, self._forming, self._begun = self._forming, self._shard.sums, -1
        self._handle(sum_events.HoldBuckets(self._numbers, self._budget))
        if self._begun >= 0 and before is not self._forming:
            self._forming.go_on(before)

    @property
    def overwrites(self) -> int | None:
        """The step whose new weights' memory the sums are formed in; None for none."""
        expected = self._sums.expected
        return expected.step if expected is not None and expected.terms else None

    # ---- from the sequencer --------------------------------------------------------------------------------

    def expect(self, message: ExpectPieces) -> None:
        """Form the sums of a list of pieces, unless it is outdated or all are in this memory."""
        record = self._shard.record
        if not record.step <= message.step <= record.step + 1 or message.view < record.view:
            return
        if (message.step, message.view, message.number) <= (record.step, record.view, record.number):
            return
        pieces = [(number, slot, samples) for number, slot, samples in message.pieces if samples]
        if not self._is_remote(slot for _, slot, _ in pieces):
            self._end(sum_events.PieceList(message.step, message.view, 2 * message.number))
            return
        if self._is_outdated(sum_events.PieceList(message.step, message.view, 2 * message.number)):
            return
        sizes = [self._buckets[number].bytes for number in self._numbers]
        count = s.unasked(sizes, self._budget, message.workers)
        terms = tuple(
            sum_events.Term(number, _worker(slot), samples, 0 if slot % SLOTS_PER_WORKER else count)
            for number, slot, samples in pieces
        )
        self._slots = {number: slot for number, slot, _ in pieces}
        self._handle(sum_events.PieceList(message.step, message.view, 2 * message.number, terms))
        for number, rows in message.held:
            if number in self._slots:
                self._rows[number] = rows
                self._own.add(_worker(self._slots[number]))
                self._handle(sum_events.PieceOffered(_worker(self._slots[number]), number, own=True))

    def prepare(self, order: ApplyPart) -> list[Gradient] | None:
        """Return the mean gradients for an order, and end the sums; None if they have to be formed first.

        An aggregator that was restarted has lost its sums; and the order may differ from the list of which they were
        formed. Then it is the list, all of whose pieces are known to be computed.
        """
        counted = [piece for piece in order.pieces if piece[1]]
        key = sum_events.PieceList(
            order.step,
            order.view,
            2 * order.number + 1,
            tuple(sum_events.Term(number, _worker(slot), samples) for number, samples, slot, _ in counted),
        )
        if self._is_formed_of(key):
            gradients = self._shard.sums.gradients()
            self._waiting = None
            self._end(sum_events.PieceList(order.step, order.view, 2 * order.number + 2))
            return gradients
        if self._is_outdated(key):
            return None
        self._waiting = order
        self._slots = {number: slot for number, _, slot, _ in counted}
        self._rows |= {number: rows for number, _, _, rows in counted}
        self._handle(key)
        held = dict(zip((piece[0] for piece in order.pieces), order.held, strict=True))
        for number, _, slot, _ in counted:
            own = self._shard.index in held[number]
            if own:
                self._own.add(_worker(slot))
            self._handle(sum_events.PieceOffered(_worker(slot), number, own=own))
        return None

    def needs_sums(self, order: ApplyPart) -> bool:
        """Whether some piece of an order is not in this memory."""
        pieces = zip(order.pieces, order.held, strict=bool(order.held))
        return any(piece[1] and self._shard.index not in held for piece, held in pieces)

    def end(self, order: ApplyPart) -> None:
        """End the sums of a step that is applied from slots alone."""
        self._waiting = None
        self._end(sum_events.PieceList(order.step, order.view, 2 * order.number + 2))

    # ---- from workers --------------------------------------------------------------------------------------

    def contributed(self, worker: str, message: Contributed) -> None:
        """A worker has computed a piece."""
        if not self._shard.layout.accepts(message.rows):
            return
        own = self._shard.index in message.held
        if own:
            self._own.add(worker)
        if message.samples and message.step >= self._shard.record.step:
            self._rows[message.piece] = message.rows
            self._handle(sum_events.PieceOffered(worker, message.piece, own))

    def take(self, worker: str, message: GradientBucket, payload: bytes) -> None:
        """A bucket of a piece has arrived."""
        if message.bucket not in range(len(self._buckets)):
            return
        try:
            unpacked(self._buckets[message.bucket], message.counts, payload)
        except ValueError as error:
            print(f"rejected a bucket of {worker}: {error}", flush=True)
            return
        self._handle(sum_events.BucketArrived(worker, message.piece, message.bucket), (message, payload))

    def answered(self, worker: str, message: BucketsSent) -> None:
        """A worker has sent what it was asked for."""
        self._handle(sum_events.Answered(worker, message.piece, message.question))

    def tick(self) -> None:
        """Ask again for what has not arrived for a while; called several times a second."""
        waits = self._sums.expected is not None and not self._sums.formed
        if waits and time.monotonic() - self._moved_at > _ASK_AGAIN_S:
            self._moved_at = time.monotonic()
            self._handle(sum_events.NothingArrived())

    def forget(self, worker: str) -> None:
        """Free the memory of a lost worker's slots, unless another worker has reused them."""
        try:
            first = worker_slot(worker)
        except ValueError:
            return
        layout = self._shard.layout
        reused = {layout.place_of(slot) // SLOTS_PER_WORKER for slot in self._slots.values() if slot > first}
        if layout.place_of(first) // SLOTS_PER_WORKER not in reused:
            self._shard.block.release_slots(first)

    # ---- what follows --------------------------------------------------------------------------------------

    def _is_remote(self, slots: Iterable[int]) -> bool:
        return any(_worker(slot) not in self._own for slot in slots)

    def _is_outdated(self, key: sum_events.PieceList) -> bool:
        now = self._sums.expected
        return now is not None and key < now

    def _is_formed_of(self, key: sum_events.PieceList) -> bool:
        now = self._sums.expected
        if now is None or not self._sums.formed or (now.step, now.view) != (key.step, key.view):
            return False
        return [(t.piece, t.samples) for t in now.terms] == [(t.piece, t.samples) for t in key.terms]

    def _end(self, key: sum_events.PieceList) -> None:
        for action in self._sums.handle(key):
            if isinstance(action, sum_events.Drop):
                del self._kept[action.piece, action.bucket]
        self._rows = {
            piece: rows for piece, rows in self._rows.items() if piece > max(self._slots, default=-1)
        }

    def _handle(self, event: sum_events.Event, arrived: tuple[GradientBucket, bytes] | None = None) -> None:
        formed = False
        actions = self._sums.handle(event)
        if self.overwrites is not None and self.overwrites != self._begun:
            self._begun = self.overwrites
            self._shard.begin_sums(self._begun)
        for action in actions:
            match action:
                case sum_events.FetchBuckets():
                    self._ask(action.worker, AskBuckets(action.piece, action.question, action.buckets))
                case sum_events.Keep() if arrived is not None:
                    self._kept[action.piece, action.bucket] = arrived
                case sum_events.Drop():
                    del self._kept[action.piece, action.bucket]
                case sum_events.Add():
                    self._moved_at = time.monotonic()
                    self._add(action, arrived)
                case sum_events.ListSummed():
                    formed = True
                case _:
                    pass
        if formed:
            self._formed()

    def _formed(self) -> None:
        expected = self._sums.expected
        if expected is None or not expected.terms:
            return
        fail_here("aggregator.received")
        order = self._waiting
        if order is not None and (order.step, order.view, 2 * order.number + 1) == (
            expected.step,
            expected.view,
            expected.number,
        ):
            self._ready(order)
        else:
            self._tell_formed(
                SumsFormed(self._shard.index, expected.step, expected.view, expected.number // 2)
            )

    def _add(self, action: sum_events.Add, arrived: tuple[GradientBucket, bytes] | None) -> None:
        bucket, expected = self._buckets[action.bucket], self._sums.expected
        assert expected is not None
        slot_at = self._shard.layout.slot_at(self._slots[action.piece])
        here = self._kept.pop((action.piece, action.bucket), None)
        if (
            here is None
            and arrived is not None
            and (action.piece, action.bucket)
            == (
                arrived[0].piece,
                arrived[0].bucket,
            )
        ):
            here = arrived
        if not bucket.parts:
            if here is not None:
                self._shard.block.range(slot_at + bucket.begin, bucket.bytes)[:] = here[1]
            return
        if here is None:
            worker = expected.terms[action.position].worker
            if worker not in self._own:
                raise RuntimeError(f"nothing is here of piece {action.piece} of {worker}")
            values: list[Values] = read(self._shard.block, slot_at, self._rows[action.piece], bucket)
        else:
            values = unpacked(bucket, here[0].counts, here[1])
        total = sum(term.samples for term in expected.terms)
        share = expected.terms[action.position].samples / total
        self._shard.sums.add(action.bucket, values, share, first=action.position == 0)


def _worker(slot: int) -> str:
    """Return the name of the worker that a slot belongs to; see `worker_slot`."""
    name = f"w{slot // SLOTS_PER_WORKER}"
    assert worker_slot(name) == slot - slot % SLOTS_PER_WORKER
    return name
