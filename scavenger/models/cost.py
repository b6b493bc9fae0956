"""What a job costs: by the VM, by vCPU and GiB, on spot VMs, and what was paid in the end.

Notation: K workers on n VMs at p dollars per VM and hour, T seconds of undisturbed training, λ interruptions per VM and
hour, d seconds lost at each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from scavenger.domain.configuration import Configuration
from scavenger.domain.cost import (
    BilledVm,
    CostEstimate,
    CostItem,
    Ledger,
    PricedPoint,
    PricingCurves,
    Rental,
    ResourceRates,
    SpotRisk,
)
from scavenger.domain.vm import VmSeen
from scavenger.errors import ConfigurationError, NoFeasiblePlanError

__all__ = [
    "BILLED_MIN_S",
    "NEVER_COUNTED",
    "VmPrices",
    "estimate",
    "expected_interruptions",
    "expected_time_s",
    "hourly_rate_of_monthly",
    "ledger",
    "loss_per_interruption_s",
    "pricing_curves",
    "size_price",
]

_HOUR_S = 3600.0
MONTH_H = 730.0
"""Hours of the mean month (365 x 24 / 12), which the clouds' monthly prices are for."""
BILLED_MIN_S = 60.0
"""Both Compute Engine and EC2 (Linux) bill by the second, from one minute on."""

NEVER_COUNTED = (
    "network traffic, public addresses and load balancers",
    "storage of checkpoints, data and images",
    "taxes, licences, and discounts that the price file does not have",
)
"""What no estimate has: Scavenger neither starts nor measures it."""

VmPrices = Mapping[tuple[str, str, bool], float]
"""US dollars per hour by (VM type, zone, spot)."""


def size_price(cpus: float, memory_gib: float, rates: ResourceRates) -> float:
    """US dollars per hour of a VM that is priced by its size, `c p_cpu + m p_gib`."""
    return cpus * rates.usd_per_cpu_hour + memory_gib * rates.usd_per_gib_hour


def hourly_rate_of_monthly(fraction: float) -> float:
    """Interruptions of a VM per hour, where a fraction of all VMs is interrupted within a month.

    With a constant rate, `1 - exp(-λ 730)` of the VMs are interrupted in a month. What a cloud publishes counts VMs
    that lived shorter than the month, too, so that the true rate is at least this.

    Raises:
        ValueError: If the fraction is not in [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"a fraction of VMs interrupted must be in [0, 1), not {fraction}")
    return -math.log1p(-fraction) / MONTH_H


def loss_per_interruption_s(vms: int, risk: SpotRisk) -> float:
    """Time that one interruption adds to a job on n VMs, `d = pause + redo + replace / n`.

    The others go on while one of n VMs is missing, so an n-th of that time is lost. That takes throughput as
    proportional to n, which overstates the loss where synchronisation takes part of the step.
    """
    return risk.pause_s + risk.redo_s + risk.replace_s / vms


def expected_time_s(work_s: float, vms: int, risk: SpotRisk) -> float:
    """Expected time of work under interruptions, `T / (1 - λ n d / 3600)`.

    Interruptions come at a constant rate to each of n VMs, during what they make necessary as well: E[time] =
    T + d λ n E[time] / 3600 (Wald's equation), which solves to this.

    Returns:
        Seconds, at least `work_s`; infinite where interruptions cost more than the time between them.
    """
    share = risk.interruptions_per_hour / _HOUR_S * vms * loss_per_interruption_s(vms, risk)
    return work_s / (1 - share) if share < 1 else math.inf


def expected_interruptions(time_s: float, vms: int, risk: SpotRisk) -> float:
    """Expected number over a time, `λ n t / 3600`."""
    return risk.interruptions_per_hour * vms * time_s / _HOUR_S


def estimate(rental: Rental) -> CostEstimate:
    """What a rental is expected to cost, item by item.

    A VM that was taken is counted as if it were paid for until its successor works: slightly too much.

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
                f"spot: {vms} VMs with {risk.interruptions_per_hour:g} interruptions per hour each lose "
                f"{loss_per_interruption_s(vms, risk):.0f} s at every one, and would never finish"
            )

    def item(name: str, count: int, seconds: float, usd_per_hour: float, what: str) -> CostItem:
        usd = count * seconds / _HOUR_S * usd_per_hour
        return CostItem(name, usd, f"{count} {what} x {seconds:.0f} s at ${usd_per_hour:.6g} per hour")

    time_s = rental.setup_s + busy_s
    items = [item("training", vms, rental.train_s, price, "VMs")]
    if change_s:
        items.append(item("changes", vms, change_s, price, "VMs"))
    if risk is not None:
        extra = item("interruptions", vms, busy_s - work_s, price, "VMs")
        count = expected_interruptions(busy_s, vms, risk)
        items.append(CostItem(extra.name, extra.usd, f"{count:.3g} expected, {extra.how}"))
    if rental.setup_s:
        items.append(item("set-up", vms, rental.setup_s, price, "VMs"))
    if rental.aggregators and rental.usd_per_aggregator_hour is not None:
        hourly = rental.usd_per_aggregator_hour
        items.append(item("aggregators", rental.aggregators, time_s, hourly, "VMs on demand"))
    disks = vms + rental.aggregators
    not_counted: list[str] = []
    if rental.disk_gib and rental.usd_per_gib_hour is not None:
        hourly = rental.disk_gib * rental.usd_per_gib_hour
        items.append(item("disks", disks, time_s, hourly, f"disks of {rental.disk_gib:g} GiB"))
    elif rental.disk_gib:
        not_counted.append(f"{disks} disks of {rental.disk_gib:g} GiB: their price is not known")
    if rental.spot and risk is None:
        not_counted.append("interruptions of spot VMs: how often they come is not known")
    return CostEstimate(time_s, tuple(items), (*not_counted, *NEVER_COUNTED))


def pricing_curves(
    times: Iterable[tuple[Configuration, float]],
    *,
    usd_per_vm_hour: float,
    rates: ResourceRates,
    cpus: float,
    memory_gib: Callable[[float], float],
) -> PricingCurves:
    """The tradeoff between time and cost under both ways of pricing of Scavenger, figures 10 and 12.

    Figure 10 has VMs of one size and price, `C = T K p` (eq. 5). In figure 12 VMs are priced by vCPU and GiB, and
    memory is allotted by the batch so that next to none is left over; a larger global batch then makes each hour
    dearer, and the bend of the curve moves:

        C = T K (c p_cpu + m(B / K) p_gib)

    Args:
        times: Configurations with their seconds to the target.
        usd_per_vm_hour: p, of the VM of one size.
        rates: p_cpu and p_gib.
        cpus: c, of one worker, under either way.
        memory_gib: m, what a worker needs for a local batch of so many samples; often `base + slope b`.

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
) -> Ledger:
    """What was paid for VMs up to a time, by the cloud's own timestamps.

    Billed are the seconds from launch to end, or to `at` for a VM whose end the cloud has not told; at least
    `billed_min_s`. Never too little: a VM is paid for from its launch (clouds begin when it runs), and what clouds
    waive (EC2 a spot VM that it takes within its first hour) is not taken off.

    Args:
        vms: Of the same VM, the last one counts.
        prices: US dollars per hour; constant over a VM's life.
        at: With a time zone, as the clouds' timestamps have one.

    Returns:
        By instance id; VMs without a launch time are named in `unknown`.

    Raises:
        ConfigurationError: If a VM has no price, or an absurd one; never 0 in its place.
    """
    latest = {vm.instance_id: vm for vm in vms}
    billed: list[BilledVm] = []
    unknown: list[str] = []
    for name in sorted(latest):
        vm = latest[name]
        price = prices.get((vm.vm, vm.zone, vm.spot))
        if price is None or not (math.isfinite(price) and price > 0):
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
    return Ledger(tuple(billed), tuple(unknown))
