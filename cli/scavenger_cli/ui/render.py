"""Curves, choices and reports as text that fits 80 columns."""

from __future__ import annotations

import math
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from scavenger.domain.curve import (
    EPOCHS_FROM,
    Choice,
    CurvePoint,
    FloatArray,
    Infeasible,
    IntArray,
    TradeoffCurve,
)
from scavenger.domain.report import Actual, MetricOutcome, Predicted, RunReport, time_error
from scavenger.presentation.formatting import (
    UNKNOWN,
    beside_target,
    clean,
    difference,
    duration,
    duration_range,
    duration_ranges,
    durations,
    money,
    money_range,
    money_ranges,
    moneys,
    plural,
    quantity,
    ratio,
)
from scavenger.presentation.picture import FINISHED, RELATIVE_NOTE
from scavenger.presentation.total import total_words
from scavenger_cli.ui.console import PLAIN_WIDTH

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

ROWS = 24
"""Configurations shown as text: a screenful; `curves` shows all."""

SUMMARY_ROWS = 20
"""Most rows of the summary of a job at its end, with 80 columns."""
WARNINGS = 2
"""Warnings shown in a summary."""

NOTES = 1
"""Notes shown without `-v`."""

_MARKS = (
    (">", "chosen"),
    ("k", "knee"),
    ("*", "front (unbeaten)"),
    ("m", "measured"),
    ("e", "extrapolated"),
    ("?", "K never measured"),
)

_INTERVAL = "(90 %)"
_READING = (
    "K workers share each batch of B samples; of ten such runs, nine end inside (90 %). What is on the front no other "
    "configuration beats in both time and cost"
)
EXPLAINED_MIN = 0.05
"""Smallest error, as a share of the actual time, whose causes are shown."""


def table(*columns: tuple[str, str]) -> Table:
    """A table without lines, so that it is the same in every encoding; columns are (title, `left` or `right`)."""
    made = _Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for title, side in columns:
        made.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    return made


class _Table(Table):
    """A table that is wider than the output rather than break a path, which could not be copied then."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            words = " ".join(str(cell) for cell in column.cells).split()
            column.min_width = max((cell_len(word) for word in words if "/" in word), default=0)
        yield from super().__rich_console__(console, options)


class _Numbers:
    """A table whose numbers are never wrapped: if it is too wide, the intervals are left out."""

    def __init__(self, titles: Sequence[str], lines: Sequence[tuple[list[str], str]]) -> None:
        self._titles, self._lines = titles, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(range(len(self._titles)))
        endless = options.update(max_width=sys.maxsize)
        if Measurement.get(console, endless, whole).maximum <= options.max_width:
            yield whole
        else:
            yield self._table([at for at, title in enumerate(self._titles) if title != _INTERVAL])

    def _table(self, columns: Iterable[int]) -> Table:
        kept = list(columns)
        made = table()
        for at in kept:
            left = self._titles[at] in ("", "VM")
            made.add_column(self._titles[at], justify="left" if left else "right", no_wrap=True)
        for cells, style in self._lines:
            made.add_row(*(cells[at] for at in kept), style=style)
        return made


def label(point: CurvePoint) -> str:
    """A point's configuration, such as `2 x e2-standard-4, batch 128`."""
    return clean(point.configuration)


def curve_table(
    curve: TradeoffCurve, choice: Choice | None, *, rows: int = ROWS, verbose: bool = False
) -> Iterator[RenderableType]:
    """The predicted time and cost of the configurations, front first, with a legend of the marks.

    Args:
        rows: Number of configurations listed.
        verbose: Whether all notes are shown, or only those that influence the choice most.
    """
    allowed = np.flatnonzero(curve.marks.excluded == 0)
    shown = _shown(curve, choice, allowed, rows)
    several = len(curve.configurations.vms) > 1
    vms = "" if several or not curve.configurations.vms else f" on {clean(curve.configurations.vms[0])}"
    title = f"Predicted for {plural(len(curve), 'configuration')}{vms}, each for a run without a search:"
    yield Text(title, style="bold")
    if curve.relative_only:
        yield Text(RELATIVE_NOTE)
    if len(shown):
        titles = ("time x", "cost x") if curve.relative_only else ("time", _INTERVAL, "cost", _INTERVAL)
        kept = () if curve.progress_share is None else ("progress",)
        titles = ("", *(("VM",) if several else ()), "K", "B", *titles, *kept)
        lines: list[tuple[list[str], str]] = []
        fastest, cheapest = _least(curve.time_s[allowed]), _least(curve.cost_usd[allowed])
        used: set[str] = set()
        unknown = ~curve.workers_measured & np.any(curve.marks.measured)
        points = [curve[index] for index in shown]
        times = durations([point.time_s for point in points])
        spans = duration_ranges([point.time_interval_s for point in points])
        costs = moneys([point.cost_usd for point in points])
        bills = money_ranges([point.cost_interval_usd for point in points])
        for at, (index, point) in enumerate(zip(shown, points, strict=True)):
            marks = _marks(point, index == curve.knee, choice, unknown=bool(unknown[index]))
            used.update(marks)
            cells = [marks, *([clean(point.configuration.vm)] if several else [])]
            cells += [str(point.configuration.workers), str(point.configuration.global_batch_size)]
            if curve.relative_only:
                cells += [ratio(point.time_s, fastest), ratio(point.cost_usd, cheapest)]
            else:
                cells += [times[at], spans[at], costs[at], bills[at]]
            cells += [] if point.progress_share is None else [_percent(point.progress_share)]
            lines.append((cells, "bold" if ">" in marks else "" if point.on_front else "dim"))
        yield _Numbers(titles, lines)
        yield Text("  ".join(f"{mark} {words}" for mark, words in _MARKS if mark in used), style="dim")
        if verbose:
            yield Text(_READING, style="dim")
    if len(allowed) > len(shown):
        yield Text(
            f"and {plural(len(allowed) - len(shown), 'more configuration')}, none of them better in both"
        )
    yield from _excluded(curve)
    notes = curve.notes if verbose else curve.notes[:NOTES]
    for remark in notes:
        yield Text(f"note: {clean(remark)}")
    if left := len(curve.notes) - len(notes):
        yield Text(f"and {plural(left, 'more note')}: -v shows them", style="dim")


def _shown(curve: TradeoffCurve, choice: Choice | None, allowed: IntArray, rows: int) -> list[int]:
    """Indices of the listed points: the front by time, then the rest by time, always with choice and knee."""
    order = allowed[
        np.lexsort((curve.cost_usd[allowed], curve.time_s[allowed], ~curve.marks.on_front[allowed]))
    ]
    if len(order) <= rows:
        return [int(i) for i in order]
    kept = [int(i) for i in order[:rows]]
    landmarks = [curve.configurations.index(choice.configuration) if choice is not None else None, curve.knee]
    musts = list(dict.fromkeys(i for i in landmarks if i is not None and i not in kept and i in allowed))
    return kept[: rows - len(musts)] + musts


def _least(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.min()) if len(finite) else float("nan")


def _is_choice(point: CurvePoint, choice: Choice | None) -> bool:
    return choice is not None and point.configuration == choice.configuration


def _marks(point: CurvePoint, knee: bool, choice: Choice | None, *, unknown: bool) -> str:
    present = (_is_choice(point, choice), knee, point.on_front, point.measured, point.extrapolated, unknown)
    return "".join(mark for (mark, _), there in zip(_MARKS, present, strict=True) if there)


def _excluded(curve: TradeoffCurve) -> Iterator[RenderableType]:
    counts = Counter(int(i) for i in curve.marks.excluded if i)
    for index, count in counts.most_common():
        yield Text(f"ruled out: {plural(count, 'configuration')}: {clean(curve.marks.reasons[index])}")


def choice_lines(
    choice: Choice | Infeasible | None, *, relative_only: bool = False
) -> Iterator[RenderableType]:
    """The choice with its reason and the alternatives, or the reason why nothing was chosen."""
    if choice is None:
        return
    if isinstance(choice, Infeasible):
        yield Text(f"No configuration meets the constraints: {clean(choice.reason)}", style="bold")
        if choice.nearest is not None:
            figures = _figures(choice.nearest)
            yield Text(f"  nearest   {label(choice.nearest)}: {figures} for the whole training")
        return
    yield Text.assemble(
        ("Chosen: ", "bold"), (label(choice.point), "bold"), f"  (objective {choice.objective})"
    )
    grid = table(("", "left"), ("", "left"))
    grid.show_header = False
    grid.add_row("  why", clean(choice.reason))
    base = choice.point
    for name, point in choice.alternatives:
        same = point.configuration == base.configuration
        figures = _compared(point, base) if relative_only else _figures(point)
        grid.add_row(f"  {clean(name)}", "the same" if same else f"{label(point)}: {figures}")
    yield grid


def _figures(point: CurvePoint) -> str:
    kept = "" if point.progress_share is None else f", {_percent(point.progress_share)} of the progress"
    return f"{duration(point.time_s)}, {money(point.cost_usd)}{kept}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %" if math.isfinite(share) else UNKNOWN


def _compared(point: CurvePoint, base: CurvePoint) -> str:
    return f"{ratio(point.time_s, base.time_s)} x the time, {ratio(point.cost_usd, base.cost_usd)} x the cost"


def confirmation(curve: TradeoffCurve, choice: Choice, predicted: Predicted) -> Iterator[RenderableType]:
    """The time and cost that the user is asked to confirm."""
    yield Text(total_words(predicted, relative_only=curve.relative_only), style="bold")
    grid = table(("This will run", "left"), (label(choice.point), "left"))
    grid.add_row("epochs in all", quantity(predicted.epochs))
    grid.add_row("", "training continues while this question waits")
    yield grid


def comparison(
    predicted: Predicted | None, actual: Actual | None, *, finished: bool = True
) -> Iterator[RenderableType]:
    """Predicted and actual figures; the difference is relative to the actual figure.

    Args:
        finished: Whether the run reached its goal or last epoch: a prediction is not for a run that was cut short.
    """
    if predicted is None and actual is None:
        return
    compared = predicted is not None and actual is not None and finished
    columns: list[tuple[str, str]] = [("", "left")]
    if predicted is not None:
        columns += [("predicted", "right"), ("(90 %)", "right")]
    if actual is not None:
        columns.append(("actual", "right"))
    if compared:
        columns.append(("off by", "right"))
    grid = table(*columns)
    rows = (
        ("time", durations, "time_s", duration_range, "time_interval_s"),
        ("cost", moneys, "cost_usd", money_range, "cost_interval_usd"),
        ("step time", durations, "step_time_s", None, ""),
        ("epochs in all", lambda column: [quantity(one) for one in column], "epochs", None, ""),
    )
    for name, show, attribute, show_range, interval in rows:
        cells = [name]
        figures = show([getattr(one, attribute) for one in (predicted, actual) if one is not None])
        if predicted is not None:
            cells.append(figures[0])
            cells.append(show_range(*getattr(predicted, interval)) if show_range else "")
        if actual is not None:
            cells.append(figures[-1])
        if compared:
            cells.append(difference(getattr(predicted, attribute), getattr(actual, attribute)))
        grid.add_row(*cells)
    yield grid


def _basis(report: RunReport) -> Iterator[RenderableType]:
    """Why the predicted time of this run differs from the table's, which is for a run from the start."""
    predicted, choice = report.predicted, report.choice
    if predicted is None or not isinstance(choice, Choice) or predicted.spent_s <= 0.0:
        return
    ahead = duration(predicted.time_s - predicted.spent_s - predicted.end_s)
    whole, actual = duration(choice.point.time_s), report.result.actual
    came = ending = ""
    if actual is not None and report.job.state in FINISHED:
        came_s = actual.time_s - predicted.spent_s - actual.end_s
        came = (
            f" (actual: {duration(came_s)})" if came_s > 0.0 else ""
        )  # it ended before its workers had started
        ending = f" (actual: {duration(actual.end_s)})"
    yield Text(
        f"time predicted: {duration(predicted.spent_s)} until the choice and for starting workers, {ahead}{came} for "
        f"the remaining {_percent(predicted.remaining)} of the training, which takes {whole} as a whole, and "
        f"{duration(predicted.end_s)}{ending} for saving the model and ending the processes"
    )


def _causes(report: RunReport) -> Iterator[RenderableType]:
    """The parts of an error in time that came from the epochs, the step time and the rest."""
    predicted, actual = report.predicted, report.result.actual
    if predicted is None or actual is None or report.job.state not in FINISHED:
        return
    error = time_error(predicted, actual)
    if error is None:
        return
    parts = (error.epochs_s, error.step_time_s, error.other_s)
    if max(map(abs, parts)) < EXPLAINED_MIN * actual.time_s:
        return
    notes = report.curve.notes if report.curve is not None else ()
    source = next((note for note in notes if note.startswith(EPOCHS_FROM)), "")
    hinted = f"; {clean(source)}" if source else ""
    epochs, step_time, other = (_share(part, actual.time_s) for part in parts)
    yield Text(
        f"time off by {_share(error.whole_s, actual.time_s)}: {epochs} from epochs "
        f"({quantity(predicted.epochs)} predicted, {quantity(actual.epochs)} trained{hinted}), {step_time} from "
        f"step time, {other} from the rest (starts, evaluations, changes of configuration, the end)"
    )


def _forecasts(report: RunReport) -> Iterator[RenderableType]:
    """The course of the epochs that were forecast while the job trained."""
    if not report.result.forecasts:
        return
    shown = (
        f"after {one.after_epochs}: {quantity(one.epochs)} ({one.epochs_interval[0]:.0f}-{one.epochs_interval[1]:.0f})"
        for one in report.result.forecasts
    )
    yield Text(f"epochs in all (90 %), as the metric's course let expect: {', '.join(shown)}")


def _share(part_s: float, whole_s: float) -> str:
    """A part of the time as a share of the actual time, such as `+12.1 %`."""
    return difference(whole_s + part_s, whole_s)


def _metric(metric: MetricOutcome) -> str:
    reached = "" if metric.target is None else " reached" if metric.reached else " not reached"
    value, target = beside_target(metric.value, metric.target)
    return f"{clean(metric.name)} {value}{f', target {target}' if target else ''}{reached}"


def _search(report: RunReport, *, whole: bool) -> str:
    search = report.search
    if not search.profiled:
        return f"Search: {clean(search.strategy)}, nothing profiled: {clean(search.reason)}"
    text = f"Search: {clean(search.strategy)}, {plural(len(search.profiled), 'configuration')} profiled in "
    text += f"{duration(search.time_s)} for {money(search.cost_usd)}"
    if not whole:
        return text
    if search.overhead_s == 0 and search.overhead_usd:
        text += f" (overhead: no time, but {money(search.overhead_usd)} for workers that started, or for more than the "
        text += "choice has)"
    elif search.overhead_s is not None:
        text += f" (overhead {duration(search.overhead_s)}"
        text += ")" if search.overhead_usd is None else f", {money(search.overhead_usd)})"
    return f"{text}: {clean(search.reason)}"


def report_text(
    report: RunReport, *, with_curve: bool = True, verbose: bool = False
) -> Iterator[RenderableType]:
    """The report of `optimize` and `plan`: of a job that was trained, a summary of at most `SUMMARY_ROWS` rows.

    Args:
        with_curve: Whether the configurations are listed, unless the job was trained.
        verbose: Whether everything is shown, as `explain` does, also of a job that was trained.
    """
    yield from (
        _summary(report)
        if report.result.actual is not None and not verbose
        else _whole(report, with_curve=with_curve, verbose=verbose)
    )


def _summary(report: RunReport) -> Iterator[RenderableType]:
    """How it ended, the choice and why, predicted against actual, what is where, and what to type next."""
    key, choice = report.job.id[:8], report.choice
    yield Text(_within(_outcome(report), 2), style="bold")
    if isinstance(choice, Choice):
        why = f"Chosen: {label(choice.point)} ({clean(choice.objective)}): {clean(choice.reason)}"
        yield Text(_within(why, 2))
    yield Text("")
    yield from comparison(report.predicted, report.result.actual, finished=report.job.state in FINISHED)
    yield Text("")
    yield Text(_within(_search(report, whole=False), 1))
    yield from paths((("model", report.result.model_path),))
    if report.estimate is not None:
        yield from paths((("every VM", f"scavenger cost {key}"),))
    if report.curve is not None:
        yield from paths((("next", f"scavenger explain {key}, scavenger curves {key}"),))
    for warning in report.warnings[:WARNINGS]:
        yield Text(_within(f"warning: {clean(warning)}", 2), style="yellow")
    if (left := len(report.warnings) - WARNINGS) > 0:
        yield Text(f"and {plural(left, 'more warning')}: scavenger explain {key}", style="yellow")


def _within(words: str, rows: int) -> str:
    """The words in at most so many rows of 80 columns; `explain` and `-v` have the rest."""
    if len(lines := textwrap.wrap(words, PLAIN_WIDTH, break_long_words=False)) <= rows:
        return words
    *kept, last = lines[:rows]
    return " ".join((*kept, textwrap.shorten(f"{last} {lines[rows]}", PLAIN_WIDTH, placeholder=" ...")))


def _outcome(report: RunReport) -> str:
    """How a job ended, and what its training came to."""
    state = report.job.state.replace("_", " ")
    outcome = f"Job {clean(report.job.name)} ({clean(report.job.id)[:8]}): {state}"
    if report.result.actual is not None:
        outcome += f" after {plural(report.result.steps, 'step')}"
    metric = report.result.metric
    return outcome if metric is None or metric.value is None else f"{outcome}; {_metric(metric)}"


def _whole(report: RunReport, *, with_curve: bool, verbose: bool) -> Iterator[RenderableType]:
    trained = report.result.actual is not None
    searched = report.curve is not None or bool(report.search.profiled) or trained
    if searched:
        yield Text(_search(report, whole=True))
    relative = report.curve is not None and report.curve.relative_only
    if not trained and isinstance(report.choice, Choice) and report.predicted is not None:
        yield Text(total_words(report.predicted, relative_only=relative), style="bold")
    if report.curve is not None and with_curve:
        yield Text("")
        choice = report.choice if isinstance(report.choice, Choice) else None
        yield from curve_table(report.curve, choice, verbose=verbose)
    if report.choice is not None:
        yield Text("")
        yield from choice_lines(report.choice, relative_only=relative)
    if report.predicted is not None or trained:
        yield Text("")
        yield from comparison(report.predicted, report.result.actual, finished=report.job.state in FINISHED)
        yield from _basis(report)
        yield from _causes(report)
        yield from _forecasts(report)
    if searched:
        yield Text("")
    yield Text(_outcome(report), style="bold")
    if searched:
        yield from paths((("model", report.result.model_path), ("measurements", report.measurements_path)))
        if trained and report.estimate is not None:
            yield from paths((("every VM", f"scavenger cost {report.job.id[:8]}"),))
    for warning in report.warnings:
        yield Text(f"warning: {clean(warning)}", style="yellow")


def paths(
    named: Iterable[tuple[str, str | None]], *, indent: int = 2, width: int = 12
) -> Iterator[RenderableType]:
    """Named paths, each on one line at any width, so that they can be copied."""
    for name, path in named:
        if path:
            line = f"{' ' * indent}{name:<{width}}  {clean(path)}"
            yield Text(line, no_wrap=True, overflow="ignore")
