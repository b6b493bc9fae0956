"""Both models against public measurements, fitted to few points as a partial search would; loose bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scavenger.domain.measurement import ConvergenceRecord
from scavenger.models.parallel import INTERVAL_Z, fit_parallel
from scavenger.models.statistical import fit_statistical
from scavenger.models.step_laws import StepTimes

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured"


def read(name: str) -> pd.DataFrame:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is not here")
    return pd.read_csv(DATA / name)


def test_step_times_of_unseen_placements_are_within_their_intervals() -> None:
    table = read("step_times.csv")
    errors, covered = [], []
    for _, group in table.groupby(["workload", table.nodes == table.workers]):
        seen, unseen = group[group.profiled == 1], group[group.profiled == 0]
        model = fit_parallel(
            [
                StepTimes(
                    workers=row.workers,
                    global_batch_size=row.global_batch_size,
                    local_batch_size=row.local_batch_size,
                    contention=1.0,
                    step_time_s=row.step_time_s,
                    compute_s=row.step_time_s - row.sync_time_s,
                    sync_s=row.sync_time_s,
                    spread_s=0.0,
                    steps=20,
                )
                for row in seen.itertuples()
            ]
        )
        predicted, deviation = model.predict(
            unseen.workers.to_numpy(), unseen.global_batch_size.to_numpy(), np.ones(len(unseen))
        )
        error = np.abs(np.log(predicted / unseen.step_time_s.to_numpy()))
        errors.extend(error)
        covered.extend(error < INTERVAL_Z * deviation)

    assert np.median(errors) < 0.12
    assert np.mean(covered) > 0.8


def test_epochs_at_batch_sizes_between_two_finished_ones_are_within_their_intervals() -> None:
    table = read("convergence.csv")
    errors, covered = [], []
    for _, group in table[table.source == "mlperf-rcp"].groupby("workload"):
        epochs = group.groupby("global_batch_size").epochs.median()
        sizes = epochs.index.to_numpy()
        runs = [ConvergenceRecord(int(size), float(epochs[size])) for size in (sizes[0], sizes[-1])]
        model = fit_statistical(
            [], runs, global_batch_sizes=(int(sizes[0]), int(sizes[-1])), epochs_hint=None, max_epochs=1e9
        )
        predicted, deviation = model.predict(sizes[1:-1].astype(float))
        error = np.abs(np.log(predicted / epochs.to_numpy()[1:-1]))
        errors.extend(error)
        covered.extend(error < INTERVAL_Z * deviation)

    assert np.median(errors) < 0.08
    assert np.mean(covered) > 0.8
