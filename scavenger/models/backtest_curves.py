"""Back-test of the forecasts from a run's own learning curve, beside simple ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray
from scavenger.models.backtest import SkippedGroup
from scavenger.models.curve_points import EVALUATIONS_MIN
from scavenger.models.curve_shapes import RateSchedule
from scavenger.models.earlier_runs import EarlierRun
from scavenger.models.final_value import forecast_value
from scavenger.models.learning_curve import (
    RATIO_MAX,
    Hint,
    Mode,
    forecast,
)

TARGET_AT = 0.9
"""A run's target is the best value that it has reached at this share of its length."""

WRONG_HINT = 1.87
"""The high hint over the truth, and the truth over the low one; a hint is taken to err by `HINT_LOG_SD`. Either alone
would reward forecasts that lean to the other side."""
HINT_LOG_SD = 0.3

OWN = "learning curve"
"""The method of `learning_curve`, without a hint and without a schedule."""


@dataclass(frozen=True, slots=True)
class CurveRun:
    """The evaluations of one run, as in a file of learning curves.

    Attributes:
        mode: Whether the metric is to become small or large.
        steps: Increasing, shape `(n,)`.
        values: Finite, shape `(n,)`.
        learning_rates: Shape `(n,)`; None if the file does not have them for the whole run.
        dropped: Rows that are not plausible.
    """

    source: str
    workload: str
    run: str
    mode: Mode
    steps: FloatArray
    values: FloatArray
    learning_rates: FloatArray | None = None
    dropped: int = 0

    def target(self) -> float:
        """The best value that the run has reached at `TARGET_AT` of its length."""
        within = self.steps <= TARGET_AT * self.steps[-1]
        values = self.values[within] if within.any() else self.values[:1]
        return float(values.min() if self.mode == "min" else values.max())

    def reached_at(self, target: float) -> float:
        """The first step with a value that is as good as the target, which the run reaches."""
        reached = self.values <= target if self.mode == "min" else self.values >= target
        return float(self.steps[int(np.argmax(reached))])

    def best(self) -> float:
        """The best value of the whole run."""
        return float(self.values.min() if self.mode == "min" else self.values.max())


@dataclass(frozen=True, slots=True)
class CurveErrors:
    """Errors of one method over runs, percent.

    Attributes:
        total: |predicted / true - 1| of the steps to the target, shape `(n,)`.
        final: The same of the best value of the whole run, its length being known; NaN where the method has none.
        covered: Whether the true steps lie in the 90 % interval; empty for a method without one.
    """

    method: str
    total: FloatArray
    final: FloatArray
    covered: BoolArray


@dataclass(frozen=True, slots=True)
class CurveResult:
    """Result of one workload at one point of its runs.

    Attributes:
        seen: Share of the way to the target that was seen.
        methods: Errors of every method, `OWN` first, over the same runs; those of a method that needs what the file
            does not have are left out.
    """

    source: str
    workload: str
    seen: float
    methods: tuple[CurveErrors, ...]


class _Estimate(NamedTuple):
    total: float
    final: float = math.nan
    interval: tuple[float, float] | None = None


def backtest_curves(runs: Iterable[CurveRun], seen: Sequence[float]) -> list[CurveResult | SkippedGroup]:
    """Forecast each run from the beginning of its curve: the steps to its target, and its best value.

    Args:
        seen: Shares of the steps to the target that are shown, between 0 and 1.

    Returns:
        One per (source, workload) and share, sorted; runs with fewer than `EVALUATIONS_MIN` evaluations so far are
        left out.
    """
    groups: dict[tuple[str, str], list[CurveRun]] = {}
    for run in runs:
        groups.setdefault((run.source, run.workload), []).append(run)
    found: list[CurveResult | SkippedGroup] = []
    for source, workload in sorted(groups):
        of_workload = groups[source, workload]
        for share in seen:
            others = [*of_workload[1:], of_workload[0]]
            pairs = zip(of_workload, others, strict=True)
            judged = [(run, methods) for run, other in pairs if (methods := _estimates(run, other, share))]
            dropped = sum(run.dropped for run in of_workload)
            if judged:
                names = dict.fromkeys(name for _, methods in judged for name in methods)
                errors = tuple(_errors(name, judged) for name in names)
                found.append(CurveResult(source, workload, share, errors))
            else:
                reason = (
                    f"no run has {EVALUATIONS_MIN} evaluations within {share:.0%} of the way to its target"
                )
                found.append(SkippedGroup(source, None, workload, reason, dropped))
    return found


def pooled(results: Sequence[CurveResult], method: str) -> CurveErrors | None:
    """Errors of one method over the runs of all workloads that it was used on; None if there are none."""
    parts = [one for result in results for one in result.methods if one.method == method]
    if not parts:
        return None
    return CurveErrors(
        method,
        np.concatenate([part.total for part in parts]),
        np.concatenate([part.final for part in parts]),
        np.concatenate([part.covered for part in parts]),
    )


def _estimates(run: CurveRun, other: CurveRun, share: float) -> dict[str, _Estimate]:
    """What every method says of a run; empty if too little was seen.

    Args:
        other: Another run of the workload, or the same where there is no other.
    """
    target = run.target()
    truth, end = run.reached_at(target), float(run.steps[-1])
    shown = run.steps <= share * truth
    if int(shown.sum()) < EVALUATIONS_MIN:
        return {}
    steps, values = run.steps[shown], run.values[shown]
    now = float(steps[-1])
    best = float(values.min() if run.mode == "min" else values.max())

    def own(
        hint: Hint | None = None, schedule: RateSchedule | None = None, earlier: Sequence[EarlierRun] = ()
    ) -> _Estimate:
        found = forecast(steps, values, target, mode=run.mode, hint=hint, schedule=schedule, earlier=earlier)
        final = forecast_value(steps, values, end, mode=run.mode).value if schedule is None else math.nan
        return _Estimate(found.total, final, (found.low, found.high))

    methods = {OWN: own()}
    rates = run.learning_rates
    if rates is not None:
        methods["rates so far known"] = own(schedule=RateSchedule.of(steps, rates[shown]))
        methods["schedule known"] = own(schedule=RateSchedule.of(run.steps, rates))
    if other is not run:
        known = EarlierRun(other.steps, other.values)
        methods["another run known"] = own(earlier=[known])._replace(final=math.nan)
    methods |= {
        "last value": _Estimate(now, best),
        "as long again": _Estimate(2.0 * now),
        "power law": _power_law(steps, values, target, end, run.mode),
        "log-log line": _log_log(steps, values, target, end),
        "wrong hint": _Estimate(WRONG_HINT * truth),
    }
    for name, hint in (("high", WRONG_HINT), ("right", 1.0), ("low", 1.0 / WRONG_HINT)):
        methods[f"with {name} hint"] = own(hint=Hint(hint * truth, HINT_LOG_SD))._replace(final=math.nan)
    return methods


def _errors(name: str, judged: Sequence[tuple[CurveRun, dict[str, _Estimate]]]) -> CurveErrors:
    of_runs = [(run, methods[name]) for run, methods in judged if name in methods]
    truth = np.array([run.reached_at(run.target()) for run, _ in of_runs])
    final = np.array([run.best() for run, _ in of_runs])
    intervals = [one.interval for _, one in of_runs]
    return CurveErrors(
        name,
        100.0 * np.abs(np.array([one.total for _, one in of_runs]) / truth - 1.0),
        100.0 * np.abs(np.array([one.final for _, one in of_runs]) / final - 1.0),
        np.array(
            [low <= true <= high for (low, high), true in zip(filter(None, intervals), truth, strict=False)],
            dtype=np.bool_,
        ),
    )


def _power_law(steps: FloatArray, values: FloatArray, target: float, end: float, mode: Mode) -> _Estimate:
    """Least squares of `a + b s^-p`, p on a grid; where the target is never reached, it takes `RATIO_MAX` times now."""
    now, best = float(steps[-1]), (math.inf, 0.0, 0.0, 1.0)
    for power in np.geomspace(0.05, 4.0, 60):
        x = (steps / now) ** -power
        slope, level = np.polyfit(x, values, 1)
        residual = float(np.sum((values - level - slope * x) ** 2))
        best = min(best, (residual, float(level), float(slope), float(power)))
    _, level, slope, power = best
    left = (target - level) / slope if slope else 0.0
    falls = slope > 0.0 if mode == "min" else slope < 0.0
    ratio = left ** (-1.0 / power) if falls and left > 0.0 else RATIO_MAX
    return _Estimate(now * min(max(ratio, 1.0), RATIO_MAX), level + slope * (end / now) ** -power)


def _log_log(steps: FloatArray, values: FloatArray, target: float, end: float) -> _Estimate:
    """Least squares of ln y over ln s; where the target is never reached, it takes `RATIO_MAX` times now."""
    now, positive = float(steps[-1]), (values > 0.0) & (steps > 0.0)
    if target <= 0.0 or int(positive.sum()) < 2:
        return _Estimate(now * RATIO_MAX)
    slope, level = np.polyfit(np.log(steps[positive] / now), np.log(values[positive]), 1)
    log_ratio = (math.log(target) - level) / slope if slope else math.inf
    ratio = math.exp(min(log_ratio, math.log(RATIO_MAX))) if log_ratio > 0.0 else RATIO_MAX
    return _Estimate(now * ratio, float(np.exp(level + slope * math.log(end / now))))
