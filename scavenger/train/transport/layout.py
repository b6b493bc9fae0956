"""The layout of a job's block: where its sections are, and which aggregator holds which bytes of a state section.

A state section begins with the *line*: all tensors of the model, one after the other, the trainable ones first, each
contiguous. The line is cut into *buckets* of a few megabytes, and each bucket has one aggregator that holds it. What a
bucket has of one tensor is a *segment*: all of a small tensor, or some rows, or some elements of a large one.
Aggregators work on segments; workers see whole tensors.
"""

from __future__ import annotations

import itertools
import math
import mmap
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the type bfloat16
import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.elastic.placement import cut, spread
from scavenger.elastic.view import SLOTS_PER_WORKER
from scavenger.train.transport.divisibility import Divisibility, divisibility
from scavenger.train.transport.messages.values import Manifest, RowCounts, TensorSpec
from scavenger.train.transport.rows import row_size, rows_bytes

Array = npt.NDArray[Any]
Ranges = tuple[tuple[int, int], ...]
"""Begin and end of ranges, bytes or elements."""

BUCKET_BYTES = 4 << 20
"""Largest bucket that can be cut. It takes a few milliseconds on a link of 10 Gbit/s, and a model of 1 GB has 250."""

_BUCKETS_PER_AGGREGATOR = 4
"""A small model has smaller buckets, so that several aggregators can hold about as many bytes each."""

_BUCKETS_MAX = 4096
"""About as many buckets a model has at most: one of more than 16 GB has larger ones."""

TENSOR_ALIGNMENT = 64
SECTION_ALIGNMENT = mmap.ALLOCATIONGRANULARITY
_WORKERS_MAX = 4096
_SLOTS_BYTES_MAX = 1 << 45
"""Room for slots, bytes. Slots that no process uses take neither memory nor addresses."""
OPTIMIZER_COPIES_MAX = 16
"""Room for the optimizer's state: so many arrays for each tensor, of its size at most."""
ARRIVAL_PLANES = OPTIMIZER_COPIES_MAX + 4
"""Room for what arrives of buckets that move, in `Layout.plane_bytes`; see `scavenger.train.transport.arrivals`."""
SHARED_BYTES = 64 << 10
"""Room for the optimizer's state that belongs to no tensor, which every aggregator keeps for itself."""
RECORD_BYTES = 64
RECORDS_BYTES = 4096
REPORT_BYTES = 256 << 10
"""Room for the report of a step by `_WORKERS_MAX` workers: up to 43 bytes each, for its name, time and piece."""
MAPS_AT = RECORDS_BYTES + 2 * REPORT_BYTES
MAP_BYTES = 64 << 10
"""Room for a map of buckets."""
HEADER_BYTES = MAPS_AT + 2 * MAP_BYTES


def aligned(size: int, alignment: int = TENSOR_ALIGNMENT) -> int:
    """Round a size up to a multiple of an alignment, bytes."""
    return -(-size // alignment) * alignment


def tensor_bytes(tensor: TensorSpec) -> int:
    """Return the size of a tensor, bytes."""
    return math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Segment:
    """What a bucket has of one tensor.

    Attributes:
        tensor: The tensor's index in the manifest.
        bucket: The bucket's index.
        offset: Where the segment begins in a state section, bytes.
        elements: The range of its elements in the flat tensor.
        spec: The segment as a tensor, with the whole one's path: all of it, some rows, or elements in a row.
        by_rows: Whether it consists of whole rows, so that its gradient may be sparse.
        is_whole: Whether it is all of the tensor.
    """

    tensor: int
    bucket: int
    offset: int
    elements: tuple[int, int]
    spec: TensorSpec
    by_rows: bool
    is_whole: bool

    def of(self, array: Array) -> Array:
        """Return the segment of an array of the tensor's shape: a view, if the array is contiguous."""
        begin, end = self.elements
        return array.reshape(-1)[begin:end].reshape(self.spec.shape)

    @property
    def bytes(self) -> int:
        """Its size without padding."""
        return tensor_bytes(self.spec)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a block. It follows from the manifest, the number of aggregators and the map of buckets to them.

    No offset depends on the map, so all maps of one model and number of aggregators are for the same block.

    Attributes:
        manifest: The model's tensors, metrics and optimizer.
        offsets: Offset of each tensor within a state section, bytes.
        segments: All segments, in the order of the line.
        buckets: The ranges of the line that are its buckets, bytes.
        holders: The aggregator of each bucket.
        parts: For each aggregator, the indices of its segments, ascending.
        part_ranges: For each aggregator, the ranges of a state section that it holds, bytes; none is empty.
        weights_bytes: Size of all tensors in a state section.
        metric_offsets: Offset of each metric variable (float64) within the metric sums, bytes.
        metric_bytes: Size of the metric sums.
        map_number: The number of the map of buckets to aggregators, which only grows.
    """

    manifest: Manifest
    offsets: tuple[int, ...]
    segments: tuple[Segment, ...]
    buckets: Ranges
    holders: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    part_ranges: tuple[Ranges, ...]
    weights_bytes: int
    metric_offsets: tuple[int, ...]
    metric_bytes: int
    map_number: int = 0

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        aggregators: int = 1,
        holders: Sequence[int] | None = None,
        *,
        bucket_bytes: int | None = None,
    ) -> Layout:
        """Compute the layout of a model that is sharded over some aggregators.

        Args:
            manifest: The model.
            aggregators: At least 1.
            holders: The aggregator of each bucket; by default, each holds one run of buckets of about as many bytes.
                If the optimizer needs all gradients at once, it is aggregator 0 for all.
            bucket_bytes: Size of buckets; by default `BUCKET_BYTES`, and less for a small model with several
                aggregators.

        Raises:
            ValueError: If `holders` has another length than there are buckets or names another aggregator, or a shape
                is not one of a tensor that a block can hold.
        """
        tensors, kept = manifest.tensors, divisibility(manifest.optimizer)
        order = sorted(range(len(tensors)), key=lambda i: tensors[i].role != "trainable")
        sizes = [aligned(tensor_bytes(tensors[i])) for i in order]
        begins = (0, *itertools.accumulate(sizes))
        if begins[-1] > _SLOTS_BYTES_MAX or any(dimension < 0 for one in tensors for dimension in one.shape):
            raise ValueError("no model has such tensors")
        bucket_bytes = bucket_bytes or _bucket_bytes(begins[-1], aggregators)
        constrained = {index for index, _ in manifest.constraints}
        units = [
            _unit(tensors[i], bucket_bytes)
            if tensors[i].role != "trainable" or (kept is Divisibility.ELEMENTS and i not in constrained)
            else 0
            for i in order
        ]
        buckets = tuple(itertools.pairwise((0, *cut(sizes, units, bucket_bytes))))
        if holders is None:
            lengths = [end - begin for begin, end in buckets]
            holders = [0] * len(buckets) if kept is Divisibility.MODEL else spread(lengths, aggregators)
        _check_holders(holders, len(buckets), aggregators)
        offsets = dict(zip(order, begins, strict=False))
        segments = tuple(segment for i in order for segment in _segments(i, tensors[i], offsets[i], buckets))
        metric_sizes = [aligned(math.prod(shape) * 8) for shape in manifest.metrics]
        weights_bytes = aligned(max(begins[-1], 1), SECTION_ALIGNMENT)
        metric_bytes = aligned(max(sum(metric_sizes), 1), SECTION_ALIGNMENT)
        return cls(
            manifest=manifest,
            offsets=tuple(offsets[i] for i in range(len(tensors))),
            segments=segments,
            buckets=buckets,
            holders=tuple(holders),
            parts=_parts(segments, holders, aggregators),
            part_ranges=_part_ranges(buckets, holders, aggregators),
            weights_bytes=weights_bytes,
            metric_offsets=tuple(itertools.accumulate(metric_sizes, initial=0))[:-1],
            metric_bytes=metric_bytes,
        )

    def moved(self, holders: Sequence[int], map_number: int) -> Layout:
        """Return the layout of the same block with another map; an aggregator may hold nothing.

        Only who holds a bucket differs: all offsets and the signature are the same.

        Args:
            holders: The aggregator of each bucket.

        Raises:
            ValueError: If `holders` has another length than there are buckets, names another aggregator, or moves
                what has to stay with aggregator 0.
        """
        _check_holders(holders, len(self.buckets), self.aggregators)
        if any(holders) and divisibility(self.manifest.optimizer) is Divisibility.MODEL:
            raise ValueError("the optimizer needs all gradients at once: the model stays with aggregator 0")
        return replace(
            self,
            holders=tuple(holders),
            parts=_parts(self.segments, holders, self.aggregators),
            part_ranges=_part_ranges(self.buckets, holders, self.aggregators),
            map_number=map_number,
        )

    def segments_of(self, tensor: int) -> list[int]:
        """Return the indices of a tensor's segments, ascending; at least one."""
        return [number for number, segment in enumerate(self.segments) if segment.tensor == tensor]

    def saves(self, number: int, count: int) -> bool:
        """Whether so many rows of a segment's gradient can be in a slot alone, and take less of it than all of it."""
        segment = self.segments[number]
        possible = bool(segment.spec.shape) and segment.by_rows
        return possible and 0 <= rows_bytes(segment.spec, count) < segment.bytes

    def accepts(self, rows: RowCounts) -> bool:
        """Whether a slot can have these sparse gradients."""
        numbers = [number for number, _ in rows]
        return numbers == sorted({*numbers}) and all(
            0 <= number < len(self.segments)
            and self.segments[number].spec.role == "trainable"
            and self.saves(number, count)
            for number, count in rows
        )

    def used(self, number: int, count: int | None = None) -> tuple[int, int]:
        """Return where the used part of a segment's place in a slot begins and ends.

        Args:
            number: The segment's index.
            count: The number of rows of a sparse gradient; None for a dense one.
        """
        segment = self.segments[number]
        size = segment.bytes if count is None else rows_bytes(segment.spec, count)
        return segment.offset, segment.offset + aligned(size)

    @property
    def aggregators(self) -> int:
        """Number of aggregators that share the model."""
        return len(self.parts)

    @property
    def workers_max(self) -> int:
        """Number of workers that a job may have at a time."""
        return max(1, min(_WORKERS_MAX, _SLOTS_BYTES_MAX // (SLOTS_PER_WORKER * self.state_bytes)))

    @property
    def slots(self) -> int:
        """Number of slots in the block."""
        return self.workers_max * SLOTS_PER_WORKER

    @property
    def state_bytes(self) -> int:
        """Size of a state section, and of a slot: tensors and metric sums."""
        return self.weights_bytes + self.metric_bytes

    @property
    def total_bytes(self) -> int:
        """Size of a block whose slots are all used."""
        return self.slots_at + self.slots * self.state_bytes

    @property
    def signature(self) -> int:
        """Checksum of all offsets, by which processes notice that they compute different layouts."""
        numbers = (
            *(
                RECORDS_BYTES,
                REPORT_BYTES,
                MAP_BYTES,
                RECORD_BYTES,
                self.aggregators,
                self.weights_bytes,
                self.metric_bytes,
            ),
            *(self.fixed_bytes, self.slots_at, self.slots, *self.offsets, *self.metric_offsets),
            *(number for a_range in self.buckets for number in a_range),
        )
        return zlib.crc32(repr(numbers).encode())

    def state_at(self, step: int) -> int:
        """Return the offset of the state section of a step."""
        return HEADER_BYTES + (step % 2) * self.state_bytes

    @property
    def best_at(self) -> int:
        """Offset of the best weights."""
        return HEADER_BYTES + 2 * self.state_bytes

    @property
    def fixed_bytes(self) -> int:
        """Size of what every process maps: records, state sections and best weights."""
        return self.best_at + self.weights_bytes

    @property
    def slots_at(self) -> int:
        """Offset of the first slot."""
        return self.arrivals_at(self.aggregators)

    def place_of(self, slot: int) -> int:
        """Return the index of a slot in the block. Slot numbers only grow; indices of lost workers are reused.

        Raises:
            IndexError: If the number is negative.
        """
        if slot < 0:
            raise IndexError(f"slot {slot}")
        return slot % self.slots

    def slot_at(self, slot: int) -> int:
        """Return the offset of a slot; see `place_of`."""
        return self.slots_at + self.place_of(slot) * self.state_bytes

    def optimizer_at(self, step: int) -> int:
        """Return the offset of the optimizer's state after a step, where each of its arrays lies along the line."""
        return self.fixed_bytes + step % 2 * OPTIMIZER_COPIES_MAX * self.weights_bytes

    def shared_at(self, aggregator: int) -> int:
        """Return the offset of an aggregator's copies, for even and odd steps, of state that belongs to no tensor."""
        begin = self.fixed_bytes + 2 * OPTIMIZER_COPIES_MAX * self.weights_bytes
        return begin + aggregator * aligned(2 * SHARED_BYTES, SECTION_ALIGNMENT)

    def arrivals_at(self, aggregator: int) -> int:
        """Return the offset of the memory in which buckets arrive that an aggregator is to hold."""
        return self.shared_at(self.aggregators) + aggregator * ARRIVAL_PLANES * self.plane_bytes

    @property
    def plane_bytes(self) -> int:
        """Size of a plane of what arrives."""
        return max(self.weights_bytes, aligned(SHARED_BYTES, SECTION_ALIGNMENT))


def _check_holders(holders: Sequence[int], buckets: int, aggregators: int) -> None:
    if len(holders) != buckets or not {*holders} <= {*range(aggregators)}:
        raise ValueError(f"{holders} does not name one of {aggregators} aggregators for {buckets} buckets")


def _parts(
    segments: Sequence[Segment], holders: Sequence[int], aggregators: int
) -> tuple[tuple[int, ...], ...]:
    """Return the indices of each aggregator's segments."""
    parts: list[list[int]] = [[] for _ in range(aggregators)]
    for number, segment in enumerate(segments):
        parts[holders[segment.bucket]].append(number)
    return tuple(map(tuple, parts))


def _part_ranges(buckets: Ranges, holders: Sequence[int], aggregators: int) -> tuple[Ranges, ...]:
    """Return the ranges of a state section that each aggregator holds."""
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(aggregators)]
    for place, holder in zip(buckets, holders, strict=True):
        ranges[holder].append(place)
    return tuple(map(joined, ranges))


def _bucket_bytes(line_bytes: int, aggregators: int) -> int:
    if aggregators > 1 and line_bytes < aggregators * _BUCKETS_PER_AGGREGATOR * BUCKET_BYTES:
        return max(1, -(-line_bytes // (aggregators * _BUCKETS_PER_AGGREGATOR)))
    return max(BUCKET_BYTES, line_bytes // _BUCKETS_MAX)


def _unit(tensor: TensorSpec, bucket_bytes: int) -> int:
    """Return the bytes at multiples of which a tensor may be cut: whole rows, unless they are too long for buckets."""
    row_bytes = row_size(tensor) * np.dtype(tensor.dtype).itemsize
    rows = math.lcm(row_bytes, TENSOR_ALIGNMENT) if tensor.shape else 0
    return rows if 0 < rows <= bucket_bytes else TENSOR_ALIGNMENT


def _segments(index: int, tensor: TensorSpec, offset: int, buckets: Ranges) -> list[Segment]:
    """Return the segments of a tensor at an offset of the line."""
    itemsize, size, row = np.dtype(tensor.dtype).itemsize, math.prod(tensor.shape), row_size(tensor)
    found: list[Segment] = []
    bucket = min(bisect_right(buckets, offset, key=lambda a_range: a_range[1]), len(buckets) - 1)
    begin = 0
    while begin < size or not found:
        end = min((buckets[bucket][1] - offset) // itemsize, size)
        is_whole = (begin, end) == (0, size)
        by_rows = is_whole or (row > 0 and begin % row == end % row == 0)
        shape = (
            tensor.shape
            if is_whole
            else ((end - begin) // row, *tensor.shape[1:])
            if by_rows
            else (end - begin,)
        )
        spec = msgspec.structs.replace(tensor, shape=shape)
        found.append(Segment(index, bucket, offset + begin * itemsize, (begin, end), spec, by_rows, is_whole))
        begin, bucket = end, bucket + 1
    return found


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Join ranges that follow each other without a gap; leave out empty ones."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        if begin < end:
            found.append((begin, end))
    return tuple(found)
