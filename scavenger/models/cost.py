"""The cost of a job: priced per VM or per vCPU and GiB, on spot VMs, with its other costs; and the final bill.

Notation: K workers on n VMs at p dollars per VM and hour, T seconds of undisturbed training, λ interruptions per VM and
hour, d seconds lost at each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.cost import (
    BilledVm,
    CostEstimate,
    CostItem,
    CostTerms,
    PricedPoint,
    PricingCurves,
    Rental,
    ResourceRates,
    SpotRisk,
    VmCosts,
)
from scavenger.domain.curve import CurvePoint, FloatArray, IntArray
from scavenger.domain.vm import VmSeen
from scavenger.errors import ConfigurationError, NoFeasiblePlanError

_HOUR_S = 3600.0
BILLED_MIN_S = 60.0
"""Minimum billed time: Compute Engine and EC2 (Linux) bill by the second, and at least one minute."""

NEVER_COUNTED = (
    "network traffic other than between zones, and load balancers",
    "storage of checkpoints, data and images",
    "taxes, licences, and discounts that the price file does not have",
)
"""Costs that no estimate includes, since Scavenger neither causes nor measures them."""

VmPrices = Mapping[tuple[str, str, bool], float]
"""US dollars per hour by (VM type, zone, spot)."""


def size_price(cpus: float, memory_gib: float, rates: ResourceRates) -> float:
    """US dollars per hour of a VM that is priced by its size, `c p_cpu + m p_gib`."""
    return cpus * rates.usd_per_cpu_hour + memory_gib * rates.usd_per_gib_hour


def loss_per_interruption_s(vms: int, risk: SpotRisk) -> float:
    """Time that one interruption adds to a job on n VMs, `d = pause + redo + replace / n`.

    The others continue while one of n VMs is missing, so an n-th of that time is lost. That takes throughput as
    proportional to n, which overstates the loss where synchronisation takes part of the step.
    """
    return risk.pause_s + risk.redo_s + risk.replace_s / vms


def slowdowns(vms: IntArray, risk: SpotRisk) -> FloatArray:
    """How many times longer work takes under interruptions, `1 / (1 - λ n d / 3600)`.

    Interruptions come at a constant rate to each of n VMs, during what they make necessary as well: E[time] =
    T + d λ n E[time] / 3600 (Wald's equation), which solves to this.

    Args:
        vms: n, shape `(k,)`.

    Returns:
        At least 1, shape `(k,)`; infinite where interruptions cost more than the time between them.
    """
    lost_s = (risk.pause_s + risk.redo_s) * vms + risk.replace_s
    share = np.minimum(risk.interruptions_per_hour / _HOUR_S * lost_s, 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / (1.0 - share))


def expected_time_s(work_s: float, vms: int, risk: SpotRisk) -> float:
    """Expected time of work under interruptions; see `slowdowns`.

    Returns:
        Seconds, at least `work_s`; infinite where interruptions cost more than the time between them.
    """
    times = float(slowdowns(np.array([vms]), risk)[0])
    return work_s * times if math.isfinite(times) else math.inf


def scatter_of_interruptions(work_s: FloatArray, vms: IntArray, risk: SpotRisk) -> FloatArray:
    """Standard deviation of the time that interruptions add, relative to the work, `d sqrt(λ n / (3600 T))`.

    Their number over T is Poisson's, with mean and variance λ n T / 3600, and each adds d seconds.

    Args:
        work_s: T, shape `(k,)`, above 0.
        vms: n, shape `(k,)`.
    """
    loss_s = risk.pause_s + risk.redo_s + risk.replace_s / vms
    return np.asarray(loss_s * np.sqrt(risk.interruptions_per_hour / _HOUR_S * vms / work_s))


def expected_interruptions(time_s: float, vms: int, risk: SpotRisk) -> float:
    """Expected number over a time, `λ n t / 3600`."""
    return risk.interruptions_per_hour * vms * time_s / _HOUR_S


def estimate(rental: Rental) -> CostEstimate:
    """Estimate the cost of a rental, item by item.

    A preempted VM is counted as if it were paid for until its replacement trains, which is slightly too much.

    Raises:
        NoFeasiblePlanError: If interruptions cost more time than lies between them.
    """
    vms, price = rental.vms, rental.usd_per_vm_hour
    risk = rental.risk if rental.spot else None
    change_s = rental.changes * rental.change_s
    work_s = rental.train_s + change_s
    busy_s = work_s
    if risk is not None:
        busy_s = expected_time_s(work_s, vms, risk)
        if math.isinf(busy_s):
            raise NoFeasiblePlanError(
                f"spot: {vms} VM{'' if vms == 1 else 's'} with {risk.interruptions_per_hour:g} interruptions per VM "
                f"and hour would lose {loss_per_interruption_s(vms, risk):.0f} s at each and never finish"
            )

    def item(
        name: str, count: int, seconds: float, usd_per_hour: float, noun: str, which: str = ""
    ) -> CostItem:
        usd = count * seconds / _HOUR_S * usd_per_hour
        counted = f"{count} {noun}{'' if count == 1 else 's'}{which}"
        return CostItem(name, usd, f"{counted} x {seconds:.0f} s at ${usd_per_hour:.6g} per hour")

    time_s = rental.setup_s + busy_s
    items = [item("training", vms, rental.train_s, price, "VM")]
    if change_s:
        items.append(item("changes", vms, change_s, price, "VM"))
    if risk is not None:
        extra = item("interruptions", vms, busy_s - work_s, price, "VM")
        count = expected_interruptions(busy_s, vms, risk)
        items.append(CostItem(extra.name, extra.usd, f"{count:.3g} expected, {extra.how}"))
    if rental.setup_s:
        items.append(item("set-up", vms, rental.setup_s, price, "VM"))
    shared = rental.shared
    if shared.aggregators and shared.usd_per_aggregator_hour is not None:
        hourly = shared.usd_per_aggregator_hour
        items.append(item("aggregators", shared.aggregators, time_s, hourly, "VM", " on demand"))
    if shared.usd_per_leader_hour:
        which = f" on demand {shared.extras()}".rstrip()
        items.append(item("leader", 1, time_s, shared.usd_per_leader_hour, "VM", which))
    disks = vms + shared.aggregators
    if rental.traffic_usd_per_hour:
        usd = time_s / _HOUR_S * rental.traffic_usd_per_hour
        how = f"{time_s:.0f} s at ${rental.traffic_usd_per_hour:.6g} per hour"
        items.append(CostItem("traffic between zones", usd, how))
    not_counted: list[str] = []
    if shared.disk_gib and shared.usd_per_gib_hour is not None:
        hourly = shared.disk_gib * shared.usd_per_gib_hour
        items.append(item("disks", disks, time_s, hourly, "disk", f" of {shared.disk_gib:g} GiB"))
    elif shared.disk_gib:
        not_counted.append(
            f"{disks} disk{'' if disks == 1 else 's'} of {shared.disk_gib:g} GiB: their price is not known"
        )
    hourly = vms * shared.extras(spot=rental.spot).address_usd_per_hour
    hourly += shared.aggregators * shared.extras().address_usd_per_hour
    if hourly:
        how = f"{disks} public x {time_s:.0f} s at ${hourly / disks:.6g} per hour"
        items.append(CostItem("addresses", time_s / _HOUR_S * hourly, how))
    if rental.spot and risk is None:
        not_counted.append("interruptions of spot VMs: how often they come is not known")
    return CostEstimate(time_s, tuple(items), (*not_counted, *NEVER_COUNTED))


def estimate_of(
    point: CurvePoint, offer: Offer, terms: CostTerms, *, changes: int = 0, change_s: float = 0.0
) -> CostEstimate:
    """Estimate the cost of a predicted configuration under these terms, item by item.

    Args:
        point: Point of a curve built under the same terms; without changes, the estimate adds up to its cost.
        offer: Offer of its VM type.
        terms: Costs other than the workers.
        changes: As in `Rental`; a curve includes none.
        change_s: As in `Rental`.

    Raises:
        NoFeasiblePlanError: If interruptions cost more time than lies between them.
    """
    workers = point.configuration.workers
    risk = terms.risks.get(offer.vm) if offer.spot else None
    rental = Rental(
        workers=workers,
        train_s=0.0,
        usd_per_vm_hour=offer.price_usd_per_hour,
        workers_per_vm=offer.workers_per_vm,
        spot=offer.spot,
        risk=risk,
        setup_s=point.setup_s,
        changes=changes,
        change_s=change_s,
        shared=terms.shared,
        traffic_usd_per_hour=_HOUR_S
        * float(traffic_usd_per_second(np.array([workers]), np.array([point.step_time_s]), terms)[0]),
    )
    longer = 1.0 if risk is None else float(slowdowns(np.array([rental.vms]), risk)[0])
    if math.isfinite(longer):
        rental = replace(rental, train_s=(point.time_s - point.setup_s) / longer)
    return estimate(rental)


def terms_notes(terms: CostTerms, offers: Iterable[Offer]) -> tuple[str, ...]:
    """Notes on what curves under these terms include in addition to the workers, and what they leave out."""
    counted = []
    if terms.setup_s:
        counted.append(f"set-up ({terms.setup_s:.0f} s of every VM that is not there yet)")
    shared = terms.shared
    if shared.aggregators and shared.usd_per_aggregator_hour is not None:
        vms = "VM" if shared.aggregators == 1 else "VMs"
        hourly = f"${shared.usd_per_aggregator_hour:.6g} per hour"
        counted.append(f"{shared.aggregators} aggregator {vms} on demand ({hourly})")
    if shared.usd_per_leader_hour:
        counted.append(f"the leader's VM (${shared.usd_per_leader_hour:.6g} per hour)")
    if shared.disk_gib and shared.usd_per_gib_hour is not None:
        counted.append(f"boot disks ({shared.disk_gib:g} GiB)")
    if shared.usd_per_address_hour:
        counted.append(f"public addresses (${shared.usd_per_address_hour:.6g} per hour)")
    if terms.elsewhere and terms.traffic_usd_per_step:
        workers = "1 worker" if terms.elsewhere == 1 else f"{terms.elsewhere:.3g} workers"
        counted.append(f"traffic of {workers} in another zone than the aggregators")
    if terms.aggregation_usd_per_step is not None:
        counted.append(
            f"the job's share of the pool's processors (${terms.aggregation_usd_per_step:.2g} per step)"
        )
    spot = [offer for offer in offers if offer.spot]
    risks = [(offer.vm, terms.risks[offer.vm]) for offer in spot if offer.vm in terms.risks]
    if risks:
        rates = ", ".join(f"{vm} {risk.interruptions_per_hour:.2g}" for vm, risk in risks)
        counted.append(f"expected interruptions of spot VMs (per VM and hour: {rates})")
    omitted = [f"interruptions of {offer.vm}: not known" for offer in spot if offer.vm not in terms.risks]
    if shared.disk_gib and shared.usd_per_gib_hour is None:
        omitted.append("boot disks: their price is not known")
    if not terms.setup_s:
        omitted.append("starting the workers")
    if not shared.aggregators and terms.aggregation_usd_per_step is None:
        omitted.append("aggregators")
    words = [f"counted in addition to the workers' time: {'; '.join(counted)}"] if counted else []
    words += [f"prices: {'; '.join(terms.sources)}"] if terms.sources else []
    return (*words, f"not counted: {'; '.join((*omitted, *NEVER_COUNTED))}")


def traffic_usd_per_second(workers: IntArray, step_time_s: FloatArray, terms: CostTerms) -> FloatArray:
    """Rate of the cost of traffic between zones while K workers train, `min(K, e) u / s`.

    e of the workers are in another zone than the aggregators, a step of s seconds costs u dollars for each of them.

    Args:
        workers: K, shape `(k,)`.
        step_time_s: s, shape `(k,)`.
    """
    return np.asarray(np.minimum(workers, terms.elsewhere) * terms.traffic_usd_per_step / step_time_s)


def traffic_gib(steps: int, workers: float, weights_bytes: float) -> float:
    """Data that workers exchange with aggregators in another zone, `2 s K M`, GiB.

    At each of s steps, each of K workers sends a gradient as large as the weights, M bytes, and gets the new weights.
    Sparse gradients are smaller, so this errs upwards with them.
    """
    return 2.0 * steps * workers * weights_bytes / 2**30


def pricing_curves(
    times: Iterable[tuple[Configuration, float]],
    *,
    usd_per_vm_hour: float,
    rates: ResourceRates,
    cpus: float,
    memory_gib: Callable[[float], float],
) -> PricingCurves:
    """The tradeoff between time and cost under both pricing schemes of Scavenger, figures 10 and 12.

    Figure 10 has VMs of one size and price, `C = T K p` (eq. 5). In figure 12 VMs are priced by vCPU and GiB, and
    memory is allotted by the batch so that next to none is left over; a larger global batch then makes each hour
    dearer, and the bend of the curve moves:

        C = T K (c p_cpu + m(B / K) p_gib)

    Args:
        times: Configurations with their times to the target, seconds.
        usd_per_vm_hour: p, of the VM of one size.
        rates: p_cpu and p_gib.
        cpus: c, of one worker, under either scheme.
        memory_gib: m, memory of a worker as a function of its local batch; often `base + slope b`.

    Raises:
        ValueError: If a time or the memory is no number or negative.
    """
    by_vm: list[PricedPoint] = []
    by_size: list[PricedPoint] = []
    for configuration, time_s in times:
        memory = memory_gib(configuration.global_batch_size / configuration.workers)
        if not (math.isfinite(time_s) and time_s >= 0 and math.isfinite(memory) and memory >= 0):
            raise ValueError(f"{configuration}: no time or memory to price ({time_s} s, {memory} GiB)")
        vm_hours = time_s / _HOUR_S * configuration.workers
        by_vm.append(PricedPoint(configuration, time_s, vm_hours * usd_per_vm_hour))
        sized = size_price(cpus, memory, rates)
        by_size.append(PricedPoint(configuration, time_s, vm_hours * sized))
    return PricingCurves(tuple(by_vm), tuple(by_size))


def ledger(
    vms: Sequence[VmSeen], prices: VmPrices, *, at: datetime, billed_min_s: float = BILLED_MIN_S
) -> VmCosts:
    """Compute the cost of VMs up to a time, by the cloud's own timestamps.

    Billed are the seconds from launch to end, or to `at` for a VM whose end the cloud has not reported; at least
    `billed_min_s`. Never too little: a VM is paid for from its launch (clouds begin when it runs), and what clouds
    waive (EC2 a spot VM that it takes within its first hour) is not taken off.

    Args:
        vms: VMs as listed; of several entries of one VM, the last counts.
        prices: US dollars per hour; constant over a VM's life.
        at: Time with a time zone, as the clouds' timestamps have one.

    Returns:
        The bills by instance id; VMs without a launch time are in `unknown`.

    Raises:
        ConfigurationError: If a VM has no price, or an invalid one; 0 is never assumed.
    """
    latest = {vm.instance_id: vm for vm in vms}
    billed: list[BilledVm] = []
    unknown: list[str] = []
    for name in sorted(latest):
        vm = latest[name]
        price = prices.get((vm.vm, vm.zone, vm.spot))
        if price is None or not (math.isfinite(price) and price >= 0):
            raise ConfigurationError(
                f"the price of {'a spot ' if vm.spot else ''}{vm.vm} in {vm.zone} is "
                f"{'not known' if price is None else f'{price:g}'}: VM {name} cannot be billed"
            )
        if vm.launched_at is None:
            unknown.append(name)
            continue
        end = at if vm.ended_at is None else min(vm.ended_at, at)
        lived_s = (end - vm.launched_at).total_seconds()
        seconds = max(billed_min_s, lived_s) if vm.launched_at <= at else 0.0
        ended = vm.ended_at is not None and vm.ended_at <= at
        usd = seconds / _HOUR_S * price
        billed.append(BilledVm(name, vm.vm, vm.zone, vm.spot, seconds, usd, ended))
    return VmCosts(tuple(billed), tuple(unknown))
