"""The contents of one picture of a curve, and its text: shared by every output format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.domain.curve import BoolArray, Choice, FloatArray, TradeoffCurve
from scavenger.domain.report import Actual, Predicted, RunReport
from scavenger.presentation.formatting import clean, duration, money

FINISHED = ("succeeded", "target_missed")
"""States of a run that reached the end for which the prediction was made."""
RELATIVE_NOTE = (
    "The number of epochs to the target is not known: ratios between configurations are reliable, absolute "
    "times and costs are only bounds."
)
INTERVALS_MAX = 6
"""Most points whose intervals are all shown: those of one K lie on one ray, and more hide each other."""
COUNTS_MAX = 24
"""Most points that are labelled with their K: more numbers hide the points."""
LOG_RATIO = 10.0
"""An axis on which the largest value is more than this many times the smallest is logarithmic."""
UNITS_MIN = 5.0
"""Times are drawn in minutes, hours or days if the shortest is at least this many of them."""
UNITS_MAX = 10_000.0
"""Largest number on a time axis: above it, the next longer unit is used."""
STRETCH = 1.5
"""The axis is stretched to a limit up to this many times the largest value; a higher limit is given as text."""
_TIME_UNITS = (
    (86400.0, "days"),
    (3600.0, "hours"),
    (60.0, "minutes"),
    (1.0, "seconds"),
    (1e-3, "milliseconds"),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A curve with everything that is drawn with it.

    Attributes:
        choice: The chosen configuration; None if nothing was chosen.
        predicted, actual: Figures of the run at the choice; both None until it has reached its goal or last epoch.
        deadline_s, budget_usd: The limits of the job; None if it has none.
    """

    title: str
    curve: TradeoffCurve
    choice: Choice | None = None
    predicted: Predicted | None = None
    actual: Actual | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None

    @property
    def shown(self) -> BoolArray:
        """Points with a predicted time and cost, shape `(n,)`."""
        return np.isfinite(self.curve.time_s) & np.isfinite(self.curve.cost_usd)

    @property
    def run(self) -> tuple[Predicted | Actual, Predicted | Actual] | None:
        """The predicted and the actual figures of the run; None if one of them is not known."""
        if self.predicted is None or self.actual is None:
            return None
        figures = (
            self.predicted.time_s,
            self.predicted.cost_usd,
            self.actual.time_s,
            self.actual.cost_usd,
        )
        return (self.predicted, self.actual) if np.isfinite(figures).all() else None


def panel_of(
    report: RunReport, title: str, *, deadline_s: float | None = None, budget_usd: float | None = None
) -> Panel:
    """The picture of a report's curve.

    Raises:
        ValueError: If the report has no curve.
    """
    if report.curve is None:
        raise ValueError("the report has no curve")
    choice = report.choice if isinstance(report.choice, Choice) else None
    ran = report.job.state in FINISHED and not report.curve.relative_only
    return Panel(
        title=title,
        curve=report.curve,
        choice=choice,
        predicted=report.predicted if ran and report.result.actual is not None else None,
        actual=report.result.actual if ran and report.predicted is not None else None,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
    )


def landmarks(curve: TradeoffCurve, choice: Choice | None) -> dict[int, str]:
    """Names of points by index, such as `chosen, knee`, most important first."""
    marks: list[tuple[str, int | None]] = [("knee", curve.knee)]
    if choice is not None:
        marks.insert(0, ("chosen", curve.configurations.index(choice.configuration)))
        marks += [
            (clean(name), curve.configurations.index(point.configuration))
            for name, point in choice.alternatives
        ]
    named: dict[int, list[str]] = {}
    for name, index in marks:
        if index is not None and name not in named.setdefault(index, []):
            named[index].append(name)
    return {index: ", ".join(words) for index, words in named.items()}


def with_interval(panel: Panel) -> list[int]:
    """Points whose 90 % interval is drawn: all allowed ones, or only the front if there are many."""
    curve = panel.curve
    drawn = panel.shown & (curve.marks.excluded == 0)
    drawn &= np.isfinite(curve.time_interval_s.low) & np.isfinite(curve.time_interval_s.high)
    drawn &= np.isfinite(curve.cost_interval_usd.low) & np.isfinite(curve.cost_interval_usd.high)
    if int(panel.shown.sum()) > INTERVALS_MAX:
        drawn &= curve.marks.on_front
    return [int(index) for index in np.flatnonzero(drawn)]


def time_unit(times_s: FloatArray) -> tuple[float, str]:
    """The unit of the time axis, as (seconds, name): the longest of which every time is at least `UNITS_MIN`.

    Args:
        times_s: Times of the points drawn, shape `(n,)`, at least one.
    """
    shortest, longest = float(times_s.min()), float(times_s.max())
    position = next(
        (
            i
            for i, (unit, _) in enumerate(_TIME_UNITS)
            if shortest >= unit * (UNITS_MIN if unit > 1.0 else 1.0)
        ),
        len(_TIME_UNITS) - 1,
    )
    while position > 0 and longest / _TIME_UNITS[position][0] > UNITS_MAX:
        position -= 1
    return _TIME_UNITS[position]


def drawn_limits(panel: Panel) -> tuple[float | None, float | None]:
    """Deadline and budget; each None if it is not in the picture, nor close enough to stretch the picture to it."""
    curve, allowed = panel.curve, panel.shown & (panel.curve.marks.excluded == 0)
    among = allowed if allowed.any() else panel.shown

    def near(limit: float | None, values: FloatArray) -> float | None:
        if limit is None or not among.any():
            return None
        return limit if limit <= STRETCH * float(values[among].max()) else None

    return near(panel.deadline_s, curve.time_s), near(panel.budget_usd, curve.cost_usd)


def axis_span(panel: Panel, column: str) -> tuple[float, float, bool]:
    """Start and end of an axis, and whether it is logarithmic.

    The axis covers every allowed point, the run's own figures and the limits that are drawn; intervals and
    ruled-out points only as far as the rest stays readable.

    Args:
        panel: A panel with at least one point that can be shown.
        column: `time_s` or `cost_usd`.
    """
    curve, shown = panel.curve, panel.shown
    allowed = shown & (curve.marks.excluded == 0)
    times = column == "time_s"
    values = curve.time_s if times else curve.cost_usd
    interval = curve.time_interval_s if times else curve.cost_interval_usd
    core = values[allowed] if allowed.any() else values[shown]
    low, high = float(core.min()), float(core.max())
    reach = (high - low) or abs(high)
    drawn = with_interval(panel)
    wide = np.concatenate([values[shown], interval.low[drawn], interval.high[drawn]])
    wide = wide[np.isfinite(wide)]
    musts = [float(getattr(figures, column)) for figures in panel.run or ()]
    limit = drawn_limits(panel)[0 if times else 1]
    musts += [] if limit is None else [limit]
    low = min([max(float(wide.min()), low - reach), *musts])
    high = max([min(float(wide.max()), high + reach), *musts])
    if low > 0 and high / low > LOG_RATIO:
        factor = (high / low) ** 0.06
        return low / factor, high * factor, True
    pad = 0.06 * (high - low) or abs(high) * 0.5 or 1.0
    return (low - pad if low > pad else -0.3 * pad), high + pad, False


def limit_words(panel: Panel) -> list[str]:
    """Text such as `deadline 2 h` for each limit that is too far away to be drawn as a line."""
    deadline_s, budget_usd = drawn_limits(panel)
    words = []
    if panel.deadline_s is not None and deadline_s is None:
        words.append(f"deadline {duration(panel.deadline_s)}")
    if panel.budget_usd is not None and budget_usd is None:
        words.append(f"budget {money(panel.budget_usd)}")
    return words


def describe(panel: Panel) -> str:
    """A description of the picture, for people who cannot see it."""
    curve, shown = panel.curve, panel.shown
    if not shown.any():
        return "No configuration has a predicted time and cost."
    times, costs = curve.time_s[shown], curve.cost_usd[shown]
    text = (
        f"{int(shown.sum())} configurations, from {duration(float(times.min()))} to "
        f"{duration(float(times.max()))} and from {money(float(costs.min()))} to "
        f"{money(float(costs.max()))}; "
        f"{int(curve.marks.on_front.sum())} on the front, {int(curve.marks.measured.sum())} measured."
    )
    for index, name in landmarks(curve, panel.choice).items():
        point = curve[index]
        text += f" {name[0].upper()}{name[1:]}: {clean(point.configuration)}, "
        text += f"{duration(point.time_s)}, {money(point.cost_usd)}."
    if panel.run is not None:
        predicted, actual = panel.run
        text += f" This run: predicted {duration(predicted.time_s)}, {money(predicted.cost_usd)}; "
        text += f"actual {duration(actual.time_s)}, {money(actual.cost_usd)}."
    deadline_s, budget_usd = drawn_limits(panel)
    if deadline_s is not None:
        text += f" Deadline: {duration(deadline_s)}."
    if budget_usd is not None:
        text += f" Budget: {money(budget_usd)}."
    if beyond := limit_words(panel):
        text += f" Beyond the picture: {', '.join(beyond)}."
    return text


def describe_panels(panels: Sequence[Panel]) -> str:
    """A description of several pictures; a single one is described without its title."""
    if len(panels) == 1:
        return describe(panels[0])
    return " ".join(f"{clean(panel.title)}: {describe(panel)}" for panel in panels)
