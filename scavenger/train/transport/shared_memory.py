"""The shared-memory block of a job: weights, optimizer state, gradients and metric sums.

The block is an anonymous file in memory. It has no name in any file system; processes of the job inherit its
descriptor. When the last of them ends, however it ends, the kernel frees the block, so no memory can leak. As long
as one process lives, so does the block: a restarted aggregator continues with the state that the previous one left.

Layout, every section aligned to 4096 bytes, every tensor to 64::

    | signature, records | state, even steps | odd steps | best weights | optimizer of part 0 | ... | slot 0 | ...

A state section holds all tensors, grouped by the aggregator that holds them, and then the epoch's metric sums so
far. The state after step s is written to the other section than that after step s - 1, which stays intact until the
*record* of step s marks s as complete. A slot holds gradients (at the trainable tensors' offsets), updated state and
metric variables. A sparse gradient uses the beginning of its tensor's place, for the indices of its rows and then the
rows; how many they are is told by messages. The file is sparse: pages that no process has written take no memory. It
ends with the last slot that a process has used, and each process maps only the slots that it uses: limits on file sizes
and on the address space of a process (`ulimit -f`, `ulimit -v`) concern what a job needs, not what it could need.

The block begins with a signature of its layout. A process that computes another layout, because the program was
replaced by another version while the job ran, is refused: it would read and write in the wrong places.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the type bfloat16
import numpy as np
import numpy.typing as npt

from scavenger.elastic.placement import place
from scavenger.elastic.view import SLOTS_PER_WORKER, Position
from scavenger.errors import NotSupportedError
from scavenger.train.transport.messages.values import Manifest, RowCounts, TensorSpec
from scavenger.train.transport.rows import Rows, rows_bytes, rows_view

__all__ = [
    "Block",
    "JobRecord",
    "Layout",
    "OptimizerMemory",
    "PartRecord",
]

Array = npt.NDArray[Any]
_TENSOR_ALIGNMENT = 64
_SECTION_ALIGNMENT = mmap.ALLOCATIONGRANULARITY
_WORKERS_MAX = 4096
_SLOTS_BYTES_MAX = 1 << 45
"""Room for slots, bytes. Slots that no process uses take neither memory nor addresses."""
_OPTIMIZER_COPIES_MAX = 16
_OPTIMIZER_EXTRA_BYTES = 1 << 20
_RECORDS_BYTES = 4096
_REPORT_BYTES = 256 << 10
"""Room for the report of a step by `_WORKERS_MAX` workers: up to 43 bytes each, for its name, time and piece."""
_enlarging = threading.Lock()
_HEADER_BYTES = _RECORDS_BYTES + 2 * _REPORT_BYTES


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _tensor_bytes(tensor: TensorSpec) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a block. It follows from the manifest alone, so that every process computes the same layout.

    Attributes:
        manifest: The model's tensors, metrics and optimizer.
        aggregators: How many aggregators share the model.
        offsets: Offset of each tensor within a state section, bytes.
        parts: For each aggregator, the indices of its tensors, in the manifest's order.
        part_ranges: For each aggregator, the offsets at which its tensors begin and end in a state section, bytes.
        weights_bytes: Size of all tensors in a state section.
        metric_offsets: Offset of each metric variable (float64) within the metric sums, bytes.
        metric_bytes: Size of the metric sums.
        workers_max: How many workers a job may have at a time.
    """

    manifest: Manifest
    aggregators: int
    offsets: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    part_ranges: tuple[tuple[int, int], ...]
    weights_bytes: int
    metric_offsets: tuple[int, ...]
    metric_bytes: int
    workers_max: int

    @classmethod
    def of(cls, manifest: Manifest, aggregators: int = 1) -> Layout:
        """Compute the layout of a model that is sharded over some aggregators.

        Aggregator 0, the sequencer, holds the state that has no gradient. If the optimizer needs all gradients at
        once, aggregator 0 holds the whole model.
        """
        tensors = manifest.tensors
        trainable = [i for i, tensor in enumerate(tensors) if tensor.role == "trainable"]
        holders = [0] * len(tensors)
        if _splittable(manifest.optimizer):
            placed = place([_tensor_bytes(tensors[i]) for i in trainable], aggregators)
            for index, aggregator in zip(trainable, placed, strict=True):
                holders[index] = aggregator
        parts = tuple(tuple(i for i, h in enumerate(holders) if h == a) for a in range(aggregators))
        offsets, ranges, at = [0] * len(tensors), [], 0
        for part in parts:
            begin = at
            for index in part:
                offsets[index] = at
                at += _aligned(_tensor_bytes(tensors[index]), _TENSOR_ALIGNMENT)
            ranges.append((begin, at))
        metric_offsets, metric_at = [], 0
        for shape in manifest.metrics:
            metric_offsets.append(metric_at)
            metric_at += _aligned(int(np.prod(shape, dtype=np.int64)) * 8, _TENSOR_ALIGNMENT)
        weights_bytes = _aligned(max(at, 1), _SECTION_ALIGNMENT)
        metric_bytes = _aligned(max(metric_at, 1), _SECTION_ALIGNMENT)
        room = _SLOTS_BYTES_MAX // (SLOTS_PER_WORKER * (weights_bytes + metric_bytes))
        return cls(
            manifest=manifest,
            aggregators=aggregators,
            offsets=tuple(offsets),
            parts=parts,
            part_ranges=tuple(ranges),
            weights_bytes=weights_bytes,
            metric_offsets=tuple(metric_offsets),
            metric_bytes=metric_bytes,
            workers_max=max(1, min(_WORKERS_MAX, room)),
        )

    def saves(self, index: int, count: int) -> bool:
        """Whether so many rows of a tensor's gradient take less of a slot than all of it."""
        tensor = self.manifest.tensors[index]
        return bool(tensor.shape) and 0 <= rows_bytes(tensor, count) < _tensor_bytes(tensor)

    def accepts(self, rows: RowCounts) -> bool:
        """Whether a slot can have these sparse gradients."""
        indices = [index for index, _ in rows]
        return indices == sorted({*indices}) and all(
            0 <= index < len(self.offsets)
            and self.manifest.tensors[index].role == "trainable"
            and self.saves(index, count)
            for index, count in rows
        )

    def used(self, index: int, count: int | None = None) -> tuple[int, int]:
        """Return where the used part of a tensor's place in a slot begins and ends.

        Args:
            index: The tensor's index.
            count: The number of rows of a sparse gradient; None for a dense one.
        """
        tensor, begin = self.manifest.tensors[index], self.offsets[index]
        size = _tensor_bytes(tensor) if count is None else rows_bytes(tensor, count)
        return begin, begin + _aligned(size, _TENSOR_ALIGNMENT)

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
                _RECORDS_BYTES,
                _REPORT_BYTES,
                _RECORD_BYTES,
                self.aggregators,
                self.weights_bytes,
                self.metric_bytes,
            ),
            *(self.fixed_bytes, self.slots_at, self.slots, *self.offsets, *self.metric_offsets),
        )
        return zlib.crc32(repr(numbers).encode())

    def state_at(self, step: int) -> int:
        """Return the offset of the state section of a step."""
        return _HEADER_BYTES + (step % 2) * self.state_bytes

    @property
    def best_at(self) -> int:
        """Offset of the best weights."""
        return _HEADER_BYTES + 2 * self.state_bytes

    @property
    def fixed_bytes(self) -> int:
        """Size of what every process maps: records, state sections and best weights."""
        return self.best_at + self.weights_bytes

    @property
    def slots_at(self) -> int:
        """Offset of the first slot."""
        return self.optimizer_at(self.aggregators)

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

    def optimizer_at(self, aggregator: int) -> int:
        """Return the offset of the section for an aggregator's optimizer state, large enough for Keras's optimizers."""
        stride = _OPTIMIZER_COPIES_MAX * 2 * self.weights_bytes + _OPTIMIZER_EXTRA_BYTES
        return self.fixed_bytes + aggregator * _aligned(stride, _SECTION_ALIGNMENT)


def _splittable(optimizer: str) -> bool:
    """Whether shards of the model can be updated independently.

    They cannot if the optimizer clips by the global norm, or skips a step in which any gradient is not finite.
    """

    def needs_all(part: Any) -> bool:
        if isinstance(part, dict):  # an optimizer may contain others
            scales = part.get("class_name") == "LossScaleOptimizer"
            return scales or bool(part.get("global_clipnorm")) or any(map(needs_all, part.values()))
        return isinstance(part, list) and any(map(needs_all, part))

    return not (optimizer and needs_all(json.loads(optimizer)))


@dataclass(frozen=True, slots=True)
class JobRecord:
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
        mean_worker_sqnorm: Mean squared norm of the workers' gradients in that step, over this shard.
        mean_sqnorm: Squared norm of the mean gradient in that step, over this shard.
    """

    step: int = 0
    view: int = 0
    mean_worker_sqnorm: float = 0.0
    mean_sqnorm: float = 0.0


_JOB = struct.Struct("<QQQQQdI")
_PART = struct.Struct("<QQddI")
_SIGNATURE = struct.Struct("<II")
_RECORD_BYTES = 64
_LENGTH = struct.Struct("<II")


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
        self._map = _mapped(fd, 0, layout.fixed_bytes)
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
            self._slots[index] = _mapped(self._fd, offset - within, self.layout.state_bytes)
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

    def rows(self, offset: int, index: int, count: int) -> Rows:
        """Return views of the `count` rows of tensor `index`'s sparse gradient in the slot at `offset`."""
        tensor, at = self.layout.manifest.tensors[index], self.layout.offsets[index]
        return rows_view(self.range(offset + at, _tensor_bytes(tensor)), tensor, count)

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

    # ---- records -------------------------------------------------------------------------------------------
    # Each record has two copies with checksums, which are written in turn: if a process dies while it writes one
    # copy, the checksum shows that, and the other copy still holds the previous record.

    def write_job(self, record: JobRecord) -> None:
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

    def read_job(self) -> JobRecord | None:
        """Read the job's record; None if none was written."""
        if (values := self._read(0, _JOB)) is None:
            return None
        step, epoch, consumed, number, best, rate_scale = values
        return JobRecord(step, Position(epoch, consumed), number, best, rate_scale)

    def write_part(self, aggregator: int, record: PartRecord) -> None:
        """Write the record of an aggregator's model shard."""
        values = (record.step, record.view, record.mean_worker_sqnorm, record.mean_sqnorm)
        self._write(1 + aggregator, _PART, values)

    def read_part(self, aggregator: int) -> PartRecord | None:
        """Read the record of an aggregator's model shard; None if none was written."""
        values = self._read(1 + aggregator, _PART)
        return None if values is None else PartRecord(*values)

    def forget(self, aggregator: int) -> None:
        """Erase the records of a model shard that is initialised again; for aggregator 0, also the job's records."""
        size = 2 * _RECORD_BYTES
        begin = _record_at(1 + aggregator)
        self._map[begin : begin + size] = bytes(size)
        if aggregator == 0:
            self._map[_record_at(0) : _record_at(1)] = bytes(size)
            self._map[_RECORDS_BYTES:_HEADER_BYTES] = bytes(2 * _REPORT_BYTES)

    def write_report(self, step: int, report: bytes) -> None:
        """Keep the report of a step, so that it can be sent again if the sequencer dies while it sends it."""
        if len(report) <= _REPORT_BYTES - _LENGTH.size:
            at = _RECORDS_BYTES + (step % 2) * _REPORT_BYTES
            self._map[at : at + _LENGTH.size] = _LENGTH.pack(len(report), zlib.crc32(report, 1))
            self._map[at + _LENGTH.size : at + _LENGTH.size + len(report)] = report

    def read_report(self, step: int) -> bytes | None:
        """Read the report of a step; None if no complete one was kept."""
        at = _RECORDS_BYTES + (step % 2) * _REPORT_BYTES
        size, checksum = _LENGTH.unpack(self._map[at : at + _LENGTH.size])
        if not 0 < size <= _REPORT_BYTES - _LENGTH.size:
            return None
        report = self._map[at + _LENGTH.size : at + _LENGTH.size + size]
        return report if zlib.crc32(report, 1) == checksum else None

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
    """The optimizer state of one aggregator's model shard, for even and odd steps.

    Args:
        fd: Descriptor of the block.
        layout: The block's layout.
        aggregator: The aggregator's index.
        slots: The optimizer's state tensors.

    Attributes:
        bytes: Size of the state after one step.

    Raises:
        ValueError: If the optimizer's state is larger than its section of the block.
    """

    def __init__(self, fd: int, layout: Layout, aggregator: int, slots: Sequence[TensorSpec]) -> None:
        offsets, at = [], 0
        for slot in slots:
            offsets.append(at)
            at += _aligned(_tensor_bytes(slot), _TENSOR_ALIGNMENT)
        self.bytes, self._stride = at, _aligned(max(at, 1), _SECTION_ALIGNMENT)
        begin = layout.optimizer_at(aggregator)
        if 2 * self._stride > layout.optimizer_at(aggregator + 1) - begin:
            raise ValueError(f"there is no room for the {len(slots)} state tensors of the optimizer")
        self._map = _mapped(fd, begin, 2 * self._stride)
        self._arrays = [
            [
                _view(self._map, turn * self._stride + offset, slot.shape, np.dtype(slot.dtype))
                for offset, slot in zip(offsets, slots, strict=True)
            ]
            for turn in (0, 1)
        ]

    def slots(self, step: int) -> list[Array]:
        """Return views of the state after `step`."""
        return self._arrays[step % 2]

    def range(self, step: int, offset: int, size: int) -> memoryview:
        """Return bytes of the state after `step`, which can be read or written in place."""
        at = step % 2 * self._stride + offset
        return memoryview(self._map)[at : at + size]


def _record_at(index: int, step: int = 0) -> int:
    """Return the offset of the copy of a record that is written after `step`; record 0 is the job's."""
    return (2 * (1 + index) + step % 2) * _RECORD_BYTES


def _mapped(fd: int, offset: int, size: int) -> mmap.mmap:
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
