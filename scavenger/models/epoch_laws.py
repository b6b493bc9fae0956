"""How epochs depend on the global batch size: the laws, and the regression that weighs them against each other.

=============  ==================================================================  ==========================
B              global batch size, samples; x = ln B
E, Emin        epochs to the target; those of a small batch
B*, k          critical batch size, samples; sharpness of the bend there            `CriticalBatch`
B0, r          batch size below which too large a learning rate costs epochs, and   `UShaped`
               how steeply
e*, θ, γ(B)    epochs floor; epochs per noise; normalised gradient noise            `NoiseLinear`
f(x)           shape of a law: ln E = level + f(x)
δ(x)           what every law leaves, smooth in x                                   `LAW_LOG_SD`, `LAW_LENGTH`
=============  ==================================================================  ==========================

The regression is Bayesian model averaging over laws and their shape parameters, on nodes at even quantiles of
their priors, with a Gaussian-process discrepancy δ [1]_: given a node, ln E is Gaussian with a flat prior on its
level, so that its evidence and its prediction are closed forms, no optimizer can fail, and epochs times a constant
give predictions times that constant.

References:
    .. [1] Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001.
    .. [2] McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, eq. 2.11.
    .. [3] Tyagi and Sharma, "Scavenger", §III-C, eq. 6-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp, ndtri

from scavenger.domain.curve import BoolArray, FloatArray
from scavenger.models.even_points import even_points
from scavenger.models.fixed_epochs import FixedEpochs
from scavenger.models.types import Finite, NotNegative, Positive

LAW_LOG_SD = 0.08
"""Of δ: what a law leaves at one batch size. On the developing half of public convergence data (docs/models.md)
0.06 to 0.1 predict alike, and 0.08 is where nine in ten truths lie within the 90 % intervals."""

LAW_LENGTH = 0.7
"""Length scale of δ in ln B: batch sizes a factor of two apart share most of it, a factor of eight almost nothing."""

RESOLUTION_LOG_SD = 0.005
"""Least standard deviation of a mean of runs, however many there are; also separates equal batch sizes."""

CRITICAL_BATCH_LOG_SD = 2.0
"""Of a B* of which nothing is known but that users ask for batch sizes up to about it: 90 % within a factor of 27."""

SHARPNESS, SHARPNESS_LOG_SD = 1.4, 0.4
"""Of k, log-normal: from the paper's 1 to 2, where the two ways of losing are joined like orthogonal errors."""

SMALL_BATCH_LOG_MEAN, SMALL_BATCH_LOG_SD = -1.5, 2.0
"""Of ln B0 over the smallest batch size with runs: that most people's smallest batch still suits the learning rate,
though for some (one in four, by these) it does not."""

STEEPNESS, STEEPNESS_LOG_SD = 2.0, 0.5
"""Of r, log-normal: from 1 / B, as steps of which a part is wasted, to far steeper, as runs that nearly diverge."""

MISLED = 0.2
"""Prior probability that the noise scale, or a stored model, says nothing of B*: then the wide prior holds."""

LawName = Literal["critical-batch", "sharp-critical-batch", "u-shaped", "noise-linear"]
"""`critical-batch` has the paper's k = 1, `sharp-critical-batch` any k."""

LAW_WEIGHTS: dict[LawName, float] = {
    "critical-batch": 1.0,
    "sharp-critical-batch": 0.5,
    "u-shaped": 0.4,
    "noise-linear": 0.1,
}
"""Prior weights, renormalised over the laws in question. Epochs hardly ever keep falling with B, so the last is
small; the others are about even, for whether the learning rate is re-tuned per batch size is not known."""

NODES: dict[LawName, int] = {
    "critical-batch": 21,
    "sharp-critical-batch": 1024,
    "u-shaped": 8192,
    "noise-linear": 11,
}
"""Per law: four times as many move predictions at public batch sizes by less than 2 %, mostly by far less."""

WEIGHT_MIN = 1e-7
"""Nodes of less posterior weight are dropped: together they do not change a prediction visibly."""


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """E = Emin (1 + (B / B*)^k)^(1/k); k = 1 is the law of [2]_, a larger k bends later and sharper."""

    epochs_min: Positive
    critical_batch_size: Positive
    sharpness: Positive = 1.0
    kind: Literal["critical-batch"] = "critical-batch"

    def epochs(self, global_batch_size: FloatArray) -> FloatArray:
        x = np.log(global_batch_size)
        return np.asarray(
            self.epochs_min * np.exp(_rise(x, math.log(self.critical_batch_size), self.sharpness))
        )

    def shape_gradient(self, global_batch_size: FloatArray) -> FloatArray:
        """d ln E / d ln (1/B*), in [0, 1)."""
        ratio = self.sharpness * np.log(self.critical_batch_size / global_batch_size)
        return np.asarray(np.exp(-np.logaddexp(0.0, ratio)))


@dataclass(frozen=True, slots=True)
class UShaped:
    """E = Emin (1 + (B / B*)^k)^(1/k) (1 + (B0 / B)^r): a fixed learning rate is too large for small B."""

    epochs_min: Positive
    critical_batch_size: Positive
    sharpness: Positive
    small_batch_size: Positive
    steepness: Positive
    kind: Literal["u-shaped"] = "u-shaped"

    def epochs(self, global_batch_size: FloatArray) -> FloatArray:
        x = np.log(global_batch_size)
        shape = _rise(x, math.log(self.critical_batch_size), self.sharpness)
        return np.asarray(
            self.epochs_min * np.exp(shape + _fall(x, math.log(self.small_batch_size), self.steepness))
        )

    def shape_gradient(self, global_batch_size: FloatArray) -> FloatArray:
        """d ln E / d ln (1/B*), in [0, 1)."""
        return CriticalBatch(self.epochs_min, self.critical_batch_size, self.sharpness).shape_gradient(
            global_batch_size
        )


@dataclass(frozen=True, slots=True)
class NoiseLinear:
    """e = e* + θ γ(B), γ(B) = c0 + c1 / √B [3]_; without history e* is 0 (eq. 6)."""

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


EpochLaw = Annotated[CriticalBatch | UShaped | NoiseLinear | FixedEpochs, Field(discriminator="kind")]


def _rise(x: FloatArray, scale: FloatArray | float, sharpness: FloatArray | float) -> FloatArray:
    return np.asarray(np.logaddexp(0.0, sharpness * (x - scale)) / sharpness)


def _fall(x: FloatArray, small: FloatArray | float, steepness: FloatArray | float) -> FloatArray:
    return np.asarray(np.logaddexp(0.0, steepness * (small - x)))


@dataclass(frozen=True, slots=True)
class EpochEvidence:
    """The data of the regression; a model keeps it, so that its posterior can be computed again.

    Attributes:
        batch: Batch sizes, distinct and increasing; at least one.
        log_epochs, log_sd: ln of the mean epochs at each, and its standard deviation.
        scale_log_mean, scale_log_sd: Prior of ln B* by the noise scale or a stored model.
        scale_informed: Whether there is a noise scale or stored model; else the wide prior is used.
        batch_max: Largest requested batch size, at which the wide prior of B* is centred.
        noise_floor, noise_slope: c0 and c1 of γ(B).
        laws: The laws that are compared.
    """

    batch: tuple[Positive, ...]
    log_epochs: tuple[Finite, ...]
    log_sd: tuple[NotNegative, ...]
    scale_log_mean: Finite
    scale_log_sd: NotNegative
    scale_informed: bool
    batch_max: Positive
    noise_floor: NotNegative
    noise_slope: NotNegative
    laws: tuple[LawName, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.batch) == len(self.log_epochs) == len(self.log_sd) or not self.laws:
            raise ValueError(
                "evidence of epochs needs as many epochs and deviations as batch sizes, and a law"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """One law at the nodes of its prior: `parameters` has a row per node, and its columns depend on the law."""

    name: LawName
    parameters: FloatArray
    log_weight: FloatArray

    def shape(self, x: FloatArray, evidence: EpochEvidence) -> FloatArray:
        """f(x), shape `(nodes, len(x))`."""
        columns = [column[:, None] for column in self.parameters.T]
        if self.name == "noise-linear":
            noise = evidence.noise_floor + evidence.noise_slope * np.exp(-0.5 * x)
            reference = evidence.noise_floor + evidence.noise_slope / math.sqrt(evidence.batch[0])
            return np.asarray(np.log(columns[0] + (1.0 - columns[0]) * noise / reference))
        rise = _rise(x, columns[0], columns[1])
        return rise + _fall(x, columns[2], columns[3]) if self.name == "u-shaped" else rise


def _log_scales(quantile: FloatArray, evidence: EpochEvidence) -> FloatArray:
    """ln B* at quantiles of its prior: the informed one or, with probability `MISLED`, the wide one."""
    wide, informed = math.log(evidence.batch_max), evidence.scale_log_mean
    # One point cannot contradict the informed prior, so there is nothing to fall back from.
    share = (MISLED if len(evidence.batch) > 1 else 0.0) if evidence.scale_informed else 1.0
    misled = quantile < share
    within = np.where(misled, quantile / max(share, 0.5 * MISLED), (quantile - share) / max(1.0 - share, 0.5))
    deviation = np.where(misled, CRITICAL_BATCH_LOG_SD, evidence.scale_log_sd)
    return np.asarray(np.where(misled, wide, informed) + deviation * ndtri(within))


def _nodes(name: LawName, evidence: EpochEvidence) -> _Nodes:
    """A law at nodes of equal prior weight."""
    dimensions = {"sharp-critical-batch": 2, "u-shaped": 4}.get(name, 1)
    # Without history the noise has its part in all of the epochs: eq. 6.
    count = 1 if name == "noise-linear" and len(evidence.batch) == 1 else NODES[name]
    even = even_points(count, dimensions)
    weight = math.log(LAW_WEIGHTS[name] / sum(LAW_WEIGHTS[law] for law in evidence.laws) / count)
    if name == "noise-linear":
        return _Nodes(name, even if count > 1 else np.zeros((1, 1)), np.full(count, weight))
    columns = [_log_scales(even[:, 0], evidence)]
    if name == "critical-batch":
        columns.append(np.ones(count))
    else:
        columns.append(SHARPNESS * np.exp(SHARPNESS_LOG_SD * ndtri(even[:, 1])))
    if name == "u-shaped":
        below = math.log(evidence.batch[0]) + SMALL_BATCH_LOG_MEAN
        columns.append(below + SMALL_BATCH_LOG_SD * ndtri(even[:, 2]))
        columns.append(STEEPNESS * np.exp(STEEPNESS_LOG_SD * ndtri(even[:, 3])))
    return _Nodes(name, np.column_stack(columns), np.full(count, weight))


def _covariance(a: FloatArray, b: FloatArray) -> FloatArray:
    """Of δ between `x` values: squared exponential, shape `(len(a), len(b))`."""
    return np.asarray(LAW_LOG_SD**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / LAW_LENGTH) ** 2))


@dataclass(frozen=True, slots=True, eq=False)
class EpochPosterior:
    """The posterior over the laws; computed by `posterior`.

    Attributes:
        levels, weights, residuals: Of each node that is left: shape `(nodes,)`, `(nodes,)` and `(nodes, n)`.
        kernel_rows: Inverse covariance of the evidence times a vector of ones, shape `(n,)`.
        level_variance: Variance of a node's level.
    """

    evidence: EpochEvidence
    blocks: tuple[_Nodes, ...]
    levels: FloatArray
    weights: FloatArray
    residuals: FloatArray
    inverse: FloatArray
    kernel_rows: FloatArray
    level_variance: float

    def joint(self, global_batch_size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean `(m,)` and covariance `(m, m)` of ln of the mean epochs at m batch sizes."""
        mean, centred, y, gain, rest = self._conditioned(global_batch_size)
        within = _covariance(y, y) - gain @ _covariance(np.log(self.evidence.batch), y)
        within += np.outer(rest, rest) * self.level_variance
        return mean, within + centred.T @ centred

    def predict(self, global_batch_size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of ln of the mean epochs at m batch sizes, shape `(m,)` each."""
        mean, centred, y, gain, rest = self._conditioned(global_batch_size)
        explained = np.einsum("mn,nm->m", gain, _covariance(np.log(self.evidence.batch), y))
        within = np.maximum(LAW_LOG_SD**2 - explained, 0.0) + rest**2 * self.level_variance
        return mean, within + np.einsum("im,im->m", centred, centred)

    def _conditioned(
        self, global_batch_size: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Mean, nodes' deviations times the root of their weight, y = ln B, gain of δ, share of the level."""
        y = np.log(np.asarray(global_batch_size, dtype=np.float64))
        kernel = _covariance(y, np.log(self.evidence.batch))
        gain = kernel @ self.inverse
        shapes = np.vstack([block.shape(y, self.evidence) for block in self.blocks])
        each = self.levels[:, None] + shapes + self.residuals @ gain.T
        mean = self.weights @ each
        return mean, (each - mean) * np.sqrt(self.weights)[:, None], y, gain, 1.0 - kernel @ self.kernel_rows

    def law_weights(self) -> tuple[tuple[LawName, float], ...]:
        """Posterior probability of each law in question, the largest first."""
        found = dict.fromkeys(self.evidence.laws, 0.0)
        for block, own in self._by_block():
            found[block.name] = float(self.weights[own].sum())
        return tuple(sorted(found.items(), key=lambda item: -item[1]))

    def dominant(self) -> tuple[CriticalBatch | UShaped | NoiseLinear, float, float, float]:
        """The most probable law at its mean parameters, and (co)variances of (level, ln 1/B*) within it."""
        name = self.law_weights()[0][0]
        block, own = next((block, own) for block, own in self._by_block() if block.name == name)
        weight = self.weights[own] / self.weights[own].sum()
        level, columns = float(weight @ self.levels[own]), block.parameters
        if name == "noise-linear":
            share, epochs = float(weight @ columns[:, 0]), math.exp(level)
            floor, slope = self.evidence.noise_floor, self.evidence.noise_slope
            per_noise = epochs * (1.0 - share) / (floor + slope / math.sqrt(self.evidence.batch[0]))
            return NoiseLinear(epochs * share, per_noise, floor, slope), self.level_variance, 0.0, 0.0
        away = np.stack((self.levels[own] - level, weight @ columns[:, 0] - columns[:, 0]))
        spread = (away * weight) @ away.T
        means = weight @ np.column_stack((columns[:, 0], np.log(columns[:, 1]), columns[:, 2:]))
        epochs, scale, sharpness = np.exp([level, means[0], means[1]]).tolist()
        law: CriticalBatch | UShaped = CriticalBatch(epochs, scale, sharpness)
        if name == "u-shaped":
            law = UShaped(epochs, scale, sharpness, math.exp(means[2]), float(means[3]))
        variance = float(spread[0, 0]) + self.level_variance
        return law, variance, float(spread[1, 1]), float(spread[0, 1])

    def _by_block(self) -> Sequence[tuple[_Nodes, slice]]:
        ends = np.cumsum([len(block.parameters) for block in self.blocks])
        return [
            (block, slice(int(end) - len(block.parameters), int(end)))
            for block, end in zip(self.blocks, ends, strict=True)
        ]


@lru_cache(maxsize=32)
def posterior(evidence: EpochEvidence) -> EpochPosterior:
    """Weigh every node of every law in question by how well it explains the evidence; a pure function."""
    x, log_epochs = np.log(evidence.batch), np.array(evidence.log_epochs)
    noise = np.square(evidence.log_sd) + RESOLUTION_LOG_SD**2
    inverse = cho_solve(cho_factor(_covariance(x, x) + np.diag(noise)), np.eye(len(x)))
    kernel_rows = inverse.sum(axis=1)
    level_variance = 1.0 / float(kernel_rows.sum())
    blocks = [_nodes(name, evidence) for name in evidence.laws]
    misfits = log_epochs - np.vstack([block.shape(x, evidence) for block in blocks])
    levels = misfits @ kernel_rows * level_variance
    residuals = misfits - levels[:, None]
    log_weights = np.concatenate([block.log_weight for block in blocks])
    log_weights -= 0.5 * np.einsum("in,nm,im->i", residuals, inverse, residuals, optimize=True)
    weights = np.exp(log_weights - logsumexp(log_weights))
    kept: BoolArray = weights >= WEIGHT_MIN * weights.max()
    left, start = [], 0
    for block in blocks:
        own = kept[start : start + len(block.parameters)]
        start += len(block.parameters)
        if own.any():
            left.append(_Nodes(block.name, block.parameters[own], block.log_weight[own]))
    return EpochPosterior(
        evidence=evidence,
        blocks=tuple(left),
        levels=levels[kept],
        weights=weights[kept] / weights[kept].sum(),
        residuals=residuals[kept],
        inverse=np.asarray(inverse),
        kernel_rows=kernel_rows,
        level_variance=level_variance,
    )
