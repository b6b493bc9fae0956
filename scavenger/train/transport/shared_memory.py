"""The shared-memory block of a job: weights, optimizer state, gradients and metric sums.

The block is an anonymous file in memory. It has no name in any file system; processes of the job inherit its
descriptor. When the last of them ends, however it ends, the kernel frees the block, so no memory can leak. As long
as one process lives, so does the block: a restarted aggregator continues with the state that the previous one left.

Layout, every section aligned to 4096 bytes, every tensor to 64::

    | signature, records | state, even steps | odd steps | best weights | optimizer of part 0 | ... | slot 0 | ...

A state section holds all tensors (`scavenger.train.transport.layout`), and then the epoch's metric sums so far. The
state after step s is written to the other section than that after step s - 1, which stays intact until the *record* of
step s marks s as complete. A slot holds gradients (at the trainable tensors' offsets), updated state and metric
variables. A sparse gradient uses the beginning of each segment's place, for the indices of the rows that it has of the
segment and then these rows; how many they are is told by messages. The file is sparse: pages that no process has
written take no memory. It ends with the last slot that a process has used, and each process maps only the slots that it
uses: limits on file sizes and on the address space of a process (`ulimit -f`, `ulimit -v`) concern what a job needs,
not what it could need.

The block begins with a signature of its layout. A process that computes another layout, because the program was
replaced by another version while the job ran, is refused: it would read and write in the wrong places.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import SLOTS_PER_WORKER, Position
from scavenger.errors import NotSupportedError
from scavenger.train.transport.layout import (
    HEADER_BYTES,
    MAP_BYTES,
    MAPS_AT,
    OPTIMIZER_COPIES_MAX,
    RECORD_BYTES,
    RECORDS_BYTES,
    REPORT_BYTES,
    SHARED_BYTES,
    TENSOR_ALIGNMENT,
    Layout,
    Segment,
    aligned,
    joined,
    tensor_bytes,
)
from scavenger.train.transport.messages.values import RowCounts, SlotSpec
from scavenger.train.transport.rows import Rows, row_size, rows_view

Array = npt.NDArray[Any]
_enlarging = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """The job's progress; the sequencer writes it when every aggregator has applied the step.

    Attributes:
        step: The last step that all aggregators have applied.
        position: The position in the data after that step.
        number: The number of the newest view.
        best_step: The step whose weights are kept as the best; 0 for none.
        rate_scale: The learning rate that callbacks have set, over the one that the model was compiled with.
    """

    step: int = 0
    position: Position = field(default_factory=Position)
    number: int = 0
    best_step: int = 0
    rate_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class PartRecord:
    """The progress of one aggregator's model shard.

    Attributes:
        step: The last step that the aggregator has applied.
        view: The number of the view under which it was applied.
        number: The number of the list of pieces in that view.
        mean_sqnorm: Squared norm of the mean gradient in that step, over this shard.
    """

    step: int = 0
    view: int = 0
    number: int = 0
    mean_sqnorm: float = 0.0


_JOB = struct.Struct("<QQQQQdI")
_PART = struct.Struct("<QQQdI")
_SIGNATURE = struct.Struct("<II")
_LENGTH = struct.Struct("<II")
_MAP = struct.Struct("<QQII")
BUCKETS_MAX = (MAP_BYTES - _MAP.size) // 2
"""Most buckets of which a map can be recorded."""


class Block:
    """A memory-mapped block; its arrays are views without copies.

    Args:
        fd: Descriptor of the block; the caller keeps it open.
        layout: The layout. A smaller block is enlarged as sections and slots are used.

    Raises:
        NotSupportedError: If another version of the program uses the block with another layout.
        OSError: If the memory cannot be allocated.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout, self._fd = layout, fd
        self._map = map_block(fd, 0, layout.fixed_bytes)
        self._slots: dict[int, mmap.mmap] = {}
        signature = _SIGNATURE.pack(layout.signature, 1)
        # the processes of one job write the same signature, so it does not matter which is the first
        if self._map[: _SIGNATURE.size] == bytes(_SIGNATURE.size):
            self._map[: _SIGNATURE.size] = signature
        elif self._map[: _SIGNATURE.size] != signature:
            raise NotSupportedError(
                "this process runs another version of Scavenger than the job's other processes: it was replaced "
                "while the job ran. Stop the job and resume it from its last checkpoint"
            )

    def _mapped_at(self, offset: int) -> tuple[mmap.mmap, int]:
        """Return the mapping of the section or slot at an offset, mapped on first use, and the offset within it."""
        if offset < self.layout.fixed_bytes:
            return self._map, offset
        index, within = divmod(offset - self.layout.slots_at, self.layout.state_bytes)
        if index not in self._slots:
            self._slots[index] = map_block(self._fd, offset - within, self.layout.state_bytes)
        return self._slots[index], within

    def tensors(self, offset: int, indices: Sequence[int] | None = None) -> list[Array]:
        """Return views of all or some tensors of the section at `offset`, in the manifest's order."""
        chosen = range(len(self.layout.offsets)) if indices is None else indices
        specs = self.layout.manifest.tensors
        mapped, begin = self._mapped_at(offset)
        return [
            _view(mapped, begin + self.layout.offsets[i], specs[i].shape, np.dtype(specs[i].dtype))
            for i in chosen
        ]

    def segments(self, offset: int, numbers: Sequence[int]) -> list[Array]:
        """Return views of some segments of the section at `offset`, by their indices in the layout."""
        mapped, begin = self._mapped_at(offset)
        return [
            _view(mapped, begin + one.offset, one.spec.shape, np.dtype(one.spec.dtype))
            for one in map(self.layout.segments.__getitem__, numbers)
        ]

    def rows(self, offset: int, number: int, count: int) -> Rows:
        """Return views of the `count` rows of segment `number`'s sparse gradient in the slot at `offset`.

        Their indices count from the segment's first row.
        """
        segment = self.layout.segments[number]
        return rows_view(self.range(offset + segment.offset, segment.bytes), segment.spec, count)

    def write_sparse(self, offset: int, tensor: int, gradient: Rows) -> RowCounts:
        """Write a tensor's sparse gradient to the slot at `offset`; returns which segments have rows alone there."""
        segments, counts = self.layout.segments, list[tuple[int, int]]()
        numbers = self.layout.segments_of(tensor)
        if not all(segments[number].by_rows for number in numbers):
            gradient.write_dense(*self.tensors(offset, [tensor]))
            return ()
        width = max(1, row_size(self.layout.manifest.tensors[tensor]))
        for number in numbers:
            first, last = (at // width for at in segments[number].elements)
            some = gradient if segments[number].is_whole else gradient.between(first, last)
            if self.layout.saves(number, len(some.indices)):
                counts.append((number, len(some.indices)))
                for place, part in zip(self.rows(offset, *counts[-1]), some, strict=True):
                    np.copyto(place, part)
            else:
                some.write_dense(*self.segments(offset, [number]))
        return tuple(counts)

    def metrics(self, offset: int) -> list[npt.NDArray[np.float64]]:
        """Return views of the metric sums of the state section or slot at `offset`."""
        mapped, begin = self._mapped_at(offset)
        return [
            _view(mapped, begin + self.layout.weights_bytes + at, shape, np.dtype(np.float64))
            for at, shape in zip(self.layout.metric_offsets, self.layout.manifest.metrics, strict=True)
        ]

    def range(self, offset: int, size: int) -> memoryview:
        """Return a range of bytes of the sections or of one slot, which can be read or written in place."""
        mapped, begin = self._mapped_at(offset)
        return memoryview(mapped)[begin : begin + size]

    def touch(self, offset: int, size: int) -> None:
        """Map the pages of a range now, so that their first use does not wait for it.

        100 MB take 0.25 s if no process has used them before, and 0.05 s if another has.
        """
        mapped, begin = self._mapped_at(offset)
        np.frombuffer(mapped, np.uint8, size, begin)[:: mmap.PAGESIZE].max(initial=0)

    def release_slots(self, first: int) -> None:
        """Free the memory of a worker's slots, beginning with slot `first`, when the worker is gone."""
        if not hasattr(mmap, "MADV_REMOVE"):
            return
        for slot in range(first, first + SLOTS_PER_WORKER):
            begin = self.layout.slot_at(slot)
            if begin >= os.fstat(self._fd).st_size:  # never used
                return
            self._mapped_at(begin)[0].madvise(mmap.MADV_REMOVE)
            self._slots.pop(self.layout.place_of(slot), None)  # views of it may still be held

    def unmap_slots(self, first: int) -> None:
        """Give up the mappings of a worker's slots, each of which takes a descriptor; they are mapped again when used.

        For a process that does not free their memory itself, when the worker is gone.
        """
        for slot in range(first, first + SLOTS_PER_WORKER):
            self._slots.pop(self.layout.place_of(slot), None)  # views of it may still be held

    # ---- records -------------------------------------------------------------------------------------------
    # Each record has two copies with checksums, which are written in turn: if a process dies while it writes one
    # copy, the checksum shows that, and the other copy still holds the previous record.

    def write_job(self, record: ProgressRecord) -> None:
        """Write the job's record."""
        values = (
            record.step,
            record.position.epoch,
            record.position.consumed,
            record.number,
            record.best_step,
            record.rate_scale,
        )
        self._write(0, _JOB, values)

    def read_job(self) -> ProgressRecord | None:
        """Read the job's record; None if none was written."""
        if (values := self._read(0, _JOB)) is None:
            return None
        step, epoch, consumed, number, best, rate_scale = values
        return ProgressRecord(step, Position(epoch, consumed), number, best, rate_scale)

    def write_part(self, aggregator: int, record: PartRecord) -> None:
        """Write the record of an aggregator's model shard."""
        values = (record.step, record.view, record.number, record.mean_sqnorm)
        self._write(1 + aggregator, _PART, values)

    def read_part(self, aggregator: int) -> PartRecord | None:
        """Read the record of an aggregator's model shard; None if none was written."""
        values = self._read(1 + aggregator, _PART)
        return None if values is None else PartRecord(*values)

    def forget(self, aggregator: int) -> None:
        """Erase the records of a model shard that is initialised again; for aggregator 0, also the job's records."""
        size = 2 * RECORD_BYTES
        begin = _record_at(1 + aggregator)
        self._map[begin : begin + size] = bytes(size)
        if aggregator == 0:
            self._map[_record_at(0) : _record_at(1)] = bytes(size)
            self._map[RECORDS_BYTES:HEADER_BYTES] = bytes(HEADER_BYTES - RECORDS_BYTES)

    def write_report(self, step: int, report: bytes) -> None:
        """Keep the report of a step, so that it can be sent again if the sequencer dies while it sends it."""
        if len(report) <= REPORT_BYTES - _LENGTH.size:
            at = RECORDS_BYTES + (step % 2) * REPORT_BYTES
            self._map[at : at + _LENGTH.size] = _LENGTH.pack(len(report), zlib.crc32(report, 1))
            self._map[at + _LENGTH.size : at + _LENGTH.size + len(report)] = report

    def read_report(self, step: int) -> bytes | None:
        """Read the report of a step; None if no complete one was kept."""
        at = RECORDS_BYTES + (step % 2) * REPORT_BYTES
        size, checksum = _LENGTH.unpack(self._map[at : at + _LENGTH.size])
        if not 0 < size <= REPORT_BYTES - _LENGTH.size:
            return None
        report = self._map[at + _LENGTH.size : at + _LENGTH.size + size]
        return report if zlib.crc32(report, 1) == checksum else None

    def write_map(self, current: BucketMap, before: BucketMap) -> None:
        """Record a map of buckets that was decided, and the one before it.

        Raises:
            ValueError: If there is no room for so many buckets.
        """
        places = [self._read_map(place) for place in (0, 1)]
        if before not in places:
            self._write_map(0, before)
            places[0] = before
        self._write_map(1 - places.index(before), current)

    def read_maps(self) -> tuple[BucketMap, BucketMap] | None:
        """Read the newest map of buckets and the one before it; None if none was decided since the job began.

        They are the same if a process died while it recorded a newer one.
        """
        found = sorted(
            (one for place in (0, 1) if (one := self._read_map(place)) is not None),
            key=lambda one: one.number,
        )
        return (found[-1], found[0]) if found else None

    def _write_map(self, place: int, value: BucketMap) -> None:
        if len(value.holders) > BUCKETS_MAX:
            raise ValueError(f"there is no room for a map of {len(value.holders)} buckets")
        holders = np.array(value.holders, np.uint16).tobytes()
        head = _MAP.pack(value.number, value.since, len(value.holders), 0)[:-4]
        at, data = (
            MAPS_AT + place * MAP_BYTES,
            head + struct.pack("<I", zlib.crc32(head + holders, 1)) + holders,
        )
        self._map[at : at + len(data)] = data

    def _read_map(self, place: int) -> BucketMap | None:
        at = MAPS_AT + place * MAP_BYTES
        number, since, count, checksum = _MAP.unpack(self._map[at : at + _MAP.size])
        if count > BUCKETS_MAX:
            return None
        holders = self._map[at + _MAP.size : at + _MAP.size + 2 * count]
        if zlib.crc32(self._map[at : at + _MAP.size - 4] + holders, 1) != checksum:
            return None
        return BucketMap(number, since, tuple(np.frombuffer(holders, np.uint16).tolist()))

    def _write(self, index: int, form: struct.Struct, values: tuple[Any, ...]) -> None:
        body = form.pack(*values, 0)[:-4]
        at = _record_at(index, values[0])
        # the checksum starts at 1, so that the zeros of an unwritten record are not a valid one
        self._map[at : at + form.size] = body + struct.pack("<I", zlib.crc32(body, 1))

    def _read(self, index: int, form: struct.Struct) -> tuple[Any, ...] | None:
        found = []
        for turn in (0, 1):
            at = _record_at(index, turn)
            data = self._map[at : at + form.size]
            *values, checksum = form.unpack(data)
            if zlib.crc32(data[:-4], 1) == checksum:
                found.append(tuple(values))
        return max(found, default=None)


class OptimizerMemory:
    """The optimizer state of one aggregator's model shard, for even and odd steps, or in one place for both.

    Each array of a tensor lies along the line, as the tensor does, so its place does not depend on which aggregator
    holds it. State that belongs to no tensor is at the aggregator's own place.

    Args:
        fd: Descriptor of the block.
        layout: The block's layout.
        aggregator: The aggregator's index.
        slots: The optimizer's state tensors.
        segments: The segments whose indices are the tensors' in `slots`.
        before: That of other slots of the same aggregator, whose mapping of the block is used again: pages that are
            mapped anew take 0.05 s for 100 MB when they are first used.
        in_place: Whether the state of tensors after a step takes the place of that after the step before. What belongs
            to no tensor, a few numbers, is kept for both.

    Attributes:
        ranges: Where the state after one step is, for `range`, bytes, ascending.
        copies: Of how many arrays for each tensor the block is mapped.

    Raises:
        ValueError: If the optimizer's state is larger than its room in the block.
    """

    def __init__(
        self,
        fd: int,
        layout: Layout,
        aggregator: int,
        slots: Sequence[SlotSpec],
        segments: Sequence[Segment],
        before: OptimizerMemory | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        places = [_slot_place(layout, slot, segments) for slot in slots]
        ends = [at + aligned(tensor_bytes(slot)) for at, slot in zip(places, slots, strict=True)]
        self.ranges = joined(sorted(zip(places, ends, strict=True)))
        self._shared_at = _shared_place(layout)
        copies = 1 + max((slot.number for slot in slots if slot.tensor >= 0), default=-1)
        self.copies, self._along = copies, list[mmap.mmap]()
        if before is not None and before.copies >= copies:
            self.copies, self._along = before.copies, before._along
        elif copies:
            size = copies * layout.weights_bytes
            self._along = [map_block(fd, layout.optimizer_at(0), size)]
            self._along.append(self._along[0] if in_place else map_block(fd, layout.optimizer_at(1), size))
        self._fd, self._layout = fd, layout
        self._shared = self._shared_of(aggregator)
        self._arrays = [
            [
                _view(*self._mapped_at(turn, place), slot.shape, np.dtype(slot.dtype))
                for place, slot in zip(places, slots, strict=True)
            ]
            for turn in (0, 1)
        ]

    def slots(self, step: int) -> list[Array]:
        """Return views of the state after `step`."""
        return self._arrays[step % 2]

    def range(self, step: int, offset: int, size: int) -> memoryview:
        """Return bytes within one of `ranges` of the state after `step`, which can be read or written in place."""
        mapped, at = self._mapped_at(step % 2, offset)
        return memoryview(mapped)[at : at + size]

    def copy_shared(self, source: int, step: int) -> None:
        """Take the state after `step` that belongs to no tensor from another aggregator, which has the same block."""
        self.range(step, self._shared_at, SHARED_BYTES)[:] = memoryview(self._shared_of(source))[
            step % 2 * SHARED_BYTES :
        ][:SHARED_BYTES]

    def _shared_of(self, aggregator: int) -> mmap.mmap:
        return map_block(self._fd, self._layout.shared_at(aggregator), 2 * SHARED_BYTES)

    def _mapped_at(self, turn: int, place: int) -> tuple[mmap.mmap, int]:
        beyond = place - self._shared_at
        if beyond < 0:
            return self._along[turn], place
        return self._shared, turn * SHARED_BYTES + beyond


def _shared_place(layout: Layout) -> int:
    """Return the place of state that belongs to no tensor: behind that of all tensors."""
    return OPTIMIZER_COPIES_MAX * layout.weights_bytes


def _slot_place(layout: Layout, slot: SlotSpec, segments: Sequence[Segment]) -> int:
    """Return the place of a slot in the state after a step, bytes."""
    size = aligned(tensor_bytes(slot))
    if slot.tensor < 0:
        place = slot.number * TENSOR_ALIGNMENT
        if size > TENSOR_ALIGNMENT or place + size > SHARED_BYTES:
            raise ValueError(f"there is no room for {slot.path}")
        return _shared_place(layout) + place
    segment = segments[slot.tensor]
    if size > aligned(segment.bytes) or slot.number >= OPTIMIZER_COPIES_MAX:
        raise ValueError(f"there is no room for {slot.path}, which has more elements than its tensor")
    return slot.number * layout.weights_bytes + segment.offset


def _record_at(index: int, step: int = 0) -> int:
    """Return the offset of the copy of a record that is written after `step`; record 0 is the job's."""
    return (2 * (1 + index) + step % 2) * RECORD_BYTES


def map_block(fd: int, offset: int, size: int) -> mmap.mmap:
    """Map a part of the block; a smaller block is enlarged.

    Raises:
        OSError: If a limit of the process does not allow it, or memory runs out.
    """
    end = offset + size
    if os.fstat(fd).st_size < end:
        if hasattr(os, "posix_fallocate"):
            # unlike ftruncate, it never shrinks a block that another process enlarges at the same time
            os.posix_fallocate(fd, end - 1, 1)
        else:
            with _enlarging:
                fcntl.lockf(fd, fcntl.LOCK_EX)
                os.ftruncate(fd, max(end, os.fstat(fd).st_size))
                fcntl.lockf(fd, fcntl.LOCK_UN)
    return mmap.mmap(fd, size, offset=offset)


def _view(buffer: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)
