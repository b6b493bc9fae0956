"""Decides whether further search pays: another measurement before the choice, another configuration after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from scipy.special import ndtr

from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, FloatArray, Objective, TradeoffCurve
from scavenger.domain.figures import rounded

GAIN_MIN = 0.05
"""Least gain, as a share of the rest by the objective's measure; smaller gains are within the prediction error."""


REPEATED_MAX = 0.02
"""Largest share of what is left of a run that may be lost by measuring the first point again."""

REPEATED_AFTER = 2.0
"""Times its own duration that must have passed since: else both show the machine at one moment."""


@dataclass(frozen=True, slots=True)
class SwitchCost:
    """Cost of further search in seconds and dollars, less the value of the training done meanwhile."""

    time_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Relocation:
    """A move: the new configuration, the share of the rest that it saves net of the switch, and the reason."""

    configuration: Configuration
    saved_s: float
    saved_usd: float
    reason: str

    @property
    def effect(self) -> str:
        """What the move changes of the rest's time and cost, for the user; a negative saving is said as a price."""
        time_s, usd = f"{rounded(abs(self.saved_s), 3)} s", f"${rounded(abs(self.saved_usd), 3)}"
        match self.saved_s >= 0.0, self.saved_usd >= 0.0:
            case True, True:
                return f"it saves {time_s} and {usd} of what is left"
            case True, False:
                return f"it saves {time_s} of what is left for {usd} more"
            case False, True:
                return f"it saves {usd} of what is left and takes {time_s} longer"
            case _:
                return f"it takes {time_s} longer and {usd} more"


def why_measure_no_more(
    curve: TradeoffCurve,
    choice: Choice,
    ratio_log_sd: FloatArray,
    *,
    remaining: float,
    measuring: SwitchCost,
) -> str:
    """Why the choice should be made now; empty if another measurement may pay.

    A measurement may show that another configuration is better than the chosen one. Of a configuration whose loss,
    as the objective measures it, has the logarithm δ above that of the choice with a standard deviation s, the
    expected gain of knowing is s φ(δ/s) - δ Φ(-δ/s), relative to the loss [1]_. All objectives measure what is
    proportional to a configuration's step time, so s is that of the ratio of the two step times. The largest gain
    over all configurations bounds what one measurement is worth from above; measuring ends where it costs more.

    Args:
        ratio_log_sd: Standard deviation of the logarithm of each configuration's step time over that of the
            choice, shape `(n,)`.
        measuring: Cost of the next measurement.

    References:
        .. [1] Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998.
    """
    if choice.objective == "utility":
        return ""  # utility may fall to 0 over time, so no ratio of step times bounds its loss
    loss = loss_of(choice.objective, curve)
    rest_s, rest_usd = curve.rest_s(remaining), curve.rest_usd(remaining)
    chosen = curve.configurations.index(choice.configuration)
    assert chosen is not None
    least = loss(rest_s[chosen], rest_usd[chosen])
    price = loss(measuring.time_s, measuring.cost_usd)
    if not (least > 0.0 and np.isfinite(least)):
        return ""
    losses = np.asarray(loss(rest_s, rest_usd))
    allowed = (curve.marks.excluded == 0) & (ratio_log_sd > 0.0) & (losses > 0.0)
    if not np.any(allowed):
        return ""
    above = np.log(losses[allowed] / least)
    sd = ratio_log_sd[allowed]
    z = above / sd
    gain = float(np.max(sd * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi) - above * ndtr(-z)))
    if gain * least >= price:
        return ""
    return (
        f"another measurement could gain {rounded(100.0 * gain, 2)} % of what is left at most, and would cost "
        f"{rounded(100.0 * price / least, 2)} %"
    )


def worth_repeating(
    *, since_s: float, takes_s: float, lost: float, left_s: float, pause_s: float = 0.0
) -> bool:
    """Whether the first point of a search is measured again at its end.

    Drift is a factor of all step times. It cancels out between configurations, so that knowing it changes no choice
    and saves no time: it only makes the intervals true. That may cost two hundredths of what they are about.

    Args:
        since_s: Time since it was measured first.
        takes_s: Time that it takes, which trains too.
        lost: Share of that time in which the chosen configuration would have trained as much more.
        left_s: Predicted rest of the run.
        pause_s: Time besides, in which nothing is trained.
    """
    return lost * takes_s + pause_s <= REPEATED_MAX * left_s and since_s >= REPEATED_AFTER * takes_s


def staying(
    curve: TradeoffCurve,
    choice: Choice,
    now: Configuration,
    *,
    remaining: float,
    switch: SwitchCost,
    worth: Callable[[float], float] | None = None,
) -> Choice:
    """The choice, unless the change to it costs more than it brings: then the present configuration, with the reason.

    A program that is started anew for each configuration stands still for as long as it takes to start, which may be
    longer than what is left.

    Args:
        curve, choice, now, remaining, switch, worth: As of `worth_moving`.
    """
    here = curve.configurations.index(now)
    if here is None or choice.configuration == now or curve.marks.excluded[here]:
        return choice
    weighed = _weighed(curve, choice, here, remaining=remaining, switch=switch, worth=worth)
    if weighed.before > weighed.after:
        return choice
    effect = Relocation(choice.configuration, weighed.saved_s, weighed.saved_usd, "").effect
    cost = f"a pause of {rounded(switch.time_s, 2)} s" if switch.time_s else "the start of more workers"
    reason = (
        f"the job is there, and a change to {choice.configuration} is not worth {cost}: with it, {effect}"
    )
    return replace(choice, point=curve[here], reason=reason)


def worth_moving(
    curve: TradeoffCurve,
    choice: Choice,
    now: Configuration,
    *,
    remaining: float,
    switch: SwitchCost,
    worth: Callable[[float], float] | None = None,
) -> Relocation | None:
    """The move to the choice; None if its gain does not exceed its cost and the prediction error.

    What is gained is measured as the objective does: seconds, dollars, or what the result is worth above its
    cost. The knee of a convex front is where time and cost, each as a share of what it spans along the front, have
    the least sum (Kneedle's distance below the chord), so that sum is its measure.

    Args:
        curve: Curve of the whole training from the refitted model; see `build_curve`.
        choice: The choice made from this curve.
        now: The job's present configuration.
        remaining: Share of the training that is left.
        worth: Worth of the result, dollars, by its time in seconds from now, for the objective `utility`.
    """
    here = curve.configurations.index(now)
    if here is None or choice.configuration == now:
        return None
    weighed = _weighed(curve, choice, here, remaining=remaining, switch=switch, worth=worth)
    if curve.marks.excluded[here]:
        reason = f"{now} no longer meets the constraints: {curve.marks.reasons[curve.marks.excluded[here]]}"
    elif weighed.before - weighed.after > GAIN_MIN * abs(weighed.before):
        reason = "measurements since the choice favour it"
    else:
        return None
    return Relocation(choice.configuration, weighed.saved_s, weighed.saved_usd, reason)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """The objective's loss where the job is and after a change, and what the change saves net of its cost."""

    before: float
    after: float
    saved_s: float
    saved_usd: float


def _weighed(
    curve: TradeoffCurve,
    choice: Choice,
    here: int,
    *,
    remaining: float,
    switch: SwitchCost,
    worth: Callable[[float], float] | None,
) -> _Weighed:
    there = curve.configurations.index(choice.configuration)
    assert there is not None
    rest_s, rest_usd = curve.rest_s(remaining), curve.rest_usd(remaining)
    before_s, before_usd = float(rest_s[here]), float(rest_usd[here])
    after_s, after_usd = float(rest_s[there]) + switch.time_s, float(rest_usd[there]) + switch.cost_usd
    if choice.objective == "utility" and worth is not None:
        before, after = before_usd - worth(before_s), after_usd - worth(after_s)
    else:
        loss = loss_of(choice.objective, curve)
        before, after = loss(before_s, before_usd), loss(after_s, after_usd)
    return _Weighed(before, after, before_s - after_s, before_usd - after_usd)


_Amount = TypeVar("_Amount", float, FloatArray)


class _Loss(Protocol):
    def __call__(self, time_s: _Amount, cost_usd: _Amount) -> _Amount: ...


def loss_of(objective: Objective, curve: TradeoffCurve) -> _Loss:
    """The loss that the objective minimizes, as a function of seconds and dollars, scalars or arrays."""
    weight_s, weight_usd = {"time": (1.0, 0.0), "cost": (0.0, 1.0)}.get(objective, (0.0, 0.0))
    if objective == "knee":
        weight_s, weight_usd = (
            _per_span(values[curve.marks.on_front]) for values in (curve.time_s, curve.cost_usd)
        )

    def loss(time_s: _Amount, cost_usd: _Amount) -> _Amount:
        return time_s * weight_s + cost_usd * weight_usd

    return loss


def _per_span(values: FloatArray) -> float:
    """Reciprocal of the span of a front's values; of the value itself if the front is one point."""
    span = (float(np.ptp(values)) or float(values[0])) if len(values) else 0.0
    return 1.0 / span if span > 0.0 else 0.0
