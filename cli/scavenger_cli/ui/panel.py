"""What one picture of a curve shows, and its words: shared by every way of drawing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.domain.curve import BoolArray, Choice, FloatArray, TradeoffCurve
from scavenger.domain.report import Actual, Predicted, RunReport
from scavenger_cli.ui.formatting import clean, duration, money
from scavenger_cli.ui.render import FINISHED

__all__ = [
    "COUNTS_MAX",
    "Panel",
    "axis_span",
    "describe",
    "describe_panels",
    "drawn_limits",
    "landmarks",
    "limit_words",
    "panel_of",
    "time_unit",
    "with_interval",
]

INTERVALS_MAX = 6
"""Points up to which each shows its interval: those of one K lie on one ray, and more hide each other."""
COUNTS_MAX = 24
"""Points up to which each says its K: beyond, the numbers hide the points."""
LOG_RATIO = 10.0
"""An axis that spans more than this is logarithmic."""
UNITS_MIN = 5.0
"""Minutes, hours or days from which on times are drawn in them."""
UNITS_MAX = 10_000.0
"""Figures on a time axis beyond which the next longer unit is taken."""
STRETCH = 1.5
"""A limit this many times beyond the data still stretches the axis; one farther away is told in words."""
_TIME_UNITS = (
    (86400.0, "days"),
    (3600.0, "hours"),
    (60.0, "minutes"),
    (1.0, "seconds"),
    (1e-3, "milliseconds"),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A curve with what is drawn into it.

    Attributes:
        choice: What was chosen of the curve; None where nothing was.
        predicted, actual: Of the run at the choice; both None until it has ended at its goal or last epoch.
        deadline_s, budget_usd: The limits that the job has; None where it has none.
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
        """What was predicted of the run and what it came to; None where one of them is not known."""
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
    ran = report.state in FINISHED and not report.curve.relative_only
    return Panel(
        title=title,
        curve=report.curve,
        choice=choice,
        predicted=report.predicted if ran and report.actual is not None else None,
        actual=report.actual if ran and report.predicted is not None else None,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
    )


def landmarks(curve: TradeoffCurve, choice: Choice | None) -> dict[int, str]:
    """The points worth a name: index -> `chosen, knee`, in that order of importance."""
    marks: list[tuple[str, int | None]] = [("knee", curve.knee)]
    if choice is not None:
        marks.insert(0, ("chosen", curve.index(choice.configuration)))
        marks += [(clean(name), curve.index(point.configuration)) for name, point in choice.alternatives]
    named: dict[int, list[str]] = {}
    for name, index in marks:
        if index is not None and name not in named.setdefault(index, []):
            named[index].append(name)
    return {index: ", ".join(words) for index, words in named.items()}


def with_interval(panel: Panel) -> list[int]:
    """Points whose 90 % interval is drawn: all that are allowed, or where they are many, the front's."""
    curve = panel.curve
    drawn = panel.shown & (curve.excluded == 0)
    drawn &= np.isfinite(curve.time_low_s) & np.isfinite(curve.time_high_s)
    drawn &= np.isfinite(curve.cost_low_usd) & np.isfinite(curve.cost_high_usd)
    if int(panel.shown.sum()) > INTERVALS_MAX:
        drawn &= curve.on_front
    return [int(index) for index in np.flatnonzero(drawn)]


def time_unit(times_s: FloatArray) -> tuple[float, str]:
    """The longest unit of which every time is at least `UNITS_MIN`, as (seconds, name): below, minutes are fractions.

    Args:
        times_s: Of the points drawn, shape `(n,)`, at least one.
    """
    shortest, longest = float(times_s.min()), float(times_s.max())
    place = next(
        (
            i
            for i, (unit, _) in enumerate(_TIME_UNITS)
            if shortest >= unit * (UNITS_MIN if unit > 1.0 else 1.0)
        ),
        len(_TIME_UNITS) - 1,
    )
    while place > 0 and longest / _TIME_UNITS[place][0] > UNITS_MAX:
        place -= 1
    return _TIME_UNITS[place]


def drawn_limits(panel: Panel) -> tuple[float | None, float | None]:
    """Deadline and budget as far as they lie in the picture, or so near that it is stretched to them."""
    curve, allowed = panel.curve, panel.shown & (panel.curve.excluded == 0)
    among = allowed if allowed.any() else panel.shown

    def near(limit: float | None, values: FloatArray) -> float | None:
        if limit is None or not among.any():
            return None
        return limit if limit <= STRETCH * float(values[among].max()) else None

    return near(panel.deadline_s, curve.time_s), near(panel.budget_usd, curve.cost_usd)


def axis_span(panel: Panel, column: str) -> tuple[float, float, bool]:
    """From where to where an axis goes, and whether it is logarithmic.

    It holds every allowed point, the run's own figures and the limits that are drawn, and intervals and ruled-out
    points as far as the rest stays readable.

    Args:
        panel: With at least one point that can be shown.
        column: `time_s` or `cost_usd`.
    """
    curve, shown = panel.curve, panel.shown
    allowed = shown & (curve.excluded == 0)
    values = getattr(curve, column)
    name, unit = column.rsplit("_", 1)
    core = values[allowed] if allowed.any() else values[shown]
    low, high = float(core.min()), float(core.max())
    reach = (high - low) or abs(high)
    drawn = with_interval(panel)
    ends = [getattr(curve, f"{name}_{end}_{unit}")[drawn] for end in ("low", "high")]
    wide = np.concatenate([values[shown], *ends])
    wide = wide[np.isfinite(wide)]
    musts = [float(getattr(figures, column)) for figures in panel.run or ()]
    limit = drawn_limits(panel)[0 if column == "time_s" else 1]
    musts += [] if limit is None else [limit]
    low = min([max(float(wide.min()), low - reach), *musts])
    high = max([min(float(wide.max()), high + reach), *musts])
    if low > 0 and high / low > LOG_RATIO:
        factor = (high / low) ** 0.06
        return low / factor, high * factor, True
    pad = 0.06 * (high - low) or abs(high) * 0.5 or 1.0
    return (low - pad if low > pad else -0.3 * pad), high + pad, False


def limit_words(panel: Panel) -> list[str]:
    """`deadline 2 h`, one for each limit that is too far away to be drawn as a line."""
    deadline_s, budget_usd = drawn_limits(panel)
    words = []
    if panel.deadline_s is not None and deadline_s is None:
        words.append(f"deadline {duration(panel.deadline_s)}")
    if panel.budget_usd is not None and budget_usd is None:
        words.append(f"budget {money(panel.budget_usd)}")
    return words


def describe(panel: Panel) -> str:
    """The picture in words, for those who cannot see it."""
    curve, shown = panel.curve, panel.shown
    if not shown.any():
        return "No configuration has a predicted time and cost."
    times, costs = curve.time_s[shown], curve.cost_usd[shown]
    text = (
        f"{int(shown.sum())} configurations, from {duration(float(times.min()))} to "
        f"{duration(float(times.max()))} and from {money(float(costs.min()))} to "
        f"{money(float(costs.max()))}; "
        f"{int(curve.on_front.sum())} on the front, {int(curve.measured.sum())} measured."
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
    """Several curves in words; one alone is not called by its title."""
    if len(panels) == 1:
        return describe(panels[0])
    return " ".join(f"{clean(panel.title)}: {describe(panel)}" for panel in panels)
