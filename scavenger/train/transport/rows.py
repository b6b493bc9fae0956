"""Sparse gradients: the rows of a tensor's gradient that some sample has touched, and their place in a slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scavenger.train.transport.messages.values import TensorSpec

Array = npt.NDArray[Any]
_INDEX = np.dtype(np.int64)


class Rows(NamedTuple):
    """A gradient of which only some rows are given; all others are zero.

    Attributes:
        indices: Which rows, ascending, each once; int64, shape `(n,)`.
        values: Those rows, shape `(n, *shape[1:])` for a tensor of shape `shape`.
    """

    indices: Array
    values: Array

    def between(self, first: int, last: int) -> Rows:
        """Return the rows from `first` to before `last`, as views, with indices that count from `first`."""
        begin, end = np.searchsorted(self.indices, (first, last))
        return Rows(self.indices[begin:end] - first, self.values[begin:end])

    def write_dense(self, target: Array) -> None:
        """Write the whole gradient to an array of the tensor's shape."""
        target[...] = 0
        target[self.indices] = self.values

    def dense(self, shape: Sequence[int]) -> Array:
        """Return the whole gradient of a tensor of this shape."""
        target = np.empty(shape, self.values.dtype)
        self.write_dense(target)
        return target


def row_size(tensor: TensorSpec) -> int:
    """Return the number of elements of one row."""
    return math.prod(tensor.shape[1:])


def rows_bytes(tensor: TensorSpec, count: int) -> int:
    """Return what so many rows take in a slot: first the indices, then the values."""
    return count * (_INDEX.itemsize + row_size(tensor) * np.dtype(tensor.dtype).itemsize)


def rows_view(data: memoryview, tensor: TensorSpec, count: int) -> Rows:
    """Return views of `count` rows in the bytes of a slot, which begin with the tensor's place."""
    values = np.frombuffer(data, tensor.dtype, count * row_size(tensor), offset=count * _INDEX.itemsize)
    return Rows(np.frombuffer(data, _INDEX, count), values.reshape(count, *tensor.shape[1:]))
