"""The texts of `curves --why K B` and of `explain`: where a prediction comes from, and what would narrow it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.models.why import PARTS
from scavenger.presentation.formatting import (
    clean,
    duration,
    duration_range,
    durations,
    money,
    money_range,
    quantity,
)
from scavenger_cli.ui.render import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scavenger.api.why import ExplainedPrediction, WhyAnswer

NAMED_MIN = 0.005
"""Least share of an interval that is named."""

DOUBTS = 3
"""Parts of an interval that `explain` names."""

NARROWER = 0.9
"""A measurement is named by `explain` if it narrows the interval to this share of its width."""

_MOSTLY = {
    "epochs": "no step tells how many epochs it takes; a finished run of this job does, for the next prediction",
    "drift": "steps of whole runs here differ from those that were measured in their searches",
}
"""What to do about the largest part, where it is none of the step's."""


def why_lines(answer: WhyAnswer) -> Iterator[RenderableType]:
    """Text for an explanation."""
    used = answer.model
    if used is not None and used.job_id != answer.job["id"]:
        yield Text(f"explained by model {used.id[:8]}, which is stored of another job of this kind")
    for number, why in enumerate(answer.predictions):
        if number:
            yield ""
        yield from _prediction(why)


def doubt_lines(why: ExplainedPrediction, job_id: str) -> Iterator[RenderableType]:
    """What is uncertain of a prediction, and what would narrow it, in sentences."""
    low, high = (quantity(math.exp(sign * why.half_width), 2) for sign in (-1, 1))
    yield Text(
        f"How sure: nine of ten such runs of {why.workers} x {clean(why.vm)}, batch {why.global_batch_size} take from "
        f"{low} to {high} times the time of the table"
    )
    shares = sorted(why.shares.items(), key=lambda item: -float(item[1]))
    named = (f"{100 * share:.0f} % {PARTS[name]}" for name, share in shares[:DOUBTS] if share >= NAMED_MIN)
    yield Text(f"  the doubt comes from: {', '.join(named)}")
    if shares and shares[0][0] in _MOSTLY:
        yield Text(f"  {_MOSTLY[shares[0][0]]}")
    if why.probes and why.probes[0].half_width < NARROWER * why.half_width:
        probe = why.probes[0]
        yield Text(
            f"  measuring {probe.workers} x batch {probe.global_batch_size} would narrow that to "
            f"{quantity(math.exp(-probe.half_width), 2)} to {quantity(math.exp(probe.half_width), 2)} times"
        )
    key = f"{job_id[:8]} --why {why.workers} {why.global_batch_size}"
    yield Text(f"  point by point: scavenger curves {key}", style="dim")


def _prediction(why: ExplainedPrediction) -> Iterator[RenderableType]:
    yield Text(f"{why.workers} x {clean(why.vm)}, batch {why.global_batch_size}", style="bold")
    point = why.point
    if point is None:
        yield Text("not a configuration of this curve")
    elif point["excluded"]:
        yield Text(f"ruled out: {clean(point['excluded'])}")
    elif why.relative_only:
        yield Text("the epochs to the target are not known: of its time only the step is")
    elif point["time_s"] is not None and point["cost_usd"] is not None:
        interval = point["interval"]
        yield Text(
            f"the run: {duration(point['time_s'])} ({duration_range(*interval['time_s'])}), "
            f"{money(point['cost_usd'])} ({money_range(*interval['cost_usd'])})"
        )
    known = "measured" if why.measured else "not measured"
    yield Text(f"a step: {_step(why)}, {known}; intervals hold 90 %")
    laws = ", ".join(f"{name} {weight:.0%}" for name, weight in why.laws.items())
    yield Text(f"law: {laws}; computing {duration(why.compute_s)}, synchronisation {duration(why.sync_s)}")
    for name, factor in why.factors.items():
        if abs(factor - 1.0) >= 0.0005:
            yield Text(f"  {PARTS[name]}: {factor - 1.0:+.1%} of the step")
    yield from _points(why)
    yield from _interval(why)


def _step(why: ExplainedPrediction) -> str:
    return f"{duration(why.step_time_s)} ({duration_range(*why.step_time_interval_s)})"


def _points(why: ExplainedPrediction) -> Iterator[RenderableType]:
    if not why.points:
        yield Text("from no measured point of this VM type")
        return
    yield Text("from these points (weight: change of the step time by 1 % more at the point):")
    made = table(("K", "right"), ("B", "right"), ("step time", "right"), ("weight", "right"))
    for point, step_time in zip(why.points, durations([one.step_time_s for one in why.points]), strict=True):
        made.add_row(
            str(point.workers),
            str(point.global_batch_size),
            step_time,
            f"{point.weight:+.2f} %",
        )
    yield made


def _interval(why: ExplainedPrediction) -> Iterator[RenderableType]:
    factors = (quantity(math.exp(width)) for width in (why.step_half_width, why.half_width))
    yield Text("known to a factor of {} (the step) and {} (the run); of its variance:".format(*factors))
    shares = sorted(why.shares.items(), key=lambda item: -float(item[1]))
    made = table(("share", "right"), ("of", "left"))
    for name, share in shares:
        if share >= NAMED_MIN:
            made.add_row(f"{share:.0%}", PARTS[name])
    yield made
    if why.probes:
        yield Text("narrowed most by measuring (to factors of):")
        made = table(
            ("K", "right"), ("B", "right"), ("the step", "right"), ("the run", "right"), ("", "left")
        )
        for probe in why.probes:
            itself = (probe.workers, probe.global_batch_size) == (
                why.workers,
                why.global_batch_size,
            )
            widths = (quantity(math.exp(width)) for width in (probe.step_half_width, probe.half_width))
            made.add_row(
                str(probe.workers), str(probe.global_batch_size), *widths, "itself" if itself else ""
            )
        yield made
    else:
        yield Text("no other measurement of a step would narrow it")
    if shares and shares[0][0] in _MOSTLY:
        yield Text(_MOSTLY[shares[0][0]])
