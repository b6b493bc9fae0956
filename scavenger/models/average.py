"""The universal model: the average of earlier jobs, for a job that resembles none of them.

Only what has the same meaning in every job is averaged: the logarithms of the step time at a (K, b, c), of the
epochs at a B, and of the critical batch size. The spread between the models is the error of the average, and is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scavenger.domain.curve import FloatArray
from scavenger.models.evaluation import EvaluationLaw
from scavenger.models.job_model import JobModel, VmModel
from scavenger.models.memory import MemoryLaw
from scavenger.models.parallel import ParallelModel
from scavenger.models.statistical import (
    CRITICAL_BATCH_LOG_SD,
    LAW_LOG_SD,
    CriticalBatch,
    FixedEpochs,
    StatisticalModel,
)
from scavenger.models.step_laws import StepTimes, fit_linear

BETWEEN_JOBS_LOG_SD = 1.0
"""Prior standard deviation (of ln) between two jobs, a factor of e: one model does not show how much jobs differ."""


def average(models: Sequence[JobModel]) -> JobModel:
    """Geometric mean of models of different jobs.

    The data set size is averaged too; `dataclasses.replace` gives the model the new job's own.

    Raises:
        ValueError: If there is no model.
    """
    if not models:
        raise ValueError("there is no model to average")
    names = sorted({vm.vm for model in models for vm in model.vms})
    vms = tuple(_average_vm([vm for model in models for vm in model.vms if vm.vm == name]) for name in names)
    evaluation = EvaluationLaw(
        base_s=_geometric_mean([model.evaluation.base_s for model in models]),
        shared_s=_geometric_mean([model.evaluation.shared_s for model in models]),
    )
    return JobModel(
        dataset_size=max(round(_geometric_mean([model.dataset_size for model in models])), 1),
        statistical=_average_statistical([model.statistical for model in models]),
        vms=vms,
        evaluation=evaluation,
        max_epochs=max(model.max_epochs for model in models),
        notes=(f"average of other jobs ({len(models)}): this job may differ by a large factor",),
    )


def _geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of the positive values; 0 if none is positive."""
    positive = [math.log(value) for value in values if value > 0.0]
    return math.exp(math.fsum(positive) / len(positive)) if positive else 0.0


def _between_variance(logs: FloatArray) -> FloatArray:
    """Variance of one more job around the mean over axis 0: the prior counts as two jobs."""
    jobs = len(logs)
    around = ((logs - logs.mean(axis=0)) ** 2).sum(axis=0)
    variance = (2.0 * BETWEEN_JOBS_LOG_SD**2 + around) / (2.0 + jobs - 1.0)
    return np.asarray(variance * (1.0 + 1.0 / jobs))


def _average_vm(vms: Sequence[VmModel]) -> VmModel:
    """A linear law through the geometric mean of the step times on the corners that the models have seen."""
    laws = [vm.parallel for vm in vms]
    workers_min, workers_max = min(law.workers_min for law in laws), max(law.workers_max for law in laws)
    work_min, work_max = min(law.work_min for law in laws), max(law.work_max for law in laws)
    batches = sorted({max(math.floor(work_min), 1), max(math.ceil(work_max), 1)})
    corners = [(k, b, 1.0) for k in sorted({workers_min, workers_max}) for b in batches]
    workers, work, contention = np.array(corners, dtype=np.float64).T
    log_times, shares = [], []
    for law in laws:
        step_time_s, _ = law.law.evaluate(workers, work, contention)
        compute_s = law.law.compute_base_s + law.law.compute_per_sample_s * work
        log_times.append(np.log(step_time_s))
        shares.append(np.clip(compute_s / step_time_s, 1e-6, 1.0))
    step_time_s = np.exp(np.mean(log_times, axis=0))
    share = np.mean(shares, axis=0)
    points = [
        StepTimes(int(k), int(k) * b, b, 1.0, float(t), float(t * s), float(t * (1.0 - s)), 0.0, 1)
        for (k, b, _), t, s in zip(corners, step_time_s, share, strict=True)
    ]
    linear, notes = fit_linear(points)
    own = np.mean([law.residual_log_sd**2 for law in laws])
    memory = [vm.memory for vm in vms if vm.memory is not None]
    return VmModel(
        vm=vms[0].vm,
        cpus=vms[0].cpus,
        parallel=ParallelModel(
            law=linear,
            residual_log_sd=math.sqrt(float(own + np.max(_between_variance(np.array(log_times))))),
            covariance=tuple((0.0,) * 4 for _ in range(4)),
            workers_min=workers_min,
            workers_max=workers_max,
            work_min=work_min,
            work_max=work_max,
            notes=tuple(notes),
        ),
        # The maximum over the jobs: a worker that runs out of memory is lost.
        memory=MemoryLaw(max(m.base_bytes for m in memory), max(m.per_sample_bytes for m in memory))
        if memory
        else None,
    )


def _average_statistical(models: Sequence[StatisticalModel]) -> StatisticalModel:
    """Critical-batch law through the mean log epochs at the middle batch size, with the mean log B*."""
    # Neither a bound nor the length of a run without a target is evidence of the epochs to a target.
    absolute = [m for m in models if not (m.relative_only or isinstance(m.law, FixedEpochs))]
    fitted = absolute or list(models)
    low, high = min(m.batch_min for m in models), max(m.batch_max for m in models)
    middle = math.sqrt(low * high)
    levels = np.log([float(m.predict(np.array([middle]))[0][0]) for m in fitted])
    scales = np.log([m.law.critical_batch_size for m in models if isinstance(m.law, CriticalBatch)])
    log_scale = float(scales.mean()) if len(scales) else math.log(high)
    shape = float(_between_variance(scales)) if len(scales) else CRITICAL_BATCH_LOG_SD**2
    level = float(_between_variance(levels))
    law = CriticalBatch(
        math.exp(float(levels.mean()) - math.log1p(middle * math.exp(-log_scale))), math.exp(log_scale)
    )
    # The level is known at the middle, the law's own is Emin: ln Emin = ln E(middle) - ln(1 + middle / B*).
    slope = float(law.shape_gradient(np.array([middle]))[0])
    return StatisticalModel(
        law=law,
        level_log_var=level + slope**2 * shape,
        shape_log_var=shape,
        cross_log_var=-slope * shape,
        law_log_sd=LAW_LOG_SD,
        batch_min=low,
        batch_max=high,
        relative_only=not absolute,
        notes=(f"epochs are the geometric mean of other jobs ({len(fitted)})",),
    )
