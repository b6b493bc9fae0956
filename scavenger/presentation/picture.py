"""The picture of a time-cost curve as one value: what is drawn, where, and in which words.

Drawers (a terminal's, matplotlib's, plotly's) read it. They decide about characters, inks and places of labels; numbers
are rounded and words chosen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scavenger.domain.curve import BoolArray, Choice, CurvePoint, FloatArray, IntArray, TradeoffCurve
from scavenger.domain.report import Actual, Predicted, RunReport
from scavenger.presentation.axes import Axis, AxisSpan, axis_of, time_unit
from scavenger.presentation.formatting import clean, duration, money, plural, quantity, ratio

FINISHED = ("succeeded", "target_missed")
"""States of a run that reached the end for which the prediction was made."""
RELATIVE_NOTE = (
    "The number of epochs to the target is not known: ratios between configurations are reliable, absolute "
    "times and costs are only bounds."
)
INTERVALS_MAX = 6
"""Most points whose intervals are all shown: those of one K lie on one ray, and more hide each other."""
NAMED_MAX = 24
"""Most points of the front that are labelled with their configuration."""
SHAPES = 10
"""Markers that can be told apart: with no more series than that, each has its own."""
TWICE = 2.0
"""How many times as fast the point is whose price is told beside the chosen one's."""
STRETCH = 1.5
"""The axis is stretched to a limit up to this many times the largest value; a higher limit is given as text."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one batch size and VM type that no constraint rules out, a line over K.

    Attributes:
        shape: Number of the marker, of `SHAPES`.
        batch: Number of the batch size by size, which gives the shade.
        points: Indices by K.
    """

    name: str
    shape: int
    batch: int
    points: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """Words at a place of the picture.

    Attributes:
        x, y: The place, in the axes' units.
        lines: One or more lines.
        kind: `chosen`, `named` and `run` belong in the picture; `point` only where there is room.
        point: Index of the point that is labelled; None for the run.
    """

    x: float
    y: float
    lines: tuple[str, ...]
    kind: Literal["chosen", "named", "run", "point"]
    point: int | None


@dataclass(frozen=True, slots=True)
class Ran:
    """Where the run came out, and where it was predicted to, if that is told apart from the chosen point."""

    actual: tuple[float, float]
    predicted: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A line across the picture at a time or a cost, such as `deadline 2 h`."""

    words: str
    of_time: bool
    at: float


@dataclass(frozen=True, slots=True)
class Picture:
    """What one picture of a curve shows.

    Attributes:
        axes: Of time, across, and of cost, up; None if no configuration has both.
        intervals: Indices of points whose 90 % interval is drawn.
        labels: Most important first.
        caption: Sentences: what was chosen, and what twice the speed would cost.
    """

    title: str
    curve: TradeoffCurve
    choice: Choice | None
    axes: tuple[Axis, Axis] | None
    series: tuple[Series, ...] = ()
    intervals: tuple[int, ...] = ()
    labels: tuple[Label, ...] = ()
    ran: Ran | None = None
    limits: tuple[Limit, ...] = ()
    caption: tuple[str, ...] = ()

    @property
    def shown(self) -> BoolArray:
        """Points with a predicted time and cost, shape `(n,)`."""
        return _shown(self.curve)

    @property
    def front(self) -> IntArray:
        """Indices of the front, fastest first, shape `(m,)`."""
        front = np.flatnonzero(self.curve.marks.on_front & self.shown)
        return front[np.argsort(self.curve.time_s[front], kind="stable")]

    @property
    def ruled_out(self) -> IntArray:
        """Indices of points that a constraint rules out, shape `(m,)`."""
        return np.flatnonzero(self.shown & (self.curve.marks.excluded > 0))

    @property
    def at(self) -> tuple[FloatArray, FloatArray]:
        """Times and costs of all points, in the axes' units, shape `(n,)` each."""
        across, up = self.units
        return self.curve.time_s / across, self.curve.cost_usd / up

    @property
    def way(self) -> tuple[tuple[float, float], ...]:
        """The line to where the run came out, from where it was predicted to or from the chosen point; may be empty."""
        if self.ran is None:
            return ()
        chosen = [(label.x, label.y) for label in self.labels if label.kind == "chosen"]
        start = chosen if self.ran.predicted is None else [self.ran.predicted]
        return (*start, self.ran.actual)

    @property
    def batches(self) -> list[int]:
        """The batch sizes, increasing: their places are `Series.batch`."""
        return sorted(set(self.curve.configurations.global_batch_size.tolist()))

    @property
    def units(self) -> tuple[float, float]:
        """Seconds and US dollars in the axes' units."""
        return (1.0, 1.0) if self.axes is None else (self.axes[0].unit, self.axes[1].unit)

    def interval(self, index: int) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Times and costs of a point: low end, prediction, high end, in the axes' units.

        They are one line: cost is time times price, so both are uncertain together.
        """
        across, up = self.units
        (soonest, latest), (least, most) = (
            self.curve.time_interval_s[index],
            self.curve.cost_interval_usd[index],
        )
        time_s, cost_usd = float(self.curve.time_s[index]), float(self.curve.cost_usd[index])
        return (
            (soonest / across, time_s / across, latest / across),
            (least / up, cost_usd / up, most / up),
        )


def picture_of(
    report: RunReport,
    title: str,
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    with_run: bool = True,
) -> Picture:
    """The picture of a report's curve.

    Args:
        deadline_s, budget_usd: The limits of the job; None if it has none.
        with_run: Whether a run that reached its goal or last epoch is drawn, too.

    Raises:
        ValueError: If the report has no curve.
    """
    if report.curve is None:
        raise ValueError("the report has no curve")
    choice = report.choice if isinstance(report.choice, Choice) else None
    ran = with_run and report.job.state in FINISHED and not report.curve.relative_only
    run = (report.predicted, report.result.actual) if ran else (None, None)
    return draw(report.curve, choice, title, run=run, deadline_s=deadline_s, budget_usd=budget_usd)


def draw(
    curve: TradeoffCurve,
    choice: Choice | None,
    title: str,
    *,
    run: tuple[Predicted | None, Actual | None] = (None, None),
    deadline_s: float | None = None,
    budget_usd: float | None = None,
) -> Picture:
    """The picture of a curve, its choice and its limits; see `picture_of`."""
    shown = _shown(curve)
    if not shown.any():
        return Picture(
            title, curve, choice, None, caption=("No configuration has a predicted time and cost.",)
        )
    predicted, actual = run
    figures: tuple[Predicted | Actual, ...] = ()
    if predicted is not None and actual is not None:
        ends = (predicted.time_s, predicted.cost_usd, actual.time_s, actual.cost_usd)
        figures = (predicted, actual) if np.isfinite(ends).all() else ()
    across, unit = time_unit(curve.time_s[shown])
    near, far = _limits(curve, shown, deadline_s, budget_usd, across)
    drawn = _with_interval(curve, shown)
    unsure = ", only ratios are certain" if curve.relative_only else ""
    axes = (
        axis_of(
            f"time to target ({unit}{unsure})",
            AxisSpan(curve.time_s, shown & (curve.marks.excluded == 0), shown).with_ends(
                (curve.time_interval_s.low, curve.time_interval_s.high), drawn
            ),
            [one.time_s for one in figures] + [one.at * across for one in near if one.of_time],
            across,
        ),
        axis_of(
            f"cost (US dollars{unsure})",
            AxisSpan(curve.cost_usd, shown & (curve.marks.excluded == 0), shown).with_ends(
                (curve.cost_interval_usd.low, curve.cost_interval_usd.high), drawn
            ),
            [one.cost_usd for one in figures] + [one.at for one in near if not one.of_time],
            1.0,
            sign="$",
        ),
    )
    ran = _ran(figures, choice, across)
    return Picture(
        title=title,
        curve=curve,
        choice=choice,
        axes=axes,
        series=tuple(_series(curve, shown)),
        intervals=tuple(drawn),
        labels=tuple(_labels(curve, choice, shown, across, figures, ran)),
        ran=ran,
        limits=near,
        caption=(*_caption(curve, choice), *_far_words(far)),
    )


def _shown(curve: TradeoffCurve) -> BoolArray:
    return np.isfinite(curve.time_s) & np.isfinite(curve.cost_usd)


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def _series(curve: TradeoffCurve, shown: BoolArray) -> Iterator[Series]:
    of, allowed = curve.configurations, shown & (curve.marks.excluded == 0)
    batches = sorted(set(of.global_batch_size.tolist()))
    found = []
    for vm in range(len(of.vms)):
        for place, batch in enumerate(batches):
            members = allowed & (of.vm_index == vm) & (of.global_batch_size == batch)
            points = np.flatnonzero(members)[np.argsort(of.workers[members], kind="stable")]
            if len(points):
                found.append((vm, place, tuple(points.tolist())))
    for number, (vm, place, indices) in enumerate(found):
        name = f"batch {batches[place]:,}" + (f", {clean(of.vms[vm])}" if len(of.vms) > 1 else "")
        yield Series(name, number if len(found) <= SHAPES else vm % SHAPES, place, indices)


def _with_interval(curve: TradeoffCurve, shown: BoolArray) -> list[int]:
    """Points whose 90 % interval is drawn: all allowed ones, or only the front if there are many."""
    drawn = shown & (curve.marks.excluded == 0)
    for ends in (curve.time_interval_s, curve.cost_interval_usd):
        drawn &= np.isfinite(ends.low) & np.isfinite(ends.high)
    if int(shown.sum()) > INTERVALS_MAX:
        drawn &= curve.marks.on_front
    return [int(index) for index in np.flatnonzero(drawn)]


def _limits(
    curve: TradeoffCurve, shown: BoolArray, deadline_s: float | None, budget_usd: float | None, across: float
) -> tuple[tuple[Limit, ...], tuple[str, ...]]:
    """Limits in the picture or close enough to stretch it to them, and the words of others."""
    allowed = shown & (curve.marks.excluded == 0)
    among = allowed if allowed.any() else shown
    near, far = [], []
    if deadline_s is not None:
        words = f"deadline {duration(deadline_s)}"
        if deadline_s <= STRETCH * float(curve.time_s[among].max()):
            near.append(Limit(words, True, deadline_s / across))
        else:
            far.append(words)
    if budget_usd is not None:
        words = f"budget {money(budget_usd)}"
        if budget_usd <= STRETCH * float(curve.cost_usd[among].max()):
            near.append(Limit(words, False, budget_usd))
        else:
            far.append(words)
    return tuple(near), tuple(far)


def _ran(figures: Sequence[Predicted | Actual], choice: Choice | None, across: float) -> Ran | None:
    if not figures:
        return None
    predicted, actual = figures
    same = choice is not None and _words(predicted) == _words(choice.point)
    place = None if same else (predicted.time_s / across, predicted.cost_usd)
    return Ran((actual.time_s / across, actual.cost_usd), place)


# ---- words -----------------------------------------------------------------------------------------------------------


def twice_as_fast(curve: TradeoffCurve, choice: Choice) -> int | None:
    """Index of the cheapest allowed point that takes at most half of the chosen one's time; None if there is none."""
    allowed = np.flatnonzero(_shown(curve) & (curve.marks.excluded == 0))
    fast = allowed[curve.time_s[allowed] * TWICE <= choice.point.time_s]
    if not len(fast):
        return None
    return int(fast[np.lexsort((curve.time_s[fast], curve.cost_usd[fast]))[0]])


def landmarks(curve: TradeoffCurve, choice: Choice | None) -> dict[int, str]:
    """Names of points by index, such as `chosen, knee`, most important first."""
    marks: list[tuple[str, int | None]] = [("knee", curve.knee)]
    if choice is not None:
        marks.insert(0, ("chosen", curve.configurations.index(choice.configuration)))
        marks.insert(1, ("twice as fast", twice_as_fast(curve, choice)))
        marks += [
            (clean(name), curve.configurations.index(point.configuration))
            for name, point in choice.alternatives
        ]
    shown = _shown(curve)
    named: dict[int, list[str]] = {}
    for name, index in marks:
        if index is not None and shown[index] and name not in named.setdefault(index, []):
            named[index].append(name)
    return {index: ", ".join(words) for index, words in named.items()}


def figures_of(curve: TradeoffCurve, point: CurvePoint) -> str:
    """Time and cost of a point as tables have them: `56 s, $0.0025`, or as ratios to the least where only they hold."""
    if not curve.relative_only:
        return _words(point)
    allowed = _shown(curve) & (curve.marks.excluded == 0)
    among = allowed if allowed.any() else _shown(curve)
    time, cost = float(curve.time_s[among].min()), float(curve.cost_usd[among].min())
    return f"time x {ratio(point.time_s, time)}, cost x {ratio(point.cost_usd, cost)}"


def _words(one: CurvePoint | Predicted | Actual) -> str:
    return f"{duration(one.time_s)}, {money(one.cost_usd)}"


def _short(curve: TradeoffCurve, point: CurvePoint) -> str:
    """A configuration, such as `4 x batch 128`, with its VM type where there are several."""
    of = point.configuration
    vm = f" {clean(of.vm)}" if len(curve.configurations.vms) > 1 else ""
    return f"{of.workers} x{vm} batch {of.global_batch_size}"


def _labels(
    curve: TradeoffCurve,
    choice: Choice | None,
    shown: BoolArray,
    across: float,
    figures: Sequence[Predicted | Actual],
    ran: Ran | None,
) -> Iterator[Label]:
    """Labels of named points and of the run, then of other points of the front, if there are few."""

    def at(index: int) -> tuple[float, float]:
        return float(curve.time_s[index]) / across, float(curve.cost_usd[index])

    names = landmarks(curve, choice)
    for index, name in names.items():
        point, chosen = curve[index], name.startswith("chosen")
        short, words = _short(curve, point), figures_of(curve, point)
        lines = (name, short, words) if chosen else (f"{name}: {short}", words)
        yield Label(*at(index), lines, "chosen" if chosen else "named", index)
    if ran is not None:
        predicted, actual = figures
        told = () if ran.predicted is None else (f"predicted {_words(predicted)}",)
        yield Label(*ran.actual, (f"this run: {_words(actual)}", *told), "run", None)
    front = np.flatnonzero(curve.marks.on_front & shown).tolist()
    if len(front) <= NAMED_MAX:
        for index in front:
            if index not in names:
                of = curve.configurations
                yield Label(
                    *at(index), (f"{of.workers[index]} x {of.global_batch_size[index]}",), "point", index
                )


def _caption(curve: TradeoffCurve, choice: Choice | None) -> Iterator[str]:
    """What was chosen, and what twice its speed costs."""
    allowed = np.flatnonzero(_shown(curve) & (curve.marks.excluded == 0))
    if not len(allowed):
        yield "No allowed configuration has a predicted time and cost."
    if choice is None:
        return
    base = choice.point
    yield f"Chosen: {_short(curve, base)}, {figures_of(curve, base)}."
    index = twice_as_fast(curve, choice)
    if index is not None:
        fast = curve[index]
        yield f"Twice the speed {_price(fast, base)}: {_short(curve, fast)}, {figures_of(curve, fast)}."
        return
    if not len(allowed):
        return
    fast = curve[int(allowed[np.lexsort((curve.cost_usd[allowed], curve.time_s[allowed]))[0]])]
    if fast.time_s >= base.time_s:
        yield "Nothing is faster."
        return
    share = quantity(100.0 * fast.time_s / base.time_s, 2)
    yield (
        f"Nothing is twice as fast: the fastest takes {share} % of the time and {_price(fast, base)}: "
        f"{_short(curve, fast)}, {figures_of(curve, fast)}."
    )


def _price(point: CurvePoint, base: CurvePoint) -> str:
    if base.cost_usd <= 0.0:
        return (
            "costs nothing" if point.cost_usd <= 0.0 else f"costs {money(point.cost_usd)} instead of nothing"
        )
    times = quantity(point.cost_usd / base.cost_usd, 2)
    return "costs about as much" if times == "1" else f"costs {times} times as much"


def _far_words(words: Sequence[str]) -> Iterator[str]:
    if words:
        yield f"Beyond the picture: {', '.join(words)}."


def describe(picture: Picture) -> str:
    """A description of the picture, for people who cannot see it."""
    curve, shown = picture.curve, picture.shown
    if picture.axes is None:
        return " ".join(picture.caption)
    times, costs = curve.time_s[shown], curve.cost_usd[shown]
    text = (
        f"{plural(int(shown.sum()), 'configuration')}, from {duration(float(times.min()))} to "
        f"{duration(float(times.max()))} and from {money(float(costs.min()))} to "
        f"{money(float(costs.max()))}; "
        f"{int(curve.marks.on_front.sum())} on the front, {int(curve.marks.measured.sum())} measured."
    )
    for label in picture.labels:
        if label.kind in ("named", "run"):
            name = label.lines[0]
            text += f" {name[0].upper()}{', '.join((name[1:], *label.lines[1:]))}."
    for limit in picture.limits:
        text += f" {limit.words[0].upper()}{limit.words[1:]}."
    return " ".join((*picture.caption, text))


def describe_all(pictures: Sequence[Picture]) -> str:
    """A description of several pictures; a single one is described without its title."""
    if len(pictures) == 1:
        return describe(pictures[0])
    return " ".join(f"{clean(one.title)}: {describe(one)}" for one in pictures)
