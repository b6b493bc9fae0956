"""How the batch follows the number of workers, and the learning rate the batch.

=======  ======================================================================================
B, K     global batch size, samples; workers
B0, K0   those of the configuration that the run was started on, to which the learning rate belongs
S        B / B0
σ²       variance of the gradient of a batch of B0: trace of the per-sample covariance over B0
μ²       squared norm of the true gradient
r        AdaScale's gain, in [1, S] for S >= 1: the factor on the learning rate
=======  ======================================================================================

References:
    .. [1] Or et al., "Resource Elasticity in Distributed Deep Learning", MLSys 2020, sections 2 and 7.1.
    .. [2] Johnson et al., "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", ICML 2020.
    .. [3] Goyal et al., "Accurate, Large Minibatch SGD", 2017 (linear); Krizhevsky, "One weird trick for
        parallelizing convolutional neural networks", 2014 (square root).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scavenger.domain.configuration import Configuration
from scavenger.domain.elastic import BatchScaling, LrScaling
from scavenger.models.noise import NoiseTracker


class BatchRule(Protocol):
    """Chooses the global batch for a number of workers."""

    def global_batch_size(self, workers: int, reference: Configuration) -> int:
        """B for K workers, samples; less than `workers` if the batch cannot give each a sample.

        Raises:
            ValueError: If `workers` is below 1.
        """
        ...


@dataclass(frozen=True, slots=True)
class StrongScaling:
    """Keeps the global batch, so training takes the same steps with any number of workers [1]_."""

    def global_batch_size(self, workers: int, reference: Configuration) -> int:
        _check_workers(workers)
        return reference.global_batch_size


@dataclass(frozen=True, slots=True)
class WeakScaling:
    """Keeps the local batch until the global one reaches `batch_max`; above that as `StrongScaling` [1]_.

    A run that was started on a larger batch than `batch_max` never goes above that batch.
    """

    batch_max: int

    def global_batch_size(self, workers: int, reference: Configuration) -> int:
        """See `BatchRule`; rounded down to whole samples."""
        _check_workers(workers)
        grown = reference.global_batch_size * workers // reference.workers
        return min(grown, max(self.batch_max, reference.global_batch_size))


def _check_workers(workers: int) -> None:
    if workers < 1:
        raise ValueError(f"a batch needs at least one worker, not {workers}")


def batch_rule(name: BatchScaling, *, batch_max: int) -> BatchRule:
    """The batch rule with this name."""
    rules: dict[BatchScaling, BatchRule] = {"strong": StrongScaling(), "weak": WeakScaling(batch_max)}
    return rules[name]


def adascale_gain(global_batch_size: int, reference_batch_size: int, noise: NoiseTracker) -> float:
    """`r = (σ² + μ²) / (σ²/S + μ²)` [2]_.

    With the tracker's trace of the per-sample covariance t, σ² = t / B0 and σ²/S = t / B, so S need be no
    whole number and the noise need not have been measured at B0. Both estimates are smoothed and unbiased, so
    they can be negative and count as 0 then, as in [2]_. Before the first one, and where both are 0, r is 1:
    the learning rate does not rise without evidence.

    For S < 1, which [2]_ leaves out, the same formula holds and gives r in [S, 1]: a step at the smaller,
    noisier batch is worth less than one at B0, and the learning rate falls.

    Raises:
        ValueError: If a batch size is below 1.
    """
    if global_batch_size < 1 or reference_batch_size < 1:
        raise ValueError(f"a batch has samples, not {min(global_batch_size, reference_batch_size)}")
    trace, true = noise.covariance_trace.value, noise.true_sqnorm.value
    if trace is None or true is None:
        return 1.0
    trace, true = max(trace, 0.0), max(true, 0.0)
    at_reference, at_batch = trace / reference_batch_size + true, trace / global_batch_size + true
    if not (0.0 < at_batch < math.inf and 0.0 < at_reference < math.inf):
        return 1.0
    scale = global_batch_size / reference_batch_size
    # the quotient of two sums may leave the interval by a rounding error
    return min(max(at_reference / at_batch, min(1.0, scale)), max(1.0, scale))


_LR_RULES: dict[LrScaling, Callable[[int, int, NoiseTracker], float]] = {
    "none": lambda batch, reference, noise: 1.0,
    "linear": lambda batch, reference, noise: batch / reference,
    "sqrt": lambda batch, reference, noise: math.sqrt(batch / reference),
    "adascale": adascale_gain,
}


def learning_rate_scale(
    name: LrScaling, global_batch_size: int, reference_batch_size: int, noise: NoiseTracker
) -> float:
    """Factor on the learning rate at B: `none` 1, `linear` S, `sqrt` √S [3]_, `adascale` r [2]_.

    `linear` and `sqrt` depend on the batch alone; `adascale` follows the noise. Of AdaScale this is the learning rate
    alone: in [2]_ a step also takes the schedule on by r steps, and training ends by the sum of r B0 / D. Here a
    schedule counts steps, as the optimizer itself does, and epochs are passes over the data.

    Args:
        noise: Gradient noise of the steps so far; used only by `adascale`.

    Raises:
        ValueError: If a batch size is below 1.
    """
    if global_batch_size < 1 or reference_batch_size < 1:
        raise ValueError(f"a batch has samples, not {min(global_batch_size, reference_batch_size)}")
    return _LR_RULES[name](global_batch_size, reference_batch_size, noise)
