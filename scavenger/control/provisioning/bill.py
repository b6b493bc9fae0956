"""What a job has cost, beside what was predicted: records in, sums out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np

from scavenger.domain.cost import CostEstimate, CostItem, ResourceRates
from scavenger.domain.curve import TradeoffCurve
from scavenger.domain.document import estimate_from_document
from scavenger.domain.intent import Intent
from scavenger.domain.report import Predicted
from scavenger.domain.vm import VmSeen
from scavenger.models.cost import NEVER_COUNTED, ledger, pricing_curves
from scavenger.policy.provisioning.slots import AGGREGATOR_SLOT
from scavenger.search.curve import repriced
from scavenger.store.records import JobRecord

__all__ = ["JobCost", "Paid", "VmCost", "job_cost", "paid_for", "priced_both"]

Basis = Literal["cloud", "counted"]
DiskPrices = Mapping[tuple[str, str], float | None]
"""US dollars per GiB and hour by (provider, region); None where it is not known."""


@dataclass(frozen=True, slots=True)
class VmCost:
    """What one VM was paid for.

    Attributes:
        instance_id: Empty where a launch was never answered.
        role: `aggregator` or `worker`.
        billed_s: At least a minute, if it ever ran.
        usd: Without its disk.
        disk_usd: None where the price of disks is not known.
        basis: `cloud`: by the cloud's own timestamps. `counted`: by this side's clock, from before the launch until the
            VM was seen gone; the cloud did not tell both times.
        ended: Whether it is paid for no more.
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
    basis: Basis
    ended: bool
    ending: str


@dataclass(frozen=True, slots=True)
class Paid:
    """What was paid for VMs.

    Attributes:
        vms: In the order in which they were asked for; launches that came to nothing are left out.
        not_counted: What is paid for and not in it, or not known.
    """

    vms: tuple[VmCost, ...]
    not_counted: tuple[str, ...]

    @property
    def items(self) -> tuple[CostItem, ...]:
        """Aggregators and workers, on demand and spot, and disks."""
        items = []
        for role in ("worker", "aggregator"):
            for spot in (False, True):
                vms = [vm for vm in self.vms if (vm.role, vm.spot) == (role, spot)]
                if vms:
                    hours = math.fsum(vm.billed_s for vm in vms) / 3600.0
                    kind = "spot" if spot else "on demand"
                    how = f"{len(vms)} {'VM' if len(vms) == 1 else 'VMs'}, {hours:.4g} VM-hours"
                    items.append(CostItem(f"{role}s, {kind}", math.fsum(vm.usd for vm in vms), how))
        disks = [vm.disk_usd for vm in self.vms if vm.disk_usd is not None]
        if math.fsum(disks):
            items.append(CostItem("disks", math.fsum(disks), f"{len(disks)} boot disks"))
        return tuple(items)

    @property
    def total_usd(self) -> float:
        """The sum of the items."""
        return math.fsum(item.usd for item in self.items)


@dataclass(frozen=True, slots=True)
class JobCost:
    """What was predicted of a job and what it has come to.

    Attributes:
        predicted: Of the whole run, as at the moment of the choice.
        estimate: Of the configuration that was chosen, itemised; None where the report has none.
        actual_usd: Up to now, or to the end; None where nothing was recorded.
        items: Of `actual_usd`.
        vms: Empty where the job ran on none of a cloud's.
        how: How the actual cost is known, in words.
        not_counted: What is paid for and not in it, or not known.
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


def paid_for(intents: Iterable[Intent], *, at: datetime, disk_prices: DiskPrices | None = None) -> Paid:
    """What VMs have cost up to a time.

    A VM whose both times the cloud has told is billed by them, at the mean price that was charged while it ran. One
    that still runs is billed from its launch to `at` (`ledger`). Of the others what was counted stands.

    Args:
        intents: As the store has them.
        at: With a time zone.
        disk_prices: Of boot disks.

    Raises:
        ConfigurationError: If an intent has an absurd price.
    """
    prices = disk_prices or {}
    vms, not_counted = [], []
    for intent in intents:
        never = not intent.instance_id and (intent.state == "GONE" or not intent.asked)
        if never and not intent.spent_usd:
            continue
        one = _cost_of(intent, at, prices.get((intent.provider, intent.region)))
        vms.append(one)
        if one.basis == "counted":
            name = intent.instance_id or f"the launch of intent {intent.id[:8]}"
            not_counted.append(f"{name}: the cloud did not tell its times; counted by this side's clock")
    if any(vm.disk_usd is None for vm in vms):
        not_counted.append("boot disks whose price is not known")
    return Paid(tuple(vms), (*not_counted, *NEVER_COUNTED))


def _cost_of(intent: Intent, at: datetime, disk_usd_per_gib_hour: float | None) -> VmCost:
    request = intent.request
    seconds, usd = intent.billed_s, intent.spent_usd
    basis: Basis = "counted"
    if intent.launched_at is not None and intent.ended_at is not None and intent.state == "GONE":
        basis = "cloud"
    elif intent.launched_at is not None and intent.state != "GONE":
        seen = VmSeen(
            intent.instance_id,
            request.vm,
            request.zone,
            request.spot,
            "running",
            launched_at=intent.launched_at,
            ended_at=intent.ended_at,
        )
        price = {(request.vm, request.zone, request.spot): intent.price_usd_per_hour}
        (billed,) = ledger([seen], price, at=at).vms
        seconds, usd = billed.billed_s, billed.usd
        basis = "cloud"
    return VmCost(
        instance_id=intent.instance_id,
        vm=request.vm,
        zone=request.zone,
        spot=request.spot,
        role="aggregator" if intent.slot == AGGREGATOR_SLOT else "worker",
        billed_s=seconds,
        usd=usd,
        disk_usd=None
        if disk_usd_per_gib_hour is None
        else request.disk_gib * disk_usd_per_gib_hour * seconds / 3600.0,
        basis=basis,
        ended=intent.state == "GONE",
        ending=intent.ending.replace("_", " "),
    )


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
        usd_per_vm_hour: Of one worker's VM; None: the costs by the VM are those of the curve.
        rates: Of a vCPU and a GiB.
        cpus: Of a worker on a VM type.
        memory_gib: What a worker needs for a local batch of so many samples.

    Returns:
        The same points in the same order, each with the front and the knee of its costs.
    """
    by_vm, by_size = np.array(curve.cost_usd), np.full(len(curve), np.inf)
    times = np.isfinite(curve.time_s)
    for place, vm in enumerate(curve.vms):
        where = np.flatnonzero(times & (curve.vm_index == place))
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
    job: JobRecord, intents: Sequence[Intent], *, at: datetime, disk_prices: DiskPrices | None = None
) -> JobCost:
    """What a job was predicted to cost and what it has cost.

    Args:
        job: With its report, where it has ended.
        intents: Of this job.
        at: With a time zone.
        disk_prices: Of boot disks.

    Raises:
        ConfigurationError: As `paid_for`.
    """
    paid = paid_for(intents, at=at, disk_prices=disk_prices)
    actual: float | None
    if paid.vms:
        counted = any(vm.basis == "counted" for vm in paid.vms)
        how = "VMs by the cloud's own timestamps, at least a minute each"
        how += ", but for those named below" if counted else ""
        if any(not vm.ended for vm in paid.vms):
            how += "; some still run and are paid for"
        actual, items, not_counted = paid.total_usd, paid.items, paid.not_counted
    else:
        actual = job.cost_usd if job.actual is None else job.actual.cost_usd
        items, how = _of_workers(job, actual)
        not_counted = ("aggregators and coordinator, which run on this machine too", *NEVER_COUNTED)
    return JobCost(
        job_id=job.id,
        name=job.name,
        state=job.state,
        predicted=job.predicted,
        estimate=estimate_from_document(job.report) if job.report else None,
        actual_usd=actual,
        items=items,
        vms=paid.vms,
        how=how,
        not_counted=not_counted,
    )


def _of_workers(job: JobRecord, actual_usd: float | None) -> tuple[tuple[CostItem, ...], str]:
    """Of a job whose workers were not a cloud's VMs."""
    if actual_usd is None:
        return (), "nothing was recorded"
    price = _price_of(job.report)
    if not price:
        return (CostItem("workers", actual_usd, "worker-seconds x price, as the job counted"),), _COUNTED
    how = f"{actual_usd / price:.4g} worker-hours at ${price:.6g} per hour"
    return (CostItem("workers", actual_usd, how),), f"{_COUNTED}; the price is that of its prediction"


_COUNTED = "counted by the job itself, worker-seconds x price of its offer"


def _price_of(report: Mapping[str, Any] | None) -> float | None:
    """US dollars per worker and hour that the chosen point was predicted with; None where that cannot be told."""
    chosen = (report or {}).get("choice")
    if report is None or not chosen:
        return None
    place = [chosen[name] for name in _PLACE]
    for point in report.get("curve") or ():
        if [point[name] for name in _PLACE] == place and point["time_s"] and point["cost_usd"]:
            return float(point["cost_usd"] / point["time_s"] * 3600.0 / point["workers"])
    return None


_PLACE = ("vm", "workers", "global_batch_size")
