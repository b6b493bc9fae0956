"""The critical batch size B* before any finished run: from the noise scale, a stored model, and the learning rate.

Up to some batch size a larger batch makes up for its samples by fewer steps. Noise sets one limit (`noise`): beyond it
gradients are good enough. The learning rate sets another: at the rate of a small batch a better gradient makes no
longer step, and the steps to a target become hardly fewer [1]_. A run's rate is known to suit its smallest batch.

References:
    .. [1] Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from scavenger.domain.measurement import Measurement
from scavenger.models.epoch_laws import CRITICAL_BATCH_LOG_SD
from scavenger.models.even_points import even_points
from scavenger.models.noise import NoiseReading, critical_batch_from_noise

KEPT_BATCHES, KEPT_LOG_SD = 1.3, 1.0
"""B* over the smallest batch size at a learning rate that is kept, if noise were no limit: its median and the deviation
of its logarithm. Small models with Adam had 0.1 to 2.5 (`python -m benchmarks kept_rate`); a rate that is too small for
the smallest batch already has less, one that is too large for it more."""

KEPT_NODES = 256
"""Of both limits of B*: twice as many move it by less than a hundredth."""


def readings_of(measurements: Sequence[Measurement]) -> list[NoiseReading]:
    """The noise scales of profiled configurations; K workers give K - 1 independent comparisons a step."""
    return [
        NoiseReading(
            progress=m.progress,
            noise_scale=m.noise_scale,
            steps=float(max(m.steps, 1) * max(m.configuration.workers - 1, 1)),
            global_batch_size=float(m.configuration.global_batch_size),
        )
        for m in measurements
        if m.noise_scale is not None
    ]


class ScalePrior(NamedTuple):
    """ln B* before any finished run: mean, standard deviation, whether it is informed, and a note on its source."""

    log_mean: float
    log_sd: float
    informed: bool
    note: str


_GUESS = "no noise scale was measured: how epochs grow with the batch size is a guess"


def scale_prior(
    readings: Sequence[NoiseReading],
    batch_sizes: tuple[int, ...],
    stored: tuple[float, float] | None,
    *,
    rate_kept: bool,
) -> ScalePrior:
    """The prior of B* from the measured noise, else a stored model, else a guess; at a kept rate also from the rate.

    Args:
        batch_sizes: Of the search space, increasing.
        stored: B* of a stored model, by the rule of its own learning rate, and the deviation of its logarithm.
        rate_kept: Whether the learning rate is that of the smallest batch size at every other one.
    """
    estimate = critical_batch_from_noise(readings)
    if estimate is not None:
        size, log_sd = estimate.critical_batch_size, estimate.log_sd
        if rate_kept:
            return _at_kept_rate(
                math.log(size), log_sd, batch_sizes[0], f"noise alone says {three_digits(size)}"
            )
        note = f"{_few_steps(size, log_sd)} by the measured noise scale, which grows over a run"
        return ScalePrior(math.log(size), log_sd, True, note)
    if stored is not None:
        note = "critical batch size from stored models: no noise scale was measured"
        return ScalePrior(math.log(stored[0]), stored[1], True, note)
    wide = math.log(batch_sizes[-1])
    if rate_kept:
        return _at_kept_rate(wide, CRITICAL_BATCH_LOG_SD, batch_sizes[0], _GUESS)
    return ScalePrior(wide, CRITICAL_BATCH_LOG_SD, False, _GUESS)


def _at_kept_rate(log_mean: float, log_sd: float, smallest: int, by_noise: str) -> ScalePrior:
    """The prior of B* where each step is as long as at the smallest batch, whatever its batch is.

    Beyond some batch the steps to the target become no fewer, by the noise or by the rate, whichever is the smaller:
    1 / B* = 1 / B*(noise) + 1 / B*(rate). Both are log-normal; their even quantiles are joined.
    """
    noise, rate = (even_points(KEPT_NODES, 2)[:, of] for of in (0, 1))
    by_rate = math.log(KEPT_BATCHES * smallest) + KEPT_LOG_SD * ndtri(rate)
    both = -np.logaddexp(-(log_mean + log_sd * ndtri(noise)), -by_rate)
    size, spread = math.exp(float(both.mean())), float(both.std())
    note = (
        f"{_few_steps(size, spread)} as the learning rate is that of batch {smallest} at every batch size "
        f"(elastic.lr_scaling: none); {by_noise}"
    )
    return ScalePrior(math.log(size), spread, True, note)


def _few_steps(size: float, log_sd: float) -> str:
    return (
        f"from about {three_digits(size)} samples on (the critical batch size, known to a factor of "
        f"{math.exp(log_sd):.2g}), a larger batch saves few steps,"
    )


def three_digits(value: float) -> str:
    """Format with three significant digits as `1,260`, not `1.26e+03`."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100.0 else f"{value:.3g}"
