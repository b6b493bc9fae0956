"""Gradient noise: how far gradients deviate from their mean, and the batch size above which this is negligible.

========  =============================================================  =================
K         gradients that are compared: workers, or 2 halves at 1 worker  `noise_parts`
B, b      samples over all of them; of one, B / K                        `samples`
g_k, g    gradient of one part; sample-weighted mean of all
G²        squared norm of the true gradient
S         trace of the per-sample covariance of the gradient
γ         E[mean |g_k|²] / E[|g|²], in [1, K]                            `gradient_noise`
φ         S / G², samples                                                `noise_scale`
========  =============================================================  =================

With a sample-weighted mean, E[mean |g_k|²] = G² + S K / B however unevenly the batch is split, so b = B / K
is exact and needs no rounding.

φ grows as the gradient shrinks, and what a run pays for its batch size is the sum over its growth
(`critical_batch_from_noise`).

References:
    .. [1] Tyagi and Sharma, "Scavenger: A Cloud Service for Optimizing Cost and Performance of ML Training",
        eq. 2.
    .. [2] McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1 and eq. 2.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from scavenger.domain.curve import FloatArray
from scavenger.domain.measurement import StepRecord


def gradient_noise(mean_worker_sqnorm: float, mean_sqnorm: float, parts: int) -> float:
    """γ: mean squared norm of the parts' gradients over the squared norm of their mean [1]_.

    A single step can stray above K when the parts happen to oppose each other; in expectation it cannot, so
    the value is clipped to `[1, parts]`. Two gradients of zero agree: 1.

    Raises:
        ValueError: If a squared norm is negative or not finite, or `parts` is below 1.
    """
    _check_norms(mean_worker_sqnorm, mean_sqnorm)
    if parts < 1:
        raise ValueError(f"gradient noise needs at least one part, not {parts}")
    if mean_sqnorm == 0.0:
        return 1.0 if mean_worker_sqnorm == 0.0 else float(parts)
    return min(max(mean_worker_sqnorm / mean_sqnorm, 1.0), float(parts))


def noise_scale_parts(
    mean_worker_sqnorm: float, mean_sqnorm: float, small_batch: float, big_batch: float
) -> tuple[float, float]:
    """Unbiased estimates of S and G² from one step [2]_.

    `S = (mean |g_k|² - |g|²) / (1/b - 1/B)` and `G² = (B |g|² - b mean |g_k|²) / (B - b)`. Either may come
    out negative in a single step; the ratio of single estimates is biased, so smooth both before dividing.

    Args:
        small_batch: b, samples per part.
        big_batch: B, samples over all parts.

    Returns:
        S, in squared gradient norm times samples, and G².

    Raises:
        ValueError: If a squared norm is negative or not finite, or not `0 < b < B`.
    """
    _check_norms(mean_worker_sqnorm, mean_sqnorm)
    if not 0.0 < small_batch < big_batch:
        raise ValueError(f"noise scale needs 0 < b < B, not b = {small_batch}, B = {big_batch}")
    covariance_trace = (mean_worker_sqnorm - mean_sqnorm) / (1.0 / small_batch - 1.0 / big_batch)
    true_sqnorm = (big_batch * mean_sqnorm - small_batch * mean_worker_sqnorm) / (big_batch - small_batch)
    return covariance_trace, true_sqnorm


def _check_norms(*sqnorms: float) -> None:
    for sqnorm in sqnorms:
        if not (math.isfinite(sqnorm) and sqnorm >= 0.0):
            raise ValueError(f"a squared norm must be finite and not negative, not {sqnorm}")


@dataclass(frozen=True, slots=True)
class Ewma:
    """Exponentially weighted moving average, unbiased from the first value on: divided by `1 - (1 - α)^n`."""

    alpha: float
    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise ValueError(f"a smoothing factor lies in (0, 1], not {self.alpha}")

    def update(self, value: float) -> Ewma:
        return Ewma(self.alpha, (1.0 - self.alpha) * self.total + self.alpha * value, self.count + 1)

    @property
    def value(self) -> float | None:
        """None before the first update."""
        return self.total / (1.0 - (1.0 - self.alpha) ** self.count) if self.count else None


SMOOTHING = 0.05
"""α: the average spans some 2/α - 1 = 39 steps, two profiled configurations of the usual 20."""


_ALONG = (1.0, 0.5, 0.0, -0.5)
"""Weights of the products at lags 1 to 4 in the value of their least-squares line at lag 0."""
_JUMP_FROM = 3
"""The first lag at which what a step's noise did to the gradient is over, where it acts within a step."""


class SuccessiveGradients:
    """G² of a process that has one gradient in each step, from those of successive steps. Not thread-safe.

    The gradient of step t is h_t = g_t + ξ_t, over B samples. E|h_t|² = G² + S / B, and the noises of two steps are
    independent, so C_k = E[h_t · h_(t-k)] has no S. But it is not G² either, where weights move fast: with the Hessian
    H and the rate η, plain gradient descent has g_(t+1) = g_t - η H h_t, so

        C_1 = G² - η g·H g - η tr(H Σ) / B.

    The first term is the way along which the gradient changes: C_k extrapolated to k = 0 is without it. The second one
    is what a step's own noise does to the next gradient. With momentum, or an optimizer that averages, it grows with k
    from 0, and the extrapolation leaves it out as well. Without, it is there at once, and decays. In a direction with
    x = η λ whose gradient the noise alone drives, E g² = x σ² / (2 - x) / B and C_k = -E g² (1 - x)^(k - 1). So C_1 is
    too small by twice that part of G², and C_k of later k lacks it once. Both are right in

        G² = 2 C_later - C_1,

    which is too small where the gradient goes along its way, as an extrapolation is where noise acts at once. So the
    larger one of the two by their means so far is taken. `tests/models/test_noise.py` compares it with the noise of
    whole data, for optimizers of both kinds, at rates from slow to near the brink of divergence.
    """

    def __init__(self) -> None:
        self._along = self._jump = Ewma(SMOOTHING)

    def norms(self, products: Sequence[float]) -> tuple[float, float, int]:
        """Add a step: the norms that two halves of its batch would have had, and the number of parts.

        Args:
            products: |h_t|², h_t · h_{t-1}, h_t · h_{t-2} and so on, as far as there are such steps.

        Returns:
            G² + 2 S / B, the mean squared norm of the halves; G² + S / B, the squared norm of the whole; and 2. The
            number is 1 if the step tells no noise.
        """
        if len(products) < 2:
            whole = products[0] if products else 0.0
            return whole, whole, 1
        whole, *lagged = products
        true = lagged[0]
        if len(lagged) >= len(_ALONG):
            true = math.fsum(weight * value for weight, value in zip(_ALONG, lagged, strict=False))
        if len(lagged) > len(_ALONG):
            later = lagged[_JUMP_FROM - 1 :]
            jump = 2.0 * math.fsum(later) / len(later) - lagged[0]
            along, at_once = (
                self._along.value,
                self._jump.value,
            )  # without this step, whose chance would choose
            self._along, self._jump = self._along.update(true), self._jump.update(jump)
            if along is not None and at_once is not None and at_once > along:
                true = jump
        return max(0.0, 2.0 * whole - true), whole, 2


@dataclass(frozen=True, slots=True)
class NoiseTracker:
    """Smoothed γ and φ over the steps of a job; immutable.

    S and G² are properties of the model and carry over when (K, B) changes; γ belongs to a configuration and is
    reset. γ, as in eq. 2 of [1]_, is a ratio of expectations, so numerator and denominator are
    smoothed.
    """

    alpha: float = SMOOTHING
    parts: int = 0
    global_batch_size: int = 0
    worker_sqnorm: Ewma = field(default=Ewma(SMOOTHING))
    sqnorm: Ewma = field(default=Ewma(SMOOTHING))
    covariance_trace: Ewma = field(default=Ewma(SMOOTHING))
    true_sqnorm: Ewma = field(default=Ewma(SMOOTHING))
    step: Ewma = field(default=Ewma(SMOOTHING))

    def update(self, record: StepRecord) -> NoiseTracker:
        """Add one step; a step without information (`noise_parts` below 2, no finite norms) changes nothing."""
        parts, samples = record.noise_parts, record.samples
        if parts < 2 or samples < parts or not _usable(record):
            return self
        fresh = Ewma(self.alpha)
        trace, true = noise_scale_parts(
            record.mean_worker_sqnorm, record.mean_sqnorm, samples / parts, float(samples)
        )
        same = (parts, record.global_batch_size) == (self.parts, self.global_batch_size)
        return replace(
            self,
            parts=parts,
            global_batch_size=record.global_batch_size,
            worker_sqnorm=(self.worker_sqnorm if same else fresh).update(record.mean_worker_sqnorm),
            sqnorm=(self.sqnorm if same else fresh).update(record.mean_sqnorm),
            covariance_trace=(self.covariance_trace if self.count else fresh).update(trace),
            true_sqnorm=(self.true_sqnorm if self.count else fresh).update(true),
            step=(self.step if self.count else fresh).update(float(record.step)),
        )

    @property
    def count(self) -> int:
        """Number of steps added, over all configurations."""
        return self.covariance_trace.count

    @property
    def measured_at(self) -> float | None:
        """The step that φ is of: the mean of those that were averaged, as weighted; far back where few are measured."""
        return self.step.value

    @property
    def gradient_noise(self) -> float | None:
        """Smoothed γ of the present configuration, in `[1, parts]`; None before its first step."""
        worker, mean = self.worker_sqnorm.value, self.sqnorm.value
        return None if worker is None or mean is None else gradient_noise(worker, mean, self.parts)

    @property
    def noise_scale(self) -> float | None:
        """Smoothed S over smoothed G², samples; None until both are positive."""
        trace, true = self.covariance_trace.value, self.true_sqnorm.value
        if trace is None or true is None or trace <= 0.0 or true <= 0.0:
            return None
        scale = trace / true
        return scale if 0.0 < scale < math.inf else None


def _usable(record: StepRecord) -> bool:
    norms = (record.mean_worker_sqnorm, record.mean_sqnorm)
    return all(math.isfinite(norm) and norm >= 0.0 for norm in norms)


GROWTH, GROWTH_LOG_SD = 1.4, 0.7
"""Of g in φ ∝ u^g, u the share of the run that is behind: its mean and standard deviation between jobs, of which
there are three public ones (docs/models.md); so few that the deviation is taken wider than theirs."""

GROWTH_FROM = 0.005
"""Share of a run before which the noise is taken not to have grown yet: the curves begin flat, and a power of u has
no beginning. Half or twice as much moves B* by less than its error."""

EARLY_PROGRESS, EARLY_LOG_SD = 0.03, 1.0
"""Share of the run that lies behind a reading of which that is not known: profiles are made at the beginning."""

READING_LOG_SD, BEND_LOG_SD = 0.3, 0.8
"""How far one reading of φ deviates from its power law, if several determine g, and how far the g of what is behind
may differ from that of what lies ahead: on the public runs the logarithmic curves bend, both ways."""

AVERAGE_LOG_SD = 0.6
"""Of B* even if φ were known all through the run: root mean square over the public runs between its harmonic mean and
the B* that the jobs' epochs show. Runs at a large batch show more noise, and no optimizer is the ideal one."""

GROWTH_NODES, PROGRESS_NODES, RUN_NODES = 9, 5, 800
"""Of g, of an unknown progress, and along the run: twice as many move B* by a hundredth, its error by a tenth."""


@dataclass(frozen=True, slots=True)
class NoiseReading:
    """φ at one moment of a run.

    Attributes:
        progress: Share of the run that was behind then, in (0, 1]: epochs done over epochs expected; None where
            unknown, and then taken as early.
        noise_scale: φ, samples.
        steps: Number of steps it was measured over: its weight among the readings.
        global_batch_size: That the run trains with.
    """

    progress: float | None
    noise_scale: float
    steps: float
    global_batch_size: float

    def usable(self) -> bool:
        """Whether all values are plausible."""
        known = self.progress is None or 0.0 < self.progress <= 1.0
        positive = (self.noise_scale, self.steps, self.global_batch_size)
        return known and all(0.0 < value < math.inf for value in positive)


@dataclass(frozen=True, slots=True)
class CriticalBatchEstimate:
    """B* of a whole run, samples: its median, and the standard deviation of ln B*."""

    critical_batch_size: float
    log_sd: float


def critical_batch_from_noise(readings: Sequence[NoiseReading]) -> CriticalBatchEstimate | None:
    """B* of a whole run from the noise scale so far.

    A step at B gains 1 / (1 + φ / B) of what a noiseless one does [2]_, so one sample at B does the work of
    φ / (φ + B) samples at a vanishing batch. With u the share of the run at B,

        1 / B* = ∫ du / (φ + B)  /  ∫ φ du / (φ + B):

    the harmonic mean of φ over the work. Beyond the readings φ is taken to grow as u^g, where the readings move the
    prior of g. What is not known of g, and of u where it is missing, is the error, which therefore shrinks as
    the run goes on.

    Readings without a known progress count only where none has one; those that cannot be (not positive, not
    finite, progress outside (0, 1]) are left out.

    Returns:
        None without a usable reading.
    """
    usable = [reading for reading in readings if reading.usable()]
    known = [reading for reading in usable if reading.progress is not None]
    if not usable:
        return None
    chosen = known or usable
    weight = np.array([reading.steps for reading in chosen])
    batch = math.exp(
        float(weight @ np.log([reading.global_batch_size for reading in chosen])) / float(weight.sum())
    )
    begins = (
        _quantile_nodes(math.log(EARLY_PROGRESS), EARLY_LOG_SD, PROGRESS_NODES) if not known else np.zeros(1)
    )
    log_progress = [0.0 if reading.progress is None else math.log(reading.progress) for reading in chosen]
    places, scales = _merged(
        np.array(log_progress), np.log([reading.noise_scale for reading in chosen]), weight
    )
    found = []
    for begin in begins:
        place = np.clip(places + begin, math.log(GROWTH_FROM), 0.0)
        mean, deviation = _growth(place, scales)
        found += [
            _log_critical_batch(place, scales, growth, batch)
            for growth in _quantile_nodes(mean, deviation, GROWTH_NODES)
        ]
    return CriticalBatchEstimate(
        math.exp(float(np.mean(found))), math.hypot(float(np.std(found)), AVERAGE_LOG_SD)
    )


def _quantile_nodes(mean: float, deviation: float, count: int) -> FloatArray:
    # SciPy's would be imported by each worker, for this alone
    at = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    return np.asarray(mean + deviation * np.array(at))


def _merged(places: FloatArray, values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distinct places, increasing, and the weighted mean of the values at each."""
    distinct, group = np.unique(places, return_inverse=True)
    total = np.bincount(group, weights=weight)
    return distinct, np.bincount(group, weights=weight * values) / total


def _growth(place: FloatArray, scales: FloatArray) -> tuple[float, float]:
    """Posterior mean and deviation of g by regression of ln φ on ln u.

    Neighbouring readings stray together, so all of them count as one degree of freedom: the slope is as well
    known as from two readings at the root mean square distance.
    """
    away = place - place.mean()
    spread = float(away @ away) / len(place)
    if spread == 0.0:
        return GROWTH, GROWTH_LOG_SD
    slope = float(away @ scales) / len(place) / spread
    told, prior = 1.0 / (READING_LOG_SD**2 / (2.0 * spread) + BEND_LOG_SD**2), GROWTH_LOG_SD**-2
    return (prior * GROWTH + told * slope) / (prior + told), (prior + told) ** -0.5


def _log_critical_batch(place: FloatArray, scales: FloatArray, growth: float, batch: float) -> float:
    """ln B* for φ through the readings (ln u, ln φ), and growing by g before the first and after the last."""
    log_run = np.linspace(math.log(GROWTH_FROM), 0.0, RUN_NODES)
    log_scale = np.interp(log_run, place, scales)
    log_scale += growth * (np.minimum(log_run - place[0], 0.0) + np.maximum(log_run - place[-1], 0.0))
    run = np.exp(log_run)
    log_work = -np.logaddexp(0.0, math.log(batch) - log_scale)
    # Divided by its largest value, since φ of any magnitude may be asked about.
    log_loss = log_work - log_scale
    top = float(log_loss.max())
    return math.log(_integral(np.exp(log_work), run)) - math.log(_integral(np.exp(log_loss - top), run)) - top


def _integral(values: FloatArray, run: FloatArray) -> float:
    """Over u from 0, constant up to the first node."""
    return float(np.trapezoid(values, run) + values[0] * run[0])
