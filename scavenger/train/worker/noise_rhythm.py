"""At which steps a worker that is alone measures the gradient noise."""

from __future__ import annotations

NOISE_SHARE = 0.03
"""Most of the time of computing gradients that measuring the noise may take, once it is known."""

AT_FIRST = 10
"""Steps that are measured in a row when a worker becomes the only one: with so many, φ of up to four times the batch is
known as well as one reading tells of a run (`scavenger.models.noise.READING_LOG_SD`)."""

AT_EACH = 4
"""Steps that are measured in a row at another batch size, whose gradient noise is its own."""


class NoiseRhythm:
    """Chooses the steps by what measuring takes beside the gradient, which may be less than half of a step or twice.

    What is measured changes no gradient, so that the times which decide here change no result.
    """

    def __init__(self) -> None:
        self._left, self._batch_size = AT_FIRST, 0
        self._computed_s = self._measured_s = self._last_s = 0.0

    def is_due(self, global_batch_size: int) -> bool:
        """Whether to measure the noise in the next step at this batch size."""
        if global_batch_size != self._batch_size:
            self._left = max(self._left, AT_EACH)
            self._batch_size = global_batch_size
        return self._left > 0 or self._measured_s + self._last_s <= NOISE_SHARE * self._computed_s

    def took(self, compute_s: float, noise_s: float) -> None:
        """Record a step: seconds of its gradient, and of measuring the noise; 0 if it was not measured."""
        if self._left and noise_s:
            self._left -= 1
        else:
            self._computed_s += compute_s
            self._measured_s += noise_s
        self._last_s = noise_s or self._last_s
