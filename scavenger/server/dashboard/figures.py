"""The pictures of a job as figures of plotly: JSON values, with placeholders for colours (`presentation.figure`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from scavenger.control.training.run_course import RunCourse
from scavenger.domain.curve import thinned
from scavenger.domain.document import report_from_document
from scavenger.domain.forms import is_number
from scavenger.domain.job import GoalSpec
from scavenger.domain.report import Predicted
from scavenger.masking import mask
from scavenger.models.learning_curve import Hint, forecast
from scavenger.presentation.figure import picture_figure
from scavenger.presentation.formatting import clean, duration, money, plural, quantity
from scavenger.presentation.picture import describe, picture_of
from scavenger.server.dashboard.job_list import budget_of
from scavenger.server.dashboard.job_page import JobSight
from scavenger.server.dashboard.plots import Figure, axis, days, layout_of, line, wrapped
from scavenger.store.records import EventRecord, JobRecord

POINTS_MAX = 1_500
"""Most configurations in one picture; more would hide each other and make the page slow."""
LEVELS = 10
"""Values of the metric for which it is extrapolated when they are reached."""
_SAMPLES = "samples"
_FAILURES = ("lost", "failed", "preempted")


def job_figures(sight: JobSight) -> dict[str, Figure]:
    """The pictures of a job by their ids, in the order of the page."""
    return {
        "curve": _curve_figure(sight),
        "metric": _metric_figure(sight),
        "steps": _steps_figure(sight.course),
        "timeline": _timeline_figure(sight),
        "burn": _burn_figure(sight),
    }


# ---- the tradeoff curve -----------------------------------------------------------------------------------------


def _curve_figure(sight: JobSight) -> Figure:
    title = "Time and cost of every configuration"
    document = sight.job.report if (sight.job.report or {}).get("curve") else sight.course.report
    if document is None:
        why = "the job ended before one was predicted" if sight.job.ended else "it comes when profiling ends"
        return Figure(title, f"No curve: {why}.", None)
    try:
        report = report_from_document(document)
    except ValueError as error:
        return Figure(title, f"The stored curve cannot be read: {clean(error)}.", None)
    assert report.curve is not None
    curve, notes = thinned(report.curve, report.choice, POINTS_MAX)
    constraints = sight.job.spec.get("constraints") or {}
    deadline_s = constraints.get("deadline")
    picture = picture_of(
        replace(report, curve=curve),
        title,
        deadline_s=float(deadline_s) if is_number(deadline_s) else None,
        budget_usd=budget_of(sight.job.spec),
    )
    if picture.axes is None:
        return Figure(title, describe(picture), None)
    return Figure(
        title, " ".join((describe(picture), *(f"{note}." for note in notes))), picture_figure(picture)
    )


# ---- the metric and its extrapolation ----------------------------------------------------------------------------


def _metric_figure(sight: JobSight) -> Figure:
    goal = _goal_of(sight.job)
    metric = "val_loss" if goal is None or goal.metric is None else goal.metric
    title = f"{clean(metric)} by epochs"
    pairs = [(one.epoch + 1.0, one.metrics.get(metric, math.nan)) for one in sight.course.epochs]
    known = [(at, value) for at, value in pairs if math.isfinite(value)]
    if not known:
        return Figure(title, "No evaluation yet: the first one comes at the end of an epoch.", None)
    at, values = zip(*known, strict=True)
    words = f"{len(known)} evaluations, the last {quantity(values[-1], 4)} after epoch {at[-1]:.0f}."
    target = None if goal is None else goal.target
    traces = [
        line(
            "measured",
            at,
            values,
            mode="lines+markers",
            colour="@accent@",
            hover=[f"<b>epoch {a:.0f}</b><br>{escape(clean(metric))} {quantity(v, 4)}" for a, v in known],
        )
    ]
    if goal is not None and target is not None:
        end = max(at[-1], 2.0)
        levels = [] if sight.job.ended else _levels(at, values, goal)
        if levels:
            traces = [*_band(levels, goal.max_epochs), *traces]
            end, (_, median, low, high) = max(end, min(levels[-1][3], goal.max_epochs)), levels[-1]
            words += f" The target is expected after {median:.0f} epochs (90 %: {low:.0f} to {high:.0f})."
        traces.append(
            line(f"target {quantity(target, 4)}", (0.0, end), (target, target), colour="@limit@", dash="dash")
        )
        words += f" Target: {quantity(target, 4)}."
    layout = layout_of(
        x={"title": {"text": "epochs"}, "rangemode": "tozero"}, y={"title": {"text": clean(metric)}}
    )
    return Figure(title, words, {"data": traces, "layout": layout})


def _goal_of(job: JobRecord) -> GoalSpec | None:
    try:
        return GoalSpec.model_validate(job.spec.get("goal"))
    except ValueError:  # written by another version
        return None


Level = tuple[float, float, float, float]
"""A value of the metric, and the epochs after which it is reached: median, and both ends of the 90 % interval."""


def _levels(at: Sequence[float], values: Sequence[float], goal: GoalSpec) -> list[Level]:
    """When each of some values between the best so far and the target will be reached, by the metric's course."""
    assert goal.target is not None
    best = max(values) if goal.direction == "max" else min(values)
    hint = None if goal.epochs_hint is None else Hint(goal.epochs_hint, 0.5)
    levels = []
    for share in range(1, LEVELS + 1):
        level = best + (goal.target - best) * share / LEVELS
        try:
            ahead = forecast(at, values, level, mode=goal.direction, limit=float(goal.max_epochs), hint=hint)
        except ValueError:  # too few evaluations, or it is reached
            return []
        levels.append((level, ahead.total, ahead.low, ahead.high))
    return levels


def _band(levels: Sequence[Level], epochs_max: float) -> Iterator[dict[str, Any]]:
    """The extrapolated curve with its interval, as a band between the epochs of each value."""
    value, median, low, high = zip(*levels, strict=True)
    latest = [min(one, epochs_max) for one in high]
    edge = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    yield {
        **edge,
        "x": [*low, *reversed(latest)],
        "y": [*value, *reversed(value)],
        "fill": "toself",
        "fillcolor": "@band@",
        "name": "90 % interval",
    }
    yield line(
        "extrapolated",
        median,
        value,
        colour="@accent@",
        dash="dot",
        hover=[
            f"<b>{quantity(v, 4)}</b> after {m:.0f} epochs<br>90 %: {a:.0f} to {b:.0f}"
            for v, m, a, b in levels
        ],
    )


# ---- steps ------------------------------------------------------------------------------------------------------


def _steps_figure(course: RunCourse) -> Figure:
    title = "Step time and noise scale over the run"
    if not course.steps:
        return Figure(title, "No step yet.", None)
    steps = course.steps
    hover = [
        f"<b>step {one.last:,}</b><br>{duration(one.step_time_s)} a step"
        f"<br>K {one.workers}, B {one.global_batch_size:,}"
        for one in steps
    ]
    longest = max(one.step_time_s for one in steps)
    scale, unit = (1.0, "s") if longest >= 5.0 else (1e3, "ms")
    at = [one.last for one in steps]
    traces = [
        line("step time", at, [one.step_time_s * scale for one in steps], colour="@accent@", hover=hover),
        line(
            "batch size",
            at,
            [one.global_batch_size for one in steps],
            colour="@second@",
            dash="dot",
            y_axis="2",
            shape="hv",
            hover=[f"<b>batch {one.global_batch_size:,} samples</b>" for one in steps],
        ),
    ]
    noise = [(one.last, one.noise_scale) for one in steps if one.noise_scale is not None]
    last = ""
    if noise:
        x, y = zip(*noise, strict=True)
        words = [f"<b>noise scale {quantity(value)} samples</b><br>step {step:,}" for step, value in noise]
        traces.append(line("noise scale", x, y, colour="@third@", y_axis="2", hover=words))
        last = f" The noise scale was last {quantity(y[-1])} samples."
    layout = layout_of(
        x={"title": {"text": "step"}, "anchor": "y2", "rangemode": "tozero"},
        y={"title": {"text": f"step time ({unit})"}, "domain": [0.56, 1.0], "rangemode": "tozero"},
    )
    values = [y for one in steps for y in (one.noise_scale, one.global_batch_size) if y and y > 0]
    wide = max(values) / min(values) > 20
    layout["yaxis2"] = axis(
        {
            "title": {"text": _SAMPLES},
            "domain": [0.0, 0.44],
            "anchor": "x",
            **({"type": "log", "dtick": 1} if wide else {"rangemode": "tozero"}),
        }
    )
    words_all = f"{plural(steps[-1].last, 'step')}, of late {duration(steps[-1].step_time_s)} each.{last}"
    return Figure(title, words_all, {"data": traces, "layout": layout})


# ---- workers, failures and money on one time line ---------------------------------------------------------------


def _timeline_figure(sight: JobSight) -> Figure:
    title = "Workers, failures and money"
    views = [event for event in sight.events if event.kind == "view" and "workers" in event.data]
    failures = [event for event in sight.events if _is_failure(event)]
    money_line = _money(sight)
    if not views and not money_line:
        return Figure(title, "Nothing yet: the first view takes effect when a worker is ready.", None)
    end = sight.job.ended_at or sight.at
    x = [*(one.at for one in views), end] if views else []
    workers = [*(one.data["workers"] for one in views), views[-1].data["workers"]] if views else []
    hover = [wrapped(mask(one.message)) for one in views]
    traces = [
        line("workers", days(x), workers, colour="@accent@", shape="hv", hover=[*hover, ""]),
        {
            **line(
                "failures and warnings",
                days(one.at for one in failures),
                [_workers_at(one.at, views) for one in failures],
                mode="markers",
                colour="@limit@",
                hover=[wrapped(mask(one.message)) for one in failures],
            ),
            "marker": {"color": "@limit@", "size": 11, "symbol": "x"},
        },
        {
            **line(
                "cost",
                days(at for at, _ in money_line),
                [usd for _, usd in money_line],
                colour="@second@",
                y_axis="2",
                hover=[f"<b>{money(usd)}</b>" for _, usd in money_line],
            ),
            "fill": "tozeroy",
            "fillcolor": "@band@",
        },
    ]
    if not failures:
        del traces[1]
    layout = layout_of(
        x={"title": {"text": "time of day (UTC)"}, "type": "date", "anchor": "y2"},
        y={
            "title": {"text": "workers"},
            "domain": [0.5, 1.0],
            "rangemode": "tozero",
            "dtick": max(1, math.ceil(max(workers, default=0) / 4)),
        },
    )
    layout["yaxis2"] = axis(
        {
            "title": {"text": "cost (US dollars)"},
            "domain": [0.0, 0.38],
            "anchor": "x",
            "tickprefix": "$",
            "rangemode": "tozero",
        }
    )
    spent = money_line[-1][1] if money_line else math.nan
    words = f"{plural(len(views), 'view')}; failures and warnings: {len(failures):,}; {money(spent)} spent."
    return Figure(title, words, {"data": traces, "layout": layout})


def _is_failure(event: EventRecord) -> bool:
    return event.level != "info" or event.data.get("state") in _FAILURES


def _workers_at(at: datetime, views: Sequence[EventRecord]) -> int:
    before = [view.data["workers"] for view in views if view.at <= at]
    return int(before[-1]) if before else 0


def _money(sight: JobSight) -> list[tuple[datetime, float]]:
    """Cost by time of day: as its journal has it, and the bill now or at the end."""
    course = [(sight.job.created_at, 0.0)]
    course += [(datetime.fromtimestamp(one.unix_s, UTC), one.cost_usd) for one in sight.course.costs]
    total = sight.cost.actual_usd
    if total is None:
        return course if len(course) > 1 else []
    end = max(sight.job.ended_at or sight.at, course[-1][0])
    return [*course, (end, total)]


# ---- the budget -------------------------------------------------------------------------------------------------


def _burn_figure(sight: JobSight) -> Figure:
    """What is left of the budget, and how it is expected to fall."""
    title = "Budget left"
    budget, spent = budget_of(sight.job.spec), _money(sight)
    if budget is None:
        return Figure(title, "This job has no budget: constraints.budget in its job file sets one.", None)
    if not spent:
        return Figure(title, f"Nothing of the budget of {money(budget)} is spent yet.", None)
    left = [(at, budget - usd) for at, usd in spent]
    traces = [
        line(
            "left",
            days(at for at, _ in left),
            [usd for _, usd in left],
            colour="@accent@",
            hover=[f"<b>{money(usd)} left</b>" for _, usd in left],
        )
    ]
    words = f"{money(left[-1][1])} of {money(budget)} left."
    expected = None if sight.job.ended else _expected_end(sight)
    if expected is not None:
        end, cost = expected
        ends = [budget - usd for usd in cost]
        now = left[-1]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "90 % interval",
                "x": days((now[0], end, end)),
                "y": [now[1], ends[1], ends[2]],
                "fill": "toself",
                "fillcolor": "@band@",
                "line": {"width": 0},
                "hoverinfo": "skip",
            }
        )
        traces.append(line("expected", days((now[0], end)), (now[1], ends[0]), colour="@accent@", dash="dot"))
        words += f" Expected at the end: {money(ends[0])} (90 %: {money(ends[2])} to {money(ends[1])})."
    traces.append(
        line(
            "used up",
            days((left[0][0], expected[0] if expected else left[-1][0])),
            (0.0, 0.0),
            colour="@limit@",
            dash="dash",
        )
    )
    layout = layout_of(
        x={"title": {"text": "time of day (UTC)"}, "type": "date"},
        y={"title": {"text": "budget left (US dollars)"}, "tickprefix": "$"},
    )
    return Figure(title, words, {"data": traces, "layout": layout})


def _expected_end(sight: JobSight) -> tuple[datetime, tuple[float, float, float]] | None:
    """The expected end of a live job, and its whole cost with its 90 % interval; None if they are not known."""
    predicted, progress, spent = sight.job.predicted, sight.progress, sight.cost.actual_usd
    if predicted is None or progress is None or progress.left_s is None or spent is None:
        return None
    rate = _usd_per_s(predicted)
    low_s, high_s = progress.left_interval_s or (progress.left_s, progress.left_s)
    costs = (spent + progress.left_s * rate, spent + low_s * rate, spent + high_s * rate)
    return sight.at + timedelta(seconds=progress.left_s), costs


def _usd_per_s(predicted: Predicted) -> float:
    """What the chosen configuration costs by the second, as predicted for the time after the choice."""
    time_s, usd = predicted.time_s - predicted.spent_s, predicted.cost_usd - predicted.spent_usd
    return max(0.0, usd / time_s) if time_s > 0.0 else 0.0


# ---- errors of predictions --------------------------------------------------------------------------------------


def errors_figure(jobs: Sequence[JobRecord]) -> Figure:
    """Predicted against actual time of jobs that reached their ends."""
    title = "Predicted and actual time of finished jobs"
    pairs = [
        (job, job.predicted, job.actual)
        for job in jobs
        if job.predicted is not None
        and job.actual is not None
        and job.predicted.time_s > 0.0 < job.actual.time_s
    ]
    if not pairs:
        return Figure(title, "No job with a prediction has reached its end yet.", None)
    x, y = [actual.time_s for _, _, actual in pairs], [predicted.time_s for _, predicted, _ in pairs]
    inside = sum(low <= actual.time_s <= high for _, p, actual in pairs for low, high in [p.time_interval_s])
    span = [min(*x, *y) / 1.3, max(*x, *y) * 1.3]
    traces = [
        line("as predicted", span, span, colour="@ink@", dash="dash"),
        {
            "type": "scatter",
            "mode": "markers",
            "name": "jobs, with 90 % interval",
            "x": x,
            "y": y,
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, p.time_interval_s[1] - p.time_s) for _, p, _ in pairs],
                "arrayminus": [max(0.0, p.time_s - p.time_interval_s[0]) for _, p, _ in pairs],
                "color": "@accent@",
                "thickness": 1,
            },
            "marker": {"color": "@accent@", "size": 8},
            "text": [
                f"<b>{escape(clean(job.name))}</b><br>actual {duration(actual.time_s)}"
                f"<br>predicted {duration(predicted.time_s)}"
                for job, predicted, actual in pairs
            ],
            "hovertemplate": "%{text}<extra></extra>",
        },
    ]
    words = f"{plural(len(pairs), 'finished job')}; the actual time of {inside} was within the 90 % interval."
    layout = layout_of(
        x={"title": {"text": "actual time (s)"}, "type": "log"},
        y={"title": {"text": "predicted time (s)"}, "type": "log"},
    )
    return Figure(title, words, {"data": traces, "layout": layout})
