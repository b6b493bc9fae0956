"""Rounds gradients to bfloat16, so that half of their bytes need not be sent; what is rounded off is not lost.

With error feedback, what was rounded off a worker's gradient of a tensor is added to its next one before that is
rounded [1]_::

    r = bfloat16(g + e)        e' = g + e - r

So the sum over steps of what is applied differs from that of the gradients by the last e alone. Values are rounded
where they are written, to the slot in single precision: sums are the same, bit for bit, wherever aggregators are.

References:
    .. [1] Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from scavenger.train.norms import BLOCK_BYTES, sqnorm

Array = npt.NDArray[Any]


class Rounding:
    """What one worker has rounded off, by tensor.

    Args:
        tensors: Indices of the tensors whose gradients are rounded; each takes as much memory as the tensor.
    """

    def __init__(self, tensors: Collection[int]) -> None:
        self._tensors = frozenset(tensors)
        self._errors: dict[int, Array] = {}

    def rounds(self, tensor: int) -> bool:
        """Whether the gradient of a tensor is rounded."""
        return tensor in self._tensors

    def forget(self) -> None:
        """Drop what was rounded off gradients that are not applied."""
        self._errors.clear()

    def write(self, tensor: int, gradient: Array, target: Array) -> float:
        """Write a gradient to a contiguous array of its shape, rounded; returns |x|² of what was written."""
        given, taken = np.ascontiguousarray(gradient).reshape(-1), target.reshape(-1)
        if tensor not in self._errors:
            self._errors[tensor] = np.zeros(taken.size, np.float32)
        errors, total = self._errors[tensor], 0.0
        size = BLOCK_BYTES // target.dtype.itemsize
        with np.errstate(all="ignore"):  # a gradient that is not finite is reported by its norm
            for at in range(0, taken.size, size):
                block, error = taken[at : at + size], errors[at : at + size]
                error += given[at : at + size]
                block[...] = error.astype(ml_dtypes.bfloat16)
                error -= block
                square = sqnorm(block)
                if not np.isfinite(square):
                    error[...] = 0.0  # such a step is not applied
                total += square
        return total
