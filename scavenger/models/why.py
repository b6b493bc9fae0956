"""Explains a prediction: its law, its parts, the points it comes from, and what would narrow its interval.

=========  =====================================================================================
v          variance of ln of a run's time: of the step (law, smooth parts, scatter, range), of how a run's steps differ
           from its profile's (drift), and of the epochs
=========  =====================================================================================

A configuration that was measured is predicted by its own median, drawn towards the law: with w = own / (own + law) of
their variances, law parts enter the variance by w² and the measurement by (1 - w)².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scavenger.domain.curve import FloatArray
from scavenger.models.design import GAIN_MIN
from scavenger.models.job_model import LOG_SD_MAX, JobModel, VmModel
from scavenger.models.kriging import Kriging, Places
from scavenger.models.parallel import (
    INTERVAL_Z,
    MEASUREMENT_LOG_SD_MIN,
    ParallelModel,
    extrapolation_variance,
    local_batch_sizes,
)

PARTS = {
    "law": "the law of step times, of few points",
    "smooth_compute": "computing, where it follows no law",
    "smooth_sync": "synchronisation, where it follows no law",
    "cluster_sync": "that number of machines",
    "pair_sync": "two machines instead of one",
    "scatter": "scatter of step times",
    "range": "being outside of what was measured",
    "aggregators": "another number of aggregator VMs",
    "measurement": "its own measurement",
    "drift": "the machine's pace, which drifts",
    "epochs": "the number of epochs",
}
"""The parts of an interval, for the user."""

POINTS_SHOWN = 12
"""Points of most weight that are named."""

PROBES_SHOWN = 3
"""Probes of most effect that are named."""


@dataclass(frozen=True, slots=True)
class PointWeight:
    """A measured point; a prediction changes by `weight` percent with each percent of its step time."""

    workers: int
    global_batch_size: int
    step_time_s: float
    weight: float


@dataclass(frozen=True, slots=True)
class Probe:
    """A configuration that may be measured, and half-widths of 90 % intervals once it has been.

    Attributes:
        step_half_width: Of ln of the step time of the configuration that is explained.
        half_width: Of ln of the time of the run.
    """

    workers: int
    global_batch_size: int
    step_half_width: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Why:
    """Where the prediction of a configuration comes from.

    Attributes:
        step_time_s: With its 90 % interval, seconds.
        laws: Weights of the laws.
        compute_s, sync_s: The law's step time: computing, and synchronisation that computing does not hide.
        factors: By which each smooth part, and then its own measurement, changes the law's step time; see `PARTS`.
        points: Points of most weight.
        step_half_width, half_width: Of the 90 % intervals of ln of the step time, and of the run's time.
        shares: Of its variance, by part; see `PARTS`.
        probes: What would narrow it most, most first; empty if nothing would.
    """

    vm: str
    workers: int
    global_batch_size: int
    step_time_s: float
    step_time_interval_s: tuple[float, float]
    measured: bool
    laws: dict[str, float]
    compute_s: float
    sync_s: float
    factors: dict[str, float]
    points: tuple[PointWeight, ...]
    step_half_width: float
    half_width: float
    shares: dict[str, float]
    probes: tuple[Probe, ...]


def explain(
    model: JobModel, vm: VmModel, workers: int, global_batch_size: int, probes: Sequence[tuple[int, int]]
) -> Why:
    """Explain the prediction of a configuration.

    Args:
        vm: One of its VM types.
        workers, global_batch_size: K and B.
        probes: Configurations (K, B) that may be measured.

    Raises:
        ValueError: If some workers would get nothing.
    """
    if not 1 <= workers <= global_batch_size:
        raise ValueError(f"{workers} workers cannot share a batch of {global_batch_size}: 1 <= K <= B")
    parallel = vm.parallel
    place = _places(vm, [workers], [global_batch_size])
    law = replace(parallel.law, load=parallel.measured_load)
    kriging = Kriging(law, parallel.measured, parallel.residual_log_sd, parallel.scatter)
    covariance = np.array(parallel.covariance) * parallel.residual_log_sd**2
    parts = kriging.explain(place, covariance)
    count, batch = np.array([workers]), np.array([global_batch_size])
    (law_time_s,), (law_log_sd,) = parallel.predict_law(count, batch, place.contention)
    (step_time_s,), (step_log_sd,) = parallel.predict(count, batch, place.contention)
    own = _own_variance(parallel, workers, global_batch_size, int(place.workers_per_node[0]))
    beyond = float(extrapolation_variance(place, *_range(parallel))[0])
    variances = {**parts.variances, "range": beyond}
    variances["aggregators"] = max(float(law_log_sd) ** 2 - sum(variances.values()), 0.0)
    pull = 1.0 if own is None else own / (own + float(law_log_sd) ** 2)
    variances = {name: value * pull**2 for name, value in variances.items()}
    variances["measurement"] = (1.0 - pull) ** 2 * (own or 0.0)
    _, (epochs_log_sd,) = model.statistical.predict(batch.astype(np.float64))
    variances["drift"] = model.run_log_sd**2 + model.drift_log_sd**2
    variances["epochs"] = float(epochs_log_sd) ** 2
    rest = variances["drift"] + variances["epochs"]
    whole = float(step_log_sd) ** 2 + rest
    after = _after(vm, kriging, covariance, place, float(law_log_sd) ** 2, own, probes)
    better = sorted(
        (step, *probe)
        for step, probe in zip(after.tolist(), probes, strict=True)
        if step < (1.0 - GAIN_MIN) * float(step_log_sd) ** 2
    )
    factors = {name: math.exp(value) for name, value in parts.deviations.items()}
    factors["aggregators"] = float(law_time_s) / (parts.law_s * math.prod(factors.values()))
    factors["measurement"] = float(step_time_s / law_time_s)
    weights = parts.weights * pull
    margin = math.exp(INTERVAL_Z * float(step_log_sd))
    points = [
        PointWeight(
            m.workers,
            m.global_batch_size,
            m.step_time_s,
            float(weight)
            + (1.0 - pull) * (m.workers == workers and m.global_batch_size == global_batch_size),
        )
        for m, weight in zip(parallel.measured, weights, strict=True)
    ]
    points.sort(key=lambda point: (-abs(point.weight), point.workers, point.global_batch_size))
    return Why(
        vm=vm.vm,
        workers=workers,
        global_batch_size=global_batch_size,
        step_time_s=float(step_time_s),
        step_time_interval_s=(float(step_time_s) / margin, float(step_time_s) * margin),
        measured=own is not None,
        laws={parallel.law.kind: 1.0},
        compute_s=parts.law_s * (1.0 - parts.sync_share),
        sync_s=parts.law_s * parts.sync_share,
        factors={name: value for name, value in factors.items() if abs(math.log(value)) > 1e-6},
        points=tuple(points[:POINTS_SHOWN]),
        step_half_width=_half_width(float(step_log_sd) ** 2),
        half_width=_half_width(whole),
        shares={name: value / whole for name, value in variances.items() if value > 1e-6 * whole},
        probes=tuple(
            Probe(k, b, _half_width(step), _half_width(step + rest)) for step, k, b in better[:PROBES_SHOWN]
        ),
    )


def _half_width(variance: float) -> float:
    return INTERVAL_Z * min(math.sqrt(variance), LOG_SD_MAX)


def _places(vm: VmModel, workers: Sequence[int], global_batch_size: Sequence[int]) -> Places:
    count, batch = np.array(workers, dtype=np.int64), np.array(global_batch_size, dtype=np.int64)
    shared = np.inf if vm.shared_cpus is None else float(vm.shared_cpus)
    contention = np.maximum(1.0, count * vm.cpus / shared)
    each = np.full(len(count), float(vm.parallel.workers_per_node))
    work = local_batch_sizes(count, batch).astype(np.float64) * contention
    return Places(count.astype(np.float64), work, contention, each)


def _range(parallel: ParallelModel) -> tuple[tuple[float, float], tuple[float, float]]:
    return (parallel.workers_min, parallel.workers_max), (parallel.work_min, parallel.work_max)


def _own_variance(parallel: ParallelModel, workers: int, batch: int, workers_per_node: int) -> float | None:
    """Of ln of the configuration's own median; None if it was not measured."""
    if not parallel.of_measured_load:
        return None
    for seen in parallel.measured:
        if (seen.workers, seen.global_batch_size, seen.workers_per_node) == (
            workers,
            batch,
            workers_per_node,
        ):
            return seen.log_sd**2
    return None


def _after(
    vm: VmModel,
    kriging: Kriging,
    covariance: FloatArray,
    place: Places,
    law: float,
    own: float | None,
    probes: Sequence[tuple[int, int]],
) -> FloatArray:
    """Variance of ln of the step time once each probe has been measured as well, shape `(n,)`; see `design`."""
    if not probes:
        return np.empty(0)
    at = _places(vm, *zip(*probes, strict=True))
    error = MEASUREMENT_LOG_SD_MIN**2
    shared = kriging.covariance_between(place, at, covariance)[0]
    _, variance = kriging.predict(at, covariance)
    of_workers, of_work = _range(vm.parallel)
    wider = (
        (np.minimum(of_workers[0], at.workers), np.maximum(of_workers[1], at.workers)),
        (np.minimum(of_work[0], at.work), np.maximum(of_work[1], at.work)),
    )
    alone = Places(*(np.broadcast_to(column, at.workers.shape) for column in place))
    beyond = extrapolation_variance(alone, of_workers, of_work)
    nearer = beyond - extrapolation_variance(alone, *wider)
    left = np.maximum(law - shared**2 / (variance + error) - nearer, 1e-12)
    itself = (at.workers == place.workers[0]) & (at.work == place.work[0])
    mine = np.where(itself, 1.0 / error, 0.0) + (0.0 if own is None else 1.0 / own)
    left = np.where(itself, law, left)  # its own median does not go by the law
    return np.asarray(1.0 / (1.0 / left + mine))
