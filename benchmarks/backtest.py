"""Errors of the models on public measurements, compared with the best published forms on the same points.

Nothing is tuned here: the code is that of `scavenger models backtest`, and the files are read where they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import public_steps
from benchmarks.figures import Benchmark, Result
from benchmarks.peers.published_laws import critical_batch, noise_linear, p_norm
from benchmarks.public_steps import read_step_times
from scavenger.control.search.tables import number, read_runs, read_table
from scavenger.domain.curve import FloatArray
from scavenger.domain.measurement import ConvergenceRecord
from scavenger.models.backtest import GroupResult, PlacementRow, RunRow, SkippedGroup
from scavenger.models.backtest_epochs import backtest_epochs
from scavenger.models.backtest_steps import backtest_steps, profiled_rows, step_times_of
from scavenger.models.parallel import INTERVAL_Z, ParallelModel, fit_parallel
from scavenger.models.statistical import StatisticalModel, fit_statistical
from scavenger.models.step_laws import StepTimes

DATA = public_steps.DATA / "measured"

CLUSTERS = {1: "T4, 1 a node", 4: "T4, 4 a node", 8: "A100, 8 a node"}
"""By workers per node."""

STEP_POINTS: dict[int | str, str] = {
    "search": "as a search takes them, with its costs",
    "extremes": "corners",
    "marked": "six marked points",
    6: "six own points",
}

AIMS: dict[int | str, str] = {
    "search": "mean under 8",
    "extremes": "mean under 10",
    "marked": "mean under 10",
    6: "mean under 7",
}

_Line = tuple[str, str, str, str, str]


def run(repetitions: int, work_dir: Path) -> Result:
    """Once over all files: there is no chance in it.

    Raises:
        SystemExit: If the data is not there.
    """
    if not DATA.is_dir():
        raise SystemExit(f"the public measurements are not at {DATA}: nothing to test against")
    runs, placements = read_runs(DATA / "convergence.csv"), read_step_times()
    began = time.perf_counter()
    found = [*_epochs(runs), *_step_times(placements), *_times(placements)]
    lines = [one.line for one in found]
    covered = [held for one in found for held in one.held]
    figures: dict[str, object] = {one.line[0]: one.errors for one in found}
    coverage = float(np.mean(covered))
    lines.append(
        ("coverage of the 90 % interval over everything", "-", "85 to 96 %", f"{100 * coverage:.0f} %", "")
    )
    figures["coverage90"] = coverage
    return Result(
        headers=("error, percent", "published form, same points", "aim", "measured", "in 90 %"),
        rows=tuple(lines),
        verdict=f"{len(covered):,} predictions, {100 * coverage:.0f} % of the measurements inside their 90 % interval",
        figures=figures,
        remarks=(
            "epochs: median over the workloads of each one's median error / the worst of these medians; step time "
            "and grid: mean over the workloads, and mean error of each in alphabetical order",
            "errors are |predicted / measured - 1| where nothing was fitted; of the grid, everywhere",
            f"all of it, reading and the published forms included, takes {time.perf_counter() - began:.1f} s",
        ),
    )


class _Found(NamedTuple):
    """A line of the table, its figures by workload, and which measurements lie in their intervals."""

    line: _Line
    errors: dict[str, float]
    held: list[bool]


def _epochs(runs: Sequence[RunRow]) -> Iterator[_Found]:
    for source, points, aim in (
        ("mlperf-rcp", "extremes", "median under 4"),
        ("mlperf-rcp", 3, "median under 3"),
        ("zeus", 3, "median under 6, worst under 15"),
        ("pollux-threshold", 3, "worst under 10"),
    ):
        of_source = [row for row in runs if row.source == source]
        found = judged(backtest_epochs(of_source, points))
        name = f"epochs, {source}, {points if points == 'extremes' else f'{points} points'}"
        medians = {one.workload: float(np.median(one.errors())) for one in found}
        by_critical, by_noise = (law_errors(law, of_source, found) for law in (critical_batch, noise_linear))
        reference = f"critical-batch {_middle_worst(by_critical)}, noise-linear {_middle_worst(by_noise)}"
        line = (name, reference, aim, _middle_worst(list(medians.values())), _share(found))
        yield _Found(line, medians, _covered(found))


def _step_times(placements: Sequence[PlacementRow]) -> Iterator[_Found]:
    for per_node, cluster in CLUSTERS.items():
        here = [row for row in placements if row.workers_per_node == per_node]
        for points, name in STEP_POINTS.items():
            found = judged(backtest_steps(here, points))
            means = {one.workload: float(np.mean(one.errors())) for one in found}
            reference = f"p-norm {np.mean(p_norm_errors(here, found)):.1f}"
            line = (
                f"step time, {cluster}, {name}",
                reference,
                AIMS[points],
                _mean_each(means),
                _share(found),
            )
            yield _Found(line, means, _covered(found))


def _times(placements: Sequence[PlacementRow]) -> Iterator[_Found]:
    for points in ("marked", 6):
        errors, published, held = grid_errors(placements, points)
        reference = f"p-norm and critical-batch {np.mean(list(published.values())):.1f}"
        line = (
            f"time over the (K, B) grid, {STEP_POINTS[points]}",
            reference,
            "mean under 5",
            _mean_each(errors),
            f"{100 * np.mean(held):.0f} %",
        )
        yield _Found(line, errors, held)


def judged(found: Sequence[GroupResult | SkippedGroup]) -> list[GroupResult]:
    return [one for one in found if isinstance(one, GroupResult)]


def _covered(found: Sequence[GroupResult]) -> list[bool]:
    return [bool(held) for one in found for held in one.covered()]


def _share(found: Sequence[GroupResult]) -> str:
    return f"{100 * np.mean(_covered(found)):.0f} %"


def _middle_worst(values: Sequence[float]) -> str:
    return f"{np.median(values):.1f} / {max(values):.1f}"


def _mean_each(errors: Mapping[str, float]) -> str:
    values = list(errors.values())
    return f"{np.mean(values):.1f}: {', '.join(f'{value:.1f}' for value in values)}"


_Law = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def law_errors(law: _Law, rows: Sequence[RunRow], found: Sequence[GroupResult]) -> list[float]:
    """Median error of each workload by another law, fitted to and judged at the same batch sizes."""
    medians = []
    for one in found:
        means: dict[int, list[float]] = {}
        for row in rows:
            if row.workload == one.workload and 0.0 < row.epochs < math.inf:
                means.setdefault(int(row.global_batch_size), []).append(row.epochs)
        size = {f"batch {batch}": batch for batch in means}
        profiled = np.array([size[name] for name in one.profiled], dtype=np.float64)
        unseen = np.array([size[p.at] for p in one.predictions], dtype=np.float64)
        known = np.array([np.mean(means[int(batch)]) for batch in profiled])
        truth = np.array([p.truth for p in one.predictions])
        medians.append(float(np.median(100.0 * np.abs(law(profiled, known, unseen) / truth - 1.0))))
    return medians


def p_norm_errors(rows: Sequence[PlacementRow], found: Sequence[GroupResult]) -> list[float]:
    """Mean error of each group by the p-norm, fitted to and judged at the same placements."""
    means = []
    for one in found:
        group = (one.origin, one.workers_per_node, one.workload)
        times = {
            f"K {time.workers}, b {time.local_batch_size}": time
            for time in step_times_of(
                [row for row in rows if (row.cluster, row.workers_per_node, row.workload) == group]
            )
        }
        unseen = [times[p.at] for p in one.predictions]
        predicted = fitted_p_norm([times[name] for name in one.profiled])(
            np.array([t.workers for t in unseen], dtype=np.float64),
            np.array([t.local_batch_size for t in unseen], dtype=np.float64),
        )
        truth = np.array([p.truth for p in one.predictions])
        means.append(float(np.mean(100.0 * np.abs(predicted / truth - 1.0))))
    return means


def fitted_p_norm(times: Sequence[StepTimes]) -> Callable[[FloatArray, FloatArray], FloatArray]:
    return p_norm(
        np.array([t.workers for t in times], dtype=np.float64),
        np.array([t.local_batch_size for t in times], dtype=np.float64),
        times[0].workers_per_node,
        np.array([t.step_time_s for t in times]),
    )


def grid_errors(
    placements: Sequence[PlacementRow], points: int | str
) -> tuple[dict[str, float], dict[str, float], list[bool]]:
    """Mean error of time over the (K, B) grid of each workload, that of the published forms, and which times lie in
    their intervals.

    Step times from six placements with one worker a node; samples to the target from three batch sizes:
    the ends and the one that the model finds most informative.
    """
    columns = ("workload", "workers", "global_batch_size", "iterations", "time_s")
    rows = read_table(DATA / "grid.csv", columns)
    errors: dict[str, float] = {}
    published: dict[str, float] = {}
    held: list[bool] = []
    for workload in sorted({row["workload"] for row in rows}):
        table = np.array(
            [[number(row[name]) for name in columns[1:]] for row in rows if row["workload"] == workload]
        )
        workers, batch, iterations, time_s = table.T
        here = [r for r in placements if r.workload == workload and r.workers_per_node == 1]
        times = step_times_of(profiled_rows(here, points))
        steps: ParallelModel = fit_parallel(times)
        samples = {int(b): float(i * b) for b, i in zip(batch, iterations, strict=True)}
        epochs, profiled = three_points(samples)
        tau, step_log_sd = steps.predict(workers.astype(int), batch.astype(int), np.ones(len(batch)))
        wanted, epochs_log_sd = epochs.predict(batch)
        predicted = wanted * min(samples.values()) / batch * tau
        margin = np.exp(INTERVAL_Z * np.hypot(step_log_sd, epochs_log_sd))
        errors[workload] = float(np.mean(100.0 * np.abs(predicted / time_s - 1.0)))
        known = np.array(profiled, dtype=np.float64)
        needed = np.array([samples[size] for size in profiled])
        local = fitted_p_norm(times)(workers, np.ceil(batch / workers))
        plain = critical_batch(known, needed, batch) / batch * local
        published[workload] = float(np.mean(100.0 * np.abs(plain / time_s - 1.0)))
        held += [bool(one) for one in (predicted / margin <= time_s) & (time_s <= predicted * margin)]
    return errors, published, held


def samples_to_target(workload: str) -> dict[int, float]:
    """Of a job of `grid.csv`, by global batch size."""
    columns = ("workload", "global_batch_size", "iterations")
    rows = [row for row in read_table(DATA / "grid.csv", columns) if row["workload"] == workload]
    return {
        int(row["global_batch_size"]): int(row["global_batch_size"]) * number(row["iterations"])
        for row in rows
    }


def three_points(samples: dict[int, float]) -> tuple[StatisticalModel, list[int]]:
    """The epochs as runs at three batch sizes tell them, and these sizes: the ends and the most informative one."""
    unit = min(samples.values())
    profiled = [min(samples), max(samples)]

    def fit() -> StatisticalModel:
        records = [ConvergenceRecord(size, samples[size] / unit) for size in sorted(profiled)]
        sizes = tuple(sorted(profiled))
        return fit_statistical([], records, global_batch_sizes=sizes, epochs_hint=None, max_epochs=1.0)

    model = fit()
    profiled.append(model.most_informative([size for size in samples if size not in profiled]))
    return fit(), sorted(profiled)


BENCHMARK = Benchmark("backtest", 1, run)
