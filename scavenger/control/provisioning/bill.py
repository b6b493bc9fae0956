"""The bill of a job: its actual cost from the records, compared with the prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec
import numpy as np

from scavenger.domain.cost import CostEstimate, CostItem, Item, LedgerEntry, ResourceRates
from scavenger.domain.curve import TradeoffCurve
from scavenger.domain.document import estimate_from_document
from scavenger.domain.intent import Intent
from scavenger.domain.report import Predicted
from scavenger.domain.vm import VmSeen
from scavenger.models.cost import BILLED_MIN_S, NEVER_COUNTED, ledger, pricing_curves
from scavenger.policy.provisioning.slots import LEADER_SLOT, is_for_aggregators
from scavenger.presentation.formatting import plural
from scavenger.search.curve import repriced
from scavenger.store.records import LIVE_STATES, JobRecord

Basis = Literal["cloud", "counted", "bound"]


@dataclass(frozen=True, slots=True)
class VmCost:
    """Cost of one VM.

    Attributes:
        instance_id: Id of the VM; empty if its launch was never answered.
        role: `aggregator`, `worker` or `leader`.
        billed_s: Billed time; at least a minute if the VM ran.
        usd: Cost without disk and address.
        disk_usd: Cost of the disk; None if the price of disks is unknown.
        address_usd: Cost of the public address; 0 if it has none.
        basis: `cloud`: by the cloud's own timestamps. `counted`: by the local clock, from before the launch until the
            VM was seen gone, as the cloud did not report both times. `bound`: the most that it may have cost, as its
            end, or whether it ever was, is not known.
        ended: Whether the VM is no longer paid for.
        ending: Why it ended.
    """

    instance_id: str
    vm: str
    zone: str
    spot: bool
    role: str
    billed_s: float
    usd: float
    disk_usd: float | None
    address_usd: float
    basis: Basis
    ended: bool
    ending: str

    @property
    def cost_usd(self) -> float:
        """Cost with disk and address, as far as it is known."""
        return self.usd + (self.disk_usd or 0.0) + self.address_usd


@dataclass(frozen=True, slots=True)
class Paid:
    """Cost of a job's VMs.

    Attributes:
        vms: VMs in the order of their launches; failed launches are left out.
        not_counted: Costs that are not included or unknown.
    """

    vms: tuple[VmCost, ...]
    not_counted: tuple[str, ...]

    @property
    def items(self) -> tuple[CostItem, ...]:
        """Items for aggregators, workers and leaders, on demand and spot, and for disks and public addresses."""
        items = []
        for role in ("worker", "aggregator", "leader"):
            for spot in (False, True):
                vms = [vm for vm in self.vms if (vm.role, vm.spot) == (role, spot)]
                if vms:
                    hours = math.fsum(vm.billed_s for vm in vms) / 3600.0
                    kind = "spot" if spot else "on demand"
                    how = f"{plural(len(vms), 'VM')}, {hours:.4g} VM-hours"
                    items.append(CostItem(f"{role}s, {kind}", math.fsum(vm.usd for vm in vms), how))
        disks = [vm.disk_usd for vm in self.vms if vm.disk_usd is not None]
        addresses = [vm.address_usd for vm in self.vms if vm.address_usd]
        if math.fsum(disks):
            items.append(CostItem("disks", math.fsum(disks), f"{len(disks)} boot disks"))
        if addresses:
            items.append(CostItem("addresses", math.fsum(addresses), f"{len(addresses)} public addresses"))
        return tuple(items)

    @property
    def total_usd(self) -> float:
        """The sum of the items."""
        return math.fsum(item.usd for item in self.items)


@dataclass(frozen=True, slots=True)
class JobCost:
    """Predicted and actual cost of a job.

    Attributes:
        predicted: Prediction for the whole run, made at the time of the choice.
        estimate: Itemized estimate for the chosen configuration; None if the report has none.
        actual_usd: Actual cost up to now or to the end; None if nothing was recorded.
        items: Items of `actual_usd`.
        vms: Costs of the VMs, also of those that it rented where it was led; empty if the job used no cloud VMs.
        how: Describes how the actual cost was determined.
        not_counted: Costs that are not included or unknown.
        created_at: Begin of the job.
        alive: Whether its process lives.
        has_runner: Whether a server runs it, or will again.
    """

    job_id: str
    name: str
    state: str
    predicted: Predicted | None
    estimate: CostEstimate | None
    actual_usd: float | None
    items: tuple[CostItem, ...]
    vms: tuple[VmCost, ...]
    how: str
    not_counted: tuple[str, ...]
    created_at: datetime
    alive: bool = False
    has_runner: bool = False

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state not in LIVE_STATES


def counted_usd(intents: Iterable[Intent]) -> float:
    """Cost of VMs as the reconciler has counted it up to now, and for ended ones settled by the cloud's times."""
    return math.fsum(one.charges.cost_usd for one in intents)


def paid_for(intents: Iterable[Intent], *, at: datetime) -> Paid:
    """Compute the cost of VMs up to a time.

    A VM whose start and end the cloud has reported is billed by these times, at the mean price while it ran. A running
    VM is billed from its launch to `at` (`ledger`), a spot VM at the mean price so far; one that is not heard any more,
    and whose end was not seen, to when it has ended itself. For all others, the locally counted cost is used.

    Args:
        intents: Intents from the store.
        at: With a time zone.

    Raises:
        ConfigurationError: If an intent has an absurd price.
    """
    vms, not_counted = [], []
    for intent in intents:
        never = not intent.instance_id and (intent.state == "GONE" or not intent.asked)
        if never and not intent.charges.spent_usd:
            continue
        one = _cost_of(intent, at)
        vms.append(one)
        if one.basis != "cloud":
            not_counted.append(_reservation(intent, one))
    if any(vm.disk_usd is None for vm in vms):
        not_counted.append("boot disks whose price is not known")
    return Paid(tuple(vms), (*not_counted, *NEVER_COUNTED))


def _reservation(intent: Intent, cost: VmCost) -> str:
    """What is not known of a VM that the cloud's times do not bill."""
    if not intent.instance_id:
        return f"the launch of intent {intent.id[:8]}: whether it became a VM is not known; at most ${cost.usd:.4f}"
    if cost.basis == "bound":
        return f"{intent.instance_id}: its end was not seen, and it ends itself; at most ${cost.usd:.4f}"
    return f"{intent.instance_id}: the cloud did not report its times; counted by the local clock"


def _cost_of(intent: Intent, at: datetime) -> VmCost:
    request, times, extras = intent.request, intent.times, intent.charges.extras
    seconds, usd = intent.charges.billed_s, intent.charges.spent_usd
    basis: Basis = "counted" if intent.instance_id else "bound"
    if times.launched_at is not None and times.ended_at is not None and intent.state == "GONE":
        basis = "cloud"
    elif times.launched_at is not None and intent.state != "GONE":
        basis = "cloud"
        ended_by = intent.ends_itself_by
        if intent.slot != LEADER_SLOT and ended_by is not None and ended_by < at:
            at, basis = ended_by, "bound"
        seen = VmSeen(
            intent.instance_id,
            request.vm,
            request.zone,
            request.spot,
            "running",
            launched_at=times.launched_at,
            ended_at=times.ended_at,
        )
        usd_per_hour = intent.charges.price_usd_per_hour
        if request.spot and seconds >= BILLED_MIN_S:  # the mean of what was read
            usd_per_hour = usd / seconds * 3600.0 or usd_per_hour
        price = {(request.vm, request.zone, request.spot): usd_per_hour}
        least_s = BILLED_MIN_S if times.taken_at is None else 0.0
        (billed,) = ledger([seen], price, at=at, billed_min_s=least_s).vms
        if basis == "cloud" or seconds < billed.billed_s:  # else it was listed for longer than it was heard
            seconds, usd = billed.billed_s, billed.usd
    return VmCost(
        instance_id=intent.instance_id,
        vm=request.vm,
        zone=request.zone,
        spot=request.spot,
        role=_role(intent.slot),
        billed_s=seconds,
        usd=usd,
        disk_usd=None
        if extras.disk_usd_per_hour is None
        else extras.disk_usd_per_hour * (seconds + intent.charges.disk_after_s) / 3600.0,
        address_usd=extras.address_usd_per_hour * seconds / 3600.0,
        basis=basis,
        ended=intent.state == "GONE",
        ending=intent.ending.replace("_", " "),
    )


def _role(slot: int) -> str:
    if slot == LEADER_SLOT:
        return "leader"
    return "aggregator" if is_for_aggregators(slot) else "worker"


def priced_both(
    curve: TradeoffCurve,
    *,
    usd_per_vm_hour: float | None,
    rates: ResourceRates,
    cpus: Callable[[str], float],
    memory_gib: Callable[[float], float],
) -> tuple[TradeoffCurve, TradeoffCurve]:
    """A curve priced by the VM and by vCPU and GiB: figures 10 and 12 of Scavenger (`pricing_curves`).

    Args:
        curve: Predicted times.
        usd_per_vm_hour: Price of one worker's VM; None to keep the curve's costs as the costs by the VM.
        rates: Prices of a vCPU and a GiB.
        cpus: Returns the number of vCPUs of a worker on a VM type.
        memory_gib: Returns a worker's memory need for a local batch of the given number of samples.

    Returns:
        The same points in the same order, each with the front and the knee of its costs.
    """
    by_vm, by_size = np.array(curve.cost_usd), np.full(len(curve), np.inf)
    times = np.isfinite(curve.time_s)
    for index, vm in enumerate(curve.configurations.vms):
        where = np.flatnonzero(times & (curve.configurations.vm_index == index))
        priced = pricing_curves(
            [(curve[i].configuration, float(curve.time_s[i])) for i in where.tolist()],
            usd_per_vm_hour=usd_per_vm_hour or 0.0,
            rates=rates,
            cpus=cpus(vm),
            memory_gib=memory_gib,
        )
        by_size[where] = [point.cost_usd for point in priced.by_size]
        if usd_per_vm_hour is not None:
            by_vm[where] = [point.cost_usd for point in priced.by_vm]
    return repriced(curve, by_vm), repriced(curve, by_size)


def job_cost(
    job: JobRecord,
    intents: Sequence[Intent],
    *,
    at: datetime,
    entries: Mapping[Item, LedgerEntry] | None = None,
) -> JobCost:
    """Compute the predicted and actual cost of a job.

    Args:
        job: The job's record, with its report if it has ended.
        intents: Intents of this job.
        at: With a time zone.
        entries: What the ledger has of the job. VMs and their extras are billed by the intents instead.

    Raises:
        ConfigurationError: As `paid_for`.
    """
    paid = paid_for(intents, at=at)
    noted = {} if entries is None else {item: one for item, one in entries.items() if one.usd or one.quantity}
    if "infra" not in job.spec and not noted.get("earlier", LedgerEntry()).basis:
        noted.pop("earlier", None)  # it ran on the machine of another store, by workers alone
    others = {item: one for item, one in noted.items() if item not in _BY_VMS}
    not_counted = [words for item, words in _NOT_COUNTED.items() if item in others]
    led = "leader" in others and others["leader"].basis  # a leader waits for VMs, and may never get one
    items: tuple[CostItem, ...]
    if paid.vms or led:
        counted = any(vm.basis != "cloud" for vm in paid.vms)
        how = "VMs by the cloud's own timestamps, at least a minute each"
        how += ", except those named below" if counted else ""
        if any(not vm.ended for vm in paid.vms):
            how += "; some still run and are paid for"
        items, not_counted = paid.items, [*paid.not_counted, *not_counted]
        if "workers" in noted:  # of an attempt that rented nothing
            items = (*items, CostItem("workers", noted["workers"].usd, _WORKERS))
    else:
        counted_usd = job.cost_usd if job.actual is None else job.actual.cost_usd
        own = (one.usd for item, one in others.items() if item != "leader")
        price = None if others else _price_of(job.report)  # its prediction includes the others
        items, how = _of_workers(None if counted_usd is None else counted_usd - sum(own), price)
        here = "coordinator, which runs" if "share" in others else "aggregators and coordinator, which run"
        not_counted = [f"{here} on this machine too", *NEVER_COUNTED, *not_counted]
        if "earlier" in others or "leader" in others:
            how, not_counted = _ELSEWHERE, [*NEVER_COUNTED]
            how += ", and its leader's VM by the cloud's own times" if "leader" in others else ""
            items = tuple(one for one in items if one.usd > _ROUNDING_USD)
    items = (*items, *(_item(item, others[item]) for item in _ITEMS if item in others))
    return JobCost(
        job_id=job.id,
        name=job.name,
        state=job.state,
        predicted=job.predicted,
        estimate=estimate_from_document(job.report) if job.report else None,
        actual_usd=math.fsum(item.usd for item in items) if items else None,
        items=items,
        vms=paid.vms or _vms_there(job.report),
        how=how,
        not_counted=tuple(not_counted),
        created_at=job.created_at,
    )


def with_vms(report: Mapping[str, Any] | None, vms: tuple[VmCost, ...]) -> dict[str, Any] | None:
    """The report of a job that was led elsewhere, with the VMs that it rented there."""
    return None if report is None else {**report, _THERE: msgspec.to_builtins(vms)}


def _vms_there(report: Mapping[str, Any] | None) -> tuple[VmCost, ...]:
    return msgspec.convert((report or {}).get(_THERE, ()), tuple[VmCost, ...])


_THERE = "vms"
_BY_VMS: tuple[Item, ...] = ("workers", "vms", "disks", "addresses")
_ITEMS: tuple[Item, ...] = ("earlier", "traffic", "leader", "share", "pool")
"""Items in the order of a bill, after workers and VMs with their extras."""
_NOT_COUNTED: Mapping[Item, str] = {
    "leader": "the leader's VM after the end of the job",
    "share": "what the pool's nodes cost while no job used them",
}
_ROUNDING_USD = 1e-9


def _item(item: Item, entry: LedgerEntry) -> CostItem:
    """What the ledger has of an item, in words."""
    rate = f"${entry.usd_per_hour:.6g} per hour"
    match item:
        case "traffic":
            return CostItem("traffic between zones", entry.usd, f"{entry.quantity:.4g} GiB at {entry.basis}")
        case "leader" if entry.basis:
            hours = f"{entry.basis}, {entry.quantity / 3600:.4g} VM-hours at {rate}"
            return CostItem(LEADER_ITEM, entry.usd, hours)
        case "leader":
            return CostItem("leader's VM, not counted by the job", entry.usd, _AFTERWARDS)
        case "share":
            used = f"{entry.quantity:.4g} processor-seconds at {rate}"
            return CostItem("aggregators in the pool", entry.usd, used)
        case "earlier" if entry.basis:
            hours = f"{entry.basis}; {entry.quantity / 3600:.4g} VM-hours"
            return CostItem("VMs, disks and traffic, as the leader counted", entry.usd, hours)
        case _:
            return CostItem(_NAMES.get(item, item), entry.usd, "as its record tells")


LEADER_ITEM = "leader, on demand"
_NAMES = {"earlier": "counted by the job where it ran before", "pool": "nodes of the pool"}


def _of_workers(actual_usd: float | None, price: float | None) -> tuple[tuple[CostItem, ...], str]:
    """Cost of a job whose workers did not run on cloud VMs, with its basis."""
    if actual_usd is None:
        return (), "nothing was recorded"
    if not price:
        return (CostItem("workers", actual_usd, _WORKERS),), _COUNTED
    how = f"{actual_usd / price:.4g} worker-hours at ${price:.6g} per hour"
    return (CostItem("workers", actual_usd, how),), f"{_COUNTED}; the price is that of its prediction"


_AFTERWARDS = "from its launch until it ended, by the cloud's own times, less what the job has counted of it"
_ELSEWHERE = "counted by the job itself where it ran"
_WORKERS = "worker-seconds x price, as the job counted"
_COUNTED = "counted by the job itself, worker-seconds x price of its offer"


def _price_of(report: Mapping[str, Any] | None) -> float | None:
    """Predicted US dollars per worker and hour of the chosen point; None if unknown."""
    chosen = (report or {}).get("choice")
    if report is None or not chosen:
        return None
    key = [chosen[name] for name in _DESIGN_POINT_KEYS]
    for point in report.get("curve") or ():
        if [point[name] for name in _DESIGN_POINT_KEYS] == key and point["time_s"] and point["cost_usd"]:
            return float(point["cost_usd"] / point["time_s"] * 3600.0 / point["workers"])
    return None


_DESIGN_POINT_KEYS = ("vm", "workers", "global_batch_size")
