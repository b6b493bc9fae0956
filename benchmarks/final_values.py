"""Forecasts of the best value at the end of a run, as pruners and the sampler need them, on public learning curves.

Each run is thinned out to so many evaluations as a trial has epochs, and forecast from its first few.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.curves import DATA
from benchmarks.figures import Benchmark, Result
from scavenger.control.search.tables import read_curves
from scavenger.models.backtest_curves import CurveRun
from scavenger.models.final_value import ValueForecast, forecast_value

LENGTHS = (8, 16, 32, 64)
"""Evaluations of a whole run."""
SEEN = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48)
BANDS = ((2, 3), (4, 5), (6, 8), (9, 12), (13, 20), (21, 48))
"""Evaluations seen, least and most, of a column of the table."""
SMALL = 1e-9

Floats = np.ndarray[Any, np.dtype[np.float64]]
Forecast = Callable[[Floats, Floats, float], ValueForecast]


def _doublings(at: Floats, losses: Floats, end: float) -> ValueForecast:
    return forecast_value(at, losses, end, mode="min")


def _last(at: Floats, losses: Floats, end: float) -> ValueForecast:
    best = float(losses.min())
    return ValueForecast(best, best, best)


METHODS: dict[str, Forecast] = {"doublings": _doublings, "last value": _last}
OURS = "doublings"


@dataclass(frozen=True, slots=True)
class _Case:
    """A run up to an evaluation, and what it came to; smaller values are better."""

    workload: tuple[str, str]
    at: Floats
    losses: Floats
    end: float
    final: float
    whole_fall: float


def _cases(runs: Sequence[CurveRun]) -> Iterator[_Case]:
    for run in runs:
        losses = run.values if run.mode == "min" else -run.values
        for length in LENGTHS:
            wanted = np.linspace(run.steps[-1] / length, run.steps[-1], length)
            rows = np.unique(np.searchsorted(run.steps, wanted * (1.0 - SMALL)))
            at, seen = run.steps[rows], losses[rows]
            fall = float(seen[0] - seen.min())
            if len(rows) < 0.8 * length or fall <= SMALL:
                continue  # too few evaluations, or it never learned
            for count in SEEN:
                if count < len(rows):
                    yield _Case(
                        (run.source, run.workload),
                        at[:count],
                        seen[:count],
                        float(at[-1]),
                        float(seen.min()),
                        fall,
                    )


def run(repetitions: int, work_dir: Path) -> Result:
    """Once over all runs: there is no chance in it.

    Raises:
        SystemExit: If the data is not there.
    """
    if not DATA.exists():
        raise SystemExit(f"the learning curves are not at {DATA}: nothing to test against")
    began = time.perf_counter()
    cases = list(_cases(read_curves(DATA)))
    tuned = set(sorted({case.workload for case in cases})[::2])
    halves = {
        "held out": [case for case in cases if case.workload not in tuned],
        "tuned on": [case for case in cases if case.workload in tuned],
    }
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    for half, of_half in halves.items():
        for name, method in METHODS.items():
            made = [(case, method(case.at, case.losses, case.end)) for case in of_half]
            errors, covered = _by_band(made, _error), _by_band(made, _is_covered)
            whole = _mean_of_workloads(made, _is_covered)
            figures[f"{name}, {half}"] = {"error": errors, "coverage90": whole if name == OURS else None}
            cells = [
                f"{100 * error:.0f}" + (f" ({100 * share:.0f} %)" if name == OURS else "")
                for error, share in zip(errors, covered, strict=True)
            ]
            rows.append((name, half, *cells))
    ours, last = (figures[f"{name}, held out"]["error"] for name in (OURS, "last value"))
    return Result(
        headers=("error, %", "workloads", *(f"{low}-{high} seen" for low, high in BANDS)),
        rows=tuple(rows),
        verdict="errors of doublings relative to those of the last value, held out: "
        f"{', '.join(f'{a / b:.2f}' for a, b in zip(ours, last, strict=True))} (aim: below 1); the 90 % interval "
        f"holds {100 * figures[f'{OURS}, held out']['coverage90']:.0f} % of the truths (aim: 85 to 96 %)",
        figures=figures,
        remarks=(
            f"{len(cases)} cases of {len({case.workload for case in cases})} workloads; every second one of their "
            "sorted list was looked at while the constants were set, the others are held out",
            f"runs thinned out to {', '.join(map(str, LENGTHS))} evaluations, forecast from the first 2 to 48",
            "errors are relative to the fall of the whole run, means over cases and then workloads; in brackets the "
            "share of truths in the 90 % interval",
            f"all of it takes {time.perf_counter() - began:.0f} s",
        ),
    )


Made = Sequence[tuple[_Case, ValueForecast]]
Judge = Callable[[_Case, ValueForecast], float]


def _error(case: _Case, found: ValueForecast) -> float:
    return abs(found.value - case.final) / case.whole_fall


def _is_covered(case: _Case, found: ValueForecast) -> float:
    slack = SMALL * case.whole_fall
    return float(found.low - slack <= case.final <= found.high + slack)


def _by_band(made: Made, judge: Judge) -> list[float]:
    return [
        _mean_of_workloads([(case, found) for case, found in made if low <= len(case.at) <= high], judge)
        for low, high in BANDS
    ]


def _mean_of_workloads(made: Made, judge: Judge) -> float:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case, forecast in made:
        found[case.workload].append(judge(case, forecast))
    return float(np.mean([np.mean(values) for values in found.values()]))


BENCHMARK = Benchmark("final_values", 1, run)
