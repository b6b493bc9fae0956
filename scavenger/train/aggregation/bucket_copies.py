"""Copies of buckets from aggregators of other blocks, for the aggregator that is to hold them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from scavenger.train.aggregation.holding import Holding
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.peers import Peers
from scavenger.train.failpoints import fail_here
from scavenger.train.transport.arrivals import ArrivedState, Best, CopyInbox, copied_ranges
from scavenger.train.transport.messages import Message
from scavenger.train.transport.messages.data import Chunk, ChunkQuery, CopyBuckets, PullBuckets

_ASK_AGAIN_S = 1.0


@dataclass(slots=True)
class _Copy:
    """One order, what comes from each aggregator of another block, and when something moved last."""

    order: CopyBuckets
    sources: dict[int, tuple[int, ...]]
    inbox: CopyInbox
    moved_at: float = 0.0


class BucketCopies:
    """The copies of one aggregator; at most one at a time.

    Args:
        peers: Its connections to the other aggregators.
        beside: Indices of the other aggregators of the same block.
        copied: Called with the number of an order when all that it names is here.
    """

    def __init__(
        self, shard: ModelShard, peers: Peers, *, beside: Collection[int], copied: Callable[[int], None]
    ) -> None:
        self._shard, self._peers, self._copied = shard, peers, copied
        self._beside = frozenset(beside)
        self._copy: _Copy | None = None

    def begin(self, order: CopyBuckets, held: Holding) -> None:
        """Have buckets copied, or ask again for what has not arrived; what another order asked for is void.

        Args:
            held: What is held under the map that follows, from `ModelShard.prepare`.
        """
        if self._copy is not None and self._copy.order == order:
            self._go_on(self._copy)
            return
        sources = defaultdict[int, list[int]](list)
        for bucket, holder in order.buckets:
            if holder not in self._beside:
                sources[holder].append(bucket)
        ranges = {
            index: copied_ranges(held.layout, held.slots_owned, some, best=_wants_best(order))
            for index, some in sources.items()
        }
        if self._copy is not None:
            self._copy.inbox.close()
        self._shard.arrivals.settle(bucket for bucket, _ in order.buckets)
        arrivals = self._shard.arrivals
        place = arrivals.range if self._beside else arrivals.beside(held.optimizer, order.step)
        inbox = CopyInbox(place, ranges, order.step, order.number)
        self._copy = _Copy(order, {index: tuple(some) for index, some in sources.items()}, inbox)
        self._go_on(self._copy)

    def _go_on(self, copy: _Copy) -> None:
        lacking, order = copy.inbox.lacking, copy.order
        copy.moved_at = time.monotonic()
        for index in lacking:
            pull = PullBuckets(order.step, order.number, copy.sources[index], _wants_best(order))
            self._peers.send(index, pull)
        if not lacking:
            self._copied(order.number)

    def store(self, index: int, message: Message, payload: memoryview) -> None:
        """Put a chunk where it belongs before it is taken, by the thread that has received it."""
        if isinstance(message, Chunk) and (copy := self._copy) is not None:
            copy.inbox.store(index, message, payload)

    def take(self, index: int, chunk: Chunk, payload: bytes) -> None:
        """Take a chunk from another aggregator; if it is the last, the copy is recorded before anybody is told."""
        copy = self._copy
        if copy is None or not copy.inbox.take(index, chunk, payload):
            return
        fail_here("aggregator.copied_some")
        copy.moved_at = time.monotonic()
        if copy.inbox.lacking:
            return
        shard, order = self._shard, copy.order
        gained = tuple(sorted(bucket for some in copy.sources.values() for bucket in some))
        best = Best.NEWEST if order.best_step == order.step else Best.APART
        shard.arrivals.record(
            ArrivedState(
                order.number,
                order.step + 1,
                gained,
                best if order.best_step else Best.NONE,
                slots_held=not self._beside,
            )
        )
        self._copied(order.number)

    def check(self, index: int, check: ChunkQuery) -> None:
        """Answer another aggregator, which asks what has not arrived."""
        if self._copy is not None and (lacking := self._copy.inbox.check(index, check)) is not None:
            self._peers.send(index, lacking)

    def tick(self) -> None:
        """Ask again for what has not arrived for a while; called several times a second."""
        copy = self._copy
        if copy is not None and copy.inbox.lacking and time.monotonic() - copy.moved_at > _ASK_AGAIN_S:
            self._go_on(copy)


def _wants_best(order: CopyBuckets) -> bool:
    """Whether the best weights are others than those of the step."""
    return 0 < order.best_step < order.step
