"""Both models against public measurements, fitted to few points as a partial search would; loose bounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from synthetic import CLOUD

from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.models import noise
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading, critical_batch_from_noise
from scavenger.models.parallel import INTERVAL_Z, fit_parallel
from scavenger.models.statistical import RUN_LOG_SD, fit_statistical
from scavenger.models.step_laws import StepLaw, StepTimes

Law = Literal["critical-batch", "noise-linear"]
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured"


def read(name: str) -> pd.DataFrame:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is not here")
    return pd.read_csv(DATA / name)


def test_a_law_that_hides_synchronisation_errs_less_than_the_linear_one_on_unseen_placements() -> None:
    table = read("step_times.csv")
    errors: dict[StepLaw, list[float]] = {"linear": [], "overlap": []}
    covered = []
    for _, group in table.groupby(["workload", "workers_per_node"]):
        seen, unseen = group[group.profiled == 1], group[group.profiled == 0]
        times = [
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
                workers_per_node=row.workers_per_node,
            )
            for row in seen.itertuples()
        ]
        assert fit_parallel(times).law.kind == "overlap"
        for law, found in errors.items():
            predicted, deviation = fit_parallel(times, law=law).predict(
                unseen.workers.to_numpy(), unseen.global_batch_size.to_numpy(), np.ones(len(unseen))
            )
            error = np.abs(np.log(predicted / unseen.step_time_s.to_numpy()))
            found.extend(error)
            if law == "overlap":
                covered.extend(error < INTERVAL_Z * deviation)

    assert np.mean(errors["overlap"]) < 0.8 * np.mean(errors["linear"])
    assert np.median(errors["overlap"]) < 0.08
    assert 0.85 < np.mean(covered) < 0.96


def test_the_prior_law_of_epochs_errs_by_less_than_half_of_the_other() -> None:
    table = read("convergence.csv")
    errors: dict[Law, list[float]] = {"critical-batch": [], "noise-linear": []}
    for _, group in table[table.source == "mlperf-rcp"].groupby("workload"):
        epochs = group.groupby("global_batch_size").epochs.median()
        sizes = epochs.index.to_numpy()
        runs = [ConvergenceRecord(int(size), float(epochs[size])) for size in (sizes[0], sizes[-1])]
        for law, left in errors.items():
            model = fit_statistical(
                [],
                runs,
                global_batch_sizes=(int(sizes[0]), int(sizes[-1])),
                epochs_hint=None,
                max_epochs=1e9,
                law=law,
            )
            predicted, _ = model.predict(sizes[1:-1].astype(float))
            left.extend(np.abs(np.log(predicted / epochs.to_numpy()[1:-1])))

    assert np.median(errors["critical-batch"]) < 0.5 * np.median(errors["noise-linear"])


def test_single_runs_are_taken_to_differ_by_more_than_those_of_three_in_four_public_jobs() -> None:
    table = read("convergence.csv")
    table = table.assign(log_epochs=np.log(table.epochs))
    seeds = table.groupby(["source", "workload", "global_batch_size"]).log_epochs.agg(["std", "count"])
    spread = seeds[seeds["count"] >= 4]["std"].groupby(["source", "workload"]).median()

    assert spread.quantile(0.75) < RUN_LOG_SD < spread.max()


def test_times_of_a_whole_grid_follow_from_its_corners_and_early_noise() -> None:
    errors, covered = grid_errors()

    assert np.median(errors) < 0.15
    assert np.mean(covered) > 0.85


def test_noise_that_is_taken_to_grow_predicts_better_than_noise_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    growing, _ = grid_errors()
    monkeypatch.setattr(noise, "GROWTH", 0.0)
    constant, _ = grid_errors()

    assert np.median(growing) < 0.6 * np.median(constant)


def test_the_noise_of_the_first_half_of_a_run_tells_its_critical_batch_size() -> None:
    """The truth is the harmonic mean of φ over the work of the whole run, summed as it was measured."""
    errors, early_covered = [], []
    for _, job in read("training_runs.csv").groupby("workload"):
        smallest = job.global_batch_size.min()
        for batch, run in job.groupby("global_batch_size"):
            scale = (run.grad_var / run.grad_sqr * smallest).to_numpy()
            samples = run.iteration.to_numpy(dtype=float) * batch
            steps, share = np.diff(np.concatenate(([0.0], samples))), samples / samples[-1]
            told = np.isfinite(scale)
            work = steps[told] * scale[told] / (scale[told] + batch)
            truth = math.log(work.sum() / (work / scale[told]).sum())
            for until in (0.02, 0.5):
                readings = [
                    NoiseReading(float(u), float(phi), float(count), float(batch))
                    for u, phi, count in zip(share, scale, steps, strict=True)
                    if u <= max(until, share[0])
                ]
                found = critical_batch_from_noise(readings)
                assert found is not None
                error = abs(math.log(found.critical_batch_size) - truth)
                if until == 0.5:
                    errors.append(error)
                else:
                    early_covered.append(error < INTERVAL_Z * found.log_sd)

    assert np.median(errors) < 0.2
    assert max(errors) < 0.6
    assert np.mean(early_covered) > 0.8


def grid_errors() -> tuple[list[float], list[bool]]:
    """|ln| of predicted over measured time at each point of the three grids, and whether its interval holds it."""
    grid, runs, steps = read("grid.csv"), read("training_runs.csv"), read("step_times.csv")
    errors, covered = [], []
    for workload, group in grid.groupby("workload"):
        placements = steps[(steps.workload == workload) & (steps.nodes == steps.workers)]
        corners = []
        for workers in (group.workers.min(), group.workers.max()):
            column = group[group.workers == workers].sort_values("global_batch_size")
            seen = placements[placements.workers == workers]
            for row in (column.iloc[0], column.iloc[-1]):
                share = np.interp(
                    row.local_batch_size, seen.local_batch_size, seen.sync_time_s / seen.step_time_s
                )
                corners.append(corner(row, float(share), early_noise_scale(runs, workload, row)))
        dataset_size = 1_000_000
        epochs = group.iterations * group.global_batch_size / dataset_size
        smallest = group.global_batch_size.idxmin()
        space = SearchSpace(
            (CLOUD,),
            tuple(sorted(int(k) for k in group.workers.unique())),
            tuple(sorted(int(b) for b in group.global_batch_size.unique())),
        )
        model = JobModel.fit(
            Profile(tuple(corners), dataset_size),
            space=space,
            epochs_hint=float(epochs[smallest]),
            max_epochs=10**6,
        )
        found = model.predict(CLOUD, group.workers.to_numpy(), group.global_batch_size.to_numpy())
        truth = (group.iterations * group.step_time_s).to_numpy()
        errors.extend(np.abs(np.log(found.time_s / truth)))
        covered.extend((found.time_low_s < truth) & (truth < found.time_high_s))
    return errors, covered


def corner(row: pd.Series, sync_share: float, noise_scale: float) -> Measurement:
    return Measurement(
        configuration=Configuration(CLOUD.vm, int(row.workers), int(row.global_batch_size)),
        steps=20,
        step_time_s=row.step_time_s,
        step_time_spread_s=0.0,
        compute_s=row.step_time_s * (1.0 - sync_share),
        sync_s=row.step_time_s * sync_share,
        gradient_noise=None,
        noise_scale=noise_scale,
        memory_bytes=0,
    )


def early_noise_scale(runs: pd.DataFrame, workload: str, row: pd.Series) -> float:
    """φ between a fiftieth and a twelfth of the run; the table's variance is that at the smallest batch."""
    of_job = runs[runs.workload == workload]
    run = of_job[of_job.global_batch_size == row.global_batch_size]
    scale = (run.grad_var / run.grad_sqr * of_job.global_batch_size.min()).to_numpy()
    return float(np.median(scale[len(scale) // 50 : len(scale) // 12 + 1]))
