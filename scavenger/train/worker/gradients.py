"""Gradients of a share as TensorFlow computes them and as aggregators read them, dense or as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.train.norms import total_sqnorm
from scavenger.train.transport.rows import Rows

Array = npt.NDArray[Any]

_ALIGNMENT = 64  # bytes; TensorFlow's kernels crash on tensors whose memory is not aligned
_SPARSE_FROM = 1 << 18
"""Elements of the smallest tensor whose gradient is kept sparse: filling in the zeros of a smaller one takes less time
than the calls that this avoids."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Results of one share of a step.

    Attributes:
        gradients: One per trainable tensor: sparse if the model only looks up some of its rows.
        states: One per other tensor, as the forward pass left it.
        metrics: One per metric variable, over these samples alone.
        loss: Mean over these samples.
        half_sqnorm: Mean of |g|^2 over the two halves of the samples; 0 if the gradient noise was not measured.
    """

    gradients: Sequence[Array | Rows]
    states: Sequence[Array]
    metrics: Sequence[Array]
    loss: float
    half_sqnorm: float = 0.0


def merged(gradient: Any, variable: Any) -> Any:
    """Return a gradient with each row once if it is sparse, and dense if its tensor is small."""
    if not isinstance(gradient, tf.IndexedSlices) or variable.shape.num_elements() < _SPARSE_FROM:
        return tf.convert_to_tensor(gradient)
    return _summed(
        gradient.values, tf.cast(gradient.indices, tf.int64), tf.constant(variable.shape.as_list(), tf.int64)
    )


def _summed(values: Any, indices: Any, shape: Any) -> Any:
    """Return a sparse gradient whose rows of the same index are added, as TensorFlow does where it makes it dense."""
    once, owners = tf.unique(indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(values, owners, tf.size(once)), once, shape)


def sqnorm_of(gradients: Sequence[Array | Rows]) -> float:
    given = (g.values if isinstance(g, Rows) else g for g in gradients)
    return sum(total_sqnorm(values) for values in given)


def shared(array: Array) -> Any:
    """Return a tensor that shares the array's memory, or the array if TensorFlow cannot share it."""
    if array.ctypes.data % _ALIGNMENT or array.size == 0:
        return array
    try:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    except (BufferError, TypeError, RuntimeError, ValueError, tf.errors.OpError):
        return array


def rows_of(gradient: Any) -> Rows:
    """Return the rows of a sparse gradient in ascending order."""
    indices, values = seen(gradient.indices), seen(gradient.values)
    order = np.argsort(indices)
    # a GPU looks up zeros for an index that the tensor does not have, and such a row has no gradient
    inside = slice(*np.searchsorted(indices, (0, int(gradient.dense_shape[0])), sorter=order))
    return Rows(indices[order[inside]], values[order[inside]])


def seen(tensor: Any) -> Array:
    """Return a tensor's values, without a copy if they are in main memory."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, TypeError, RuntimeError, ValueError, AttributeError, tf.errors.OpError):
        value: Array = tensor.numpy()
        return value
