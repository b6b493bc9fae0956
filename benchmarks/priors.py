"""The prior of the overlap law, set by likelihood: which of many settings makes the public step times most probable.

The marginal likelihood of all points of a cluster and workload, over the coefficients and the widths of the scatter,
needs no points held out and is hardest on priors that are too tight as well as on those too wide. Beside it stand
the errors at placements that were not fitted to, from the corners and from the six marked points.
"""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result
from benchmarks.public_steps import read_more_step_times, read_step_times
from scavenger.models.backtest import GroupResult, PlacementRow, coverage90
from scavenger.models.backtest_steps import backtest_steps, step_times_of
from scavenger.models.kriging import ProfiledStepTime
from scavenger.models.overlap_fit import fit_widths, prior_of
from scavenger.models.overlap_law import BELIEFS, Beliefs
from scavenger.models.parallel import INTERVAL_Z, fit_parallel, joined

FIXED = ((-1.5, 1.0), (-0.5, 1.0), (0.0, 1.5), (0.5, 2.0))
STRAGGLING = ((0.02, 0.03), (0.04, 0.03))
GROWTH = (0.25, 0.12, 0.06)
BENDING = (0.3, 0.7, 0.85, 1.0)

SHOWN = 8
"""Of the best settings; the JSON has all of them."""


def run(repetitions: int, work_dir: Path) -> Result:
    """Once over all settings: there is no chance in it.

    Raises:
        SystemExit: If the data is not there.
    """
    rows = read_step_times()
    clusters = _by_cluster(rows)
    began = time.perf_counter()
    settings = [
        Beliefs(fixed, straggling, (math.log(growth), 0.7), (bending, 0.3))
        for fixed, straggling, growth, bending in itertools.product(FIXED, STRAGGLING, GROWTH, BENDING)
    ]
    found = [(beliefs, _scores(clusters, beliefs)) for beliefs in settings]
    best = max(score["log_likelihood"] for _, score in found)
    found.sort(key=lambda one: -one[1]["log_likelihood"])
    shown = found[:SHOWN] + [one for one in found[SHOWN:] if one[0] in (BELIEFS, settings[0])]
    place = [beliefs for beliefs, _ in found].index(BELIEFS) + 1
    behind = best - dict(found)[BELIEFS]["log_likelihood"]
    return Result(
        headers=(
            "fixed, straggling, growth, bend",
            "ln likelihood, less the best's",
            "T4, corners",
            "T4, six marked",
            "A100, corners",
            "A100, six marked",
            "in 90 %",
        ),
        rows=tuple(_row(beliefs, score, best) for beliefs, score in shown),
        verdict=f"the setting in use is number {place} of {len(found)}, {behind:.1f} behind the best",
        figures={_name(beliefs): score for beliefs, score in found},
        remarks=(
            "fixed: ln of fixed computing over computing per batch; errors: mean over the workloads, percent, at "
            "placements that were not fitted to",
            "the last rows are settings that are in use or were in the first version, where not among the best",
            *map(_second_machine, ("T4", "A100"), _by_cluster([*rows, *read_more_step_times()])),
            f"{len(found)} settings over {len(_groups(rows))} clusters and workloads took "
            f"{time.perf_counter() - began:.0f} s",
        ),
    )


def _by_cluster(rows: list[PlacementRow]) -> list[list[PlacementRow]]:
    """The rows of T4s, and those of A100s."""
    return [[row for row in rows if (row.cluster == "azure-a100") is a100] for a100 in (False, True)]


def _second_machine(kind: str, rows: list[PlacementRow]) -> str:
    """How much faster two machines of several workers are than one, against what one point on one lets expect."""
    came, expected, log_sd = [], [], []
    for group in _rows_by_group(rows):
        times = {(one.workers, one.global_batch_size): one for one in step_times_of(group)}
        for (workers, batch), one in times.items():
            two = times.get((2 * workers, batch))
            if two is None or not 1 < workers == one.workers_per_node:
                continue
            places = np.array([workers, 2 * workers]), np.array([batch, batch]), np.ones(2)
            model = fit_parallel([one])
            step_s, _ = model.predict(*places)
            came.append(math.log(one.step_time_s / two.step_time_s))
            expected.append(math.log(step_s[0] / step_s[1]))
            log_sd.append(float(model.ratio_log_sd(*places, one=0)[1]))
    off = np.abs(np.subtract(came, expected)) / np.array(log_sd)
    low, middle, high = np.exp(np.quantile(came, (0.05, 0.5, 0.95)))
    return (
        f"{kind}, one point on one machine with several workers: two machines were {low:.2f} to {high:.2f} times as "
        f"fast at the same batch, in the median {middle:.2f} ({len(came)} pairs); expected is "
        f"{math.exp(min(expected)):.2f} to {math.exp(max(expected)):.2f}, 90 % within factors of "
        f"{math.exp(INTERVAL_Z * min(log_sd)):.1f} to {math.exp(INTERVAL_Z * max(log_sd)):.1f}, which hold "
        f"{100 * np.mean(off < INTERVAL_Z):.0f} %"
    )


def _name(beliefs: Beliefs) -> str:
    fixed, straggling, growth, bending = beliefs
    return (
        f"{fixed[0]:g} ± {fixed[1]:g}, {straggling[0]:g} ± {straggling[1]:g}, "
        f"{math.exp(growth[0]):.2g}, {bending[0]:g}"
    )


def _row(beliefs: Beliefs, score: dict[str, float], best: float) -> tuple[str, ...]:
    return (
        f"{_name(beliefs)}{' (in use)' if beliefs == BELIEFS else ''}",
        f"{score['log_likelihood'] - best:.1f}",
        *(
            f"{score[f'{kind}, {points}']:.1f}"
            for kind in ("T4", "A100")
            for points in ("extremes", "marked")
        ),
        f"{100 * score['coverage90']:.0f} %",
    )


def _scores(clusters: list[list[PlacementRow]], beliefs: Beliefs) -> dict[str, float]:
    scores = {"log_likelihood": sum(log_likelihood(rows, beliefs) for rows in clusters)}
    everything: list[GroupResult] = []
    for kind, rows in zip(("T4", "A100"), clusters, strict=True):
        for points in ("extremes", "marked"):
            found = [
                one for one in backtest_steps(rows, points, beliefs=beliefs) if isinstance(one, GroupResult)
            ]
            scores[f"{kind}, {points}"] = float(np.mean([one.errors().mean() for one in found]))
            everything += found
    return {**scores, "coverage90": coverage90(everything) or 0.0}


def log_likelihood(rows: list[PlacementRow], beliefs: Beliefs) -> float:
    """Marginal log likelihood of all step times, each cluster and workload with coefficients of its own."""
    groups = _groups(rows)
    return sum(fit_widths(group, prior_of(group, beliefs=beliefs))[1].log_evidence for group in groups)


def _groups(rows: list[PlacementRow]) -> list[tuple[ProfiledStepTime, ...]]:
    return [joined(sorted(step_times_of(group))) for group in _rows_by_group(rows)]


def _rows_by_group(rows: list[PlacementRow]) -> list[list[PlacementRow]]:
    groups: dict[tuple[str, int, str], list[PlacementRow]] = {}
    for row in rows:
        groups.setdefault((row.cluster, row.workers_per_node, row.workload), []).append(row)
    return [group for _, group in sorted(groups.items())]


BENCHMARK = Benchmark("priors", 1, run)
