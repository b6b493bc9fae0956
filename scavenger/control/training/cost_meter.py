"""What a job has cost in this attempt, and what it costs as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scavenger.domain.configuration import Offer
from scavenger.train.supervisor.supervisor import Supervisor

__all__ = ["CostMeter", "WorkerCostMeter"]


class CostMeter(Protocol):
    """Tells both at any time."""

    def spent_usd(self) -> float:
        """Since this attempt began."""

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        """Of all that is paid for now, and of workers that are to join, by the type of their VM."""

    def shared_usd_per_hour(self) -> float:
        """Of what is paid for whatever the number of workers."""

    def reserved_usd(self) -> float:
        """Set aside of the budget for the end of what is paid for."""


class WorkerCostMeter:
    """Where a worker is what is paid for: from its launch until its process has ended."""

    def __init__(self, supervisor: Supervisor, offers: Mapping[str, Offer]) -> None:
        self._supervisor, self._offers = supervisor, offers

    def spent_usd(self) -> float:
        """See `CostMeter.spent_usd`."""
        return (
            sum(seconds * self._price(vm) for vm, seconds in self._supervisor.worker_seconds().items())
            / 3600.0
        )

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        """See `CostMeter.usd_per_hour`."""
        counts = [*self._supervisor.existing.items(), *(joining or {}).items()]
        return sum(count * self._price(vm) for vm, count in counts)

    def shared_usd_per_hour(self) -> float:
        """See `CostMeter.shared_usd_per_hour`."""
        return 0.0

    def reserved_usd(self) -> float:
        """See `CostMeter.reserved_usd`: a process ends at once."""
        return 0.0

    def _price(self, vm: str) -> float:
        return self._offers[vm].price_usd_per_hour
