"""Mean gradients of a step that are formed bucket by bucket, as gradients arrive.

They are formed where the new weights of the step will be, so they take no memory of their own, except for those in half
precision and sparse ones. The result is, bit for bit, that of `scavenger.train.aggregation.mean_gradient` with
the same pieces in the same order, except for the sign of zeros of sparse gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.train.aggregation.mean_gradient import SPAN_BYTES, Gradient, united
from scavenger.train.transport.buckets import Bucket, SegmentPart, Values
from scavenger.train.transport.layout import Segment
from scavenger.train.transport.rows import Rows

Array = npt.NDArray[Any]
_SINGLE = np.dtype(np.float32)


class GradientSums:
    """The mean gradients of one aggregator's shard.

    State that the forward pass updates is merged as `ModelShard` merges it from slots: the mean over samples, or the
    value of the first piece.

    Args:
        segments: The shard's segments, by their indices in the layout.
        buckets: The buckets of all shards.
    """

    def __init__(self, segments: dict[int, Segment], buckets: Sequence[Bucket]) -> None:
        self._segments, self._buckets = segments, buckets
        self._targets: dict[int, Array] = {}
        self._rows: dict[SegmentPart, Rows] = {}
        self._first: dict[SegmentPart, Array] = {}
        self.dense: set[int] = set()
        """The segments of which the memory of the new weights has been written to."""

    def begin(self, targets: dict[int, Array]) -> None:
        """Begin the sums of a step.

        Args:
            targets: The new values of each segment, contiguous.
        """
        self._rows.clear()
        self._first.clear()
        self.dense.clear()
        self._targets = {
            number: array.reshape(-1)
            # half precision rounds once, as the gradient of one batch does
            if array.dtype.itemsize >= _SINGLE.itemsize or not self._is_trainable(number)
            else np.empty(array.size, _SINGLE)
            for number, array in targets.items()
        }

    def go_on(self, before: GradientSums) -> None:
        """Go on with the sums of another map of buckets, of segments that are held under both, in the same step."""
        kept = self._segments.keys() & before._segments.keys()
        self._targets |= {number: target for number, target in before._targets.items() if number in kept}
        self._rows |= {part: rows for part, rows in before._rows.items() if part.segment in kept}
        self._first |= {part: first for part, first in before._first.items() if part.segment in kept}
        self.dense |= before.dense & kept

    def add(self, bucket: int, values: Sequence[Values], share: float, *, first: bool) -> None:
        """Add a piece to a bucket.

        Args:
            bucket: Index of the bucket.
            values: Of each part of the bucket.
            share: The piece's share in the samples of the step.
            first: Whether it is the first piece, with which the sum begins.
        """
        with np.errstate(all="ignore"):  # a gradient that is not finite is found in the mean
            for part, value in zip(self._buckets[bucket].parts, values, strict=True):
                target = self._targets[part.segment]
                if not self._is_trainable(part.segment):
                    assert not isinstance(value, Rows)
                    self._merge_state(part, value, share, first=first)
                    continue
                weight = target.dtype.type(share)
                if isinstance(value, Rows):
                    self._add_rows(part, Rows(value.indices, value.values * weight), first=first)
                    continue
                mine = target[part.begin : part.end]
                if first:
                    self._rows.pop(part, None)
                    np.multiply(value, weight, out=mine)
                else:
                    if part in self._rows:
                        self._fill(part)
                    _add_scaled(mine, value, weight)
                self.dense.add(part.segment)

    def _is_trainable(self, number: int) -> bool:
        return self._segments[number].spec.role == "trainable"

    def _merge_state(self, part: SegmentPart, value: Array, share: float, *, first: bool) -> None:
        target = self._targets[part.segment][part.begin : part.end]
        means = self._segments[part.segment].spec.role == "mean"
        if first:
            target[...] = value
            if means:
                self._first[part] = value.copy()
        elif means:
            # computed from differences, so that values that no worker changed (frozen layers) stay bit-identical
            target += share * (value - self._first[part])

    def _add_rows(self, part: SegmentPart, rows: Rows, *, first: bool) -> None:
        before = self._rows.get(part)
        if not first and before is None:  # the sum is dense
            target = self._targets[part.segment][part.begin : part.end].reshape(-1, part.width)
            target[rows.indices - part.begin // part.width] += rows.values
            return
        if first or before is None:
            indices = rows.indices.copy()
            values = np.zeros(rows.values.shape, self._targets[part.segment].dtype)
        else:
            indices = united(before.indices, rows.indices)
            values = np.zeros((len(indices), part.width), before.values.dtype)
            values[np.searchsorted(indices, before.indices)] = before.values
        values[np.searchsorted(indices, rows.indices)] += rows.values
        self._rows[part] = Rows(indices, values)

    def _fill(self, part: SegmentPart) -> None:
        """Make the sum of a part dense."""
        rows = self._rows.pop(part)
        target = self._targets[part.segment][part.begin : part.end].reshape(-1, part.width)
        target[...] = 0
        target[rows.indices - part.begin // part.width] = rows.values
        self.dense.add(part.segment)

    def gradients(self) -> list[Gradient]:
        """Return the mean gradient of each trainable segment, in the order of the layout, when all sums are formed."""
        parts: dict[int, list[SegmentPart]] = {n: [] for n in self._segments if self._is_trainable(n)}
        for bucket in self._buckets:
            for part in bucket.parts:
                if part.segment in parts:
                    parts[part.segment].append(part)
        return [self._gradient(number, parts[number]) for number in sorted(parts)]

    def _gradient(self, number: int, parts: Sequence[SegmentPart]) -> Gradient:
        shape = self._segments[number].spec.shape
        if parts and all(part in self._rows for part in parts):
            rows = [self._rows[part] for part in parts]
            indices = np.concatenate([one.indices for one in rows])
            values = np.concatenate([one.values for one in rows])
            return Rows(indices, values.reshape(-1, *shape[1:]))
        for part in parts:
            if part in self._rows:
                self._fill(part)
        return self._targets[number].reshape(shape)


def _add_scaled(target: Array, value: Array, weight: Any) -> None:
    """Add an array times a number, in spans that stay in the processor's cache."""
    span = SPAN_BYTES // target.dtype.itemsize
    scratch = np.empty(min(span, target.size), target.dtype)
    for at in range(0, target.size, span):
        mine = target[at : at + span]
        np.add(mine, np.multiply(value[at : at + span], weight, out=scratch[: mine.size]), out=mine)
