"""Cost meters: the cost of a job's current attempt, and its present rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from scavenger.control.training.item_meter import ItemMeter
from scavenger.domain.configuration import Offer
from scavenger.train.supervisor.face import JobSupervisor


class CostMeter(Protocol):
    """Measures the cost of an attempt and its present rate."""

    def spent_usd(self) -> float:
        """Cost since this attempt began."""

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        """Present rate, including workers that are to join, given by VM type."""

    def shared_usd_per_hour(self) -> float:
        """Part of the rate that does not depend on the number of workers."""

    def reserved_usd(self) -> float:
        """Part of the budget reserved for ending what is paid for."""


class WorkerCostMeter:
    """Cost meter of a job that pays for workers only, from a worker's launch to the end of its process."""

    def __init__(self, supervisor: JobSupervisor, offers: Mapping[str, Offer]) -> None:
        self._supervisor, self._offers = supervisor, offers

    def spent_usd(self) -> float:
        return (
            sum(seconds * self._price(vm) for vm, seconds in self._supervisor.worker_seconds().items())
            / 3600.0
        )

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        counts = [*self._supervisor.existing.items(), *(joining or {}).items()]
        return sum(count * self._price(vm) for vm, count in counts)

    def shared_usd_per_hour(self) -> float:
        return 0.0

    def reserved_usd(self) -> float:
        """See `CostMeter.reserved_usd`; 0, since a process ends at once."""
        return 0.0

    def _price(self, vm: str) -> float:
        return self._offers[vm].price_usd_per_hour


class PooledCostMeter(WorkerCostMeter):
    """Cost meter of a job that also pays for what its aggregators use of a pool's processors.

    Args:
        offers: By VM type.
        share: Meters that.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        supervisor: JobSupervisor,
        offers: Mapping[str, Offer],
        share: ItemMeter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(supervisor, offers)
        self._share, self._clock, self._since = share, clock, clock()

    def spent_usd(self) -> float:
        return super().spent_usd() + self._share.attempt.usd

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        return super().usd_per_hour(joining) + self.shared_usd_per_hour()

    def shared_usd_per_hour(self) -> float:
        """See `CostMeter.shared_usd_per_hour`: the mean of this attempt."""
        return self._share.attempt.usd / max(1.0, self._clock() - self._since) * 3600.0
