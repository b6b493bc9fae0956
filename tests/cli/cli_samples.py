"""Curves and reports that the tests of the command line are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scavenger.domain import report as report
from scavenger.domain.curve import (
    Choice,
    CurveConfigurations,
    Infeasible,
    Interval,
    PointMarks,
    TradeoffCurve,
)
from scavenger.domain.measurement import Measurement


def make_curve(
    workers: Sequence[int] = (1, 2),
    batches: Sequence[int] = (64, 128, 256),
    vms: tuple[str, ...] = ("e2-standard-4",),
    *,
    price: float = 0.134,
    deadline_s: float = np.inf,
    relative_only: bool = False,
) -> TradeoffCurve:
    """The usual shape: more workers are faster and dearer, large batches need more epochs."""
    rows = [(vm, k, b) for vm in range(len(vms)) for k in workers for b in batches if b >= k]
    vm, k, b = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    step_s, epochs = 0.02 + 0.004 * b / k / (1 + vm) + 0.01 * k, 10 * (1 + b / 600)
    time_s = step_s * epochs * 50_000 / b
    cost = time_s / 3600 * price * (1 + 0.9 * vm) * k
    excluded = (time_s > deadline_s).astype(np.int64)
    allowed = np.flatnonzero(excluded == 0)
    front = np.zeros(len(k), np.bool_)
    for i in allowed:
        better = (time_s[allowed] <= time_s[i]) & (cost[allowed] <= cost[i])
        strictly = (time_s[allowed] < time_s[i]) | (cost[allowed] < cost[i])
        front[i] = not (better & strictly).any()
    ends = np.isin(k, [workers[0], workers[-1]]) & np.isin(b, [batches[0], batches[-1]])
    on_front = np.flatnonzero(front)
    return TradeoffCurve(
        configurations=CurveConfigurations(vms, vm, k, b),
        time_s=time_s,
        time_interval_s=Interval(time_s * 0.85, time_s * 1.2),
        cost_usd=cost,
        cost_interval_usd=Interval(cost * 0.85, cost * 1.2),
        step_time_s=step_s,
        epochs=epochs,
        marks=PointMarks(
            on_front=front,
            measured=ends,
            extrapolated=b > max(batches) * 0.9,
            excluded=excluded,
            reasons=("", "slower than the deadline"),
        ),
        relative_only=relative_only,
        notes=("set-up time is not counted",),
        knee=int(on_front[len(on_front) // 2]) if len(on_front) else None,
    )


def make_choice(curve: TradeoffCurve) -> Choice:
    """The knee, with the ends of the front beside it."""
    assert curve.knee is not None
    allowed = np.flatnonzero(curve.marks.excluded == 0)
    fastest = int(allowed[np.argmin(curve.time_s[allowed])])
    cheapest = int(allowed[np.argmin(curve.cost_usd[allowed])])
    return Choice(
        curve[curve.knee],
        "knee",
        "the bend of the front: faster costs disproportionately more",
        (("fastest", curve[fastest]), ("cheapest", curve[cheapest]), ("knee", curve[curve.knee])),
    )


def make_report(
    curve: TradeoffCurve | None = None,
    *,
    name: str = "digits-cnn",
    planned: bool = False,
    error: str = "",
    exit_code: int = 0,
) -> report.RunReport:
    """A finished run, or a plan."""
    curve = make_curve() if curve is None else curve
    choice = make_choice(curve)
    point = choice.point
    predicted = report.Predicted(
        point.time_s,
        point.time_interval_s,
        point.cost_usd,
        point.cost_interval_usd,
        point.step_time_s,
        point.epochs,
    )
    profiled = tuple(
        Measurement(p.configuration, 20, p.step_time_s, 0.001, 0.02, 0.01, 1.3, None, 600 << 20)
        for p in curve
        if p.measured
    )
    return report.RunReport(
        job=report.ReportedJob(
            "0198c0de-1111-4000-8000-000000000001", name, "planned" if planned else "succeeded"
        ),
        search=report.SearchOutcome(
            "partial", "nothing is known of this kind of job yet", profiled, 93.0, 0.0031, 12.0, 0.0004
        ),
        curve=curve,
        choice=choice,
        predicted=predicted,
        result=report.TrainingResult(steps=80)
        if planned
        else report.TrainingResult(
            actual=report.Actual(point.time_s * 1.25, point.cost_usd, point.step_time_s, 11.0),
            metric=report.MetricOutcome("val_accuracy", 0.9712, 0.97, True),
            steps=4242,
            model_path="/home/u/.scavenger/model.keras",
        ),
        measurements_path="/home/u/.scavenger/measurements.json",
        error=error,
        exit_code=exit_code,
    )


def make_infeasible_report() -> report.RunReport:
    """A plan where the deadline rules everything out."""
    curve = make_curve(deadline_s=1.0)
    reason = "every configuration misses the deadline of 1 s; the nearest takes 23 min"
    return replace(
        make_report(planned=True),
        curve=curve,
        choice=Infeasible(reason, curve[0]),
        predicted=None,
        exit_code=4,
        error=reason,
    )
