"""What an aggregator does as buckets move: copies what it is to hold, and gives up what it held."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection

from scavenger.elastic.migration import BucketMap
from scavenger.train.aggregation.bucket_copies import BucketCopies
from scavenger.train.aggregation.holding import Holding
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.peers import Peers
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages import Message
from scavenger.train.transport.messages.data import (
    ApplyPart,
    BucketsCopied,
    CopyBuckets,
    ExpectPieces,
    MapTaken,
    TakeMap,
)
from scavenger.train.transport.shared_memory import PartRecord

log = logging.getLogger(__name__)


class MapChanges:
    """The map of buckets of one aggregator; see `scavenger.elastic.migration`.

    Args:
        number: The number of the newest map that it knows.
        beside: Indices of the other aggregators of the same block, whose buckets need no copy.
        peers: Connections to the other aggregators.
        answer: Sends a message to the sequencer.
        taken: Called when the shard holds something else.
        lost: Called instead if what the shard is to hold was lost: it went to a process before this one, which ended
            with its memory.
        wake: Called by another thread when `go_on` has something to do.

    Attributes:
        copies: Copies of buckets from other blocks.
    """

    def __init__(
        self,
        shard: ModelShard,
        number: int,
        *,
        beside: Collection[int],
        peers: Peers,
        answer: Callable[[Message], None],
        taken: Callable[[], None],
        lost: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._shard, self._number, self._beside = shard, number, frozenset(beside)
        self._answer, self._taken, self._lost, self._wake = answer, taken, lost, wake
        self._copy: CopyBuckets | None = None
        self._prepared: Holding | None = None
        self._ready: queue.SimpleQueue[tuple[CopyBuckets, Holding]] = queue.SimpleQueue()
        self.copies = BucketCopies(shard, peers, beside=self._beside, copied=self._copied)

    # ---- copies --------------------------------------------------------------------------------------------

    def copy(self, order: CopyBuckets) -> None:
        """Prepare in another thread for the map that would follow, and copy buckets if they are to be held here.

        An order that was carried out is answered again.
        """
        if order.number <= self._number or (self._copy is not None and order.number < self._copy.number):
            return  # outdated
        if order != self._copy:
            fail_here("aggregator.copying")
            self._copy, self._prepared = order, None
            layout = self._shard.layout.moved(self._holders(order), order.number)
            threading.Thread(target=self._prepare, args=(order, layout), name="buckets", daemon=True).start()
        elif self._prepared is not None:
            self._begin(order, self._prepared)

    def _prepare(self, order: CopyBuckets, layout: Layout) -> None:
        self._ready.put((order, self._shard.prepare(layout)))
        self._wake()

    def go_on(self) -> None:
        """Copy what was prepared for, and ask again for what has not arrived; called several times a second."""
        while not self._ready.empty():
            order, held = self._ready.get()
            if order is self._copy:
                self._prepared = held
                self._begin(order, held)
        self.copies.tick()

    def _begin(self, order: CopyBuckets, held: Holding) -> None:
        if order.target == self._shard.index:
            self.copies.begin(order, held)

    def _copied(self, number: int) -> None:
        """Report that everything is here that is to be copied."""
        if self._copy is not None and self._copy.number == number:
            fail_here("aggregator.copied")
            self._answer(BucketsCopied(self._shard.index, number))

    def _holders(self, order: CopyBuckets) -> tuple[int, ...]:
        moved = {bucket for bucket, _ in order.buckets}
        return tuple(
            order.target if bucket in moved else holder
            for bucket, holder in enumerate(self._shard.layout.holders)
        )

    # ---- maps ----------------------------------------------------------------------------------------------

    def confirm(self, order: TakeMap) -> None:
        """Take a map in which something is given up, and say so; a repeated order is answered again."""
        self.take(order.map)
        if order.map.number == self._number:
            fail_here("aggregator.took")
            self._answer(MapTaken(self._shard.index, self._number))

    def admits(self, order: ApplyPart | ExpectPieces) -> bool:
        """Take the map of an order if it is new; returns whether the order is under the newest one."""
        if order.changed is not None:
            self.take(order.changed)
        return order.map == self._number

    def take(self, new: BucketMap) -> None:
        """Hold what a newer map says, from its first step on."""
        if new.number <= self._number:
            return
        shard, held = self._shard, self._prepared
        if self._lacks(new):
            log.warning("what map %d has this aggregator hold was lost: it begins again", new.number)
            self._lost()
            return
        layout = shard.layout.moved(new.holders, new.number)
        if held is None or not held.fits(layout):
            held = shard.prepare(layout)
        take_map(shard, new, held, beside=self._beside)
        self._number, self._copy, self._prepared = new.number, None, None
        log.info("holds %d buckets from step %d on", new.holders.count(shard.index), new.since)
        self._taken()

    def _lacks(self, new: BucketMap) -> bool:
        """Whether the shard gains something in a map that nobody has in this block, and that has not arrived."""
        if self._beside:
            return False
        index, arrived = self._shard.index, self._shard.arrivals.recorded
        pairs = zip(self._shard.layout.holders, new.holders, strict=True)
        gained = {b for b, (old, now) in enumerate(pairs) if now == index and old != index}
        return not gained <= {*(arrived.buckets if arrived and arrived.number == new.number else ())}


def take_map(shard: ModelShard, new: BucketMap, held: Holding, *, beside: Collection[int]) -> None:
    """Have a shard hold what a map says, whose buckets are there as of the step before its first."""
    shard.take(held, new.since, beside=beside)
    if shard.index in new.participants and shard.record.step < new.since - 1:
        shard.block.write_part(shard.index, PartRecord(new.since - 1))
