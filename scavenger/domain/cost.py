"""Prices, itemised cost estimates, and the ledger of what was paid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from scavenger.domain.configuration import Configuration


def _require(name: str, value: float, *, above: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 if above else value >= 0)):
        raise ValueError(f"{name} must be a number {'above' if above else 'of at least'} 0, not {value}")


LIST_DAYS = 30
"""Age from which a list price is told to be old: list prices change a few times a year."""
OLD_DAYS = 90
"""Age from which a choice on GPUs by a price is asked about: it may be wrong by hundreds of dollars a day."""
SPOT_DAYS_MAX = 62
"""Age up to which a spot price is fresh, so that one may decide by it: Google may set a new one every month, Amazon's
move all the time. Of the snapshot's, 628 days old, half are more than 32 % below a later list (docs/costs.md)."""


class Dated:
    """What every price has: where it comes from, of which day it is, and so its age; as text, source and day."""

    __slots__ = ()
    source: str
    dated: date

    def age_days(self, today: date) -> int:
        """Age of the price, whole days."""
        return (today - self.dated).days

    def __str__(self) -> str:
        return f"{self.source}, {self.dated.isoformat()}"


@dataclass(frozen=True, slots=True)
class Price(Dated):
    """Hourly price of a VM or of one unit of a resource.

    An unknown price is represented by None, not by a `Price`; negative numbers, NaN and infinity are refused. 0 is the
    price of what costs nothing more, as a machine that one has.

    Attributes:
        usd_per_hour: US dollars.
        source: Where the price comes from, for the report.
        dated: Date of the price.
    """

    usd_per_hour: float
    source: str
    dated: date

    def __post_init__(self) -> None:
        _require("a price", self.usd_per_hour)

    @property
    def usd(self) -> float:
        """Price of one unit: an hour."""
        return self.usd_per_hour


@dataclass(frozen=True, slots=True)
class ResourceRates:
    """Hourly prices of one vCPU and of one GiB of memory, from which a VM of any size is priced."""

    usd_per_cpu_hour: float
    usd_per_gib_hour: float

    def __post_init__(self) -> None:
        _require("the price of a vCPU", self.usd_per_cpu_hour)
        _require("the price of a GiB", self.usd_per_gib_hour)


@dataclass(frozen=True, slots=True)
class SpotRisk:
    """How often spot VMs are preempted, and how much time each preemption costs the job.

    Attributes:
        interruptions_per_hour: Expected preemptions of one VM.
        pause_s: How long all workers pause: the measured time of a change of the cluster.
        redo_s: How much of the whole cluster's work is repeated: 0 if recovery is exact and no aggregator is lost,
            else half the time between checkpoints.
        replace_s: Time until the replacement of a lost worker trains; until then the others continue without it.
    """

    interruptions_per_hour: float
    pause_s: float = 0.0
    redo_s: float = 0.0
    replace_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("interruptions_per_hour", "pause_s", "redo_s", "replace_s"):
            _require(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class VmExtras:
    """What a VM has that is paid for by the hour beside its type; as text: `with its disk and public address`.

    Attributes:
        disk_usd_per_hour: Price of its boot disk; None if it is not known.
        address_usd_per_hour: Price of its public address; 0 if it has none.
    """

    disk_usd_per_hour: float | None = None
    address_usd_per_hour: float = 0.0

    @property
    def usd_per_hour(self) -> float:
        """Price of both, as far as it is known."""
        return (self.disk_usd_per_hour or 0.0) + self.address_usd_per_hour

    def __str__(self) -> str:
        parts = {"disk": self.disk_usd_per_hour, "public address": self.address_usd_per_hour}
        known = [name for name, usd_per_hour in parts.items() if usd_per_hour]
        return f"with its {' and '.join(known)}" if known else ""


@dataclass(frozen=True, slots=True)
class PricedExtra:
    """Something that is paid for beside VM types, with its price; as text, with source and date.

    Attributes:
        usd: Price of a unit; None if it is not known.
        source: Where the price comes from, with its date; empty if it is not known.
    """

    what: str
    usd: float | None
    unit: Literal["hour", "GiB"]
    source: str

    def __str__(self) -> str:
        if self.usd is None:
            return f"{self.what}: not known, and not counted"
        return f"{self.what} ${self.usd:.6g} per {self.unit} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCosts:
    """The VMs that hold the master copy of the model or lead the job, and the extras of every VM; none by default.

    Attributes:
        aggregators: VMs that hold the master copy; on demand, all the time.
        usd_per_aggregator_hour: Price of one aggregator VM; None only if there are no aggregators.
        disk_gib: Size of each VM's boot disk.
        usd_per_gib_hour: Price of disk; None if unknown, which the estimate then notes.
        usd_per_address_hour, usd_per_spot_address_hour: Price of the public address of a VM on demand, and of a spot
            VM; 0 if VMs have none.
        usd_per_leader_hour: Price of the leader's VM with its extras; 0 if the job is led where it costs nothing.
    """

    aggregators: int = 0
    usd_per_aggregator_hour: float | None = None
    disk_gib: float = 0.0
    usd_per_gib_hour: float | None = None
    usd_per_address_hour: float = 0.0
    usd_per_spot_address_hour: float = 0.0
    usd_per_leader_hour: float = 0.0

    def __post_init__(self) -> None:
        if self.aggregators and self.usd_per_aggregator_hour is None:
            raise ValueError("aggregators need a price: unknown is not 0")
        for name in (
            *("aggregators", "usd_per_aggregator_hour", "disk_gib", "usd_per_gib_hour"),
            *("usd_per_address_hour", "usd_per_spot_address_hour", "usd_per_leader_hour"),
        ):
            if (value := getattr(self, name)) is not None:
                _require(name, value)

    def extras(self, *, spot: bool = False) -> VmExtras:
        """Those of one VM, on demand or spot."""
        disk = None if self.usd_per_gib_hour is None else self.disk_gib * self.usd_per_gib_hour
        return VmExtras(disk, self.usd_per_spot_address_hour if spot else self.usd_per_address_hour)

    @property
    def usd_per_hour(self) -> float:
        """Hourly cost that does not depend on the number of workers: aggregators and leader, with their extras."""
        aggregators = self.aggregators * ((self.usd_per_aggregator_hour or 0.0) + self.extras().usd_per_hour)
        return aggregators + self.usd_per_leader_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """Costs and delays of a job other than its workers' training; none by default.

    Attributes:
        shared: The aggregators and the extras of VMs.
        setup_s: Time from the launch of a VM to the first step of its worker; it is paid for.
        risks: Preemption risk by VM type, for types used as spot VMs; the estimate notes a missing one as unknown.
        ready: Number of VMs of each type that are already set up.
        reserve_s: The cost of all VMs for this time is kept back from the budget, to shut them down.
        elsewhere: Number of workers in another zone than the aggregators, a part of one where only some of these are;
            others are taken to join them there.
        traffic_usd_per_step: Cost of what one of these sends and gets in a step.
        aggregation_usd_per_step: Cost of the processor time that the job's aggregators use of a shared pool in a step;
            None if they are in none.
        sources: All prices that count, with source and date, as text.
        old_prices: Those of VMs with GPUs that are old, as text; empty if there are none.
    """

    shared: SharedCosts = SharedCosts()
    setup_s: float = 0.0
    risks: Mapping[str, SpotRisk] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)
    reserve_s: float = 0.0
    elsewhere: float = 0.0
    traffic_usd_per_step: float = 0.0
    aggregation_usd_per_step: float | None = None
    sources: tuple[str, ...] = ()
    old_prices: str = ""

    def __post_init__(self) -> None:
        for name in ("setup_s", "reserve_s", "elsewhere", "traffic_usd_per_step", "aggregation_usd_per_step"):
            if (value := getattr(self, name)) is not None:
                _require(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """The VMs that a job rents and its training time: the input of a cost estimate.

    Attributes:
        workers: K.
        train_s: Time of undisturbed training.
        usd_per_vm_hour: Price of one of the workers' VMs.
        workers_per_vm: Largest number of workers on one VM.
        spot: Whether the workers' VMs may be preempted.
        risk: Frequency and cost of preemptions; None if unknown.
        setup_s: Time from launch to the first step; paid for, on every VM.
        changes: Number of planned cluster changes: profiled configurations and the move to the chosen one.
        change_s: How long all workers pause at each change.
        shared: The aggregators and the extras of VMs.
        traffic_usd_per_hour: Cost of the traffic between zones.
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
    shared: SharedCosts = SharedCosts()
    traffic_usd_per_hour: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.workers_per_vm < 1:
            raise ValueError("a rental has at least one worker, and at least one on a VM")
        for name in (
            *("train_s", "usd_per_vm_hour", "setup_s"),
            *("changes", "change_s", "traffic_usd_per_hour"),
        ):
            _require(name, getattr(self, name))

    @property
    def vms(self) -> int:
        """Number of VMs that the workers need."""
        return -(-self.workers // self.workers_per_vm)


@dataclass(frozen=True, slots=True)
class CostItem:
    """One item of an estimate; `how` explains its arithmetic."""

    name: str
    usd: float
    how: str


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The expected time and cost of a job.

    Attributes:
        time_s: Time from the first launch to the end.
        items: The costs that are counted.
        not_counted: Costs that the estimate leaves out or that are unknown.
        total_usd: The sum of the items.
    """

    time_s: float
    items: tuple[CostItem, ...]
    not_counted: tuple[str, ...]
    total_usd: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total_usd", math.fsum(item.usd for item in self.items))


@dataclass(frozen=True, slots=True)
class PricedPoint:
    """A configuration with its time and its cost under one pricing scheme."""

    configuration: Configuration
    time_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class PricingCurves:
    """The same configurations, in the same order, under two pricing schemes: per VM, and per vCPU and GiB."""

    by_vm: tuple[PricedPoint, ...]
    by_size: tuple[PricedPoint, ...]


@dataclass(frozen=True, slots=True)
class BilledVm:
    """Billed time and cost of one VM.

    Attributes:
        billed_s: Billed time by the cloud's own timestamps; never below the minimum charge.
        ended: Whether the cloud reports an end time; if not, the VM is billed up to the time of the query.
    """

    instance_id: str
    vm: str
    zone: str
    spot: bool
    billed_s: float
    usd: float
    ended: bool


@dataclass(frozen=True, slots=True)
class VmCosts:
    """The cost of VMs so far.

    Attributes:
        vms: Bills, sorted by instance id.
        unknown: VMs whose start time the cloud does not report: they are paid for, but not in the total.
    """

    vms: tuple[BilledVm, ...] = ()
    unknown: tuple[str, ...] = field(default=())

    @property
    def total_usd(self) -> float:
        """The sum over `vms`."""
        return math.fsum(vm.usd for vm in self.vms)


@dataclass(frozen=True, slots=True)
class TrafficPrice(Dated):
    """Price of data that leaves a zone, for another one of its region, another region or the internet.

    Attributes:
        usd_per_gib: US dollars for a GiB that is sent once, whoever of the two is charged.
        source: Where the price comes from.
        dated: Date of the price.
    """

    usd_per_gib: float
    source: str
    dated: date

    def __post_init__(self) -> None:
        _require("a price", self.usd_per_gib, above=True)

    @property
    def usd(self) -> float:
        """Price of one unit: a GiB."""
        return self.usd_per_gib


Extra = Literal["disk", "address", "spot_address", "zones", "regions", "internet"]
"""What a region charges for besides VM types: a boot disk, a VM's public address, on demand and spot, and traffic to
other zones, other regions and the internet."""
Item = Literal["workers", "vms", "disks", "addresses", "traffic", "share", "leader", "earlier", "pool"]
"""Items of a job's cost, of which none has another's dollars. `workers`: what a job has counted itself that rents
nothing. `vms`, `disks`, `addresses`: its VMs as they are charged, their disks and public addresses. `traffic`: between
zones. `share`: its part of a pool. `leader`: the VM that leads it. `earlier`: what a record that comes from another
store tells. `pool`: the VMs of a pool, with their extras, which jobs pay by their shares."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a job has used of one item, and what that has cost.

    Attributes:
        quantity: Seconds of workers, VMs, disks, addresses, the leader or processors of a pool; GiB of traffic.
        usd: US dollars.
        basis: What is priced, or by which price, as text; empty if the quantity says it.
    """

    quantity: float = 0.0
    usd: float = 0.0
    basis: str = ""

    def __add__(self, other: LedgerEntry) -> LedgerEntry:
        """This and more of the same item."""
        quantity, usd = self.quantity + other.quantity, self.usd + other.usd
        return LedgerEntry(quantity, usd, other.basis or self.basis)

    @property
    def usd_per_hour(self) -> float:
        """Mean price of what is counted in seconds; 0 if there was none."""
        return self.usd / self.quantity * 3600.0 if self.quantity > 0.0 else 0.0
