"""What is kept of the gradients of a few successive steps, so that their products tell the gradient noise."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

LAGS = 6
"""Steps back to which a gradient is compared: `scavenger.models.noise.SuccessiveGradients` says why."""

_ELEMENTS = 1 << 18
"""Elements that are kept of a gradient, about: enough for products within a hundredth, and few beside a step."""
_WHOLE = 4096
"""An array of fewer elements is kept whole."""


class GradientSamples:
    """The gradients of the newest steps, each as its elements or, of a large one, as every so manyth of each array."""

    def __init__(self) -> None:
        self._kept: deque[Any] = deque(maxlen=LAGS)
        self._sizes: tuple[int, ...] = ()

    def add(self, gradient: Iterable[Any]) -> tuple[float, ...]:
        """Add a step's gradient; returns its squared norm, and its products with those before, the newest first.

        None is before a gradient whose arrays have other sizes, or after one that is not finite; of that, nothing is
        returned.

        Args:
            gradient: Flat arrays of numbers.
        """
        import numpy as np

        arrays = list(gradient)
        sizes = tuple(array.size for array in arrays)
        if sizes != self._sizes:
            self._kept.clear()
            self._sizes = sizes
        stride = -(-sum(sizes) // _ELEMENTS)
        with np.errstate(over="ignore", invalid="ignore"):
            parts = [
                array.astype(np.float32)
                if array.size < _WHOLE
                else array[::stride].astype(np.float32) * np.float32(stride**0.5)
                for array in arrays
            ]
            sample = np.concatenate(parts) if parts else np.zeros(0, np.float32)
            products = [float(np.dot(sample, other)) for other in (sample, *reversed(self._kept))]
        if not (parts and np.isfinite(products).all()):
            self._kept.clear()
            return ()
        self._kept.append(sample)
        return tuple(products)
