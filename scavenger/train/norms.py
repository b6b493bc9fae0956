"""Squared norms of gradients in blocks that stay in the processor's cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BLOCK_BYTES = 256 * 1024
"""Size of the blocks that `copied_sqnorm` reads twice, the second time from the cache."""

_ROW = 4096
"""Elements whose squares are summed in single precision before double precision takes over; also short enough
that the linear-algebra library starts no threads of its own."""

_TINY = 1e-30
"""Below it the squares of a single-precision sum may have been lost to underflow."""

_LESS = 2.0**64
"""Gradients whose squares are too large are divided by it: what is then too small to count is far below the others."""


def copied_sqnorm(source: Array, target: Array) -> float:
    """Copy an array to a contiguous one of the same shape, and return |x|² of the copy."""
    if not source.flags.c_contiguous:
        source = np.ascontiguousarray(source)
    given, taken, total = source.reshape(-1), target.reshape(-1), 0.0
    size = BLOCK_BYTES // target.dtype.itemsize
    for at in range(0, taken.size, size):
        block = taken[at : at + size]
        np.copyto(block, given[at : at + size])
        total += sqnorm(block)
    return total


def total_sqnorm(array: Array, less: Array | None = None) -> float:
    """Compute |x|² of an array of any size, or of its difference from another one of its shape."""
    given, total = array.reshape(-1), 0.0
    taken = None if less is None else less.reshape(-1)
    size = BLOCK_BYTES // array.dtype.itemsize
    for at in range(0, given.size, size):
        block = given[at : at + size]
        total += sqnorm(block if taken is None else block - taken[at : at + size])
    return total


def sqnorm(block: Array) -> float:
    """Compute |x|² of a flat block, correct even if single precision would overflow or underflow."""
    if not block.size:
        return 0.0  # a sparse gradient without rows
    if block.dtype.itemsize < np.dtype(np.float32).itemsize:
        block = block.astype(np.float32)
    square = _sum_of_squares(block)
    if block.dtype != np.float32 or _TINY < square < math.inf or math.isnan(square):
        return square
    if square == 0.0 and block.max() == 0.0 == block.min():
        return 0.0  # common in embeddings only, where a batch uses few rows and most blocks are zero
    if math.isinf(square):
        # a power of two changes no digit, and stays in single precision, which takes half of the time
        square = _sum_of_squares(block * np.float32(1.0 / _LESS)) * _LESS**2
        if square < math.inf:
            return square
    return _sum_of_squares(block.astype(np.float64))


def _sum_of_squares(block: Array) -> float:
    whole = len(block) - len(block) % _ROW
    rows, rest = block[:whole].reshape(-1, _ROW), block[whole:]
    square = float(np.vecdot(rows, rows).sum(dtype=np.float64))
    if len(rest):  # rare; this call costs as much as a third of a block
        square += float(np.vecdot(rest, rest))
    return square
