"""Computes the measurement of a configuration from its steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import Measurement, StepRecord
from scavenger.models.noise import NoiseTracker
from scavenger.models.parallel import MEASUREMENT_LOG_SD_MIN, standard_error

_MAD_TO_SD = 1.4826

STEPS_MIN = 10
"""Fewest steps after which a median may count as known: of fewer, the spread that is to tell is itself chance."""


def is_known(window: Sequence[StepRecord]) -> bool:
    """Whether the median of the steps is known better than it would repeat some minutes later.

    The error is at most √2 times that floor then, and all further steps could only take the √2 away. Ending once a
    width is reached keeps the interval's coverage as the width goes to 0 [1]_.

    References:
        .. [1] Chow and Robbins, "On the Asymptotic Theory of Fixed-Width Sequential Confidence Intervals for the Mean",
           1965.
    """
    if len(window) < STEPS_MIN:
        return False
    middle, spread = _median_and_spread(window)
    return standard_error(middle, spread, len(window)) <= math.sqrt(2.0) * MEASUREMENT_LOG_SD_MIN


def _median_and_spread(window: Sequence[StepRecord]) -> tuple[float, float]:
    times = [record.step_time_s for record in window]
    middle = statistics.median(times)
    return middle, _MAD_TO_SD * statistics.median(abs(value - middle) for value in times)


def measure(
    configuration: Configuration,
    window: list[StepRecord],
    noise: NoiseTracker,
    memory_bytes: int,
    progress: float | None = None,
) -> Measurement:
    """Summarize undisturbed steps in a measurement, by medians, since single steps may be outliers.

    Args:
        progress: Completed share of the run, in (0, 1]; None if unknown.

    Raises:
        ValueError: If the window is empty.
    """
    if not window:
        raise ValueError(f"no undisturbed step of {configuration}")
    middle, spread = _median_and_spread(window)
    measurement = Measurement(
        configuration=configuration,
        steps=len(window),
        step_time_s=middle,
        step_time_spread_s=spread,
        compute_s=statistics.median(record.compute_s for record in window),
        sync_s=statistics.median(record.sync_s for record in window),
        gradient_noise=noise.gradient_noise,
        noise_scale=noise.noise_scale,
        memory_bytes=memory_bytes,
        progress=progress,
    )
    if noise.noise_scale is not None and not math.isfinite(noise.noise_scale):
        return replace(measurement, noise_scale=None)
    return measurement
