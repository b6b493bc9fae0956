"""The block of a job: weights, optimizer state, gradients and metric sums, without a name and so without a leak.

The block is an anonymous file in memory. It has no name in any file system; processes of the job inherit its
descriptor. When the last of them ends, however it ends, the kernel frees it: nothing can be left behind. As long
as one lives, so does the block: a restarted aggregator takes it up where the one before stood.

Layout, every section aligned to 4096 bytes, every tensor to 64::

    | records | state, even steps | odd steps | best weights | slot 0 | slot 1 | ... | optimizer of part 0 | ...

A state section holds all tensors, those of each aggregator's part together, and then the epoch's metric sums so
far. What belongs to step s is written beside what belongs to step s - 1, which stays whole until the *record* of
step s says that s is. A slot holds gradients (in the trainable tensors' places), updated state and metric
variables. The file is sparse: what nobody has written costs nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.elastic.placement import place
from scavenger.elastic.view import SLOTS_PER_WORKER, Position
from scavenger.train.transport.messages.values import Manifest, TensorSpec

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
"""Address space for slots. Pages that nobody touches take no memory, but addresses have 47 bits."""
_OPTIMIZER_COPIES_MAX = 16
_OPTIMIZER_EXTRA_BYTES = 1 << 20
_RECORDS_BYTES = 4096
_REPORT_BYTES = 32 << 10
_HEADER_BYTES = _RECORDS_BYTES + 2 * _REPORT_BYTES


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _tensor_bytes(tensor: TensorSpec) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies, from the manifest alone, so that every process computes the same.

    Attributes:
        offsets: Of each tensor within a state section, bytes.
        parts: Of each aggregator, the indices of its tensors, in the manifest's order.
        part_ranges: Of each aggregator, where in a state section its tensors begin and end.
        weights_bytes: Of all tensors in a state section.
        metric_offsets: Of each metric variable (float64) within metric sums, bytes.
        metric_bytes: Of metric sums.
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
        """The layout of a model that is spread over some aggregators.

        State that has no gradient is the first aggregator's, which sequences. An optimizer that must see all
        gradients at once keeps everything there.
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

    @property
    def slots(self) -> int:
        return self.workers_max * SLOTS_PER_WORKER

    @property
    def state_bytes(self) -> int:
        """Of a state section, as of a slot: tensors and metric sums."""
        return self.weights_bytes + self.metric_bytes

    @property
    def total_bytes(self) -> int:
        """Of everything but the optimizers."""
        return self._slots_at + self.slots * self.state_bytes

    def state_at(self, step: int) -> int:
        return _HEADER_BYTES + (step % 2) * self.state_bytes

    @property
    def best_at(self) -> int:
        return _HEADER_BYTES + 2 * self.state_bytes

    @property
    def _slots_at(self) -> int:
        return self.best_at + self.weights_bytes

    def place_of(self, slot: int) -> int:
        """Which place a slot has. Slots' numbers only grow; places of workers that are gone are given again.

        Raises:
            IndexError: If the number is negative.
        """
        if slot < 0:
            raise IndexError(f"slot {slot}")
        return slot % self.slots

    def slot_at(self, slot: int) -> int:
        """Where a slot lies; see `place_of`."""
        return self._slots_at + self.place_of(slot) * self.state_bytes

    @property
    def file_bytes(self) -> int:
        """Of the whole block."""
        return self.optimizer_at(self.aggregators)

    def optimizer_at(self, aggregator: int) -> int:
        """Where an aggregator's optimizer state may lie: room for any of Keras's optimizers."""
        stride = _OPTIMIZER_COPIES_MAX * 2 * self.weights_bytes + _OPTIMIZER_EXTRA_BYTES
        return self.total_bytes + aggregator * _aligned(stride, _SECTION_ALIGNMENT)


def _splittable(optimizer: str) -> bool:
    """Whether parts of the tensors can be updated apart: not where one norm of all gradients is needed."""

    def clips_globally(part: Any) -> bool:
        if isinstance(part, dict):  # an optimizer may be made of others
            return bool(part.get("global_clipnorm")) or any(map(clips_globally, part.values()))
        return isinstance(part, list) and any(map(clips_globally, part))

    return not (optimizer and clips_globally(json.loads(optimizer)))


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Where the job stands: written by the sequencer when every aggregator has applied the step."""

    step: int = 0
    position: Position = field(default_factory=Position)
    number: int = 0
    best_step: int = 0


@dataclass(frozen=True, slots=True)
class PartRecord:
    """How far a part is, under which view it applied its last step, and what that one's norms were."""

    step: int = 0
    view: int = 0
    mean_worker_sqnorm: float = 0.0
    mean_sqnorm: float = 0.0


_JOB = struct.Struct("<QQQQQI")
_PART = struct.Struct("<QQddI")
_RECORD_BYTES = 64
_LENGTH = struct.Struct("<II")


class Block:
    """A mapped block; arrays are views of it, without copies.

    Args:
        fd: Descriptor of the block; kept open by the caller.
        layout: Where things lie. The block grows to its size if it is smaller.

    Raises:
        OSError: If the memory cannot be had.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout = layout
        _grow(fd, layout)
        self._map = mmap.mmap(fd, layout.total_bytes)

    def tensors(self, offset: int, indices: Sequence[int] | None = None) -> list[Array]:
        """Views of tensors of the section at `offset`, all of them or some, in the manifest's order."""
        chosen = range(len(self.layout.offsets)) if indices is None else indices
        specs = self.layout.manifest.tensors
        return [
            _view(self._map, offset + self.layout.offsets[i], specs[i].shape, np.dtype(specs[i].dtype))
            for i in chosen
        ]

    def metrics(self, offset: int) -> list[npt.NDArray[np.float64]]:
        """Views of the metric sums of the state section or slot at `offset`."""
        begin = offset + self.layout.weights_bytes
        return [
            _view(self._map, begin + at, shape, np.dtype(np.float64))
            for at, shape in zip(self.layout.metric_offsets, self.layout.manifest.metrics, strict=True)
        ]

    def range(self, offset: int, size: int) -> memoryview:
        """The bytes of a range, to be read or written in place."""
        return memoryview(self._map)[offset : offset + size]

    def touch(self, offset: int, size: int) -> None:
        """Have the pages of a range mapped now, so that nobody waits for that when they are first used.

        A hundred megabytes take a quarter of a second where nobody has used them, and a twentieth where others have.
        """
        np.frombuffer(self._map, np.uint8, size, offset)[:: mmap.PAGESIZE].max(initial=0)

    def release_slots(self, first: int) -> None:
        """Give the pages of a worker's slots back; their owner is gone."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._map.madvise(
                mmap.MADV_REMOVE, self.layout.slot_at(first), SLOTS_PER_WORKER * self.layout.state_bytes
            )

    # ---- records -------------------------------------------------------------------------------------------
    # Two of each, written in turn with a checksum: one that was being written when its writer died is known
    # for what it is, and the one before it still stands.

    def write_job(self, record: JobRecord) -> None:
        values = (
            record.step,
            record.position.epoch,
            record.position.consumed,
            record.number,
            record.best_step,
        )
        self._write(0, _JOB, values)

    def read_job(self) -> JobRecord | None:
        """None where none was written."""
        if (values := self._read(0, _JOB)) is None:
            return None
        step, epoch, consumed, number, best = values
        return JobRecord(step, Position(epoch, consumed), number, best)

    def write_part(self, aggregator: int, record: PartRecord) -> None:
        values = (record.step, record.view, record.mean_worker_sqnorm, record.mean_sqnorm)
        self._write(1 + aggregator, _PART, values)

    def read_part(self, aggregator: int) -> PartRecord | None:
        """None where none was written."""
        values = self._read(1 + aggregator, _PART)
        return None if values is None else PartRecord(*values)

    def forget(self, aggregator: int) -> None:
        """Erase the records of a part that begins anew; those of the job with the first part's."""
        size = 2 * _RECORD_BYTES
        self._map[(1 + aggregator) * size : (2 + aggregator) * size] = bytes(size)
        if aggregator == 0:
            self._map[:size] = bytes(size)
            self._map[_RECORDS_BYTES:_HEADER_BYTES] = bytes(2 * _REPORT_BYTES)

    def write_report(self, step: int, report: bytes) -> None:
        """Keep what is said of a step, for the case that saying it is cut short."""
        if len(report) <= _REPORT_BYTES - _LENGTH.size:
            at = _RECORDS_BYTES + (step % 2) * _REPORT_BYTES
            self._map[at : at + _LENGTH.size] = _LENGTH.pack(len(report), zlib.crc32(report, 1))
            self._map[at + _LENGTH.size : at + _LENGTH.size + len(report)] = report

    def read_report(self, step: int) -> bytes | None:
        """What was kept of a step; None where there is nothing whole."""
        at = _RECORDS_BYTES + (step % 2) * _REPORT_BYTES
        size, checksum = _LENGTH.unpack(self._map[at : at + _LENGTH.size])
        if not 0 < size <= _REPORT_BYTES - _LENGTH.size:
            return None
        report = self._map[at + _LENGTH.size : at + _LENGTH.size + size]
        return report if zlib.crc32(report, 1) == checksum else None

    def _write(self, place: int, form: struct.Struct, values: tuple[Any, ...]) -> None:
        body = form.pack(*values, 0)[:-4]
        at = (2 * place + values[0] % 2) * _RECORD_BYTES
        # begun at 1, so that a record of zeros, which nobody has written, is none
        self._map[at : at + form.size] = body + struct.pack("<I", zlib.crc32(body, 1))

    def _read(self, place: int, form: struct.Struct) -> tuple[Any, ...] | None:
        found = []
        for turn in (0, 1):
            at = (2 * place + turn) * _RECORD_BYTES
            data = self._map[at : at + form.size]
            *values, checksum = form.unpack(data)
            if zlib.crc32(data[:-4], 1) == checksum:
                found.append(tuple(values))
        return max(found, default=None)


class OptimizerMemory:
    """The optimizer state of one part, for even and odd steps."""

    def __init__(self, fd: int, layout: Layout, aggregator: int, slots: Sequence[TensorSpec]) -> None:
        offsets, at = [], 0
        for slot in slots:
            offsets.append(at)
            at += _aligned(_tensor_bytes(slot), _TENSOR_ALIGNMENT)
        self._bytes = _aligned(max(at, 1), _SECTION_ALIGNMENT)
        begin = layout.optimizer_at(aggregator)
        if 2 * self._bytes > layout.optimizer_at(aggregator + 1) - begin:
            raise ValueError(f"an optimizer with {len(slots)} state tensors has no room")
        _grow(fd, layout)
        self._map = mmap.mmap(fd, 2 * self._bytes, offset=begin)
        self._arrays = [
            [
                _view(self._map, turn * self._bytes + offset, slot.shape, np.dtype(slot.dtype))
                for offset, slot in zip(offsets, slots, strict=True)
            ]
            for turn in (0, 1)
        ]

    def slots(self, step: int) -> list[Array]:
        """The state as it is after `step`."""
        return self._arrays[step % 2]


def _grow(fd: int, layout: Layout) -> None:
    """Give the block its size, which is the same for all: who asks for less would cut off what others have."""
    if os.fstat(fd).st_size < layout.file_bytes:
        os.ftruncate(fd, layout.file_bytes)


def _view(buffer: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)
