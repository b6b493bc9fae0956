"""Steps with two aggregator VMs, each VM behind a link of its own: predicted from steps with one, and measured."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.emulated_link import star
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.shapes import parameters
from scavenger.models.parallel import INTERVAL_Z, ParallelModel, fit_parallel
from scavenger.models.step_laws import StepTimes

_NETWORK, _LOCAL_BATCH = "quarter", 2
_RATE_BITS_PER_S = 2e8
_ROUND_TRIP_S = 0.005
_TIMEOUT_S = 900.0
_WORKERS = (1, 2, 4)

_Steps = list[tuple[float, float]]


def _steps(workers: int, vms: int, steps: int, folder: Path) -> tuple[_Steps, float]:
    """Time and computing of each step, and the largest share of the model on one aggregator VM."""
    with ExitStack() as stack:
        links = star(stack, vms + workers, rate_bits_per_s=_RATE_BITS_PER_S, round_trip_s=_ROUND_TRIP_S)
        command = (
            *links[0].within(0),
            *(sys.executable, "-m", "benchmarks.aggregator_vms_job"),
            *(str(folder), links[0].addresses[0]),
            f"benchmarks.peers.keras_jobs:{_NETWORK}_sgd",
            *map(str, (workers, workers * _LOCAL_BATCH, steps)),
            "apart",
            *(link.spaces[1] for link in links),
        )
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return [(step, compute) for step, compute, _ in found["steps"]], found["share"]


def _fitted(measured: Mapping[int, _Steps]) -> ParallelModel:
    points = []
    for workers, steps in measured.items():
        step_s = statistics.median(step for step, _ in steps)
        compute_s = statistics.median(compute for _, compute in steps)
        spread_s = 1.4826 * statistics.median(abs(step - step_s) for step, _ in steps)
        batch = workers * _LOCAL_BATCH
        points.append(
            StepTimes(
                workers=workers,
                global_batch_size=batch,
                local_batch_size=_LOCAL_BATCH,
                contention=1.0,
                step_time_s=step_s,
                compute_s=compute_s,
                sync_s=max(0.0, step_s - compute_s),
                spread_s=spread_s,
                steps=len(steps),
            )
        )
    return fit_parallel(points)


def run(repetitions: int, work_dir: Path) -> Result:
    """So many steps of each number of workers and aggregator VMs."""
    found: dict[int, dict[int, _Steps]] = {1: {}, 2: {}}
    share = 1.0
    for vms, of_vms in found.items():
        for workers in _WORKERS:
            of_vms[workers], share = _steps(workers, vms, repetitions, work_dir / f"{vms}-{workers}")
    counts = np.array(_WORKERS)
    model = _fitted(found[1]).with_share(1.0, share)
    predicted_s, log_sd = model.predict(counts, counts * _LOCAL_BATCH, np.ones(len(counts)))
    rows, figures, errors = [], dict[str, object](), []
    for workers, mean_s, sd in zip(_WORKERS, predicted_s.tolist(), log_sd.tolist(), strict=True):
        one, two = (Spread.of([step for step, _ in found[vms][workers]]) for vms in (1, 2))
        low_s, high_s = (mean_s * math.exp(sign * INTERVAL_Z * sd) for sign in (-1.0, 1.0))
        error = mean_s / two.median - 1.0
        errors.append(error)
        rows.append(
            (
                str(workers),
                one.text(1, 2),
                f"{mean_s:.2f} ({low_s:.2f}-{high_s:.2f})",
                two.text(1, 2),
                f"{error:+.0%}",
            )
        )
        figures[str(workers)] = {
            "one": one,
            "two": two,
            "predicted_s": mean_s,
            "low_s": low_s,
            "high_s": high_s,
        }
    size = 4 * parameters(_NETWORK)
    return Result(
        headers=("workers", "1 VM, s", "2 VMs predicted, s (90 %)", "2 VMs measured, s", "error"),
        rows=tuple(rows),
        verdict="error of a step with 2 aggregator VMs, predicted from steps with 1: "
        f"{statistics.mean(map(abs, errors)):.0%} on average",
        figures={"model_bytes": size, "share": share, **figures},
        remarks=(
            f"each aggregator and each worker on a VM behind a link of {_RATE_BITS_PER_S / 1e6:.0f} Mbit/s and "
            f"{_ROUND_TRIP_S * 1e3:.0f} ms; a model of {size / 1e6:.0f} MB, of which the fuller of two VMs holds "
            f"{share:.0%}",
            "predicted as a job does that chooses its number of aggregator VMs: `models/parallel.py`, `with_share`",
        ),
    )


BENCHMARK = Benchmark("aggregator_vms", 6, run)
