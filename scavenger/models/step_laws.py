"""The forms that a step's time can take, and their regressions; the notation is that of `parallel`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.optimize import least_squares, nnls

from scavenger.domain.curve import FloatArray
from scavenger.models.types import NotNegative

__all__ = ["LinearLaw", "OverlapLaw", "StepLaw", "StepTimes", "fit_linear", "fit_overlap", "join"]

StepLaw = Literal["linear", "overlap"]

STEP_TIME_MIN_S = 1e-9
"""No step is shorter; keeps logarithms finite where every coefficient of a law is zero."""

OVERLAP_MAX = 10.0
"""p-norms beyond this differ from the maximum by less than 7 % anywhere."""

OVERLAP_LOG_SD = 1.0
"""Prior of ln p around p = 1 (no overlap): points must show that computing hides synchronisation."""

RIDGE = 0.03
"""Pull of each term of the overlap law towards nothing, relative to a step and to the residuals: it decides
only between forms that the points cannot tell apart."""


@dataclass(frozen=True, slots=True, order=True)
class StepTimes:
    """One profiled configuration as the regressions see it.

    Attributes:
        local_batch_size: b, samples.
        contention: c, at least 1.
        spread_s: Robust standard deviation of a single step.
    """

    workers: int
    global_batch_size: int
    local_batch_size: int
    contention: float
    step_time_s: float
    compute_s: float
    sync_s: float
    spread_s: float
    steps: int

    def usable(self) -> bool:
        """Every figure finite, times positive (a step may have nothing to synchronise), at least one step."""
        figures = (self.contention, self.step_time_s, self.compute_s, self.sync_s, self.spread_s)
        return (
            all(math.isfinite(figure) for figure in figures)
            and min(self.step_time_s, self.compute_s, self.contention, float(self.steps)) > 0.0
            and min(self.sync_s, self.spread_s) >= 0.0
        )


def join(times: Sequence[StepTimes]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """K, x = b c, c and measured τ, each of shape `(n,)`."""
    table = np.array(
        [(t.workers, t.local_batch_size * t.contention, t.contention, t.step_time_s) for t in times],
        dtype=np.float64,
    )
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """τ = (a0 + a1 x) + (s0 + s1 K), or s1 K c where synchronisation contends for the processors too."""

    compute_base_s: NotNegative
    compute_per_sample_s: NotNegative
    sync_base_s: NotNegative
    sync_per_worker_s: NotNegative
    sync_contended: bool = False
    free: tuple[bool, bool, bool, bool] = (True, True, True, True)
    """Which coefficients the points could tell; the others are frozen at 0."""
    kind: Literal["linear"] = "linear"

    def evaluate(
        self, workers: FloatArray, work: FloatArray, contention: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """τ, shape `(n,)`, and ∂τ/∂coefficient, shape `(n, 4)`, zero where frozen."""
        one = np.ones(len(workers))
        features = np.column_stack((one, work, one, workers * contention if self.sync_contended else workers))
        coefficients = np.array(
            [self.compute_base_s, self.compute_per_sample_s, self.sync_base_s, self.sync_per_worker_s]
        )
        return np.maximum(features @ coefficients, STEP_TIME_MIN_S), features * np.array(self.free)


@dataclass(frozen=True, slots=True)
class OverlapLaw:
    """τ = (C^p + Y^p)^(1/p), C = a0 + a1 x, Y = s0 + s1 (K - 1) + s2 [K > 1]."""

    compute_base_s: NotNegative
    compute_per_sample_s: NotNegative
    sync_base_s: NotNegative
    sync_per_worker_s: NotNegative
    sync_remote_s: NotNegative
    overlap: Annotated[float, Field(ge=1.0, le=OVERLAP_MAX, allow_inf_nan=False)]
    free: tuple[bool, bool, bool, bool, bool] = (True, True, True, True, True)
    kind: Literal["overlap"] = "overlap"

    def evaluate(
        self, workers: FloatArray, work: FloatArray, contention: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """τ, shape `(n,)`, and ∂τ/∂coefficient, shape `(n, 5)`, zero where frozen."""
        one = np.ones(len(workers))
        parts = np.column_stack((one, work, one, workers - 1.0, (workers > 1.0).astype(np.float64)))
        coefficients = (
            self.compute_base_s,
            self.compute_per_sample_s,
            self.sync_base_s,
            self.sync_per_worker_s,
            self.sync_remote_s,
        )
        terms = parts * np.array(coefficients)
        compute = np.maximum(terms[:, :2].sum(axis=1), STEP_TIME_MIN_S)
        sync = terms[:, 2:].sum(axis=1)
        longest = np.maximum(compute, sync)
        step = longest * ((compute / longest) ** self.overlap + (sync / longest) ** self.overlap) ** (
            1 / self.overlap
        )
        share = np.column_stack((compute, sync)) / step[:, None]
        outer = share ** (self.overlap - 1.0)
        return step, parts * outer[:, [0, 0, 1, 1, 1]] * np.array(self.free)


def fit_linear(times: Sequence[StepTimes]) -> tuple[LinearLaw, list[str]]:
    """Non-negative least squares of computing and of synchronisation, errors relative to the step."""
    workers, work, contention, step_time_s = join(times)
    compute = np.array([t.compute_s for t in times])
    sync = np.array([t.sync_s for t in times])
    notes: list[str] = []
    varied_work, varied_workers = len(np.unique(work)) > 1, len(np.unique(workers)) > 1
    if not varied_work:
        notes.append("the local batch was never varied: computing is taken to be proportional to it")
    if not varied_workers:
        notes.append("the number of workers was never varied: synchronisation is taken not to depend on it")
    one = np.ones(len(times))
    (base, slope), _ = _regress((one, work), (varied_work, True), compute, step_time_s)
    (sync_base, sync_slope), misfit = _regress((one, workers), (True, varied_workers), sync, step_time_s)
    # Two cluster sizes cannot tell a line in K from one in K c; from three on the better fit may.
    contended = False
    if len(np.unique(workers)) > 2 and np.any(contention > 1.0):
        line, other = _regress((one, workers * contention), (True, True), sync, step_time_s)
        if other < misfit:
            (sync_base, sync_slope), contended = line, True
            notes.append("synchronisation contends for the shared processors too")
    free = (varied_work, True, True, varied_workers)
    return LinearLaw(base, slope, sync_base, sync_slope, contended, free), notes


def _regress(
    features: tuple[FloatArray, FloatArray], free: tuple[bool, bool], target: FloatArray, weight_s: FloatArray
) -> tuple[tuple[float, float], float]:
    """The two coefficients, 0 where not free, and the norm of the relative errors."""
    matrix = np.column_stack(features) * np.array(free)
    scale = np.where(np.array(free), np.abs(matrix).max(axis=0), 1.0)
    found, misfit = nnls(matrix / scale / weight_s[:, None], target / weight_s)
    return (float(found[0] / scale[0]), float(found[1] / scale[1])), float(misfit)


def fit_overlap(times: Sequence[StepTimes]) -> tuple[OverlapLaw, list[str]]:
    """Least squares of ln τ with a prior on p, from the linear law on.

    The unknowns are the terms at the largest configuration relative to the longest step, and ln p.
    """
    workers, work, contention, step_time_s = join(times)
    linear, notes = fit_linear(times)
    free = (linear.free[0], True, True, linear.free[3], linear.free[3] and bool(np.any(workers == 1.0)))
    unit = float(step_time_s.max())
    scale = unit / np.array([1.0, work.max(), 1.0, max(workers.max() - 1.0, 1.0), 1.0])
    start = np.array(
        [
            linear.compute_base_s,
            linear.compute_per_sample_s,
            linear.sync_base_s + linear.sync_per_worker_s,
            linear.sync_per_worker_s,
            0.0,
        ]
    )
    mask = np.array([*free, True])
    guess = np.append(np.clip(start / scale, 1e-3, 10.0), 0.3)

    def law(unknowns: FloatArray) -> OverlapLaw:
        full = np.zeros(6)
        full[mask] = unknowns
        a0, a1, s0, s1, s2 = (full[:5] * scale).tolist()
        return OverlapLaw(a0, a1, s0, s1, s2, min(math.exp(full[5]), OVERLAP_MAX), free)

    def misfit(unknowns: FloatArray) -> FloatArray:
        candidate = law(unknowns)
        predicted, _ = candidate.evaluate(workers, work, contention)
        # Residuals are in units of the 6 % that such a law leaves, so that the priors weigh as they should.
        rows = np.log(predicted / step_time_s) / 0.06
        return np.concatenate((rows, RIDGE * unknowns[:-1] / 0.06, [unknowns[-1] / OVERLAP_LOG_SD]))

    upper = np.append(np.full(5, np.inf), math.log(OVERLAP_MAX))[mask]
    found = least_squares(misfit, guess[mask], bounds=(np.zeros(int(mask.sum())), upper), max_nfev=30)
    return law(found.x), notes
