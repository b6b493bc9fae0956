"""What an aggregator does as buckets move: copies what it is to hold, and gives up what it held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from scavenger.elastic.migration import BucketMap
from scavenger.train.aggregation.holding import Holding
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.messages import Message
from scavenger.train.transport.messages.data import (
    ApplyPart,
    BucketsCopied,
    CopyBuckets,
    ExpectPieces,
    MapTaken,
    TakeMap,
)
from scavenger.train.transport.messages.values import MapBody, map_of
from scavenger.train.transport.shared_memory import PartRecord

__all__ = ["MapChanges"]

log = logging.getLogger(__name__)


class MapChanges:
    """The map of buckets of one aggregator; see `scavenger.elastic.migration`.

    Args:
        shard: Its model shard.
        number: The number of the newest map that it knows.
        beside: Indices of the other aggregators of the same block, whose buckets need no copy.
        answer: Sends a message to the sequencer.
        taken: Called when the shard holds something else.
    """

    def __init__(
        self,
        shard: ModelShard,
        number: int,
        *,
        beside: Collection[int],
        answer: Callable[[Message], None],
        taken: Callable[[], None],
    ) -> None:
        self._shard, self._number, self._beside = shard, number, frozenset(beside)
        self._answer, self._taken = answer, taken
        self._copy: CopyBuckets | None = None
        self._prepared: Holding | None = None

    # ---- copies --------------------------------------------------------------------------------------------

    def copy(self, order: CopyBuckets) -> None:
        """Copy buckets, and prepare to hold them; an order that was carried out is answered again."""
        if order.number <= self._number or (self._copy is not None and order.number < self._copy.number):
            return  # outdated
        if order != self._copy:
            fail_here("aggregator.copying")
            self._copy, self._prepared = order, None
            self._prepared = self._shard.prepare(self._shard.layout.moved(self._holders(order), order.number))
        if {source for _, source in order.buckets} <= self._beside:
            self._copied()  # it is in place

    def _copied(self) -> None:
        """Report that everything is here that is to be copied."""
        assert self._copy is not None
        fail_here("aggregator.copied")
        self._answer(BucketsCopied(self._shard.index, self._copy.number))

    def _holders(self, order: CopyBuckets) -> tuple[int, ...]:
        moved = {bucket for bucket, _ in order.buckets}
        return tuple(
            self._shard.index if bucket in moved else holder
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

    def take(self, body: MapBody) -> None:
        """Hold what a newer map says, from its first step on."""
        if body.number <= self._number:
            return
        new, shard, held = map_of(body), self._shard, self._prepared
        if held is None or (held.layout.map_number, held.layout.holders) != (new.number, new.holders):
            held = shard.prepare(shard.layout.moved(new.holders, new.number))
        take_map(shard, new, held, beside=self._beside)
        self._number, self._copy, self._prepared = new.number, None, None
        log.info("holds %d buckets from step %d on", new.holders.count(shard.index), new.since)
        self._taken()


def take_map(shard: ModelShard, new: BucketMap, held: Holding, *, beside: Collection[int]) -> None:
    """Have a shard hold what a map says, whose buckets are there as of the step before its first."""
    shard.take(held, new.since, beside=beside)
    if shard.index in new.participants and shard.record.step < new.since - 1:
        shard.block.write_part(shard.index, PartRecord(new.since - 1))
