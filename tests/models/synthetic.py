"""Profiles of jobs whose true laws are known."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile, StepRecord

CLOUD = Offer("gcp", "us-central1", "vm", 0.4, "list price", cpus=4, memory_bytes=16 * 2**30)
SHARED = Offer("local", "", "vm", 0.1, "notional", cpus=1, memory_bytes=2**30, shared_cpus=2)
SPACE = SearchSpace((CLOUD,), (1, 2, 4, 8), (64, 128, 256, 512, 1024))
CORNERS = ((1, 64), (1, 1024), (8, 1024), (8, 64))
POINTS = (*CORNERS, (2, 256))
"""As many as a linear law needs: the corners, and one point to hold it to."""


def step_parts(workers: int, batch: int, contention: float = 1.0) -> tuple[float, float]:
    """Computing and synchronisation of the true linear law, seconds."""
    return 0.02 + 0.001 * -(-batch // workers) * contention, 0.01 + 0.005 * workers


def measured(
    workers: int,
    batch: int,
    *,
    parts: Callable[[int, int, float], tuple[float, float]] = step_parts,
    offer: Offer = CLOUD,
    noise_scale: float | None = 300.0,
    memory_bytes: int = 2**30,
) -> Measurement:
    compute_s, sync_s = parts(workers, batch, offer.contention(workers))
    return Measurement(
        configuration=Configuration(offer.vm, workers, batch),
        steps=20,
        step_time_s=compute_s + sync_s,
        step_time_spread_s=0.02 * (compute_s + sync_s),
        compute_s=compute_s,
        sync_s=sync_s,
        gradient_noise=None,
        noise_scale=noise_scale,
        memory_bytes=memory_bytes,
    )


def profile(
    points: tuple[tuple[int, int], ...] = POINTS,
    *,
    convergence: tuple[ConvergenceRecord, ...] = (),
    offer: Offer = CLOUD,
    evaluation_s: tuple[tuple[int, float], ...] = (),
) -> Profile:
    return Profile(
        tuple(measured(workers, batch, offer=offer) for workers, batch in points),
        dataset_size=10_000,
        convergence=convergence,
        evaluation_s=evaluation_s,
    )


def step_record(
    step: int,
    mean_worker_sqnorm: float,
    mean_sqnorm: float,
    *,
    workers: int = 4,
    batch: int = 128,
    parts: int | None = None,
) -> StepRecord:
    return StepRecord(
        step=step,
        view=1,
        epoch=0,
        workers=workers,
        global_batch_size=batch,
        samples=batch,
        step_time_s=0.1,
        compute_s=0.08,
        sync_s=0.02,
        loss=1.0,
        mean_worker_sqnorm=mean_worker_sqnorm,
        mean_sqnorm=mean_sqnorm,
        noise_parts=workers if parts is None else parts,
        disturbed=False,
        at_s=0.1 * step,
    )
