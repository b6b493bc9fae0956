"""Search spaces, job models and curves with known answers."""

from __future__ import annotations

import numpy as np

from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.curve import CurveConfigurations, Interval, PointMarks, TradeoffCurve
from scavenger.domain.measurement import Measurement, Profile
from scavenger.models.job_model import JobModel
from scavenger.search.curve import find_knee, pareto_front

CLOUD = Offer("gcp", "us-central1", "vm", 0.4, "list price", cpus=4, memory_bytes=16 * 2**30)
SHARED = Offer("local", "", "vm", 0.1, "notional", cpus=1, memory_bytes=2**30, shared_cpus=2)
SPACE = SearchSpace((CLOUD,), (1, 2, 4, 8), (64, 128, 256, 512, 1024))


def job_model(space: SearchSpace = SPACE, *, epochs_hint: float | None = 10.0) -> JobModel:
    """Fitted to the corners and the middle of a job that computes 1 ms a sample and synchronises 5 ms a worker."""
    measurements = []
    sizes, batches = space.workers, space.global_batch_sizes
    points = [(k, b) for k in (sizes[0], sizes[-1]) for b in (batches[0], batches[-1])]
    points.append((sizes[len(sizes) // 2], batches[len(batches) // 2]))
    for workers, wanted in points:
        batch = max(wanted, workers)
        compute_s, sync_s = 0.02 + 0.001 * -(-batch // workers), 0.01 + 0.005 * workers
        measurements.append(
            Measurement(
                configuration=Configuration(space.offers[0].vm, workers, batch),
                steps=20,
                step_time_s=compute_s + sync_s,
                step_time_spread_s=0.01,
                compute_s=compute_s,
                sync_s=sync_s,
                gradient_noise=1.5,
                noise_scale=300.0,
                memory_bytes=2**28 + 2**20 * -(-batch // workers),
            )
        )
    profile = Profile(tuple(measurements), dataset_size=10_000)
    return JobModel.fit(profile, space=space, epochs_hint=epochs_hint, max_epochs=60)


def curve_of(
    *points: tuple[float, float], excluded: tuple[int, ...] = (), knee: bool = True
) -> TradeoffCurve:
    """A curve through (time_s, cost_usd) points, the k-th of them with k workers; `excluded` are late."""
    time_s, cost_usd = np.array(points, dtype=np.float64).reshape(-1, 2).T
    n = len(time_s)
    out = np.zeros(n, dtype=np.int64)
    out[list(excluded)] = 1
    front = pareto_front(time_s, cost_usd, out == 0)
    return TradeoffCurve(
        configurations=CurveConfigurations(
            ("vm",), np.zeros(n, dtype=np.int64), np.arange(1, n + 1), np.full(n, 1000)
        ),
        time_s=time_s,
        time_interval_s=Interval(time_s * 0.8, time_s * 1.25),
        cost_usd=cost_usd,
        cost_interval_usd=Interval(cost_usd * 0.8, cost_usd * 1.25),
        step_time_s=np.full(n, 0.1),
        epochs=np.full(n, 10.0),
        marks=PointMarks(
            on_front=front,
            measured=np.zeros(n, dtype=np.bool_),
            extrapolated=np.zeros(n, dtype=np.bool_),
            excluded=out,
            reasons=("", "past the deadline of 1 s"),
        ),
        knee=find_knee(time_s, cost_usd, front) if knee else None,
    )
