"""Step time by configuration, with what is not known of it.

=========  ==================================================================  ==============================
K, B       workers; global batch size, samples
b          largest local batch, ceil(B / K), samples: it sets the pace
c          contention: how many times more computing the K workers ask for than the machine they share has
τ          time of a step, seconds
x          b c, the work of the slowest worker in samples of an uncontended one
=========  ==================================================================  ==============================

Two laws in one interface, told apart by leave-out error where there are enough points. `LinearLaw` is
Scavenger's eq. 8-10 [1]_ with intercepts: τ = (a0 + a1 x) + (s0 + s1 K). `OverlapLaw` joins computing and
synchronisation by a p-norm [2]_: at p = 1 they follow each other, at p → ∞ the longer hides the other. A
configuration that was measured is predicted by its own median, drawn towards the law only as far as the
median is itself uncertain.

References:
    .. [1] Tyagi and Sharma, "Scavenger", §III-D.
    .. [2] Qiao et al., "Pollux", OSDI 2021, eq. 8-11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from scipy.special import stdtrit

from scavenger.domain.curve import BoolArray, FloatArray, IntArray
from scavenger.models.step_laws import (
    LinearLaw,
    OverlapLaw,
    StepLaw,
    StepTimes,
    fit_linear,
    fit_overlap,
    join,
)
from scavenger.models.types import Count, Finite, Positive

__all__ = ["INTERVAL_Z", "Measured", "ParallelModel", "fit_parallel", "local_batch_sizes"]

INTERVAL_Z = 1.6449
"""Standard deviations on each side that hold 90 % of a normal distribution."""

RESIDUAL_LOG_SD = 0.06
"""Prior of what a law leaves of a step's time: the p-norm form fitted to every point of Pollux's public
step times leaves 5.6 %."""

RESIDUAL_WEIGHT = 4.0
"""Degrees of freedom that `RESIDUAL_LOG_SD` counts for, against those that the points leave over."""

MEASUREMENT_LOG_SD_MIN = 0.02
"""A median over twenty steps does not repeat better than this some minutes later on a shared machine."""

EXTRAPOLATION_LOG_SD = 0.2
"""Error that each factor e beyond the profiled K or x adds."""

UNVARIED_LOG_SD = 0.5
"""The same where K was never varied, so that synchronisation by K is not even a guess."""

HELD_OUT_MIN = 5
"""Points from which a leave-out error can tell the laws apart."""

HELD_OUT_GROUPS = 5
"""Points are left out in so many groups at most, so that a fit stays quick where everything was profiled."""

OVERLAP_GAIN = 0.9
"""Of two laws that do alike the simpler: the overlap law must err by at most this share of the linear one."""


def local_batch_sizes(workers: IntArray, global_batch_size: IntArray) -> IntArray:
    """b = ceil(B / K): the largest of the local batches, which differ by at most one sample."""
    return np.asarray(-(-np.asarray(global_batch_size) // np.asarray(workers)), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Measured:
    """The median step time of one profiled configuration; `log_sd` is the standard error of its logarithm."""

    workers: Count
    global_batch_size: Count
    step_time_s: Positive
    log_sd: Positive


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """A fitted law, the measurements behind it, and what is not known; made by `fit_parallel`.

    Attributes:
        residual_log_sd: What the law leaves at a configuration that was not measured, widened for the
            degrees of freedom it was estimated from (Student's t), so that `INTERVAL_Z` times it holds 90
            %.
        covariance: Of the law's coefficients, in units of the residual variance, shape `(p, p)`.
        workers_min, workers_max, work_min, work_max: Profiled range of K and of x.
    """

    law: Annotated[LinearLaw | OverlapLaw, Field(discriminator="kind")]
    residual_log_sd: Positive
    covariance: tuple[tuple[Finite, ...], ...]
    workers_min: Count
    workers_max: Count
    work_min: Positive
    work_max: Positive
    measured: tuple[Measured, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.law.free)
        if len(self.covariance) != size or any(len(row) != size for row in self.covariance):
            raise ValueError(f"the covariance of {size} coefficients must be {size} by {size}")

    def predict(
        self, workers: IntArray, global_batch_size: IntArray, contention: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Step time, seconds, and the standard deviation of its logarithm; all arrays of shape `(n,)`."""
        step_time_s, log_sd = self.predict_law(workers, global_batch_size, contention)
        log_time = np.log(step_time_s)
        for seen in self.measured:
            here = self._is(seen, workers, global_batch_size)
            law, own = log_sd[here] ** -2, seen.log_sd**-2
            log_time[here] = (law * log_time[here] + own * math.log(seen.step_time_s)) / (law + own)
            log_sd[here] = (law + own) ** -0.5
        return np.exp(log_time), log_sd

    def predict_law(
        self, workers: IntArray, global_batch_size: IntArray, contention: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """`predict` without the measurements: what the law alone says."""
        work = local_batch_sizes(workers, global_batch_size) * contention
        count = np.asarray(workers, dtype=np.float64)
        step_time_s, features = self.law.evaluate(count, work, np.asarray(contention, dtype=np.float64))
        relative = features / step_time_s[:, None]
        leverage = np.einsum("ni,ij,nj->n", relative, np.array(self.covariance), relative)
        beyond_work = _beyond(work, self.work_min, self.work_max)
        beyond_workers = _beyond(count, self.workers_min, self.workers_max)
        rate = EXTRAPOLATION_LOG_SD if self.workers_max > self.workers_min else UNVARIED_LOG_SD
        beyond = (EXTRAPOLATION_LOG_SD * beyond_work) ** 2 + (rate * beyond_workers) ** 2
        return step_time_s, np.sqrt(self.residual_log_sd**2 * (1.0 + np.maximum(leverage, 0.0)) + beyond)

    def is_measured(self, workers: IntArray, global_batch_size: IntArray) -> BoolArray:
        """Which configurations were profiled, shape `(n,)`."""
        hit = np.zeros(len(workers), dtype=np.bool_)
        for seen in self.measured:
            hit |= self._is(seen, workers, global_batch_size)
        return hit

    @staticmethod
    def _is(seen: Measured, workers: IntArray, global_batch_size: IntArray) -> BoolArray:
        return np.asarray((workers == seen.workers) & (global_batch_size == seen.global_batch_size))


def _beyond(value: FloatArray, low: float, high: float) -> FloatArray:
    """How many factors of e a value lies outside a range; 0 inside."""
    return np.asarray(np.maximum(np.maximum(np.log(value / high), np.log(low / value)), 0.0))


def fit_parallel(times: Sequence[StepTimes], *, law: StepLaw | None = None) -> ParallelModel:
    """Fit τ(K, B) to measured configurations of one VM type; the result does not depend on their order.

    Args:
        times: One or more; bad ones (not finite, not positive) are dropped and counted in the notes.
        law: `linear` or `overlap`; None chooses by leave-out error from `HELD_OUT_MIN` points on.

    Raises:
        ValueError: If no usable measurement is left.
    """
    good = sorted(point for point in times if point.usable())
    notes = [f"bad measurements dropped: {len(times) - len(good)}"] if len(good) < len(times) else []
    if not good:
        raise ValueError("no usable step time was measured")
    if law is None:
        law = _choose_law(good, notes)
    fitted, fit_notes = _FITS[law](good)
    notes += fit_notes
    workers, work, contention, observed = join(good)
    predicted, features = fitted.evaluate(workers, work, contention)
    covariance, coefficients = _covariance(features / observed[:, None])
    left = np.log(observed / predicted)
    freedom = RESIDUAL_WEIGHT + max(len(good) - coefficients, 0)
    # Some coefficients may have gone to waste, but residuals never count for less than nothing.
    variance = (RESIDUAL_WEIGHT * RESIDUAL_LOG_SD**2 + float(left @ left)) / freedom
    student = float(stdtrit(freedom, 0.95)) / INTERVAL_Z
    return ParallelModel(
        law=fitted,
        residual_log_sd=math.sqrt(variance) * student,
        covariance=covariance,
        workers_min=int(workers.min()),
        workers_max=int(workers.max()),
        work_min=float(work.min()),
        work_max=float(work.max()),
        measured=tuple(_own_evidence(good)),
        notes=tuple(notes),
    )


def _own_evidence(times: Sequence[StepTimes]) -> list[Measured]:
    """One entry per configuration; repeated measurements are joined by their precision."""
    own = []
    for workers, batch in sorted({(t.workers, t.global_batch_size) for t in times}):
        alike = [t for t in times if (t.workers, t.global_batch_size) == (workers, batch)]
        precision = [_standard_error(t) ** -2 for t in alike]
        log_time = sum(p * math.log(t.step_time_s) for p, t in zip(precision, alike, strict=True)) / sum(
            precision
        )
        own.append(Measured(workers, batch, math.exp(log_time), sum(precision) ** -0.5))
    return own


def _standard_error(time: StepTimes) -> float:
    """Of the logarithm of the median of n steps: √(π/2) σ / (τ √n) for near-normal steps, with a floor."""
    sampling = math.sqrt(math.pi / 2.0) * time.spread_s / (time.step_time_s * math.sqrt(time.steps))
    return math.hypot(sampling, MEASUREMENT_LOG_SD_MIN)


def _covariance(relative: FloatArray) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Inverse of the information `XᵀX` of relative features, and the number of coefficients it can tell.

    Columns are scaled to one length and held by a slight ridge, so that a direction that the points cannot
    see is wide rather than infinite; columns of zeros (frozen coefficients) stay zero.
    """
    length = np.linalg.norm(relative, axis=0)
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0.0)
    unit = relative * scale
    ridge = 0.01 * np.eye(len(length))
    inverse = np.linalg.inv(unit.T @ unit + ridge) * np.outer(scale, scale)
    return tuple(tuple(float(value) for value in row) for row in inverse), int(np.linalg.matrix_rank(unit))


def _choose_law(times: Sequence[StepTimes], notes: list[str]) -> StepLaw:
    """Overlap only where it predicts held-out points clearly better; linear below `HELD_OUT_MIN` points."""
    if len({(t.workers, t.global_batch_size) for t in times}) < HELD_OUT_MIN:
        return "linear"
    linear, overlap = (_held_out_error(times, fit) for fit in (fit_linear, fit_overlap))
    chosen: StepLaw = "overlap" if overlap < OVERLAP_GAIN * linear else "linear"
    notes.append(
        f"step time law {chosen}: held-out error {100 * overlap:.1f} % overlap, {100 * linear:.1f} % linear"
    )
    return chosen


_Fit = Callable[[Sequence[StepTimes]], tuple[LinearLaw | OverlapLaw, list[str]]]
_FITS: dict[StepLaw, _Fit] = {"linear": fit_linear, "overlap": fit_overlap}


def _held_out_error(times: Sequence[StepTimes], fit: _Fit) -> float:
    """Mean absolute log error at points left out of the fit; one at a time up to `HELD_OUT_GROUPS` points."""
    groups = min(len(times), HELD_OUT_GROUPS)
    errors: list[float] = []
    for group in range(groups):
        law, _ = fit([t for i, t in enumerate(times) if i % groups != group])
        workers, work, contention, observed = join([t for i, t in enumerate(times) if i % groups == group])
        predicted, _ = law.evaluate(workers, work, contention)
        errors.extend(np.abs(np.log(predicted / observed)).tolist())
    return float(np.mean(errors))
