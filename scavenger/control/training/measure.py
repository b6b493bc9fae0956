"""Computes the measurement of a configuration from its steps."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import Measurement, StepRecord
from scavenger.models.noise import NoiseTracker

__all__ = ["measure"]

_MAD_TO_SD = 1.4826


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
    times = [record.step_time_s for record in window]
    middle = statistics.median(times)
    spread = _MAD_TO_SD * statistics.median(abs(value - middle) for value in times)
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
