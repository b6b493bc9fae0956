"""At which steps a worker that is alone measures the gradient noise."""

from __future__ import annotations

import math
from dataclasses import replace

from scavenger.models.noise import NoiseStability

NOISE_SHARE = 0.03
"""Most of the time of computing gradients that measuring the noise may take, once it is known."""

AT_FIRST = 20
"""Steps that are measured in a row when a worker becomes the only one. At the batch size of the first, further ones
are until the noise has settled: the cold start awaits that (`scavenger.models.noise.NoiseStability`)."""

AT_EACH = 4
"""Steps that are measured in a row at another batch size, whose gradient noise is its own."""


class NoiseRhythm:
    """Chooses the steps by what measuring takes beside the gradient, which may be less than half of a step or twice.

    What is measured changes no gradient, so that the times which decide here change no result.
    """

    def __init__(self) -> None:
        self._left, self._batch_size = AT_FIRST, 0
        self._computed_s = self._measured_s = self._last_s = 0.0
        self._stability: NoiseStability | None = NoiseStability()  # None: nobody awaits that it settles

    def is_due(self, global_batch_size: int) -> bool:
        """Whether to measure the noise in the next step at this batch size."""
        if global_batch_size != self._batch_size:
            if self._batch_size:
                self._stability = None
            self._left = max(self._left, AT_EACH)
            self._batch_size = global_batch_size
        return self._is_first or self._measured_s + self._last_s <= NOISE_SHARE * self._computed_s

    @property
    def _is_first(self) -> bool:
        return self._left > 0 or (self._stability is not None and bool(self._stability.log_noise))

    def took(self, compute_s: float, noise_s: float, noise: float = 0.0) -> None:
        """Record a step: seconds of its gradient, and of measuring the noise; 0 if it was not measured.

        Args:
            noise: The gradient noise γ that was measured, times any factor that all steps share; else 0.
        """
        if self._is_first and noise_s:
            self._left = max(0, self._left - 1)
            self._settle(noise)
        else:
            self._computed_s += compute_s
            self._measured_s += noise_s
        self._last_s = noise_s or self._last_s

    def _settle(self, noise: float) -> None:
        if (before := self._stability) is None or not 0.0 < noise < math.inf:
            return
        now = replace(before, steps=before.steps + 1, log_noise=(*before.log_noise, math.log(noise)))
        self._stability = None if now.settled or now.steps >= now.steps_max else now
