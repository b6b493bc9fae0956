"""Chooses the configuration to run from the tradeoff curve, with the reason and the alternatives as text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scavenger.domain.curve import (
    BoolArray,
    Choice,
    FloatArray,
    Infeasible,
    IntArray,
    Objective,
    TradeoffCurve,
)
from scavenger.domain.figures import rounded
from scavenger.search.curve import OVER_BUDGET, PAST_DEADLINE
from scavenger.search.replan import GAIN_MIN, loss_of

NOTHING_USD = 1e-6
"""Costs below a ten-thousandth of a cent count as 0: ratios of them are meaningless."""


def choose(
    curve: TradeoffCurve,
    objective: Objective,
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    spent_time_s: float = 0.0,
    spent_usd: float = 0.0,
    remaining: float = 1.0,
    worth: Callable[[float], float] | None = None,
    only: tuple[int, str] | None = None,
) -> Choice | Infeasible:
    """Choose the allowed point that is best by the objective.

    Where no batch size was measured at its number of workers, the best one of which some was is chosen instead if it
    loses less than `GAIN_MIN`: the least of many predictions is often the one that is most off. Otherwise the reason
    says that these workers were never measured. A utility may fall to 0 within that share, so it is left out.

    Args:
        curve: Tradeoff curve, built with the same limits.
        objective: `time`, `cost`, `knee` or `utility`.
        worth: Worth of the result, dollars, as a function of its time in seconds; for `utility` only.
        only: A batch size, to choose among points of it where one is allowed, and why; None to choose among all.

    Returns:
        The choice; or, if no point is allowed, the point that exceeds deadline and budget by the least, and by how
        much.

    Raises:
        ValueError: If the objective is unknown, or is `utility` without `worth`.
    """
    if objective not in OBJECTIVES and not (objective == "utility" and worth is not None):
        raise ValueError(
            f"objective {objective!r} is none of {', '.join(OBJECTIVES)} and utility with a worth"
        )
    allowed = np.flatnonzero(curve.marks.excluded == 0)
    if not len(allowed):
        return _infeasible(curve, deadline_s, budget_usd, spent_time_s, spent_usd, remaining)
    alike = allowed if only is None else allowed[curve.configurations.global_batch_size[allowed] == only[0]]
    among = alike if len(alike) else allowed
    known = curve.workers_measured
    if objective == "utility" and worth is not None:
        index, reason = _by_utility(curve, among, worth, (spent_time_s, spent_usd, remaining))
    else:
        index, reason = _rather_measured(curve, objective, among, known)
    if only is not None and len(among) < len(allowed):
        reason += f"; at batch {only[0]} alone, as {only[1]}"
    if len(allowed) == 1:
        reason = "the only configuration that the constraints allow"
    if curve.progress_share is not None and curve.progress_share[index] < 0.5:
        epochs, share = curve.epochs[index], curve.progress_share[index]
        reason += (
            f"; above the critical batch size: {rounded(epochs)} epochs do the work of {rounded(epochs * share, 3)} of "
            "very small batches"
        )
    if np.any(known) and not known[index]:
        reason += f"; {_never_measured(curve, index)}"
    if curve.marks.extrapolated[index]:
        reason += "; extrapolated beyond what was profiled"
    if curve.relative_only:
        reason += "; absolute figures mean little, as the epochs to the target are unknown"
    alternatives = [("fastest", _fastest(curve, allowed)), ("cheapest", _cheapest(curve, allowed))]
    if curve.knee is not None:
        alternatives.append(("knee", curve.knee))
    return Choice(curve[index], objective, reason, tuple((label, curve[i]) for label, i in alternatives))


def _rather_measured(
    curve: TradeoffCurve, objective: Objective, among: IntArray, known: BoolArray
) -> tuple[int, str]:
    """The best point; the best one of known workers, if that loses less than `GAIN_MIN`."""
    best = OBJECTIVES[objective]
    index, reason = best(curve, among)
    if known[index] or not np.any(known[among]):
        return index, reason
    surer, why = best(curve, among[known[among]])
    loss = loss_of(objective, curve)
    here, there = (loss(float(curve.time_s[i]), float(curve.cost_usd[i])) for i in (index, surer))
    if there - here >= GAIN_MIN * there > 0.0:
        return index, reason
    beside = _compared(curve, index, surer, "chosen one")
    return surer, (
        f"{why}; {curve.configurations[index]} is predicted {beside}, but {_never_measured(curve, index)}"
    )


def _never_measured(curve: TradeoffCurve, index: int) -> str:
    workers = int(curve.configurations.workers[index])
    return f"its {'1 worker was' if workers == 1 else f'{workers} workers were'} never measured"


def _fastest(curve: TradeoffCurve, allowed: IntArray) -> int:
    """The fastest point; of equally fast ones the cheapest."""
    return _least(curve.time_s, curve.cost_usd, allowed)


def _cheapest(curve: TradeoffCurve, allowed: IntArray) -> int:
    """The cheapest point; of equally cheap ones the fastest."""
    return _least(curve.cost_usd, curve.time_s, allowed)


def _least(values: FloatArray, others: FloatArray, allowed: IntArray) -> int:
    """Index of the least value; ties are broken by the other value, then by position."""
    of_allowed = values[allowed]
    least = allowed[of_allowed == of_allowed.min()]
    return int(least[int(np.argmin(others[least]))])


def _by_time(curve: TradeoffCurve, allowed: IntArray) -> tuple[int, str]:
    index = _fastest(curve, allowed)
    return (
        index,
        f"fastest of {len(allowed)}: {_compared(curve, index, _cheapest(curve, allowed), 'cheapest')}",
    )


def _by_cost(curve: TradeoffCurve, allowed: IntArray) -> tuple[int, str]:
    index = _cheapest(curve, allowed)
    return (
        index,
        f"cheapest of {len(allowed)}: {_compared(curve, index, _fastest(curve, allowed), 'fastest')}",
    )


def _by_knee(curve: TradeoffCurve, allowed: IntArray) -> tuple[int, str]:
    """The knee; without one, the point of the front nearest to (least time, least cost) in log space."""
    fastest = _fastest(curve, allowed)
    if curve.knee is not None and curve.knee in allowed:
        return curve.knee, f"knee: {_compared(curve, curve.knee, fastest, 'fastest')}"
    front = _front(curve, allowed)
    if len(front) == 1:
        return int(front[0]), "both fastest and cheapest, so there is no tradeoff to find a knee of"
    distance = np.hypot(_log_excess(curve.time_s[front]), _log_excess(curve.cost_usd[front]))
    index = int(front[int(np.argmin(distance))])
    compared = _compared(curve, index, fastest, "fastest")
    return index, f"the front has no knee; nearest to both the least time and the least cost: {compared}"


def _front(curve: TradeoffCurve, allowed: IntArray) -> IntArray:
    """The Pareto front of the allowed points; of equal points the first."""
    order = allowed[np.lexsort((curve.cost_usd[allowed], curve.time_s[allowed]))]
    cost = curve.cost_usd[order]
    cheapest_before = np.concatenate(([np.inf], np.minimum.accumulate(cost)[:-1]))
    return order[cost < cheapest_before]


def _by_utility(
    curve: TradeoffCurve,
    allowed: IntArray,
    worth: Callable[[float], float],
    so_far: tuple[float, float, float],
) -> tuple[int, str]:
    """The point with the largest U(T) - C of the whole run, its worth less its cost; of equals the cheapest.

    Args:
        so_far: Seconds and dollars spent, and the share of the training that is left.
    """
    spent_s, spent_usd, remaining = so_far
    cost_usd = curve.rest_usd(remaining)[allowed] + spent_usd
    worths = np.array([worth(float(time_s)) for time_s in curve.rest_s(remaining)[allowed] + spent_s])
    best = int(np.lexsort((cost_usd, cost_usd - worths))[0])
    return int(allowed[best]), (
        f"worth most above its cost, of {len(allowed)}: ${rounded(worths[best])} for ${rounded(cost_usd[best])}"
    )


OBJECTIVES: dict[str, Callable[[TradeoffCurve, IntArray], tuple[int, str]]] = {
    "time": _by_time,
    "cost": _by_cost,
    "knee": _by_knee,
}


def _log_excess(values: FloatArray) -> FloatArray:
    """ln of the ratio of each value to the least; values below `NOTHING_USD` count as `NOTHING_USD`."""
    log = np.log(np.maximum(values, NOTHING_USD))
    return np.asarray(log - log.min())


def _compared(curve: TradeoffCurve, index: int, other: int, name: str) -> str:
    """Compare a point with another in words, as `12 % slower than the fastest at 41 % of its cost`."""
    if index == other:
        return f"also the {name}"
    time, cost = curve.time_s[index] / curve.time_s[other], curve.cost_usd[other]
    pace = "as fast as" if abs(time - 1.0) < 0.005 else _times(float(time)) + " than"
    if cost > NOTHING_USD:
        share = curve.cost_usd[index] / cost
        return f"{pace} the {name} at {share:.0%} of its cost".replace("%", " %")
    return f"{pace} the {name} at ${curve.cost_usd[index]:.2f} instead of nothing".replace("%", " %")


def _times(ratio: float) -> str:
    if ratio >= 2.0:
        return f"{ratio:.1f} times slower"
    if ratio >= 1.0:
        return f"{ratio - 1.0:.0%} slower"
    return f"{1.0 - ratio:.0%} faster" if ratio > 0.5 else f"{1.0 / ratio:.1f} times faster"


def _infeasible(
    curve: TradeoffCurve,
    deadline_s: float | None,
    budget_usd: float | None,
    spent_time_s: float,
    spent_usd: float,
    remaining: float,
) -> Infeasible:
    """Explain that nothing is feasible, with the point that exceeds its limits by the smallest factor."""
    if not len(curve):
        return Infeasible("the search space has no configuration with a sample for every worker", None)
    time_s, cost_usd = curve.rest_s(remaining) + spent_time_s, curve.rest_usd(remaining) + spent_usd
    over_time, over_cost = _over(time_s, deadline_s), _over(cost_usd, budget_usd)
    miss = np.maximum(over_time, over_cost)
    soft = np.array([reason.startswith((PAST_DEADLINE, OVER_BUDGET)) for reason in curve.marks.reasons])
    can_run = np.flatnonzero(soft[curve.marks.excluded])
    if not len(can_run):
        hard = sorted({curve.marks.reasons[i] for i in curve.marks.excluded})
        return Infeasible(f"no configuration can run: {'; '.join(hard)}", None)
    index = int(can_run[int(np.argmin(miss[can_run]))])
    misses = []
    if over_time[index] > 1.0 and deadline_s is not None:
        misses.append(
            f"{rounded(time_s[index])} s{_with(f'{rounded(spent_time_s)} s', spent_time_s)}, "
            f"{_percent(over_time[index])} past the deadline of {deadline_s:.6g} s"
        )
    if over_cost[index] > 1.0 and budget_usd is not None:
        misses.append(
            f"${rounded(cost_usd[index])}{_with(f'${rounded(spent_usd)}', spent_usd)}, "
            f"{_percent(over_cost[index])} over the budget of ${budget_usd:.6g}"
        )
    point = curve[index]
    limits = " and ".join(
        name for name, limit in (("deadline", deadline_s), ("budget", budget_usd)) if limit is not None
    )
    reason = (
        f"none of {len(curve)} configurations meets the {limits}; nearest is {point.configuration}: "
        f"{' and '.join(misses)}"
    )
    return Infeasible(reason, point)


def _with(words: str, spent: float) -> str:
    return f" with the {words} spent so far" if spent > 0.0 else ""


def _over(total: FloatArray, limit: float | None) -> FloatArray:
    """Ratio of a total to its limit; 0 without a limit, infinite if the limit is 0 and the total is not."""
    if limit is None:
        return np.zeros(len(total))
    if limit <= 0.0:
        return np.where(total > limit, np.inf, 1.0)
    return np.asarray(total / limit)


def _percent(ratio: float) -> str:
    return f"{ratio - 1.0:.0%}".replace("%", " %") if np.isfinite(ratio) else "infinitely"
