"""What the server's metrics tell of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job that has not ended.

    Attributes:
        price_usd_per_hour: Of the VMs that it has now; 0 on this machine.
        steps: Steps that were applied.
        workers: Workers that have not ended.
        budget_usd: None if it has no budget.
    """

    id: str
    name: str
    created_at: datetime
    cost_usd: float
    price_usd_per_hour: float
    steps: int
    workers: int
    budget_usd: float | None


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of what is on record.

    Attributes:
        jobs: By state.
        submissions: By state.
        notifications: By webhook and state.
        vms: VMs that may be paid for, by provider, region and state.
    """

    jobs: Mapping[str, int]
    submissions: Mapping[str, int]
    vms: Mapping[tuple[str, str, str], int]
    live: tuple[LiveJob, ...]
    notifications: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class VmSums:
    """What is on record of the VMs of one job: as long as it is the same, so is their bill, if none is living.

    Attributes:
        count: VMs that were ever wanted.
        living: Those that are not gone.
        seconds, usd: What was counted of all, seconds and US dollars.
        settled: Those whose end the cloud has reported.
    """

    count: int
    living: int
    seconds: float
    usd: float
    settled: int
