"""The mean gradient of a step and its norms, formed span by span.

A span is a part of one tensor that stays in the processor's cache from the first read of the gradients to the write of
the new weights: a range of its elements, or some of its rows if nothing else of the tensor has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scavenger.train.aggregation.kernels import Array
from scavenger.train.norms import sqnorm
from scavenger.train.transport.messages.values import TensorSpec
from scavenger.train.transport.rows import Rows, row_size

Gradient = Array | Rows
Contribution = tuple[int, Sequence[Gradient]]
"""Number of samples, and one gradient per trainable tensor of the shard."""

SPAN_BYTES = 256 * 1024
"""Largest span of one array. Smaller spans suffer from NumPy's cost per call and from contention for the interpreter
lock, larger ones from cache misses: Adam over 25 million parameters, two threads, took 114 ms with 32 KiB, 52 with
128, 41 with 256, 43 with 512."""

_ROWS_MIN = 4
"""A span has at least so many rows. Longer ones, which no table has, would leave much of it empty."""


@dataclass(frozen=True, slots=True)
class Norms:
    """The norm of a step's mean gradient, over the tensors of one shard, in double precision.

    A gradient that is not finite leaves a mean that is not.

    Attributes:
        mean_sqnorm: |g|² of the mean gradient.
        finite: Whether every gradient was finite. If not, the new weights and slots are invalid.
    """

    mean_sqnorm: float
    finite: bool


class ElementSpan(NamedTuple):
    """Elements of one tensor that are computed at a time, as a flat array.

    Attributes:
        tensor: Index of the tensor.
        elements: The range of its elements; with `rows`, the range of the elements of these rows.
        width: Elements of a row, if the span consists of whole rows; else 0.
        rows: Indices of the rows, ascending; None for a range.
    """

    tensor: int
    elements: slice
    width: int
    rows: Array | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.elements.stop - self.elements.start)

    def read(self, whole: Array) -> Array:
        """Return the span's elements of a flat array of the tensor's size: a view of a range, or a copy of rows."""
        if self.rows is None:
            return whole[self.elements]
        return whole.reshape(-1, self.width).take(self.rows, axis=0).reshape(-1)

    def write(self, whole: Array, values: Array) -> None:
        """Write the rows of a span that has `rows`."""
        whole.reshape(-1, self.width)[self.rows] = values.reshape(-1, self.width)

    def find(self, gradient: Rows) -> tuple[Array, Array]:
        """Return the rows of a sparse gradient that are in this span, as places in the span and values."""
        if self.rows is None:
            ends = self.elements.start // self.width, self.elements.stop // self.width
        else:
            ends = self.rows[0], self.rows[-1] + 1
        found = slice(*np.searchsorted(gradient.indices, ends))
        indices = gradient.indices[found]
        places = indices - ends[0] if self.rows is None else np.searchsorted(self.rows, indices)
        return places, gradient.values[found].reshape(-1, self.width)


def spans(number: int, tensor: TensorSpec) -> Iterator[ElementSpan]:
    """Cut a tensor into ranges as long as can be, which is the quickest way if its gradients are dense."""
    return _cut(number, tensor, _longest(tensor))


def spans_of_rows(number: int, tensor: TensorSpec, rows: Array | None) -> Iterator[ElementSpan]:
    """Cut a tensor, or some rows of it, into spans of whole rows, as sparse gradients need; see `has_short_rows`."""
    width = row_size(tensor)
    count = _longest(tensor) // width
    if rows is None:
        yield from _cut(number, tensor, count * width, width)
        return
    for at in range(0, len(rows), count):
        some = rows[at : at + count]
        yield ElementSpan(number, slice(0, len(some) * width), width, some)


def has_short_rows(tensor: TensorSpec) -> bool:
    """Whether whole rows of this tensor can fill a span."""
    return bool(tensor.shape) and 0 < row_size(tensor) <= _longest(tensor) // _ROWS_MIN


def _longest(tensor: TensorSpec) -> int:
    return SPAN_BYTES // np.dtype(tensor.dtype).itemsize


def _cut(number: int, tensor: TensorSpec, longest: int, width: int = 0) -> Iterator[ElementSpan]:
    size = math.prod(tensor.shape)
    for at in range(0, size, longest):
        yield ElementSpan(number, slice(at, min(at + longest, size)), width)


def touched(gradients: Sequence[Gradient]) -> Array | None:
    """Return the rows, ascending, that any of these gradients of one tensor has; None for all, if one is dense."""
    indices = [gradient.indices for gradient in gradients if isinstance(gradient, Rows)]
    return united(*indices) if len(indices) == len(gradients) else None


def united(*indices: Array) -> Array:
    """Return the indices that are in any of some ascending arrays, ascending, each once; always a copy."""
    every = np.sort(
        np.concatenate(indices), kind="stable"
    )  # merges them; `np.unique` hashes, which takes far longer
    new = np.ones(len(every), bool)
    np.not_equal(every[1:], every[:-1], out=new[1:])
    return every[new]


class Mean:
    """Computes a step's mean gradient, span by span, and the norms.

    Args:
        spans: The spans, which cover every row that has a gradient. They have a `width` where a gradient is sparse, and
            `rows` only where all are.
        contributions: The contributions; those without samples are skipped.

    Attributes:
        squares: |g|² of the mean over each span. Kept separately, so that sums do not depend on the order of the
            threads.

    Raises:
        ValueError: If no contribution has samples.
    """

    def __init__(self, spans: Sequence[ElementSpan], contributions: Sequence[Contribution]) -> None:
        total = sum(samples for samples, _ in contributions)
        if not total:
            raise ValueError("no contribution has samples")
        counted = [(samples, gradients) for samples, gradients in contributions if samples > 0]
        self._spans = spans
        self._shares = np.array([samples / total for samples, _ in counted])
        self._gradients = [[_flat(gradient) for gradient in gradients] for _, gradients in counted]
        self.squares = np.zeros(len(spans))

    def form(self, index: int, out: Array, t: Array) -> None:
        """Write the mean over a span to `out`; `t` is scratch space."""
        span, zero = self._spans[index], True
        # half precision rounds once, as the gradient of one batch does
        half = out.dtype.itemsize < np.dtype(np.float32).itemsize
        total = np.empty(out.shape, np.float32) if half else out
        for k, gradients in enumerate(self._gradients):
            gradient, share = gradients[span.tensor], total.dtype.type(self._shares[k])
            if isinstance(gradient, Rows):
                if k == 0:
                    total.fill(0)
                places, values = span.find(gradient)
                if len(places):
                    total.reshape(-1, span.width)[places] += values * share
                    zero = False
                continue
            block, zero = gradient[span.elements], False
            if k == 0:
                np.multiply(block, share, out=total)
            else:
                np.add(total, np.multiply(block, share, out=None if half else t), out=total)
        if half:
            out[...] = total
        self.squares[index] = 0.0 if zero else sqnorm(out)

    def norms(self) -> Norms:
        """Return the norms; call this after `form` for every span."""
        mean = float(self.squares.sum())
        return Norms(mean, math.isfinite(mean))


def _flat(gradient: Gradient) -> Gradient:
    return gradient if isinstance(gradient, Rows) else gradient.reshape(-1)
