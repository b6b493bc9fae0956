"""Measured step times, and the linear law of the step time; the notation is that of `parallel`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import nnls

from scavenger.domain.curve import FloatArray
from scavenger.models.types import NotNegative, Positive

StepLaw = Literal["linear", "overlap"]

OF_TWO_MIN = 1e-9
"""Keeps the logarithm of synchronisation finite where there is none."""

STEP_TIME_MIN_S = 1e-9
"""Least step time; keeps logarithms finite if every coefficient of a law is zero."""


@dataclass(frozen=True, slots=True, order=True)
class StepTimes:
    """Step times of one profiled configuration, the input of the regressions.

    Attributes:
        local_batch_size: b, samples.
        contention: c, at least 1.
        spread_s: Robust standard deviation of a single step.
        workers_per_node: Most workers that share one machine and its link to the others.
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
    workers_per_node: int = 1

    def usable(self) -> bool:
        """Whether all values are finite, times positive (synchronisation may be 0), and there is at least one step."""
        figures = (self.contention, self.step_time_s, self.compute_s, self.sync_s, self.spread_s)
        return (
            all(math.isfinite(figure) for figure in figures)
            and min(self.step_time_s, self.compute_s, self.contention, float(self.steps)) > 0.0
            and min(self.workers, self.local_batch_size, self.global_batch_size, self.workers_per_node) >= 1
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
class Load:
    """By how much less the aggregators' VMs have to carry than when a law was fitted.

    Of K workers the fullest VM, which holds a share s of the model, carries K s models each way, and the link of a
    worker 1: synchronisation waits for the longer of the two. With another share s', K workers wait as long as K' did::

        K' = max(K s' / s, min(K, 1 / s))

    Attributes:
        ratio: s' / s.
        least: 1 / s.
        alone: Whether a single worker was measured: what its own link takes then counts as its computing, and the rest
            grows from nothing at K' = 1. Else it is taken to grow from nothing at 0.
    """

    ratio: Positive = 1.0
    least: Positive = 1.0
    alone: bool = False

    def served(self, count: FloatArray) -> FloatArray:
        """K' of K workers, or of so many machines with workers, shape `(n,)`."""
        return np.asarray(np.maximum(self.ratio * count, np.minimum(count, self.least)))

    def of_two(self, served: FloatArray) -> FloatArray:
        """Synchronisation of K' below 2 over that of two, shape `(n,)`; above 0, and 1 from two on."""
        part = served - 1.0 if self.alone else served / 2.0
        return np.asarray(np.clip(part, OF_TWO_MIN, 1.0))

    def changed(self, before: float, now: float, *, alone: bool = False) -> Load:
        """With the share `now` instead of `before`."""
        ratio = self.ratio * now / before
        if ratio == 1.0:
            return AS_MEASURED
        return Load(ratio, 1.0 / before, alone) if self == AS_MEASURED else replace(self, ratio=ratio)


AS_MEASURED = Load()


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """τ = (a0 + a1 x) + (s0 + s1 K'), or s1 K' c where synchronisation contends for the processors too.

    K' is `Load.served` of K: K itself, under the load of its measurements.
    """

    compute_base_s: NotNegative
    compute_per_sample_s: NotNegative
    sync_base_s: NotNegative
    sync_per_worker_s: NotNegative
    sync_contended: bool = False
    free: tuple[bool, bool, bool, bool] = (True, True, True, True)
    """Which coefficients the points determine; the others are frozen at 0."""
    kind: Literal["linear"] = "linear"
    load: Load = AS_MEASURED

    def evaluate(
        self,
        workers: FloatArray,
        work: FloatArray,
        contention: FloatArray,
        workers_per_node: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """τ, shape `(n,)`, and ∂τ/∂coefficient, shape `(n, 4)`, zero where frozen; blind to machines."""
        one, shared = np.ones(len(workers)), self.load.served(workers)
        features = np.column_stack((one, work, one, shared * contention if self.sync_contended else shared))
        return np.maximum(features @ self._coefficients(), STEP_TIME_MIN_S), features * np.array(self.free)

    def sync_elasticity(self, step_time_s: FloatArray, features: FloatArray) -> FloatArray:
        """∂ ln τ / ∂ ln(synchronisation), in [0, 1], of what `evaluate` returned; shape `(n,)`."""
        return np.asarray(features[:, 2:] @ self._coefficients()[2:] / step_time_s)

    def scaled(self, compute: float, sync: float) -> LinearLaw:
        """The law with the times of computing and of synchronisation multiplied by these factors."""
        return replace(
            self,
            compute_base_s=self.compute_base_s * compute,
            compute_per_sample_s=self.compute_per_sample_s * compute,
            sync_base_s=self.sync_base_s * sync,
            sync_per_worker_s=self.sync_per_worker_s * sync,
        )

    def coefficient_scale(self, compute: float, sync: float) -> FloatArray:
        """By how much `scaled` multiplies the deviation of each coefficient, shape `(4,)`."""
        return np.array([compute, compute, sync, sync])

    def scale_directions(self) -> FloatArray:
        """∂coefficient / ∂ ln of the two factors of `scaled` at 1, shape `(4, 2)`."""
        return self._coefficients()[:, None] * np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=np.float64)

    def _coefficients(self) -> FloatArray:
        return np.array(
            [self.compute_base_s, self.compute_per_sample_s, self.sync_base_s, self.sync_per_worker_s]
        )


def fit_linear(times: Sequence[StepTimes]) -> tuple[LinearLaw, list[str]]:
    """Non-negative least squares of computing and of synchronisation, errors relative to the step.

    Returns:
        The law, and notes for the user.
    """
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
    # Two cluster sizes cannot distinguish a line in K from one in K c; with three, the better fit can.
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
