"""Chooses the number of aggregator VMs of a run: that whose best configuration serves the objective best.

Aggregators beside the workers count as more VMs than any number (`BESIDE_WORKERS`), at the price of one: a VM that is
lost takes its part of the model back to a checkpoint, so they have to be worth as much as further VMs.

What a number leads to is a tradeoff curve of its own, with the price of so many VMs in each point. The objective's
figure of a curve is that of the configuration which it chooses there::

    time: T      cost: C      knee: T C      utility: C - U(T)

As a number that was never measured is predicted from one that was, a gain has to be seen beyond the doubt of it: the
smallest number is taken whose figure is within `GAIN_MIN` of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scavenger.domain.curve import Choice, Infeasible
from scavenger.domain.fingerprint import BESIDE_WORKERS
from scavenger.presentation.formatting import duration, money, plural

GAIN_MIN = 0.05
"""Share of an objective's figure that further VMs have to save: predictions of step times are off by as much."""


@dataclass(frozen=True, slots=True)
class ChosenVms:
    """A number of aggregator VMs, and why."""

    vms: int
    reason: str


def choose_vms(
    options: Mapping[int, Choice | Infeasible],
    *,
    worth: Callable[[float], float] | None = None,
    measured: frozenset[int] = frozenset(),
) -> ChosenVms:
    """Choose a number of aggregator VMs.

    Args:
        options: What each number that holds the model leads to; never empty.
        worth: As in `scavenger.search.choose.choose`.
        measured: The numbers with which steps were measured.
    """
    least = min(options)
    found = {vms: one for vms, one in sorted(options.items()) if isinstance(one, Choice)}
    if not found:
        return ChosenVms(
            least, f"{named_vms(least)}: no number meets the limits by what earlier runs have measured"
        )
    figures = {vms: _figure(choice, worth) for vms, choice in found.items()}
    best = min(figures, key=lambda vms: (figures[vms], vms))
    room = GAIN_MIN * (abs(figures[best]) if worth is None else found[best].point.cost_usd)
    chosen = next(vms for vms in figures if figures[vms] <= figures[best] + room)
    words = f"{named_vms(chosen)}: {_predicted(found[chosen])}"
    other = min(
        (vms for vms in found if vms != chosen), default=None, key=lambda vms: (abs(vms - chosen), vms)
    )
    if chosen > least and least in found:
        other = least
    if other is not None:
        words += f", with {named_vms(other)} {_predicted(found[other])}"
    unknown = [vms for vms in (chosen, *(() if other is None else (other,))) if vms not in measured]
    if unknown:
        words += f"; no step with {' or '.join(map(named_vms, sorted(unknown)))} was measured"
    return ChosenVms(chosen, words)


def _figure(choice: Choice, worth: Callable[[float], float] | None) -> float:
    point = choice.point
    if choice.objective == "time":
        return point.time_s
    if choice.objective == "cost":
        return point.cost_usd
    if choice.objective == "utility" and worth is not None:
        return point.cost_usd - worth(point.time_s)
    return point.time_s * point.cost_usd


def named_vms(vms: int) -> str:
    """A number of aggregator VMs in words."""
    return "aggregators beside the workers" if vms == BESIDE_WORKERS else plural(vms, "aggregator VM")


def _predicted(choice: Choice) -> str:
    point = choice.point
    return f"{duration(point.time_s)} and {money(point.cost_usd)} on {point.configuration}"
