"""Requests to move buckets between a job's aggregators, each repeated until the sequencer reports its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from scavenger.elastic.migration import BucketMap, drained
from scavenger.errors import ScavengerError
from scavenger.train.transport import messages as m
from scavenger.train.transport.layout import Layout

__all__ = ["Migrations"]

log = logging.getLogger(__name__)

_AGAIN_S = 1.0


class Migrations:
    """The migrations of one job.

    Args:
        send: Sends a message to the sequencer.

    Attributes:
        map: The newest map of buckets that was decided; None before the model is known.
    """

    def __init__(self, send: Callable[[m.Message], None]) -> None:
        self._send = send
        self._layout: Layout | None = None
        self._request: m.Migrate | None = None
        self._numbers, self._asked_s = 0, 0.0
        self.map: BucketMap | None = None

    def set_layout(self, layout: Layout) -> None:
        """Note the layout of the job's model."""
        self._layout = layout
        self.map = self.map or BucketMap(0, 0, layout.holders)

    @property
    def active(self) -> bool:
        """Whether a request has not ended."""
        return self._request is not None

    def move(self, buckets: Mapping[int, int], now: float) -> None:
        """Move buckets to aggregators.

        Args:
            buckets: The aggregator that is to hold each of them.
            now: Monotonic seconds.

        Raises:
            ScavengerError: If the model is not known yet, or has no such bucket.
        """
        current = self._current()
        if not buckets.keys() <= {*range(len(current.holders))}:
            raise ScavengerError(f"the model has {len(current.holders)} buckets")
        self._ask([buckets.get(bucket, holder) for bucket, holder in enumerate(current.holders)], now)

    def drain(self, aggregator: int, now: float, *, to: Collection[int] | None = None) -> None:
        """Move everything that an aggregator holds to others, so that each holds about as much.

        Args:
            aggregator: Its index.
            now: Monotonic seconds.
            to: Those that may take it; all others by default.

        Raises:
            ScavengerError: If the model is not known yet, or no other aggregator may take it.
        """
        current, layout = self._current(), self._layout
        assert layout is not None
        sizes = [end - begin for begin, end in layout.buckets]
        try:
            self._ask(drained(current, aggregator, sorted(to or range(layout.aggregators)), sizes), now)
        except ValueError as error:
            raise ScavengerError(str(error)) from None

    def take(self, message: m.MapChanged | m.Migrated) -> None:
        """Handle a report of the sequencer."""
        reported = m.map_of(message.map)
        if self.map is None or reported.number > self.map.number:
            self.map = reported
            log.info("map %d of buckets holds from step %d on", reported.number, reported.since)
        if isinstance(message, m.Migrated) and self._request and self._request.request == message.request:
            self._request = None

    def watch(self, now: float) -> None:
        """Repeat a request that has not ended: the sequencer may be another process, or know nothing of it."""
        if self._request is not None and now - self._asked_s >= _AGAIN_S:
            self._asked_s = now
            self._send(self._request)

    def _current(self) -> BucketMap:
        if self.map is None:
            raise ScavengerError("no worker has built the model yet")
        return self.map

    def _ask(self, holders: Collection[int], now: float) -> None:
        self._numbers += 1
        self._request, self._asked_s = m.Migrate(self._numbers, tuple(holders)), now
        self._send(self._request)
