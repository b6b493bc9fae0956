"""Builds the tradeoff curve: time and cost of every configuration, the constraints, the Pareto front and the knee.

The knee is Kneedle's [1]_, as implemented by `kneed`. Two things are done before it sees the front. A front
of discrete configurations is uneven, and Kneedle takes each step for a knee; the point of the front that
lies furthest below the chord is on its lower convex hull in any case, so the hull is what Kneedle gets. And
its threshold is in units of the spacing of the points, so that three points have no knee however sharp
their bend; the hull is sampled evenly first, as the paper does with its spline.

References:
    .. [1] Satopää et al., "Finding a Kneedle in a Haystack", ICDCS workshops 2011.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from scavenger.domain.configuration import SearchSpace
from scavenger.domain.cost import CostTerms
from scavenger.domain.curve import (
    BoolArray,
    CurveConfigurations,
    FloatArray,
    IntArray,
    Interval,
    PointMarks,
    TradeoffCurve,
    paid_share,
    rest,
)
from scavenger.models.job_model import JobModel, Prediction
from scavenger.models.parallel import local_batch_sizes

PAST_DEADLINE, OVER_BUDGET = "past the deadline", "over the budget"
"""Prefixes of the reasons that exclude a configuration although it could run."""

NEVER_DONE = "interrupted faster than work gets done"

NO_KNEE = "the front has no knee, a point beyond which more speed costs much more"

NO_LIMIT = int(np.iinfo(np.int64).max)
"""Stands for a local batch without a limit."""

KNEE_SAMPLES = 201
"""Number of even samples of the hull that Kneedle gets, in addition to the hull's corners."""

KNEE_DEPTH_MIN = 0.1
"""How far below the chord, in a square of side 1, the front must bend to have a knee: a right angle is 1, a
straight line 0, and at a tenth moving along the chord instead loses less than a tenth of what the
objectives span."""


def build_curve(
    model: JobModel,
    space: SearchSpace,
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    workers_max: int | None = None,
    spent_time_s: float = 0.0,
    spent_usd: float = 0.0,
    remaining: float = 1.0,
    costs: CostTerms | None = None,
    too_many: int | None = None,
    too_large_model: str = "",
) -> TradeoffCurve:
    """Predict every configuration of the space and apply the constraints, by point prediction.

    Args:
        deadline_s, budget_usd: Limits of the whole job; None if there is none.
        workers_max: The largest cluster, if less than the space's.
        spent_time_s, spent_usd: Already spent, counted against the limits but not in the curve.
        remaining: Share of the training that is left, in [0, 1]: the curve covers the whole training, the limits
            apply to this share, and to all of the set-up that is still due.
        costs: Costs and delays other than the workers' training; None if they are not counted.
        too_many: Samples per worker that were found not to fit into its device's memory; None if all fit.
        too_large_model: Why the aggregators do not hold the model; empty if they do.

    Returns:
        One point per configuration, in the order of `space.configurations()`. Memory and cluster size are checked
        before deadline and budget.
    """
    vm_index, workers, batch = _grid(space)
    predicted, memory_max = _predicted(model, space, vm_index, workers, batch, costs)
    spending = _Spending(predicted, costs=costs, time_s=spent_time_s, cost_usd=spent_usd, remaining=remaining)
    # A profiled configuration has fitted into memory, whatever the memory model predicts.
    local_batches = local_batch_sizes(workers, batch)
    too_large = (local_batches > memory_max) & ~predicted.measured
    if too_many is not None:
        too_large |= local_batches >= too_many
    excluded, reasons = _first_reasons(
        [
            *([] if workers_max is None else [(workers > workers_max, f"more than {workers_max} workers")]),
            (too_large, "local batch too large for a worker's memory"),
            *([(~predicted.measured, too_large_model)] if too_large_model else []),
            (~np.isfinite(predicted.time_s), NEVER_DONE),
            *spending.beyond(deadline_s, budget_usd),
        ],
        len(workers),
    )
    allowed = excluded == 0
    front = pareto_front(predicted.time_s, predicted.cost_usd, allowed)
    knee = find_knee(predicted.time_s, predicted.cost_usd, front)
    notes = (
        *model.all_notes(costs, space.offers),
        *spending.close_calls(allowed, deadline_s, budget_usd),
        *_notes_on_epochs(
            model, predicted, allowed, limited=deadline_s is not None or budget_usd is not None
        ),
        *((NO_KNEE,) if knee is None and np.any(allowed) else ()),
    )
    return TradeoffCurve(
        configurations=CurveConfigurations(
            tuple(offer.vm for offer in space.offers), vm_index, workers, batch
        ),
        time_s=predicted.time_s,
        time_interval_s=Interval(predicted.time_low_s, predicted.time_high_s),
        cost_usd=predicted.cost_usd,
        cost_interval_usd=Interval(predicted.cost_low_usd, predicted.cost_high_usd),
        step_time_s=predicted.step_time_s,
        epochs=predicted.epochs,
        marks=PointMarks(front, predicted.measured, predicted.extrapolated, excluded, reasons),
        relative_only=model.relative_only,
        notes=notes,
        knee=knee,
        setup_s=spending.setup_s,
        progress_share=model.statistical.progress_share(batch.astype(np.float64)),
    )


def _predicted(
    model: JobModel,
    space: SearchSpace,
    vm_index: IntArray,
    workers: IntArray,
    batch: IntArray,
    costs: CostTerms | None,
) -> tuple[Prediction, IntArray]:
    """Predict every configuration, and the largest local batch that fits into its memory, shape `(n,)`."""
    # Weighing the laws of epochs is most of the work, and all offers and cluster sizes share its result.
    epochs, log_sd = model.statistical.predict(np.array(space.global_batch_sizes, dtype=np.float64))
    place = np.searchsorted(space.global_batch_sizes, batch)
    parts = []
    memory_max = np.full(len(workers), NO_LIMIT)
    for index, offer in enumerate(space.offers):
        here = vm_index == index
        known = (epochs[place[here]], log_sd[place[here]])
        parts.append(model.predict(offer, workers[here], batch[here], epochs=known, costs=costs))
        if (fits := model.local_batch_max(offer)) is not None:
            memory_max[here] = min(fits, NO_LIMIT)
    names = [field.name for field in dataclasses.fields(Prediction)]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Prediction(**joined), memory_max


def _first_reasons(rules: Sequence[tuple[BoolArray, str]], count: int) -> tuple[IntArray, tuple[str, ...]]:
    """The first rule that excludes each point, as an index into the reasons; 0, the empty reason, if none does.

    Args:
        rules: For each rule, the points that it excludes, shape `(count,)`, and its reason.
    """
    excluded, reasons = np.zeros(count, dtype=np.int64), [""]
    for where, reason in rules:
        fresh = where & (excluded == 0)
        if np.any(fresh):
            reasons.append(reason)
            excluded[fresh] = len(reasons) - 1
    return excluded, tuple(reasons)


class _Spending:
    """Total time and cost of the job at each configuration, given what was already spent.

    Args:
        time_s, cost_usd: Already spent.
        remaining: Share of the training that is left.

    Attributes:
        setup_s: Set-up time, due whatever share is left, shape `(n,)`; None if it is not counted.
    """

    def __init__(
        self,
        predicted: Prediction,
        *,
        costs: CostTerms | None,
        time_s: float,
        cost_usd: float,
        remaining: float,
    ) -> None:
        self._predicted, self._costs = predicted, costs
        self._time_s, self._cost_usd, self._remaining = time_s, cost_usd, remaining
        self.setup_s = None if costs is None else predicted.setup_s
        self._setup_usd = None if costs is None else self._usd_for(predicted.setup_s)

    def beyond(self, deadline_s: float | None, budget_usd: float | None) -> Iterator[tuple[BoolArray, str]]:
        """Yield, for each limit, the points predicted to cross it, and the reason text."""
        if deadline_s is not None:
            late = self._time_by_end(self._predicted.time_s) > deadline_s
            yield late, f"{PAST_DEADLINE} of {deadline_s:.6g} s"
        if budget_usd is not None:
            cost_usd = self._cost_by_end(self._predicted.cost_usd)
            if self._costs is not None and self._costs.reserve_s:
                cost_usd = cost_usd + self._usd_for(np.full(len(cost_usd), self._costs.reserve_s))
            yield cost_usd > budget_usd, f"{OVER_BUDGET} of ${budget_usd:.6g}"

    def close_calls(
        self, allowed: BoolArray, deadline_s: float | None, budget_usd: float | None
    ) -> Iterator[str]:
        """Yield a note on each limit that lies within the intervals of allowed configurations."""
        high_s, high_usd = self._predicted.time_high_s, self._predicted.cost_high_usd
        for limit, by_end, name in (
            (deadline_s, self._time_by_end(high_s), "deadline"),
            (budget_usd, self._cost_by_end(high_usd), "budget"),
        ):
            crossing = 0 if limit is None else int(np.sum(allowed & (by_end > limit)))
            if crossing:
                yield (
                    f"the {name} is within the 90 % interval of {crossing} of the {int(allowed.sum())} allowed "
                    "configurations: these may miss it"
                )

    def _time_by_end(self, time_s: FloatArray) -> FloatArray:
        return rest(time_s, self.setup_s, self._remaining) + self._time_s

    def _cost_by_end(self, cost_usd: FloatArray) -> FloatArray:
        return rest(cost_usd, self._setup_usd, self._remaining) + self._cost_usd

    def _usd_for(self, of_s: FloatArray) -> FloatArray:
        return paid_share(self._predicted.cost_usd, self._predicted.time_s, of_s)


def _notes_on_epochs(
    model: JobModel, predicted: Prediction, allowed: BoolArray, *, limited: bool
) -> Iterator[str]:
    """Yield notes on the reliability of limits and curve if epochs are unknown or exceed the allowed number."""
    if model.relative_only:
        if limited:
            yield (
                "deadline and budget are held against figures that mean little, as the epochs to the target are "
                "unknown; both are held during the run all the same"
            )
        return
    if model.statistical.fixed is None and (
        over := int(np.sum(allowed & (predicted.epochs > model.max_epochs)))
    ):
        yield f"{over} allowed configurations would need more than the {model.max_epochs:g} epochs allowed"


def repriced(curve: TradeoffCurve, cost_usd: FloatArray) -> TradeoffCurve:
    """The curve with other costs: another pricing scheme, with the resulting front and knee.

    Points that the budget excluded at the old prices are allowed again.

    Args:
        curve: A curve of n points.
        cost_usd: New cost of each point, shape `(n,)`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        times = np.stack((curve.time_interval_s.low, curve.time_interval_s.high)) / curve.time_s
    over = np.array([reason.startswith(OVER_BUDGET) for reason in curve.marks.reasons])
    excluded = np.where(over[curve.marks.excluded], 0, curve.marks.excluded)
    front = pareto_front(curve.time_s, cost_usd, excluded == 0)
    return dataclasses.replace(
        curve,
        cost_usd=cost_usd,
        cost_interval_usd=Interval(cost_usd * times[0], cost_usd * times[1]),
        marks=dataclasses.replace(curve.marks, excluded=excluded, on_front=front),
        knee=find_knee(curve.time_s, cost_usd, front),
    )


def _grid(space: SearchSpace) -> tuple[IntArray, IntArray, IntArray]:
    """Offer index, K and B of every configuration with B >= K, in the order of `space.configurations()`."""
    axes = (np.arange(len(space.offers)), np.array(space.workers), np.array(space.global_batch_sizes))
    vm_index, workers, batch = (axis.ravel().astype(np.int64) for axis in np.meshgrid(*axes, indexing="ij"))
    keep = batch >= workers
    return vm_index[keep], workers[keep], batch[keep]


def pareto_front(time_s: FloatArray, cost_usd: FloatArray, allowed: BoolArray) -> BoolArray:
    """The Pareto front: allowed points that no other allowed point dominates in time and cost.

    Points that tie in both are all on the front. O(n log n); all arrays of shape `(n,)`.
    """
    front = np.zeros(len(time_s), dtype=np.bool_)
    index = np.flatnonzero(allowed)
    if not len(index):
        return front
    # Points that one good point dominates need not be sorted: of a million points that is nearly all.
    with np.errstate(divide="ignore"):
        pivot = index[int(np.argmin(np.log(time_s[index]) + np.log(cost_usd[index])))]
    index = index[(time_s[index] <= time_s[pivot]) | (cost_usd[index] <= cost_usd[pivot])]
    order = index[np.lexsort((cost_usd[index], time_s[index]))]
    time, cost = time_s[order], cost_usd[order]
    first = np.flatnonzero(np.append(True, time[1:] > time[:-1]))
    group = np.cumsum(np.append(True, time[1:] > time[:-1])) - 1
    # Within equal times the cheapest comes first; it must beat everything that is strictly faster.
    cheapest = cost[first]
    faster = np.append(np.inf, np.minimum.accumulate(cheapest)[:-1])
    front[order] = (cost == cheapest[group]) & (cost < faster[group])
    return front


def find_knee(time_s: FloatArray, cost_usd: FloatArray, front: BoolArray) -> int | None:
    """Index of the front's knee; None if it has fewer than three distinct points or bends too little."""
    order = np.flatnonzero(front)
    order = order[np.argsort(time_s[order], kind="stable")]
    keep = np.append(True, np.diff(time_s[order]) > 0.0) if len(order) else np.zeros(0, dtype=np.bool_)
    order = order[keep]
    if len(order) < 3:
        return None
    x = _unit(time_s[order])
    y = _unit(cost_usd[order])
    hull = _lower_hull(x, y)
    if len(hull) < 3:
        return None
    # its own imports (plots, signal processing) are a third of those of a command; few fronts bend
    from kneed import KneeLocator

    samples = np.union1d(x[hull], np.linspace(0.0, 1.0, KNEE_SAMPLES))
    found = KneeLocator(
        samples, np.interp(samples, x[hull], y[hull]), curve="convex", direction="decreasing", S=1.0
    ).knee
    if found is None:
        return None
    corner = hull[int(np.argmin(np.abs(x[hull] - float(found))))]
    deep_enough = 1.0 - x[corner] - y[corner] >= KNEE_DEPTH_MIN
    return int(order[corner]) if deep_enough else None


def _unit(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.min()) / (values.max() - values.min()))


def _lower_hull(x: FloatArray, y: FloatArray) -> list[int]:
    """Indices of the lower convex hull of points with strictly increasing x (Andrew's monotone chain)."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) - (y[b] - y[a]) * (x[i] - x[a]) > 0.0:
                break
            hull.pop()
        hull.append(i)
    return hull
