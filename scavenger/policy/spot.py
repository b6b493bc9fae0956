"""The spot decision: compares the savings of spot VMs with the cost of interruptions.

Notation: n VMs at p dollars per hour on demand and s as spot VMs, each with its disk and public address; F dollars per
hour for what is on demand in either case (aggregators, leader); λ interruptions per VM and hour, each of which takes
d = pause + redo + replace / n seconds from the whole job. A unit of work costs, relative to one on demand,

    f(n) = (n s + F) / (n p + F) / (1 - λ n d / 3600)

Published values of λ are neither rates nor guarantees, so the decision uses a λ that is deliberately too high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scavenger.domain.cost import SPOT_DAYS_MAX, SpotRisk, VmExtras
from scavenger.models.cost import slowdowns
from scavenger.presentation.formatting import plural

SpotMode = Literal["never", "auto", "always"]

DAY_H = 24.0
RATE_UNKNOWN = 0.5
"""Interruptions per VM and hour where nothing bounds them: above the worst of two public traces of spot clusters on EC2
(0.43 with g4dn.xlarge, 0.13 with p2.xlarge, November 2020; Thorpe et al., "Bamboo", NSDI 2023)."""
SAVING_MIN = 0.1
"""Least part of the cost that spot VMs must save: their prices move while a job runs, and interruptions that come
together, when a zone runs out, are not foreseen."""
DELAY_MAX = 0.02
"""Delay that is no risk to a deadline whose distance is not known yet: well within the error of any predicted time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """Prices and interruption data of one VM type.

    Attributes:
        on_demand_usd_per_hour: Price of the type on demand.
        spot_usd_per_hour: Spot price; None if no fresh one is known.
        extras, spot_extras: What a VM has beside its type, on demand and spot.
        interrupted_monthly: Upper bound on the share of its spot VMs interrupted in a month; None if unknown.
        pause_s, redo_s, replace_s: As in `SpotRisk`: measured, or assumed.
        fixed_usd_per_hour: F.
        workers_per_vm: Largest number of workers on one VM.
    """

    vm: str
    on_demand_usd_per_hour: float
    spot_usd_per_hour: float | None
    interrupted_monthly: float | None
    pause_s: float
    replace_s: float
    redo_s: float = 0.0
    fixed_usd_per_hour: float = 0.0
    workers_per_vm: int = 1
    extras: VmExtras = field(default_factory=VmExtras)
    spot_extras: VmExtras = field(default_factory=VmExtras)

    def __post_init__(self) -> None:
        prices = [self.on_demand_usd_per_hour]
        prices += [] if self.spot_usd_per_hour is None else [self.spot_usd_per_hour]
        if not all(math.isfinite(price) and price >= 0 for price in prices):
            raise ValueError(f"{self.vm}: a price is 0 or more: {prices}")
        if not (math.isfinite(self.fixed_usd_per_hour) and self.fixed_usd_per_hour >= 0):
            raise ValueError(f"what is paid in either case is 0 or more: {self.fixed_usd_per_hour}")


@dataclass(frozen=True, slots=True)
class SpotDecision:
    """Whether the workers on a VM type are to be spot VMs.

    Attributes:
        reason: The reason as a sentence, with the numbers.
        price_factor: Highest f(n) over the cluster sizes; None if no fresh spot price is known.
        risk: Risk that estimates have to include; None if the VMs are on demand.
    """

    vm: str
    spot: bool
    reason: str
    price_factor: float | None
    risk: SpotRisk | None


def hourly_rate_bound(interrupted_monthly: float | None) -> float:
    """Upper bound on the hourly rate, from the share f of VMs interrupted in a month: `-ln(1 - f) / 24`.

    The published share includes VMs that ran for less than the month, so a rate that reaches it within a month is too
    low. This rate reaches it within a day.
    """
    return RATE_UNKNOWN if interrupted_monthly is None else -math.log1p(-interrupted_monthly) / DAY_H


def decide_spot(
    terms: SpotTerms,
    *,
    mode: SpotMode,
    workers: tuple[int, int],
    deadline_s: float | None = None,
    work_s: float | None = None,
) -> SpotDecision:
    """Choose spot VMs if they save enough at every cluster size and do not endanger the deadline.

    Args:
        terms: Prices and interruption data of the VM type.
        mode: `auto` decides; `always` and `never` are obeyed, with the consequences as the reason.
        workers: Smallest and largest number of workers.
        deadline_s: Time from now to the deadline; None if there is none.
        work_s: Longest predicted time from now without interruptions; None if unknown.

    If `mode` is `always` and no fresh spot price is known, it is taken for the price on demand, which it never exceeds:
    EC2 ends a spot VM rather than charge more, and Compute Engine's spot prices are discounts.
    """
    if mode == "never":
        return SpotDecision(terms.vm, False, f"{terms.vm}: on demand, as the job asks", None, None)
    if not terms.on_demand_usd_per_hour:
        return SpotDecision(terms.vm, False, f"{terms.vm}: on demand, as it costs nothing", None, None)
    price = terms.spot_usd_per_hour
    if price is None:
        if mode != "always":
            words = (
                f"{terms.vm}: on demand, as no spot price of it from the last {SPOT_DAYS_MAX} days is known"
            )
            return SpotDecision(terms.vm, False, words, None, None)
        price = terms.on_demand_usd_per_hour
    rate = hourly_rate_bound(terms.interrupted_monthly)
    risk = SpotRisk(rate, pause_s=terms.pause_s, redo_s=terms.redo_s, replace_s=terms.replace_s)
    vms = np.arange(-(-workers[0] // terms.workers_per_vm), -(-workers[1] // terms.workers_per_vm) + 1)
    fixed = terms.fixed_usd_per_hour
    slower = slowdowns(vms, risk)
    on_demand = terms.on_demand_usd_per_hour + terms.extras.usd_per_hour
    spot = price + terms.spot_extras.usd_per_hour
    factors = (vms * spot + fixed) / (vms * on_demand + fixed) * slower
    worst = int(np.argmax(factors))
    factor, delay = float(factors[worst]), float(slower.max()) - 1.0
    numbers = _numbers(terms, (spot, on_demand), rate, factor, int(vms[worst]), delay)
    against = "" if mode == "always" else _against(factor, delay, deadline_s, work_s)
    if against:
        return SpotDecision(terms.vm, False, f"{terms.vm}: on demand, as {against}: {numbers}", factor, None)
    head = "spot, as the job asks" if mode == "always" else "spot"
    return SpotDecision(terms.vm, True, f"{terms.vm}: {head}: {numbers}", factor, risk)


def _against(factor: float, delay: float, deadline_s: float | None, work_s: float | None) -> str:
    """The argument against spot VMs; empty if there is none."""
    if not math.isfinite(factor):
        return "interruptions might come faster than work gets done"
    if factor > 1.0 - SAVING_MIN:
        return f"spot VMs do not surely save {100 * SAVING_MIN:.0f} %"
    if deadline_s is None:
        return ""
    if work_s is None:
        return "interruptions may cost the deadline" if delay > DELAY_MAX else ""
    # A job that misses its deadline on demand is not helped by paying more.
    return "interruptions may cost the deadline" if work_s <= deadline_s < work_s * (1.0 + delay) else ""


def _numbers(
    terms: SpotTerms, usd_per_hour: tuple[float, float], rate: float, factor: float, vms: int, delay: float
) -> str:
    """The numbers of a decision; `usd_per_hour` is what a spot VM and one on demand cost with their extras."""
    bound = terms.interrupted_monthly
    known = "unknown, taken as" if bound is None else f"up to {100 * bound:.3g} % a month, taken as"
    spot, on_demand = (f"${usd:.4g}" for usd in usd_per_hour)
    what = f" {terms.spot_extras}".rstrip()
    if terms.spot_usd_per_hour is None:
        return (
            f"no spot price of the last {SPOT_DAYS_MAX} days is known, so it is planned with the price on demand, "
            f"{spot} per hour{what}, which is the most that a spot VM costs; interruptions {known} {rate:.2g} per VM "
            "and hour"
        )
    ends = math.isfinite(factor) and math.isfinite(delay)
    worst = (
        f"{100 * factor:.0f} % of the cost on demand, {100 * delay:.2g} % slower" if ends else "it never ends"
    )
    return (
        f"{spot} instead of {on_demand} per hour{what}; interruptions {known} "
        f"{rate:.2g} per VM and hour; at worst ({plural(vms, 'VM')}) {worst}"
    )
