"""`models backtest --curves`: compares forecasts from the beginning of learning curves with how they went on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from scavenger.control.search.tables import read_curves
from scavenger.errors import ConfigurationError
from scavenger.models.backtest import SkippedGroup
from scavenger.models.backtest_curves import OWN, CurveErrors, CurveResult, backtest_curves, pooled
from scavenger.presentation.formatting import clean, plural
from scavenger_cli.ui import console, render

SEEN = (0.25, 0.5, 0.75)
SEEN_MAX = 9
"""Most shares at once: more do not fit a screen."""


def backtest_of_curves(curves: Path | None, seen: str | None, *, alone: bool, as_json: bool) -> int:
    """Forecast every run of a file from the beginning of its curve, and show the errors beside simple methods.

    Args:
        seen: Shares of the way to the target, separated by commas; None for `SEEN`.
        alone: Whether no other back-test is asked for.

    Raises:
        ConfigurationError: If the file cannot be read, or the options contradict each other.
    """
    if curves is None:
        raise ConfigurationError("--seen is for learning curves: give --curves FILE")
    if not alone:
        raise ConfigurationError("--curves goes without --step-times, --convergence and --points")
    shares = _shares(seen)
    runs = read_curves(curves)
    found = backtest_curves(runs, shares)
    results = [one for one in found if isinstance(one, CurveResult)]
    skipped = [one for one in found if isinstance(one, SkippedGroup)]
    if as_json:
        console.emit_json(_document(results, skipped, shares))
    else:
        _show(results, skipped, shares)
        if dropped := sum(run.dropped for run in runs):
            console.note(f"{plural(dropped, 'row')} left out: a step or a value that cannot be")
    return 0


def _shares(text: str | None) -> tuple[float, ...]:
    if text is None:
        return SEEN
    try:
        shares = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        shares = ()
    if not shares or not all(0.0 < share < 1.0 for share in shares) or len(shares) > SEEN_MAX:
        raise ConfigurationError(
            f"--seen {text}: give up to {SEEN_MAX} numbers between 0 and 1, as in 0.25,0.5"
        )
    return shares


def _document(
    results: Sequence[CurveResult], skipped: Sequence[SkippedGroup], shares: Sequence[float]
) -> dict[str, Any]:
    overall = []
    for share in shares:
        here = [one for one in results if one.seen == share]
        methods = [pooled(here, name) for name in _methods(here)]
        if here:
            overall.append({"seen": share, **_figures([one for one in methods if one is not None])})
    return {
        "schema_version": console.SCHEMA_VERSION,
        "workloads": [
            {
                "source": one.source,
                "workload": one.workload,
                "seen": one.seen,
                **_figures(one.methods),
            }
            for one in results
        ],
        "overall": overall,
        "skipped": [
            {"source": one.origin, "workload": one.workload, "reason": one.reason, "dropped": one.dropped}
            for one in skipped
        ],
    }


def _figures(methods: Sequence[CurveErrors]) -> dict[str, Any]:
    """The figures of the first method, and those of the others."""
    own, *others = (
        {
            "method": one.method,
            "runs": len(one.total),
            "median_ape": float(np.median(one.total)),
            "max_ape": float(np.max(one.total)),
            "coverage90": float(np.mean(one.covered)) if len(one.covered) else None,
            "final_ape": _final(one),
        }
        for one in methods
    )
    return {**own, "methods": others}


def _final(errors: CurveErrors) -> float | None:
    known = errors.final[np.isfinite(errors.final)]
    return float(np.median(known)) if len(known) else None


def _methods(results: Sequence[CurveResult]) -> list[str]:
    return list(dict.fromkeys(method.method for one in results for method in one.methods))


def _show(results: Sequence[CurveResult], skipped: Sequence[SkippedGroup], shares: Sequence[float]) -> None:
    if results:
        _show_methods(results, shares)
        _show_workloads(results, shares)
    for one in skipped:
        console.note(f"skipped: {clean(one.origin) or 'workload'}: {one.workload}: {one.reason}")
    if not results:
        console.note("no run has enough evaluations to forecast it")


def _show_methods(results: Sequence[CurveResult], shares: Sequence[float]) -> None:
    grid = render.table(("all runs", "left"))
    for share in shares:
        grid.add_column(f"at {100 * share:.0f} %", justify="right", no_wrap=True)
        grid.add_column("in 90 %", justify="right", no_wrap=True)
    for name in _methods(results):
        cells = []
        for share in shares:
            errors = pooled([one for one in results if one.seen == share], name)
            cells.append("-" if errors is None else _percent(float(np.median(errors.total))))
            held = errors is not None and len(errors.covered)
            cells.append(f"{100 * float(np.mean(errors.covered)):.0f} %" if errors and held else "-")
        grid.add_row(name, *cells)
    console.emit(grid, "")
    console.emit(Text("Median error of the steps to the target, over the runs of all workloads."), "")


def _show_workloads(results: Sequence[CurveResult], shares: Sequence[float]) -> None:
    grid = render.table(("workload", "left"), ("runs", "right"))
    for share in shares:
        grid.add_column(f"at {100 * share:.0f} %", justify="right", no_wrap=True)
        grid.add_column("final", justify="right", no_wrap=True)
    for source, workload in dict.fromkeys((one.source, one.workload) for one in results):
        own = {
            one.seen: one.methods[0] for one in results if (one.source, one.workload) == (source, workload)
        }
        cells = []
        for share in shares:
            final = _final(own[share]) if share in own else None
            cells.append(_percent(float(np.median(own[share].total))) if share in own else "-")
            cells.append("-" if final is None else _percent(final))
        most = max(len(errors.total) for errors in own.values())
        grid.add_row(clean(workload), str(most), *cells)
    console.emit(grid, "")
    console.emit(
        Text(f"By {OWN}: median errors of the steps to the target, and of the best value in the end.")
    )


def _percent(figure: float) -> str:
    return f"{figure:.1f} %" if figure < 1e5 else f"{figure:.1e} %"
