"""Prices, itemised estimates, and what was paid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from scavenger.domain.configuration import Configuration

__all__ = [
    "BilledVm",
    "CostEstimate",
    "CostItem",
    "CostTerms",
    "Ledger",
    "Price",
    "PricedPoint",
    "PricingCurves",
    "Rental",
    "ResourceRates",
    "SpotRisk",
]


def _require(name: str, value: float, *, above: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 if above else value >= 0)):
        raise ValueError(f"{name} must be a number {'above' if above else 'of at least'} 0, not {value}")


@dataclass(frozen=True, slots=True)
class Price:
    """What is asked for a VM, or for one unit of a resource, in an hour.

    An unknown price is no `Price`; 0, negative numbers, NaN and infinity are refused.

    Attributes:
        usd_per_hour: US dollars.
        source: Who says so, for the report.
        dated: When they said it.
    """

    usd_per_hour: float
    source: str
    dated: date

    def __post_init__(self) -> None:
        _require("a price", self.usd_per_hour, above=True)

    def age_days(self, today: date) -> int:
        """Whole days since it was valid."""
        return (today - self.dated).days

    def __str__(self) -> str:
        return f"{self.source}, {self.dated.isoformat()}"


@dataclass(frozen=True, slots=True)
class ResourceRates:
    """Price of a VM of any size: so much for each vCPU and for each GiB of memory, in an hour."""

    usd_per_cpu_hour: float
    usd_per_gib_hour: float

    def __post_init__(self) -> None:
        _require("the price of a vCPU", self.usd_per_cpu_hour)
        _require("the price of a GiB", self.usd_per_gib_hour)


@dataclass(frozen=True, slots=True)
class SpotRisk:
    """How often the cloud takes a VM, and what that costs the job.

    Attributes:
        interruptions_per_hour: Of one VM.
        pause_s: All workers stand still that long: the measured time of a change of the cluster.
        redo_s: Of the whole cluster's work is done again: none where recovery is exact and no aggregator is lost, else
            half the time between checkpoints.
        replace_s: Until a lost worker's successor works; until then the others go on without it.
    """

    interruptions_per_hour: float
    pause_s: float = 0.0
    redo_s: float = 0.0
    replace_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("interruptions_per_hour", "pause_s", "redo_s", "replace_s"):
            _require(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """What a job pays beside the training of its workers, and what holds it up; by default nothing.

    Attributes:
        aggregators: VMs that hold the master copy; on demand, all the time.
        usd_per_aggregator_hour: Of one of them; None only where there is none.
        disk_gib: Of the boot disk of each VM.
        usd_per_gib_hour: Of disk; None where it is not known, which is then said.
        setup_s: From the launch of a VM to the first step of its worker; it is paid for.
        risks: By VM type, of those whose workers are spot VMs; one that is missing is not known, which is then said.
        ready: VMs of each type whose set-up is behind.
        reserve_s: Of the budget, what all VMs cost for so long is kept for their end, and cannot be planned with.
    """

    aggregators: int = 0
    usd_per_aggregator_hour: float | None = None
    disk_gib: float = 0.0
    usd_per_gib_hour: float | None = None
    setup_s: float = 0.0
    risks: Mapping[str, SpotRisk] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)
    reserve_s: float = 0.0

    def __post_init__(self) -> None:
        if self.aggregators and self.usd_per_aggregator_hour is None:
            raise ValueError("aggregators need a price: unknown is not 0")
        for name in (
            "aggregators",
            "usd_per_aggregator_hour",
            "disk_gib",
            "usd_per_gib_hour",
            "setup_s",
            "reserve_s",
        ):
            if (value := getattr(self, name)) is not None:
                _require(name, value)

    @property
    def disk_usd_per_hour(self) -> float:
        """Of one VM; 0 where it is not known."""
        return self.disk_gib * (self.usd_per_gib_hour or 0.0)

    @property
    def fixed_usd_per_hour(self) -> float:
        """However many workers there are: the aggregators, with their disks."""
        return self.aggregators * ((self.usd_per_aggregator_hour or 0.0) + self.disk_usd_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """What a job rents, and for how long it works.

    Attributes:
        workers: K.
        train_s: Of undisturbed training.
        usd_per_vm_hour: Of one of the workers' VMs.
        workers_per_vm: Most workers on one VM.
        spot: Whether the workers' VMs may be taken.
        risk: How often, and what it costs; None where it is not known.
        setup_s: From launch to the first step; paid for, on every VM.
        changes: Changes of the cluster that are planned: profiled configurations and the move to the choice.
        change_s: All workers stand still that long at each.
        aggregators: VMs that hold the master copy; on demand, all the time.
        usd_per_aggregator_hour: Of one of them; None only where there is none.
        disk_gib: Of each VM's boot disk.
        usd_per_gib_hour: Of disk; None where it is not known.
    """

    workers: int
    train_s: float
    usd_per_vm_hour: float
    workers_per_vm: int = 1
    spot: bool = False
    risk: SpotRisk | None = None
    setup_s: float = 0.0
    changes: int = 0
    change_s: float = 0.0
    aggregators: int = 0
    usd_per_aggregator_hour: float | None = None
    disk_gib: float = 0.0
    usd_per_gib_hour: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.workers_per_vm < 1:
            raise ValueError("a rental has at least one worker, and at least one on a VM")
        if self.aggregators and self.usd_per_aggregator_hour is None:
            raise ValueError("aggregators need a price: unknown is not 0")
        for name in (
            "train_s",
            "usd_per_vm_hour",
            "setup_s",
            "changes",
            "change_s",
            "aggregators",
            "disk_gib",
        ):
            _require(name, getattr(self, name))
        for name in ("usd_per_aggregator_hour", "usd_per_gib_hour"):
            if (value := getattr(self, name)) is not None:
                _require(name, value)

    @property
    def vms(self) -> int:
        """Of the workers."""
        return -(-self.workers // self.workers_per_vm)


@dataclass(frozen=True, slots=True)
class CostItem:
    """One line of an estimate; `how` is its arithmetic, in words."""

    name: str
    usd: float
    how: str


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What a job is expected to take.

    Attributes:
        time_s: From the first launch to the end.
        items: What is counted.
        not_counted: What is paid for and not in it, or not known.
    """

    time_s: float
    items: tuple[CostItem, ...]
    not_counted: tuple[str, ...]

    @property
    def total_usd(self) -> float:
        """The sum of the items."""
        return math.fsum(item.usd for item in self.items)


@dataclass(frozen=True, slots=True)
class PricedPoint:
    """A configuration with its time and what that costs under one way of pricing."""

    configuration: Configuration
    time_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class PricingCurves:
    """The same configurations, in the same order, priced by the VM and by vCPU and GiB."""

    by_vm: tuple[PricedPoint, ...]
    by_size: tuple[PricedPoint, ...]


@dataclass(frozen=True, slots=True)
class BilledVm:
    """What one VM was paid for.

    Attributes:
        billed_s: By the cloud's own timestamps, at least the minimum.
        ended: Whether the cloud has said when it ended; else it is billed up to the time of asking.
    """

    instance_id: str
    vm: str
    zone: str
    spot: bool
    billed_s: float
    usd: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was paid for VMs.

    Attributes:
        vms: By instance id.
        unknown: VMs whose start the cloud does not tell: paid for, and not in the total.
    """

    vms: tuple[BilledVm, ...] = ()
    unknown: tuple[str, ...] = field(default=())

    @property
    def total_usd(self) -> float:
        """The sum over `vms`."""
        return math.fsum(vm.usd for vm in self.vms)
