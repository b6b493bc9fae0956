"""Buckets of a gradient: what a worker sends at a time to an aggregator that does not share its memory.

They are the same for all pieces and all maps of buckets to aggregators, so their numbers have one meaning for all
processes. Each lies within a bucket of the layout: a run of small segments, or a part of one that
cannot be cut for the optimizer's sake; adding gradients is possible element by element. Parts of a segment with rows
consist of whole rows, so that a bucket of a sparse gradient is those of its rows that are in the part. State that the
forward pass updates has buckets, too. The buckets of metric sums, which are small, are not summed but stored.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scavenger.train.transport.layout import BUCKET_BYTES, Layout
from scavenger.train.transport.messages.values import Manifest, RowCounts
from scavenger.train.transport.rows import Rows, row_size
from scavenger.train.transport.shared_memory import Block

_BUDGET_BYTES_MIN = 32 << 20
_BUDGET_SHARE = 4
"""An aggregator keeps up to one part in so many of its model shard of gradients that wait for their turn."""
_INDEX = np.dtype(np.int64)
_DENSE, _SHORT = -1, -2
"""Instead of a number of rows: all elements, or the upper halves of those that are numbers of the type bfloat16."""
_ROUNDED_FROM = 4096
"""Elements of the smallest tensor whose gradient is rounded: smaller ones are a few bytes, as those of BatchNorm."""
_ALIGNMENT = 8

Values = npt.NDArray[np.generic] | Rows
"""A part of a gradient: its elements, flat, or its rows, with their indices in the segment."""


class SegmentPart(NamedTuple):
    """Elements `begin` to `end` of a segment, at a byte offset of a state section; `width` is not 0 for whole rows."""

    segment: int
    begin: int
    end: int
    offset: int
    dtype: np.dtype[np.generic]
    width: int

    @property
    def bytes(self) -> int:
        """Size of the elements."""
        return (self.end - self.begin) * self.dtype.itemsize


class Bucket(NamedTuple):
    """Bytes `begin` to `end` of a state section: `parts` to be summed, or, without parts, bytes to be stored.

    Those with parts are within the bucket of the layout of index `place`.
    """

    begin: int
    end: int
    parts: tuple[SegmentPart, ...] = ()
    place: int = -1

    @property
    def bytes(self) -> int:
        """Size of a dense gradient's bucket, the largest."""
        return self.end - self.begin


def rounded_tensors(manifest: Manifest) -> frozenset[int]:
    """Return the indices of the tensors whose dense gradients a job with `gradients: bfloat16` rounds.

    Those of embeddings are not among them: a row has few gradients, so that little makes up for what is rounded off.
    """
    return frozenset(
        index
        for index, one in enumerate(manifest.tensors)
        if one.role == "trainable"
        and one.dtype == "float32"
        and len(one.shape) > 1
        and math.prod(one.shape) >= _ROUNDED_FROM
        and "embedding" not in one.path.lower()
    )


def buckets(layout: Layout) -> tuple[Bucket, ...]:
    """Return the buckets of all aggregators."""
    # trainable segments come first
    found: list[Bucket] = []
    for number, segment in enumerate(layout.segments):
        for part in _parts(layout, number):
            last = found[-1] if found else None
            end = part.offset + part.bytes
            if last and last.place == segment.bucket and end - last.begin <= BUCKET_BYTES:
                found[-1] = Bucket(last.begin, end, (*last.parts, part), last.place)
            else:
                found.append(Bucket(part.offset, end, (part,), segment.bucket))
    if layout.manifest.metrics:
        ends = range(layout.weights_bytes, layout.state_bytes, BUCKET_BYTES)
        found += (Bucket(at, min(at + BUCKET_BYTES, layout.state_bytes)) for at in ends)
    return tuple(found)


def numbers_of(layout: Layout, every: Sequence[Bucket], index: int) -> tuple[int, ...]:
    """Return the indices of the buckets that an aggregator holds, ascending; the first has those of the metric sums."""
    holders = (*layout.holders, 0)
    return tuple(number for number, one in enumerate(every) if holders[one.place] == index)


def _parts(layout: Layout, number: int) -> Iterator[SegmentPart]:
    segment = layout.segments[number]
    spec = segment.spec
    dtype, size = np.dtype(spec.dtype), math.prod(spec.shape)
    width = row_size(spec) if spec.shape and segment.by_rows else 0
    if not 0 < width * dtype.itemsize <= BUCKET_BYTES:
        width = 0
    unit = width or 1
    # parts begin at aligned addresses, unless a row's length is none
    longest = max(1, BUCKET_BYTES // (unit * dtype.itemsize)) * unit
    for at in range(0, size, longest):
        offset = segment.offset + at * dtype.itemsize
        yield SegmentPart(number, at, min(at + longest, size), offset, dtype, width)


def budget_bytes(layout: Layout, index: int) -> int:
    """Return how much of gradients an aggregator has on their way to it or waiting for their turn, whatever K is."""
    shard_bytes = sum(end - begin for begin, end in layout.part_ranges[index])
    return max(_BUDGET_BYTES_MIN, shard_bytes // _BUDGET_SHARE)


def read(block: Block, slot_at: int, rows: RowCounts, bucket: Bucket) -> list[Values]:
    """Return the parts of a bucket in a slot, without copies where they are dense."""
    counts, found = dict(rows), list[Values]()
    for part in bucket.parts:
        if part.segment not in counts:
            found.append(np.frombuffer(block.range(slot_at + part.offset, part.bytes), part.dtype))
            continue
        every = block.rows(slot_at, part.segment, counts[part.segment])
        if part.width:
            ends = part.begin // part.width, part.end // part.width
            inside = slice(*np.searchsorted(every.indices, ends))
            found.append(Rows(every.indices[inside], every.values[inside].reshape(-1, part.width)))
        else:
            found.append(_dense_part(every, part))
    return found


def _dense_part(rows: Rows, part: SegmentPart) -> npt.NDArray[np.generic]:
    """Return a part, which does not consist of whole rows, of a sparse gradient."""
    target: npt.NDArray[np.generic] = np.zeros(part.end - part.begin, part.dtype)
    for index, values in zip(rows.indices, rows.values, strict=True):
        flat = values.reshape(-1)
        first = int(index) * flat.size
        low, high = max(first, part.begin), min(first + flat.size, part.end)
        if low < high:
            target[low - part.begin : high - part.begin] = flat[low - first : high - first]
    return target


def packed(
    block: Block, slot_at: int, rows: RowCounts, bucket: Bucket, rounded: Collection[int] = ()
) -> tuple[tuple[int, ...], memoryview | bytes]:
    """Return what is sent of a bucket in a slot: for each part the number of its rows, or a form, and the bytes.

    Of a bucket without sparse or rounded gradients, these are no numbers and the bytes of the slot, which are not
    copied.

    Args:
        rounded: Segments in single precision whose values may be numbers of the type bfloat16. Whether they are is
            looked at: a gradient that is too full to be sparse is dense, and not rounded.
    """
    sparse = {number for number, _ in rows}
    if not any(part.segment in sparse or part.segment in rounded for part in bucket.parts):
        return (), block.range(slot_at + bucket.begin, bucket.bytes)
    counts, pieces = list[int](), list[bytes]()
    for part, values in zip(bucket.parts, read(block, slot_at, rows, bucket), strict=True):
        if isinstance(values, Rows) and values.indices.nbytes + values.values.nbytes >= part.bytes:
            whole = np.zeros(((part.end - part.begin) // part.width, part.width), part.dtype)
            whole[values.indices - part.begin // part.width] = values.values
            values = whole.reshape(-1)
        if isinstance(values, Rows):
            counts.append(len(values.indices))
            data = values.indices.tobytes() + values.values.tobytes()
        elif part.segment in rounded and not values.view("<u2")[::2].any():
            counts.append(_SHORT)
            data = values.view("<u2")[1::2].tobytes()
        else:
            counts.append(_DENSE)
            data = values.tobytes()
        pieces.append(data.ljust(_padded(len(data)), b"\0"))
    return tuple(counts), b"".join(pieces)


def unpacked(bucket: Bucket, counts: Sequence[int], payload: bytes) -> list[Values]:
    """Return the parts of a bucket that was sent, as views.

    Raises:
        ValueError: If the bytes are not those of such a bucket.
    """
    if not counts:
        if len(payload) != bucket.bytes:
            raise ValueError(f"{len(payload)} bytes are no bucket of {bucket.bytes}")
        return [
            np.frombuffer(payload, part.dtype, part.end - part.begin, part.offset - bucket.begin)
            for part in bucket.parts
        ]
    found, at = list[Values](), 0
    for part, count in zip(bucket.parts, counts, strict=True):
        if count == _SHORT:
            if part.dtype != np.float32:
                raise ValueError("only gradients in single precision are rounded")
            short = np.frombuffer(payload, "<u2", part.end - part.begin, at)
            found.append((short.astype(np.uint32) << 16).view(np.float32))
            at += _padded(short.nbytes)
            continue
        if count < 0:
            found.append(np.frombuffer(payload, part.dtype, part.end - part.begin, at))
            at += _padded(part.bytes)
            continue
        if not part.width:
            raise ValueError("a part that does not consist of rows has none")
        indices = np.frombuffer(payload, _INDEX, count, at)
        values = np.frombuffer(payload, part.dtype, count * part.width, at + indices.nbytes)
        inside = (
            not count
            or part.begin <= int(indices[0]) * part.width <= int(indices[-1]) * part.width < part.end
        )
        if not inside or (np.diff(indices) <= 0).any():
            raise ValueError("rows outside of their bucket, or not in order")
        found.append(Rows(indices, values.reshape(-1, part.width)))
        at += _padded(indices.nbytes + values.nbytes)
    if at != len(payload):
        raise ValueError(f"{len(payload)} bytes instead of {at}")
    return found


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
