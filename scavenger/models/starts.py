"""How long a worker takes from its launch until it is ready to train, with its uncertainty.

The logarithm of a start is a level of the machine, plus a deviation of the job (the machine may be busy then), plus one
of the single start. The level is learned from the starts of earlier jobs, and this job's own from its own; both have a
wide prior, so that something is said before any worker has started. The first workers of a job import their libraries;
further ones are often forked from a process that has, and take a third to all of that time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_S, FIRST_LOG_SD = 6.0, 0.8
"""Start of a first worker on a machine that nothing is known of: 5.4 s in `python -m benchmarks starting`, a third of
it without TensorFlow, several times as much for large models or on a busy machine."""

FURTHER_LOG_RATIO, FURTHER_LOG_SD = -0.6, 0.5
"""ln of a further start over a first one, and what it is uncertain by: -1.05 where workers are forked, 0 where not."""

JOB_LOG_SD, START_LOG_SD = 0.3, 0.25
"""Deviations of a job from its machine's level and of one start from its job's, before they are known better."""

STALL_LOG_SD = 0.3
"""Deviation of one change of view from the others of its job, before they are known better."""

ENDING_S = {True: (0.9, 0.5), False: (0.3, 0.8)}
"""Saving the model and ending the processes, seconds, and what its ln is uncertain by, with TensorFlow and without.

With it 0.4 s on two quiet processors, 0.8 to 2 s on busy ones; without, a tenth to half a second, so with a wide
spread. `scavenger explain JOB` tells what it took.
"""

PRIOR_JOBS = 3.0
"""Earlier jobs that `JOB_LOG_SD` counts for."""


@dataclass(frozen=True, slots=True)
class Lasting:
    """A time that is not known exactly: log-normal, `log_sd` being the standard deviation of its logarithm."""

    median_s: float
    log_sd: float

    @property
    def mean_s(self) -> float:
        """The mean, which is what it takes on average."""
        return self.median_s * math.exp(0.5 * self.log_sd**2)


@dataclass(frozen=True, slots=True)
class Starts:
    """Measured starts, seconds: of the first workers of a job, and of further ones."""

    first_s: tuple[float, ...] = ()
    further_s: tuple[float, ...] = ()


def first_start(earlier: Starts) -> Lasting:
    """The start of a job's first worker, by those of earlier jobs on the same machine (one value for each job)."""
    return _predicted(math.log(FIRST_S), FIRST_LOG_SD, earlier.first_s, ())


def further_start(own: Starts, earlier: Starts) -> Lasting:
    """The start of a further worker, by those of this job and of earlier ones on the same machine."""
    first = _predicted(math.log(FIRST_S), FIRST_LOG_SD, earlier.first_s, own.first_s)
    log_mean = math.log(first.median_s) + FURTHER_LOG_RATIO
    log_sd = FURTHER_LOG_SD if own.first_s else math.hypot(FURTHER_LOG_SD, first.log_sd)
    return _predicted(log_mean, log_sd, earlier.further_s, own.further_s)


def ending(own: Sequence[float], *, tensorflow: bool) -> Lasting:
    """How long saving the model and ending the processes takes, by earlier runs of the same job on the same machine.

    Args:
        tensorflow: Whether the workers have imported TensorFlow.
    """
    usual_s, log_sd = ENDING_S[tensorflow]
    return _predicted(math.log(usual_s), log_sd, (), own)


def stall(own: Sequence[float]) -> Lasting | None:
    """How long the next change of view pauses training, by those of this job; None if none was measured.

    A program that is started again for each change stands still for as long as it takes to start. What is left of a
    start, once the training module is known, differs from run to run as pauses do.
    """
    logs = [math.log(took_s) for took_s in own if 0.0 < took_s < math.inf]
    if not logs:
        return None
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((value - mean) ** 2 for value in logs)
    variance = (STALL_LOG_SD**2 + squares) / len(logs)
    return Lasting(math.exp(mean), math.sqrt(variance * (1.0 + 1.0 / len(logs))))


def _predicted(log_mean: float, log_sd: float, earlier: Sequence[float], own: Sequence[float]) -> Lasting:
    """The next start of this job, given a prior of the machine's level."""
    of_jobs = [math.log(took_s) for took_s in earlier if 0.0 < took_s < math.inf]
    of_job = [math.log(took_s) for took_s in own if 0.0 < took_s < math.inf]
    between, within = _between(of_jobs), START_LOG_SD**2
    mean, variance = _updated(log_mean, log_sd**2, of_jobs, between + within)
    mean, variance = _updated(mean, variance + between, of_job, within)
    return Lasting(math.exp(mean), math.sqrt(variance + within))


def _between(logs: Sequence[float]) -> float:
    """Variance of a job's level around its machine's."""
    mean = math.fsum(logs) / len(logs) if logs else 0.0
    squares = math.fsum((value - mean) ** 2 for value in logs)
    return (PRIOR_JOBS * JOB_LOG_SD**2 + squares) / (PRIOR_JOBS + max(len(logs) - 1, 0))


def _updated(mean: float, variance: float, values: Sequence[float], noise: float) -> tuple[float, float]:
    """Mean and variance of a level that is normal, after values with a normal noise of this variance."""
    precision = 1.0 / variance + len(values) / noise
    return (mean / variance + math.fsum(values) / noise) / precision, 1.0 / precision
