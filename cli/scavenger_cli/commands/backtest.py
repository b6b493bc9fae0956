"""`models backtest`: compares predictions with measurements that the models were not fitted to."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from scavenger.control.search.tables import read_placements, read_runs
from scavenger.errors import ConfigurationError
from scavenger.models.backtest import ErrorSummary, GroupResult, SkippedGroup, coverage90, median_ape, summary
from scavenger.presentation.formatting import clean, plural
from scavenger_cli.options import ConvergenceOption, CurvesOption, Output, OutputOption, StepTimesOption
from scavenger_cli.ui import console, render

POINTS_MAX = 1000


def backtest(
    step_times: StepTimesOption = None,
    convergence: ConvergenceOption = None,
    curves: CurvesOption = None,
    seen: Annotated[
        str | None,
        typer.Option(
            metavar="SHARES",
            help="With --curves: shares of the way to the target that are shown. Default: 0.25,0.5,0.75.",
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            metavar="POINTS",
            help="Rows to fit: search (as a search takes them, with its costs), extremes, marked (column `profiled`), "
            "or a number. Default: marked, else extremes or 6; and search.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Fit some measurements of a file and compare predictions of the rest."""
    if curves is not None or seen is not None:
        from scavenger_cli.commands.backtest_curves import backtest_of_curves

        alone = step_times is None and convergence is None and points is None
        return backtest_of_curves(curves, seen, alone=alone, as_json=output.is_json)
    if step_times is None and convergence is None:
        raise ConfigurationError("no measurements: give --step-times FILE or --convergence FILE")
    wanted = _points(points)
    found: list[GroupResult | SkippedGroup] = []
    notes: list[str] = []
    searched: list[GroupResult | SkippedGroup] = []
    if convergence is not None:
        from scavenger.models.backtest_epochs import backtest_epochs

        if wanted in ("marked", "search"):
            raise ConfigurationError(f"--points {wanted} is for step times; give extremes or a number")
        found += backtest_epochs(read_runs(convergence), wanted or "extremes")
        if dropped := sum(one.dropped for one in found):
            notes.append(f"bad rows of convergence dropped: {dropped}")
    if step_times is not None:
        from scavenger.models.backtest_steps import backtest_steps, notes_on_rows

        rows = read_placements(step_times)
        if wanted == "marked" and not any(row.marked for row in rows):
            raise ConfigurationError(
                f"{step_times}: no row is marked in a column 'profiled'; give --points 6"
            )
        found += backtest_steps(rows, wanted or ("marked" if any(row.marked for row in rows) else 6))
        searched = backtest_steps(rows, "search") if wanted is None else []
        notes += notes_on_rows(rows)
    if output.is_json:
        console.emit_json(_document(found, searched, notes))
    else:
        _show(found, searched, notes)
    return 0


def _points(text: str | None) -> str | int | None:
    if text is None or text in ("search", "extremes", "marked"):
        return text
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 2 <= count <= POINTS_MAX:
        raise ConfigurationError(f"--points {text}: give search, extremes, marked, or a number from 2 on")
    return count


def _parted(found: list[GroupResult | SkippedGroup]) -> tuple[list[GroupResult], list[SkippedGroup]]:
    judged = [one for one in found if isinstance(one, GroupResult)]
    return judged, [one for one in found if isinstance(one, SkippedGroup)]


def _document(
    found: list[GroupResult | SkippedGroup], searched: list[GroupResult | SkippedGroup], notes: list[str]
) -> dict[str, Any]:
    return {
        "schema_version": console.SCHEMA_VERSION,
        **_figures(found),
        "search": _figures(searched) if searched else None,
        "notes": notes,
    }


def _figures(found: list[GroupResult | SkippedGroup]) -> dict[str, Any]:
    judged, skipped = _parted(found)
    total = summary(judged)
    return {
        "workloads": [
            {
                **_place(one),
                "law": one.law,
                "profiled": list(one.profiled),
                "predicted": len(one.predictions),
                "dropped": one.dropped,
                "median_ape": float(np.median(one.errors())),
                "mean_ape": float(np.mean(one.errors())),
                "max_ape": float(np.max(one.errors())),
                "coverage90": float(np.mean(one.covered())),
            }
            for one in judged
        ],
        "skipped": [{**_place(one), "reason": one.reason, "dropped": one.dropped} for one in skipped],
        "median_ape": median_ape(judged),
        **(dict.fromkeys(ErrorSummary._fields) if total is None else total._asdict()),
    }


def _place(one: GroupResult | SkippedGroup) -> dict[str, Any]:
    origin = "source" if one.workers_per_node is None else "cluster"
    return {origin: one.origin, "workers_per_node": one.workers_per_node, "workload": one.workload}


def _show(
    found: list[GroupResult | SkippedGroup], searched: list[GroupResult | SkippedGroup], notes: list[str]
) -> None:
    judged, skipped = _parted(found)
    for heading in dict.fromkeys(map(_heading, judged)):
        grid = render.table((heading, "left"))
        for title in ("law", "fit", "test", "median", "mean", "worst", "in 90 %"):
            grid.add_column(title, justify="left" if title == "law" else "right", no_wrap=True)
        for one in (one for one in judged if _heading(one) == heading):
            errors = one.errors()
            figures = (float(np.median(errors)), float(np.mean(errors)), float(np.max(errors)))
            grid.add_row(
                clean(one.workload),
                one.law,
                str(len(one.profiled)),
                str(len(one.predictions)),
                *map(_percent, figures),
                f"{100 * float(np.mean(one.covered())):.0f} %",
            )
        console.emit(grid, "")
    if judged:
        console.emit(
            Text(
                f"Median over {plural(len(judged), 'workload')} of the median error on points that were not fitted: "
                f"{median_ape(judged):.1f} %; "
                f"{100 * (coverage90(judged) or 0.0):.0f} % of those points are inside the 90 % intervals."
            )
        )
    if total := summary(_parted(searched)[0]):
        console.emit(
            Text(
                f"Step times as a search takes its points, with its costs: {total.mean_ape:.1f} % "
                f"in the mean, the worst workload {total.worst_ape:.1f} %; "
                f"{100 * total.coverage90:.0f} % inside the 90 % intervals, whose half-width is "
                f"{100 * total.half_width90:.0f} % in the median."
            )
        )
    for one_skipped in skipped:
        console.note(f"skipped: {_heading(one_skipped)}: {one_skipped.workload}: {one_skipped.reason}")
    for note in notes:
        console.note(note)
    if not judged:
        console.note("no workload has enough points to fit some and test on others")


def _percent(figure: float) -> str:
    return f"{figure:.1f} %" if figure < 1e5 else f"{figure:.1e} %"


def _heading(one: GroupResult | SkippedGroup) -> str:
    """`zeus`, `aws-g4dn-t4, 4 workers a node`."""
    origin = clean(one.origin) or "workload"
    if one.workers_per_node is None:
        return origin
    return f"{origin}, {plural(one.workers_per_node, 'worker')} a node"
