"""Cost meters: the cost of a job's current attempt, and its present rate."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
    """Cost meter of a job that pays for workers, from a worker's launch to the end of its process.

    Args:
        offers: By VM type.
        share: Meters what its aggregators use of a pool's processors, which it pays for, too; None if they use none.
    """

    def __init__(
        self,
        supervisor: JobSupervisor,
        offers: Mapping[str, Offer],
        share: ItemMeter | None = None,
    ) -> None:
        self._supervisor, self._offers = supervisor, offers
        self._share, self._since = share, time.monotonic()

    def spent_usd(self) -> float:
        seconds = self._supervisor.worker_seconds().items()
        return sum(lived_s * self._price(vm) for vm, lived_s in seconds) / 3600.0 + self._shared_usd

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        counts = [*self._supervisor.existing.items(), *(joining or {}).items()]
        return sum(count * self._price(vm) for vm, count in counts) + self.shared_usd_per_hour()

    def shared_usd_per_hour(self) -> float:
        """See `CostMeter.shared_usd_per_hour`: the mean of this attempt."""
        return self._shared_usd / max(1.0, time.monotonic() - self._since) * 3600.0

    def reserved_usd(self) -> float:
        """See `CostMeter.reserved_usd`; 0, since a process ends at once."""
        return 0.0

    @property
    def _shared_usd(self) -> float:
        return 0.0 if self._share is None else self._share.attempt.usd

    def _price(self, vm: str) -> float:
        return self._offers[vm].price_usd_per_hour
