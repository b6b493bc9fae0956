"""Back-test of the statistical model: predictions of finished runs that were not used in the fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from scavenger.domain.measurement import ConvergenceRecord
from scavenger.models.backtest import GroupResult, HeldOutPrediction, RunRow, SkippedGroup
from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.statistical import StatisticalModel, fit_statistical


def backtest_epochs(rows: Iterable[RunRow], points: int | str) -> list[GroupResult | SkippedGroup]:
    """Fit each workload's epochs to the runs at a few batch sizes, and predict the mean epochs at the others.

    The model is fitted to all runs at the smallest and the largest batch size; while `points` allows another, the
    runs at the most informative batch size by the model so far are added (`StatisticalModel.most_informative`),
    which asks the model alone. Intervals are those of a mean over as many runs as the truth is one of.

    Args:
        rows: Rows in any order; implausible ones (`RunRow.usable`) are dropped and counted.
        points: Number of batch sizes to fit to, at least 2; `extremes` is 2.

    Returns:
        One per (source, workload), sorted.

    Raises:
        ValueError: If `points` is neither.
    """
    wanted = 2 if points == "extremes" else points
    if not isinstance(wanted, int) or wanted < 2:
        raise ValueError(
            f"a back-test of epochs fits to extremes, or to 2 batch sizes or more, not to {points!r}"
        )
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        groups.setdefault((row.source, row.workload), []).append(row)
    return [_backtest(*key, groups[key], wanted) for key in sorted(groups)]


def _backtest(source: str, workload: str, rows: Sequence[RunRow], points: int) -> GroupResult | SkippedGroup:
    runs: dict[int, list[float]] = {}
    for row in rows:
        if row.usable():
            runs.setdefault(int(row.global_batch_size), []).append(float(row.epochs))
    dropped = len(rows) - sum(len(epochs) for epochs in runs.values())
    if len(runs) <= points:
        reason = f"{len(runs)} batch sizes: {points} to fit to and one to predict are needed"
        return SkippedGroup(source, None, workload, reason, dropped)
    profiled = [min(runs), max(runs)]
    model = _fit(runs, profiled)
    while len(profiled) < points:
        profiled.append(model.most_informative([size for size in runs if size not in profiled]))
        model = _fit(runs, profiled)
    unseen = sorted(set(runs) - set(profiled))
    counts = np.array([len(runs[size]) for size in unseen], dtype=np.float64)
    predicted, deviation = model.predict(np.array(unseen, dtype=np.float64), runs=counts)
    margin = np.exp(INTERVAL_Z * deviation)
    return GroupResult(
        origin=source,
        workers_per_node=None,
        workload=workload,
        law=model.law.kind,
        profiled=tuple(f"batch {size}" for size in sorted(profiled)),
        predictions=tuple(
            HeldOutPrediction(
                at=f"batch {size}",
                truth=math.fsum(epochs / len(runs[size]) for epochs in runs[size]),
                predicted=float(value),
                low=float(value / factor),
                high=float(value * factor),
            )
            for size, value, factor in zip(unseen, predicted, margin, strict=True)
        ),
        dropped=dropped,
    )


def _fit(runs: dict[int, list[float]], profiled: Sequence[int]) -> StatisticalModel:
    sizes = sorted(profiled)
    records = [ConvergenceRecord(size, epochs) for size in sizes for epochs in sorted(runs[size])]
    # No run is bounded: the bound serves only where nothing has finished.
    return fit_statistical([], records, global_batch_sizes=tuple(sizes), epochs_hint=None, max_epochs=1.0)
