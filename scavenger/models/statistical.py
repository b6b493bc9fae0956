"""Epochs to the target by global batch size, with what is not known of them.

=============  ==========================================================  ====================
B              global batch size, samples
e, E           epochs to the target
γ(B)           normalised gradient noise, c0 + c1 / √B                     `NoiseLinear.noise`
B*             critical batch size, samples: at it, E is twice Emin        `critical_batch_size`
φ              measured noise scale, samples; bears on B*
u              (ln level, ln shape) of a law: what the error bars are of
=============  ==========================================================  ====================

Two laws in one interface. `CriticalBatch`, E = Emin (1 + B / B*) [1]_ [2]_, is the prior: fitted at the two
extreme batch sizes of public convergence data it errs by less than half of what the other does. `NoiseLinear`,
e = e* + θ γ(B) with γ ∝ 1/√B, is Scavenger's eq. 6-7 [3]_; from three batch sizes with finished runs on, the
held-out error decides.

References:
    .. [1] McCandlish et al., "An Empirical Model of Large-Batch Training", 2018.
    .. [2] Qiao et al., "Pollux", OSDI 2021, eq. 6.
    .. [3] Tyagi and Sharma, "Scavenger", §III-C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.optimize import least_squares, nnls

from scavenger.domain.curve import FloatArray
from scavenger.domain.measurement import ConvergenceRecord, Measurement
from scavenger.models.types import Finite, NotNegative, Positive

__all__ = ["CriticalBatch", "EpochLaw", "FixedEpochs", "NoiseLinear", "StatisticalModel", "fit_statistical"]

LAW_LOG_SD = 0.08
"""What a law leaves at one batch size: between the 0.05 of a law's fit and the 0.05 of repeated runs on
public convergence data (MLPerf's reference runs and Zeus's), joined."""

RUN_LOG_SD = 0.2
"""How far a finished run may lie from its job's mean, while there are too few to tell: as in the jobs of public
convergence data whose seeds differ most (MLPerf's unet3d 0.21, Zeus's ncf 0.18; the median over jobs is 0.05)."""

RUNS_TO_TELL = 3
"""From so many finished runs on, their own residuals say how far runs differ."""

LAW_LOG_SD_WEIGHT = 4.0
"""Runs that `LAW_LOG_SD` counts for when residuals are at hand."""

NOISE_GROWTH = 3.0
"""B* over the φ of a run's beginning, since the noise grows as the gradient shrinks: set from Pollux's three
public training runs, where it lowers the error of predicted times (tests/models/test_backtest_models.py holds by
how much; the same jobs, so no proof for others)."""

NOISE_GROWTH_LOG_SD = 1.2
"""Of `NOISE_GROWTH`: wide, since it depends on how early in the run the noise was measured."""

CRITICAL_BATCH_LOG_SD = 1.5
"""Of a B* of which nothing is known but that users ask for batch sizes up to about it: B* over the largest
batch size has the quartiles 0.6 and 3 on public convergence data."""

HINT_LOG_SD = 0.3
"""A user's own number of epochs is trusted within a third."""

BOUND_LOG_SD = 0.7
"""An upper bound on the epochs says little of their number: a factor of two."""

EXTRAPOLATION_LOG_SD = 0.25
"""Error that each factor e beyond the known batch sizes adds: root mean square over public convergence data
where the lower half of the batch sizes was fitted and the upper predicted."""

HELD_OUT_MIN = 3
"""Distinct batch sizes with finished runs from which a held-out error means something."""


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """E = Emin (1 + B / B*)."""

    epochs_min: Positive
    critical_batch_size: Positive
    kind: Literal["critical-batch"] = "critical-batch"

    def epochs(self, global_batch_size: FloatArray) -> FloatArray:
        return np.asarray(self.epochs_min * (1.0 + global_batch_size / self.critical_batch_size))

    def shape_gradient(self, global_batch_size: FloatArray) -> FloatArray:
        """d ln E / d ln (1/B*), in [0, 1)."""
        return np.asarray(global_batch_size / (global_batch_size + self.critical_batch_size))


@dataclass(frozen=True, slots=True)
class NoiseLinear:
    """e = e* + θ γ(B), γ(B) = c0 + c1 / √B; without history e* is 0 (eq. 6)."""

    epochs_floor: NotNegative
    epochs_per_noise: NotNegative
    noise_floor: NotNegative
    noise_slope: NotNegative
    kind: Literal["noise-linear"] = "noise-linear"

    def noise(self, global_batch_size: FloatArray) -> FloatArray:
        """Normalised gradient noise γ/K."""
        return np.asarray(self.noise_floor + self.noise_slope / np.sqrt(global_batch_size))

    def epochs(self, global_batch_size: FloatArray) -> FloatArray:
        return np.asarray(self.epochs_floor + self.epochs_per_noise * self.noise(global_batch_size))

    def shape_gradient(self, global_batch_size: FloatArray) -> FloatArray:
        """d ln e / d ln c1: the share of the epochs that depends on B, in [0, 1]."""
        part = self.epochs_per_noise * self.noise_slope / np.sqrt(global_batch_size)
        return np.asarray(part / self.epochs(global_batch_size))


@dataclass(frozen=True, slots=True)
class FixedEpochs:
    """The run lasts so many epochs at every batch size: there is no target to reach."""

    epochs_all: Positive
    kind: Literal["fixed"] = "fixed"

    def epochs(self, global_batch_size: FloatArray) -> FloatArray:
        return np.full(np.shape(global_batch_size), self.epochs_all)

    def shape_gradient(self, global_batch_size: FloatArray) -> FloatArray:
        return np.zeros(np.shape(global_batch_size))


EpochLaw = Annotated[CriticalBatch | NoiseLinear | FixedEpochs, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class StatisticalModel:
    """A fitted law and what is not known of it; made by `fit_statistical`.

    Attributes:
        level_log_var, shape_log_var, cross_log_var: Covariance of u.
        law_log_sd: What the law leaves at one batch size even if u were known.
        batch_min, batch_max: Range in which B was profiled or trained.
        relative_only: The level is a mere upper bound: ratios mean something, epochs do not.
    """

    law: EpochLaw
    level_log_var: NotNegative
    shape_log_var: NotNegative
    cross_log_var: Finite
    law_log_sd: NotNegative
    batch_min: Positive
    batch_max: Positive
    relative_only: bool = False
    notes: tuple[str, ...] = ()

    def predict(self, global_batch_size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Epochs at each batch size and the standard deviation of their logarithm; both of shape `(n,)`.

        The deviation joins that of u (delta method), the law's own, and `EXTRAPOLATION_LOG_SD` for each
        factor of e outside the known batch sizes.
        """
        batch = np.asarray(global_batch_size, dtype=np.float64)
        if isinstance(self.law, FixedEpochs):
            return self.law.epochs(batch), np.zeros(batch.shape)
        slope = self.law.shape_gradient(batch)
        parameters = self.level_log_var + 2.0 * slope * self.cross_log_var + slope**2 * self.shape_log_var
        outside = np.maximum(np.log(batch / self.batch_max), np.log(self.batch_min / batch))
        beyond = EXTRAPOLATION_LOG_SD * np.maximum(outside, 0.0)
        deviation = np.sqrt(np.maximum(parameters, 0.0) + self.law_log_sd**2 + beyond**2)
        return self.law.epochs(batch), deviation


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Rows of ln e at B with their weights, and the prior on the shape: what either law is fitted to."""

    batch: FloatArray
    log_epochs: FloatArray
    row_log_sd: FloatArray
    noise_floor: float
    noise_slope: float
    shape_mean: float
    shape_log_sd: float


def fit_statistical(
    measurements: Sequence[Measurement],
    convergence: Sequence[ConvergenceRecord],
    *,
    global_batch_sizes: tuple[int, ...],
    epochs_hint: float | None,
    max_epochs: float,
    fixed_epochs: bool = False,
    law: Literal["critical-batch", "noise-linear"] | None = None,
    prior: StatisticalModel | None = None,
) -> StatisticalModel:
    """Fit epochs(B) to what is known.

    The level comes from finished runs, else the hint, else a model of alike jobs, else the bound; how epochs
    grow with B from finished runs and φ together, or a model of alike jobs where no φ was measured.

    Args:
        global_batch_sizes: Of the search space, increasing; `epochs_hint` holds at the smallest, and
            `max_epochs` bounds the largest.
        fixed_epochs: Without a target, every run lasts `max_epochs`.
        law: None chooses by the evidence.
        prior: Where the level or B* comes from if nothing else tells.

    Raises:
        ValueError: If `max_epochs` or `epochs_hint` is not positive and finite.
    """
    for name, value in (("max_epochs", max_epochs), ("epochs_hint", epochs_hint)):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise ValueError(f"{name} must be positive and finite, not {value}")
    runs = [run for run in convergence if run.global_batch_size > 0 and 0.0 < run.epochs < math.inf]
    seen = [run.global_batch_size for run in runs] + [m.configuration.global_batch_size for m in measurements]
    low, high = (min(seen), max(seen)) if seen else (global_batch_sizes[0], global_batch_sizes[-1])
    if fixed_epochs:
        note = f"no target: every run lasts {max_epochs:g} epochs"
        return StatisticalModel(FixedEpochs(max_epochs), 0.0, 0.0, 0.0, 0.0, low, high, notes=(note,))

    notes: list[str] = []
    batch, log_epochs, row_log_sd, relative_only = _level_rows(
        runs, global_batch_sizes, epochs_hint, max_epochs, prior, notes
    )
    shape_mean, shape_log_sd = _shape_prior(measurements, global_batch_sizes[-1], prior, notes)
    floor, slope = _noise_line(measurements)
    evidence = _Evidence(batch, log_epochs, row_log_sd, floor, slope, shape_mean, shape_log_sd)
    if law is None:
        law = _choose_law(evidence, notes) if runs else "critical-batch"
    fitted, law_log_sd = _fit(law, evidence, residuals=bool(runs))
    level, shape, cross = _covariance(fitted, evidence, law_log_sd)
    return StatisticalModel(
        fitted, level, shape, cross, law_log_sd, low, high, relative_only=relative_only, notes=tuple(notes)
    )


def _level_rows(
    runs: Sequence[ConvergenceRecord],
    batch_sizes: tuple[int, ...],
    epochs_hint: float | None,
    max_epochs: float,
    prior: StatisticalModel | None,
    notes: list[str],
) -> tuple[FloatArray, FloatArray, FloatArray, bool]:
    """B, ln e and its deviation by the best evidence of the level, and whether that is a mere bound."""
    if runs:
        batch = np.array([run.global_batch_size for run in runs], dtype=np.float64)
        sizes = ", ".join(f"{size:g}" for size in sorted(set(batch.tolist())))
        notes.append(f"epochs from finished runs ({len(runs)}) at batch {sizes}")
        spread = LAW_LOG_SD if len(runs) >= RUNS_TO_TELL else RUN_LOG_SD
        return batch, np.log([run.epochs for run in runs]), np.full(len(runs), spread), False
    smallest, largest = float(batch_sizes[0]), float(batch_sizes[-1])
    if epochs_hint is not None:
        notes.append(f"epochs from goal.epochs_hint: {epochs_hint:g} at batch {smallest:g}")
        return np.array([smallest]), np.log([epochs_hint]), np.array([HINT_LOG_SD]), False
    if prior is not None and not prior.relative_only:
        epochs, deviation = prior.predict(np.array([smallest]))
        notes.append("epochs from stored models, none of them a finished run of this job")
        return np.array([smallest]), np.log(epochs), np.maximum(deviation, LAW_LOG_SD), False
    notes.append(
        f"epochs to the target are unknown, taken as if batch {largest:g} needed all {max_epochs:g} that are allowed: "
        "only ratios between configurations mean something"
    )
    return np.array([largest]), np.log([max_epochs]), np.array([BOUND_LOG_SD]), True


def _shape_prior(
    measurements: Sequence[Measurement], batch_max: int, prior: StatisticalModel | None, notes: list[str]
) -> tuple[float, float]:
    """Mean and standard deviation of ln B*, before any finished run."""
    scales = [
        (math.log(m.noise_scale), float(max(m.steps, 1) * max(m.configuration.workers - 1, 1)))
        for m in measurements
        if m.noise_scale is not None and 0.0 < m.noise_scale < math.inf
    ]
    if scales:
        mean = sum(value * weight for value, weight in scales) / sum(weight for _, weight in scales)
        notes.append(
            f"critical batch size from the measured noise scale of {math.exp(mean):.3g} samples, "
            f"taken to grow {NOISE_GROWTH:g} times over the run"
        )
        return mean + math.log(NOISE_GROWTH), NOISE_GROWTH_LOG_SD
    if prior is not None and isinstance(prior.law, CriticalBatch):
        notes.append("critical batch size from stored models: no noise scale was measured")
        return math.log(prior.law.critical_batch_size), max(math.sqrt(prior.shape_log_var), LAW_LOG_SD)
    notes.append("no noise scale was measured: how epochs grow with the batch size is a guess")
    return math.log(batch_max), CRITICAL_BATCH_LOG_SD


def _noise_line(measurements: Sequence[Measurement]) -> tuple[float, float]:
    """c0, c1 of normalised γ by 1/√B, averaged over K (eq. 7); pure 1/√B below two profiled B."""
    rows = [
        (m.configuration.global_batch_size, m.gradient_noise / max(2, m.configuration.workers))
        for m in measurements
        if m.gradient_noise is not None and 0.0 < m.gradient_noise < math.inf
    ]
    if len({batch for batch, _ in rows}) < 2:
        return 0.0, 1.0
    root = 1.0 / np.sqrt([float(batch) for batch, _ in rows])
    line, _ = nnls(np.column_stack((np.ones(len(rows)), root)), np.array([noise for _, noise in rows]))
    return float(line[0]), float(line[1])


def _choose_law(evidence: _Evidence, notes: list[str]) -> Literal["critical-batch", "noise-linear"]:
    """The law with the smaller error at batch sizes held out one by one; critical-batch below three."""
    sizes = np.unique(evidence.batch)
    if len(sizes) < HELD_OUT_MIN:
        return "critical-batch"
    errors: dict[Literal["critical-batch", "noise-linear"], float] = {}
    for law in ("critical-batch", "noise-linear"):
        left = []
        for size in sizes:
            held = evidence.batch == size
            fitted, _ = _fit(law, _subset(evidence, ~held), residuals=False)
            left.append(
                abs(float(np.mean(np.log(fitted.epochs(evidence.batch[held])) - evidence.log_epochs[held])))
            )
        errors[law] = float(np.mean(left))
    best = min(errors, key=lambda law: errors[law])
    notes.append(f"law {best}: held-out error {errors[best]:.1%} over {len(sizes)} batch sizes")
    return best


def _subset(evidence: _Evidence, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> _Evidence:
    return _Evidence(
        evidence.batch[keep],
        evidence.log_epochs[keep],
        evidence.row_log_sd[keep],
        evidence.noise_floor,
        evidence.noise_slope,
        evidence.shape_mean,
        evidence.shape_log_sd,
    )


def _fit(
    law: Literal["critical-batch", "noise-linear"], evidence: _Evidence, *, residuals: bool
) -> tuple[CriticalBatch | NoiseLinear, float]:
    """The law and what it leaves: `LAW_LOG_SD`, moved by the residuals where there are finished runs."""
    fitted = _fit_critical_batch(evidence) if law == "critical-batch" else _fit_noise_linear(evidence)
    if not residuals:
        return fitted, LAW_LOG_SD
    left = np.log(fitted.epochs(evidence.batch)) - evidence.log_epochs
    freedom = max(len(left) - 2, 0)
    variance = (LAW_LOG_SD_WEIGHT * LAW_LOG_SD**2 + float(left @ left)) / (LAW_LOG_SD_WEIGHT + freedom)
    return fitted, math.sqrt(variance)


def _fit_critical_batch(evidence: _Evidence) -> CriticalBatch:
    """Most probable (ln Emin, ln B*) under the rows and the prior on B*."""

    def misfit(u: FloatArray) -> FloatArray:
        rows = (u[0] + np.log1p(evidence.batch * math.exp(-u[1])) - evidence.log_epochs) / evidence.row_log_sd
        return np.append(rows, (u[1] - evidence.shape_mean) / evidence.shape_log_sd)

    # Epochs that fall with B would send B* to infinity: beyond the bounds the law is flat, or a power law,
    # anyway.
    span = 5.0 * evidence.shape_log_sd
    start = np.array([float(np.mean(evidence.log_epochs)), evidence.shape_mean])
    bounds = ([-np.inf, evidence.shape_mean - span], [np.inf, evidence.shape_mean + span])
    found = least_squares(misfit, start, bounds=bounds).x
    return CriticalBatch(math.exp(float(found[0])), math.exp(float(found[1])))


def _fit_noise_linear(evidence: _Evidence) -> NoiseLinear:
    """e* and θ by non-negative regression on relative errors; e* = 0 below two batch sizes."""
    epochs = np.exp(evidence.log_epochs)
    noise = evidence.noise_floor + evidence.noise_slope / np.sqrt(evidence.batch)
    if len(np.unique(evidence.batch)) < 2 or evidence.noise_slope == 0.0:
        theta = math.exp(float(np.mean(evidence.log_epochs - np.log(noise))))
        return NoiseLinear(0.0, theta, evidence.noise_floor, evidence.noise_slope)
    (star, theta), _ = nnls(np.column_stack((1.0 / epochs, noise / epochs)), np.ones(len(epochs)))
    return NoiseLinear(float(star), float(theta), evidence.noise_floor, evidence.noise_slope)


def _covariance(
    law: CriticalBatch | NoiseLinear, evidence: _Evidence, law_log_sd: float
) -> tuple[float, float, float]:
    """Variance of the level, of the shape, and between them: inverse of the information in rows and prior."""
    row_log_sd = np.maximum(evidence.row_log_sd, law_log_sd)
    rows = (
        np.column_stack((np.ones(len(evidence.batch)), law.shape_gradient(evidence.batch)))
        / row_log_sd[:, None]
    )
    covariance = np.linalg.inv(rows.T @ rows + np.diag([0.0, evidence.shape_log_sd**-2]))
    return float(covariance[0, 0]), float(covariance[1, 1]), float(covariance[0, 1])
