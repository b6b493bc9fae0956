"""Gradient noise: how far gradients stray from their mean, and from which batch size on that stops mattering.

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

References:
    .. [1] Tyagi and Sharma, "Scavenger: A Cloud Service for Optimizing Cost and Performance of ML Training",
        eq. 2.
    .. [2] McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from scavenger.domain.measurement import StepRecord

__all__ = ["Ewma", "NoiseStability", "NoiseTracker", "gradient_noise", "noise_scale_parts"]


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


@dataclass(frozen=True, slots=True)
class NoiseTracker:
    """Smoothed γ and φ over the steps of a job; immutable.

    S and G² are properties of the model and carry over when (K, B) changes; γ belongs to a configuration and
    starts anew. γ, as in eq. 2 of [1]_, is a ratio of expectations, so numerator and denominator are
    smoothed.
    """

    alpha: float = SMOOTHING
    parts: int = 0
    global_batch_size: int = 0
    worker_sqnorm: Ewma = field(default=Ewma(SMOOTHING))
    sqnorm: Ewma = field(default=Ewma(SMOOTHING))
    covariance_trace: Ewma = field(default=Ewma(SMOOTHING))
    true_sqnorm: Ewma = field(default=Ewma(SMOOTHING))

    def update(self, record: StepRecord) -> NoiseTracker:
        """Take in one step; one that cannot tell (`noise_parts` below 2, no finite norms) changes nothing."""
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
        )

    @property
    def count(self) -> int:
        """Steps taken in, over all configurations."""
        return self.covariance_trace.count

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


@dataclass(frozen=True, slots=True)
class NoiseStability:
    """Has the gradient noise settled, so that the cold start may end? Immutable.

    The steps so far are cut in three. The first third is burn-in; the mean of ln γ over the last third must
    lie within `tolerance` of that over the middle third, or within the standard error of their difference
    (what the steps cannot tell from noise is no drift yet). The thirds grow with the steps, so the error
    shrinks and a true drift is found out. Steps that carry no noise count only towards `steps_max`.

    Attributes:
        steps_min: Never settled before; the paper profiles for "around 20" steps [1]_.
        steps_max: Always ended then, settled or not, since a profile costs money.
        tolerance: Relative change of γ that no longer matters for choosing a configuration.
    """

    steps_min: int = 20
    steps_max: int = 200
    tolerance: float = 0.02
    steps: int = 0
    log_noise: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.steps_min <= self.steps_max:
            raise ValueError(f"needs 1 <= steps_min <= steps_max, not {self.steps_min} and {self.steps_max}")

    def update(self, record: StepRecord) -> NoiseStability:
        """Take in one step of the configuration that the job starts on."""
        tells = record.noise_parts >= 2 and _usable(record) and record.mean_sqnorm > 0.0
        noise = self.log_noise
        if tells and record.mean_worker_sqnorm > 0.0:
            noise = (*noise, math.log(record.mean_worker_sqnorm / record.mean_sqnorm))[-self.steps_max :]
        return replace(self, steps=self.steps + 1, log_noise=noise)

    @property
    def drift(self) -> tuple[float, float] | None:
        """Change of mean ln γ from the middle to the last third, and its error; None below 6 steps."""
        window = len(self.log_noise) // 3
        if window < 2:
            return None
        last, middle = self.log_noise[-window:], self.log_noise[-2 * window : -window]
        (mean_last, variance_last), (mean_middle, variance_middle) = _moments(last), _moments(middle)
        return mean_last - mean_middle, math.sqrt((variance_last + variance_middle) / window)

    @property
    def settled(self) -> bool:
        """By the criterion, after at least `steps_min` steps."""
        if self.steps < self.steps_min or self.drift is None:
            return False
        change, error = self.drift
        return abs(change) <= max(self.tolerance, error)

    @property
    def ended(self) -> bool:
        """Settled, or out of steps."""
        return self.settled or self.steps >= self.steps_max

    @property
    def reason(self) -> str:
        """One sentence for a person."""
        if self.drift is None:
            return f"{self.steps} steps, of which {len(self.log_noise)} carry gradient noise: too few to tell"
        change, error = self.drift
        verdict = (
            "settled"
            if self.settled
            else "still moving"
            if self.steps >= self.steps_min
            else "too early to tell"
        )
        return f"gradient noise {verdict} after {self.steps} steps: {change:+.1%}, standard error {error:.1%}"


def _moments(values: tuple[float, ...]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
