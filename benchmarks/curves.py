"""Errors of forecasts from learning curves of real runs, beside simple methods: the workloads whose errors were looked
at while the constants were set, and the others.

The code is that of `scavenger models backtest --curves`.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result
from scavenger.control.search.tables import read_curves
from scavenger.models.backtest_curves import OWN, CurveErrors, CurveResult, backtest_curves, pooled

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "curves" / "curves.csv"
SEEN = (0.25, 0.5, 0.75)


def run(repetitions: int, work_dir: Path) -> Result:
    """Once over all runs: there is no chance in it.

    Raises:
        SystemExit: If the data is not there.
    """
    if not DATA.exists():
        raise SystemExit(f"the learning curves are not at {DATA}: nothing to test against")
    began = time.perf_counter()
    runs = read_curves(DATA)
    results = [one for one in backtest_curves(runs, SEEN) if isinstance(one, CurveResult)]
    names = sorted({(one.source, one.workload) for one in results})
    tuned = set(names[::2])
    halves = {
        "held out": [one for one in results if (one.source, one.workload) not in tuned],
        "tuned on": [one for one in results if (one.source, one.workload) in tuned],
    }
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    for half, of_half in halves.items():
        for method in dict.fromkeys(m.method for one in results for m in one.methods):
            found = [pooled([one for one in of_half if one.seen == seen], method) for seen in SEEN]
            rows.append((method, half, *map(_cell, found), *map(_final, found)))
            figures[f"{method}, {half}"] = [
                None if one is None else float(np.median(one.total)) for one in found
            ]
    covered = np.concatenate(
        [method.covered for one in results for method in one.methods if method.method == OWN]
    )
    figures["coverage90"] = float(covered.mean())
    shares = [f"{share:.0%}" for share in SEEN]
    return Result(
        headers=(
            "error, percent",
            "workloads",
            *(f"steps to the target, {share} seen" for share in shares),
            *(f"best value, {share} seen" for share in shares),
        ),
        rows=tuple(rows),
        verdict="aims: steps 20, 12 and 6 %, language models' loss 1 % at half, 0.3 % with the schedule, coverage 85 "
        f"to 96 %: {100 * covered.mean():.0f} % of {len(covered)} truths lie in the 90 % interval",
        figures=figures,
        remarks=(
            f"medians over {len(runs)} runs of {len(names)} workloads, in brackets the share in the 90 % interval",
            "`as long again` looks at no curve: it is right at half the way by how the test is made",
            "`schedule known`: language models only; its constants are those of llm-25M, among the workloads tuned on",
            f"all of it takes {time.perf_counter() - began:.1f} s",
        ),
    )


def _cell(errors: CurveErrors | None) -> str:
    if errors is None:
        return "-"
    covered = f" ({100 * float(np.mean(errors.covered)):.0f} %)" if len(errors.covered) else ""
    return f"{float(np.median(errors.total)):.1f}{covered}"


def _final(errors: CurveErrors | None) -> str:
    known = np.array([]) if errors is None else errors.final[np.isfinite(errors.final)]
    return f"{float(np.median(known)):.2f}" if len(known) else "-"


BENCHMARK = Benchmark("curves", 1, run)
