"""Counts a job's share of the pool of aggregators, and records it for its bill."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict

from scavenger.domain.cost import AggregationShare
from scavenger.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError
from scavenger.store import Store

_RECORD_S = 60.0

_KIND = "aggregation"
"""Kind of the event that holds a job's share so far."""


def recorded_share(store: Store, job_id: str) -> AggregationShare:
    """What all attempts of a job have used of the pool, as far as recorded."""
    found = store.events(job_id, limit=1, kind=_KIND)
    if not found:
        return AggregationShare()
    data = found[0].data
    return AggregationShare(float(data["cpu_s"]), float(data["usd"]), float(data["usd_per_cpu_hour"]))


def record_share(store: Store, job_id: str, share: AggregationShare) -> None:
    """Record what all attempts of a job have used.

    Raises:
        StoreBusyError, StoreReadOnlyError, StoreUnavailableError: Try again later.
    """
    text = f"{share.cpu_s:.4g} processor-seconds of the pool: ${share.usd:.4f}"
    with store.together():
        store.add_event(job_id, _KIND, text, data=asdict(share), replacing=True)
        store.book(job_id, "share", share.usd)


class ShareMeter:
    """What one attempt of a job has used of a pool.

    Args:
        store: Records it, with what earlier attempts have used.
        clock: Monotonic seconds.

    Attributes:
        share: As noted last.
    """

    def __init__(self, store: Store, job_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._job_id, self._clock = store, job_id, clock
        self._before = self._recorded = recorded_share(store, job_id)
        self._recorded_at = -math.inf
        self._first: tuple[int, float] | None = None  # a step, and what had been used for starting until then
        self.share = AggregationShare()

    def note(self, share: AggregationShare, step: int | None) -> None:
        """Note what has been used by now.

        Args:
            step: The last step; None before the first one of this attempt, or while there is no new one.
        """
        self.share = share
        if step is not None and self._first is None:
            self._first = step, share.usd
        if self._clock() - self._recorded_at >= _RECORD_S:
            self.record()

    def usd_per_step(self, step: int) -> float | None:
        """What a step has cost since the first one of this attempt; None before the second.

        Args:
            step: The last step.
        """
        if self._first is None or step <= self._first[0]:
            return None
        return (self.share.usd - self._first[1]) / (step - self._first[0])

    def record(self) -> None:
        """Record what all attempts have used; what the store does not take is recorded the next time."""
        total = self._before.with_share(self.share)
        if total == self._recorded:
            return
        with contextlib.suppress(StoreBusyError, StoreReadOnlyError, StoreUnavailableError):
            record_share(self._store, self._job_id, total)
            self._recorded, self._recorded_at = total, self._clock()
