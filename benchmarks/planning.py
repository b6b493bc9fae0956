"""How long a decision takes: fitting the models, then predicting and comparing 1,000,000 configurations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.models.job_model import JobModel
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve, find_knee, pareto_front

_WORKERS = range(1, 101)
_BATCHES = range(100, 1100)
_VMS = 10
_AIM_S, _FIT_AIM_S = 1.0, 0.1
_CURVE = "curve: predict, constraints, front, knee"
_PROFILED = ((1, 100), (1, 1099), (50, 1099), (50, 100), (100, 100), (100, 1099))


def _space() -> SearchSpace:
    offers = [
        Offer("gcp", "us-central1", f"vm-{n}", 0.0335 * n, "list price", cpus=n, memory_bytes=n * 2**32)
        for n in range(1, _VMS + 1)
    ]
    return SearchSpace(tuple(offers), tuple(_WORKERS), tuple(_BATCHES))


def _profile(rng: np.random.Generator) -> Profile:
    """A made-up job that gains from workers until synchronising them takes over, with 3 % noise."""
    measurements = []
    for workers, batch in _PROFILED:
        local = -(-batch // workers)
        compute_s = (0.02 + 0.002 * local) * rng.lognormal(0.0, 0.03)
        sync_s = (0.01 + 0.002 * workers) * rng.lognormal(0.0, 0.03)
        measurements.append(
            Measurement(
                configuration=Configuration("vm-4", workers, batch),
                steps=20,
                step_time_s=compute_s + sync_s,
                step_time_spread_s=0.03 * compute_s,
                compute_s=compute_s,
                sync_s=sync_s,
                gradient_noise=1.5,
                noise_scale=400.0 * rng.lognormal(0.0, 0.1),
                memory_bytes=2**29 + 2**16 * local,
            )
        )
    return Profile(
        tuple(measurements),
        dataset_size=50_000,
        evaluation_s=((1, 2.0), (100, 0.5)),
        convergence=(ConvergenceRecord(100, 20.0), ConvergenceRecord(1000, 35.0)),
    )


def run(repetitions: int, work_dir: Path) -> Result:
    """Everything in this process, so many times; nothing is trained."""
    space, profile = _space(), _profile(np.random.default_rng(0))
    offer = space.offers[0]
    workers, batch = (axis.ravel() for axis in np.meshgrid(_WORKERS, _BATCHES, indexing="ij"))

    def fit() -> JobModel:
        return JobModel.fit(profile, space=space, epochs_hint=None, max_epochs=100)

    model = fit()
    curve = build_curve(model, space)
    allowed = curve.marks.excluded == 0
    tasks: dict[str, Callable[[], object]] = {
        "fit both models": fit,
        "predict one VM type": lambda: model.predict(offer, workers, batch),
        "front": lambda: pareto_front(curve.time_s, curve.cost_usd, allowed),
        "knee": lambda: find_knee(curve.time_s, curve.cost_usd, curve.marks.on_front),
        _CURVE: lambda: build_curve(model, space),
        "choose": lambda: choose(curve, "knee"),
    }
    spreads = {}
    for name, task in tasks.items():
        task()
        spreads[name] = Spread.of(_timed(task) for _ in range(repetitions))
    whole, fitted = spreads[_CURVE], spreads["fit both models"]
    return Result(
        headers=("task", "n", "median (least – greatest), ms"),
        rows=tuple((name, str(spread.count), spread.text(1e3)) for name, spread in spreads.items()),
        verdict=f"aims: below {_AIM_S:.0f} s for curve and choice over {len(curve):,} configurations: "
        f"{whole.median + spreads['choose'].median:.3f} s; below {_FIT_AIM_S} s for the fit: {fitted.median:.3f} s",
        figures={
            "configurations": len(curve),
            "profiled": len(_PROFILED),
            "front": int(curve.marks.on_front.sum()),
            **{f"{name}_s": spread for name, spread in spreads.items()},
        },
        remarks=(
            f"a made-up job of {len(_PROFILED)} measurements",
            f"{int(curve.marks.on_front.sum())} configurations are on the front",
            f"{_VMS} VM types, of which one was measured; front, knee, curve and choice are of all of them",
        ),
    )


def _timed(task: Callable[[], object]) -> float:
    begin = time.perf_counter()
    task()
    return time.perf_counter() - begin


BENCHMARK = Benchmark("planning", 10, run)
