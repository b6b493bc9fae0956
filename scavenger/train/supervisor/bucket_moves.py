"""Which of a job's aggregators hold its model: requests to move buckets, each repeated until its end is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from scavenger.elastic.migration import BucketMap, respread, spared
from scavenger.errors import ScavengerError
from scavenger.train.transport import messages as m
from scavenger.train.transport.layout import Layout

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class Migrations:
    """The migrations of one job.

    Aggregators that are *leaving*, since their VM will be taken, hold nothing until other processes have replaced them.

    Args:
        send: Sends a message to the sequencer.
        aggregators: Number of aggregators.
        clock: Monotonic seconds.
        apart: Whether the first one only sequences: what it holds at the beginning goes to the others, and it holds
            something only while no other can.

    Attributes:
        count: Number of aggregators that share the model.
        sizes: Bytes of each bucket; empty before the model is known.
        map: The newest map of buckets that was decided; None before the model is known.
        spare: Indices of the aggregators whose loss loses nothing; see `scavenger.elastic.migration.spared`.
        ended: The end of the newest migration that has ended; None before the first.
    """

    def __init__(
        self,
        send: Callable[[m.Message], None],
        aggregators: int,
        *,
        clock: Callable[[], float],
        apart: bool = False,
    ) -> None:
        self._send, self._aggregators, self._clock = send, aggregators, clock
        self.count = aggregators - apart
        self._request: m.MoveBuckets | None = None
        self._numbers, self._asked_s = 0, 0.0
        self._used = frozenset(range(int(apart), aggregators))
        self._apart = self._unspread = apart
        self._leaving: dict[int, bool] = {}  # by index; whether its process has ended
        self.sizes: tuple[int, ...] = ()
        self.map: BucketMap | None = None
        self.spare: frozenset[int] = frozenset()
        self.ended: m.Migrated | None = None

    def set_layout(self, layout: Layout) -> None:
        """Note the layout of the job's model."""
        self.sizes = tuple(end - begin for begin, end in layout.buckets)
        self.map = self.map or BucketMap(0, 0, layout.holders)

    @property
    def active(self) -> bool:
        """Whether the end of a migration has yet to be reported."""
        return self._request is not None

    @property
    def vacant(self) -> frozenset[int]:
        """Aggregators that are leaving, hold nothing any more, and have not ended."""
        return self.spare.intersection(index for index, ended in self._leaving.items() if not ended)

    # ---- requests ------------------------------------------------------------------------------------------

    def move(self, buckets: Mapping[int, int]) -> None:
        """Have aggregators hold other buckets while training goes on; a `Migrated` event reports the end.

        Args:
            buckets: The index of the aggregator that is to hold each of them. A later request replaces this one.

        Raises:
            ScavengerError: If the model is not known yet, or has no such bucket.
        """
        current = self._current()
        if not buckets.keys() <= {*range(len(current.holders))}:
            raise ScavengerError(f"the model has {len(current.holders)} buckets")
        self._ask([buckets.get(bucket, holder) for bucket, holder in enumerate(current.holders)])

    def use(self, aggregators: Collection[int]) -> None:
        """Have these aggregators, and no others, hold everything, so that each holds about as much.

        Args:
            aggregators: Their indices among those that share the model.

        Raises:
            ScavengerError: If the model is not known yet, or all of them are leaving.
        """
        before, self._used = self._used, frozenset(index + self._apart for index in aggregators)
        try:
            self._spread()
        except ScavengerError:
            self._used = before
            raise

    def follow(self, aggregators: Collection[int]) -> None:
        """As `use`, with their indices among all; nothing follows before the model is known, or if none can serve."""
        before, wanted = self._used, frozenset(aggregators)
        if self.map is None or wanted == before:
            return
        self._used = wanted
        if self._over:
            self._spread()
        else:
            self._used = before

    def leave(self, aggregators: Collection[int]) -> bool:
        """Move what aggregators hold to others, since their VM will be taken.

        Returns:
            Whether that keeps the model from being lost: not if the first is among them, or no other is left.
        """
        before = dict(self._leaving)
        self._leaving.update({index: False for index in aggregators if index not in before})
        if 0 in aggregators or self.map is None or not self._over:
            self._leaving = before
            return False
        if self._leaving != before or not (self.active or self._leaving.keys().isdisjoint(self.map.holders)):
            self._spread()
        return True

    def process_ended(self, aggregator: int) -> None:
        """Note the end of an aggregator's process; what one that holds nothing was to get stays elsewhere meanwhile."""
        wanted = self._request is not None and aggregator in self._request.holders
        if aggregator in self._leaving or (wanted and aggregator in self.spare):
            self._leaving[aggregator] = True
            if wanted and self._over:
                self._spread()

    def process_serves(self, aggregator: int) -> None:
        """Note that an aggregator's process serves: one that replaces another gets its share again."""
        if self._leaving.get(aggregator):
            del self._leaving[aggregator]
            if self._over:
                self._spread()

    # ---- reports -------------------------------------------------------------------------------------------

    def take(self, message: m.MapChanged | m.Migrated) -> None:
        """Handle a report of the sequencer."""
        reported = message.map
        if self.map is None or reported.number >= self.map.number:
            if self.map is None or reported.number > self.map.number:
                log.info("map %d of buckets holds from step %d on", reported.number, reported.since)
            self.map = reported
            settled = isinstance(message, m.Migrated) and not message.reason
            self.spare = spared(self.spare, reported, self._aggregators, settled=settled)
        if isinstance(message, m.Migrated) and self._request and self._request.request == message.request:
            self._request, self.ended = None, message

    def watch(self) -> None:
        """Repeat a request that has not ended: the sequencer may be another process, or know nothing of it."""
        if self._unspread and self.map is not None:
            self._unspread = False
            self._spread()
        if self._request is not None and self._clock() - self._asked_s >= _AGAIN_S:
            self._asked_s = self._clock()
            self._send(self._request)

    # ---- how they are made ---------------------------------------------------------------------------------

    @property
    def _over(self) -> frozenset[int]:
        """Those that are to hold everything; the first, if it only sequences and no other can."""
        staying = self._used - self._leaving.keys()
        return staying or frozenset({0} if self._apart else ())

    def _current(self) -> BucketMap:
        if self.map is None:
            raise ScavengerError("no worker has built the model yet")
        return self.map

    def _spread(self) -> None:
        current = self._current()
        try:
            holders = respread(current, self._over, self.sizes)
        except ValueError as error:
            raise ScavengerError(str(error)) from None
        self._ask(holders)

    def _ask(self, holders: Collection[int]) -> None:
        self._numbers += 1
        self._request, self._asked_s = m.MoveBuckets(self._numbers, tuple(holders)), self._clock()
        self._send(self._request)
