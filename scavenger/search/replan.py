"""When looking further is worth it: another measurement before the choice, another configuration after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from scipy.special import ndtr

from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, FloatArray, Objective, TradeoffCurve

__all__ = ["Move", "Switch", "why_measure_no_more", "worth_moving"]

GAIN_MIN = 0.05
"""Of what is left, by the objective's own measure: predictions err by as much, so that less is no reason to move."""


@dataclass(frozen=True, slots=True)
class Switch:
    """What looking further takes: seconds and dollars, less what the training done meanwhile is worth."""

    time_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Move:
    """Where to, what it saves of what is left, switch deducted, and why in one sentence."""

    configuration: Configuration
    saved_s: float
    saved_usd: float
    reason: str


def why_measure_no_more(
    curve: TradeoffCurve,
    choice: Choice,
    ratio_log_sd: FloatArray,
    *,
    remaining: float,
    measuring: Switch,
) -> str:
    """Why the choice should be made now; empty where another measurement may well pay.

    A measurement may show that another configuration is better than the chosen one. Of a configuration whose loss,
    as the objective measures it, has the logarithm δ above that of the choice with a standard deviation s, the
    expected gain of knowing is s φ(δ/s) - δ Φ(-δ/s), relative to the loss [1]_. All objectives measure what is
    proportional to a configuration's step time, so s is that of the ratio of the two step times. The largest gain
    over all configurations bounds what one measurement is worth from above; measuring ends where it costs more.

    Args:
        ratio_log_sd: Standard deviation of the logarithm of each configuration's step time over that of the
            choice, shape `(n,)`.
        measuring: What the next measurement takes.

    References:
        .. [1] Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998.
    """
    if choice.objective == "utility":
        return ""  # what is worth something may be worth nothing later: no ratio of step times bounds that
    loss = _loss_of(choice.objective, curve)
    rest_s, rest_usd = curve.rest_s(remaining), curve.rest_usd(remaining)
    chosen = curve.index(choice.configuration)
    assert chosen is not None
    least = loss(rest_s[chosen], rest_usd[chosen])
    price = loss(measuring.time_s, measuring.cost_usd)
    if not (least > 0.0 and np.isfinite(least)):
        return ""
    losses = np.asarray(loss(rest_s, rest_usd))
    allowed = (curve.excluded == 0) & (ratio_log_sd > 0.0) & (losses > 0.0)
    if not np.any(allowed):
        return ""
    above = np.log(losses[allowed] / least)
    sd = ratio_log_sd[allowed]
    z = above / sd
    gain = float(np.max(sd * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi) - above * ndtr(-z)))
    if gain * least >= price:
        return ""
    return (
        f"another measurement could gain {100.0 * gain:.2g} % of what is left at most, and would cost "
        f"{100.0 * price / least:.2g} %"
    )


def worth_moving(
    curve: TradeoffCurve,
    choice: Choice,
    now: Configuration,
    *,
    remaining: float,
    switch: Switch,
    worth: Callable[[float], float] | None = None,
) -> Move | None:
    """The move to the choice; None where it would not gain more than it costs and than predictions err.

    What is gained is measured as the objective does: seconds, dollars, or what the result is worth above its
    cost. The knee of a convex front is where time and cost, each as a share of what it spans along the front, have
    the least sum (Kneedle's distance below the chord), so that sum is its measure.

    Args:
        curve: Of the whole way, refitted; see `build_curve`.
        choice: Made from it.
        now: What the job runs on.
        remaining: Share of the way that is left.
        worth: Of the result by the seconds from now until it is there, dollars, for the objective `utility`.
    """
    here = curve.index(now)
    if here is None or choice.configuration == now:
        return None
    there = curve.index(choice.configuration)
    assert there is not None
    rest_s, rest_usd = curve.rest_s(remaining), curve.rest_usd(remaining)
    before_s, before_usd = float(rest_s[here]), float(rest_usd[here])
    after_s, after_usd = float(rest_s[there]) + switch.time_s, float(rest_usd[there]) + switch.cost_usd
    if choice.objective == "utility" and worth is not None:
        before, after = before_usd - worth(before_s), after_usd - worth(after_s)
    else:
        loss = _loss_of(choice.objective, curve)
        before, after = loss(before_s, before_usd), loss(after_s, after_usd)
    if curve.excluded[here]:
        reason = f"{now} no longer meets the constraints: {curve.reasons[curve.excluded[here]]}"
    elif before - after > GAIN_MIN * abs(before):
        reason = "what training has shown since speaks for it"
    else:
        return None
    return Move(choice.configuration, before_s - after_s, before_usd - after_usd, reason)


_Amount = TypeVar("_Amount", float, FloatArray)


class _Loss(Protocol):
    def __call__(self, time_s: _Amount, cost_usd: _Amount) -> _Amount: ...


def _loss_of(objective: Objective, curve: TradeoffCurve) -> _Loss:
    """What the objective wants least of, by seconds and dollars, alone or in arrays."""
    weight_s, weight_usd = {"time": (1.0, 0.0), "cost": (0.0, 1.0)}.get(objective, (0.0, 0.0))
    if objective == "knee":
        weight_s, weight_usd = (
            _per_span(values[curve.on_front]) for values in (curve.time_s, curve.cost_usd)
        )

    def loss(time_s: _Amount, cost_usd: _Amount) -> _Amount:
        return time_s * weight_s + cost_usd * weight_usd

    return loss


def _per_span(values: FloatArray) -> float:
    """Of a front; where it has but one point, in parts of that."""
    span = (float(np.ptp(values)) or float(values[0])) if len(values) else 0.0
    return 1.0 / span if span > 0.0 else 0.0
