"""Copies of buckets that move between aggregators of different blocks: what is sent of them, and where it arrives.

What arrives belongs to the new holder alone until its first step has read it: what comes late, because the buckets
stayed where they were, meets neither workers of the same block nor another aggregator. It consists of *planes* in which
everything lies along the line: the weights, the optimizer's arrays by number, its state of no tensor, the best weights.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.elastic.payloads import Arrival
from scavenger.train.transport.layout import (
    ARRIVAL_PLANES,
    OPTIMIZER_COPIES_MAX,
    TENSOR_ALIGNMENT,
    Layout,
    Ranges,
    aligned,
    joined,
    tensor_bytes,
)
from scavenger.train.transport.messages.data import Chunk, ChunkQuery, Lacking, PullBuckets
from scavenger.train.transport.messages.values import SlotSpec, TensorSpec
from scavenger.train.transport.payload_loop import give_way
from scavenger.train.transport.replication import Payload, chunks_of
from scavenger.train.transport.shared_memory import Block, OptimizerMemory, map_block

Array = npt.NDArray[Any]
Owned = tuple[SlotSpec, int]
"""An array of the optimizer, and the index of the segment that it belongs to; -1 for none."""

_SLOTS, _SHARED, _BEST, _RECORD = 1, 1 + OPTIMIZER_COPIES_MAX, ARRIVAL_PLANES - 2, ARRIVAL_PLANES - 1
_HEAD = struct.Struct("<QQIII")
_SLOTS_HELD = 4
_madvise = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_REMOVE") else None
"""Unlike that of `mmap`, it does not keep the interpreter's lock, which other threads would wait for."""
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Best(IntEnum):
    """Where the best weights are of what has arrived: there are none, apart from its weights, or these are them."""

    NONE = 0
    APART = 1
    NEWEST = 2


@dataclass(frozen=True, slots=True)
class ArrivedState:
    """What has arrived as a whole.

    Attributes:
        number: The number of the map under which the aggregator holds it.
        first: The first step that is applied under that map.
        buckets: The buckets of the layout, ascending.
        best: Whether their best weights have arrived, too, and whether these are the weights that have arrived.
        slots_held: Whether the optimizer's arrays of tensors are where the aggregator keeps them, not in the planes.
    """

    number: int
    first: int
    buckets: tuple[int, ...]
    best: Best = Best.NONE
    slots_held: bool = False


def copied_ranges(layout: Layout, slots: Sequence[Owned], buckets: Collection[int], *, best: bool) -> Ranges:
    """Return where the state of some buckets after a step is in the planes.

    Args:
        slots: The optimizer's arrays of their segments; others may be among them.
        buckets: The buckets of the layout.
        best: Whether the best weights are wanted, too.
    """
    size, wanted = layout.plane_bytes, {*buckets}
    along = [layout.buckets[bucket] for bucket in sorted(wanted)]
    some = [
        (_slot_at(layout, slot, segment), aligned(tensor_bytes(slot)))
        for slot, segment in slots
        if segment < 0 or layout.segments[segment].bucket in wanted
    ]
    if all(at >= _SHARED * size for at, _ in some):  # no optimizer works on these buckets
        some = []
    planes: dict[int, list[tuple[int, int]]] = {0: along}
    for at, length in sorted(some):
        planes.setdefault(at // size, []).append((at, at + length))
    if best:
        planes[_BEST] = [(_BEST * size + begin, _BEST * size + end) for begin, end in along]
    return tuple(a_range for plane in sorted(planes) for a_range in joined(planes[plane]))


def _slot_at(layout: Layout, slot: SlotSpec, segment: int) -> int:
    if segment < 0:
        return _SHARED * layout.plane_bytes + slot.number * TENSOR_ALIGNMENT
    return (_SLOTS + slot.number) * layout.plane_bytes + layout.segments[segment].offset


def copied_payload(
    block: Block, layout: Layout, optimizer: OptimizerMemory, slots: Sequence[Owned], pull: PullBuckets
) -> Payload:
    """Make the payload of the buckets that another aggregator asks for; see `copied_ranges`."""

    def read(offset: int, size: int) -> memoryview:
        plane, at = divmod(offset, layout.plane_bytes)
        if plane == 0:
            return block.range(layout.state_at(pull.step) + at, size)
        if plane == _BEST:
            return block.range(layout.best_at + at, size)
        return optimizer.range(pull.step, (plane - _SLOTS) * layout.weights_bytes + at, size)

    ranges = copied_ranges(layout, slots, pull.buckets, best=pull.best)
    return Payload(Chunk(pull.step, 0, pull.number), ranges, read)


class Arrivals:
    """The memory in which buckets arrive at one aggregator.

    Args:
        fd: Descriptor of the aggregator's block.
        layout: Its layout, under any map.
        aggregator: The aggregator's index.
    """

    def __init__(self, fd: int, layout: Layout, aggregator: int) -> None:
        self._fd, self._layout, self._at = fd, layout, layout.arrivals_at(aggregator)
        self._planes: dict[int, mmap.mmap] = {}
        self._freeing: dict[threading.Thread, frozenset[int]] = {}

    def _plane(self, plane: int) -> mmap.mmap:
        if plane not in self._planes:
            size = self._layout.plane_bytes
            self._planes[plane] = map_block(self._fd, self._at + plane * size, size)
        return self._planes[plane]

    def range(self, offset: int, size: int) -> memoryview:
        """Return bytes of one plane, which can be read or written in place."""
        plane, at = divmod(offset, self._layout.plane_bytes)
        return memoryview(self._plane(plane))[at : at + size]

    def beside(self, optimizer: OptimizerMemory, step: int) -> Callable[[int, int], memoryview]:
        """Return `range` with the optimizer's arrays of tensors where the aggregator keeps them after a step.

        That is for an aggregator with a block of its own: nobody else writes there, and what it does not hold may be
        anything. It saves memory that is new in each copy.
        """
        size = self._layout.plane_bytes

        def place(offset: int, length: int) -> memoryview:
            plane, at = divmod(offset, size)
            if not _SLOTS <= plane < _SHARED:
                return self.range(offset, length)
            return optimizer.range(step, (plane - _SLOTS) * self._layout.weights_bytes + at, length)

        return place

    def weights(self, segment: int) -> Array:
        """Return a segment."""
        one = self._layout.segments[segment]
        return self._array(one.offset, one.spec)

    def slot(self, slot: SlotSpec, segment: int) -> Array:
        """Return an array of the optimizer; see `Owned`."""
        return self._array(_slot_at(self._layout, slot, segment), slot)

    def _array(self, offset: int, spec: TensorSpec) -> Array:
        count, dtype = math.prod(spec.shape), np.dtype(spec.dtype)
        if not count:
            return np.empty(spec.shape, dtype)
        return np.frombuffer(self.range(offset, count * dtype.itemsize), dtype).reshape(spec.shape)

    def keep_best(self, block: Block, number: int) -> None:
        """Put the best weights that have arrived for a map in their place, now that it holds.

        A copy for a map that does not hold may be late: another aggregator of the block may hold the buckets by then.
        """
        arrived = self.recorded
        if arrived is None or arrived.number != number or arrived.best is Best.NONE:
            return
        plane = 0 if arrived.best is Best.NEWEST else _BEST
        for begin, end in joined(self._layout.buckets[bucket] for bucket in arrived.buckets):
            source = self.range(plane * self._layout.plane_bytes + begin, end - begin)
            block.range(self._layout.best_at + begin, end - begin)[:] = source

    def record(self, arrived: ArrivedState) -> None:
        """Record that all has arrived, for the process that follows if this one dies."""
        buckets = np.array(arrived.buckets, np.uint32).tobytes()
        flags = arrived.best | _SLOTS_HELD * arrived.slots_held
        head = _HEAD.pack(arrived.number, arrived.first, len(arrived.buckets), flags, 0)[:-4]
        data = head + struct.pack("<I", zlib.crc32(head + buckets, 1)) + buckets
        self._plane(_RECORD)[: len(data)] = data

    def forget(self) -> None:
        """Forget what has arrived, as the job begins anew or goes back to a checkpoint."""
        self._plane(_RECORD)[: _HEAD.size] = bytes(_HEAD.size)

    @property
    def recorded(self) -> ArrivedState | None:
        """What has arrived as a whole last; None for nothing."""
        plane = self._plane(_RECORD)
        number, first, count, flags, checksum = _HEAD.unpack(plane[: _HEAD.size])
        # of the plane no more, since what is read of it takes memory
        end = _HEAD.size + 4 * count
        buckets = plane[_HEAD.size : end] if count <= len(self._layout.buckets) else b""
        if zlib.crc32(plane[: _HEAD.size - 4] + buckets, 1) != checksum:
            return None
        places = tuple(np.frombuffer(buckets, np.uint32).tolist())
        return ArrivedState(number, first, places, Best(flags % _SLOTS_HELD), flags >= _SLOTS_HELD)

    def release(self, buckets: Collection[int]) -> None:
        """Have a thread that gives way free the memory of buckets that were read; see `settle`."""
        self._freeing = {thread: some for thread, some in self._freeing.items() if thread.is_alive()}
        if _madvise is not None:
            thread = threading.Thread(target=self._free, args=(buckets,), name="freeing", daemon=True)
            self._freeing[thread] = frozenset(buckets)
            thread.start()

    def settle(self, buckets: Iterable[int]) -> None:
        """Wait until none of these buckets' memory is still to be freed, so that they can arrive again."""
        wanted = {*buckets}
        for thread, some in self._freeing.items():
            if not wanted.isdisjoint(some):
                thread.join()

    def _free(self, buckets: Collection[int]) -> None:
        give_way()
        assert _madvise is not None
        planes = [np.frombuffer(memory, np.uint8) for n, memory in [*self._planes.items()] if n != _RECORD]
        for begin, end in joined(self._layout.buckets[bucket] for bucket in sorted(buckets)):
            first, last = aligned(begin, mmap.PAGESIZE), end // mmap.PAGESIZE * mmap.PAGESIZE
            for plane in planes:
                if last > first:
                    _madvise(plane.ctypes.data + first, last - first, mmap.MADV_REMOVE)


class CopyInbox:
    """Receives buckets from the aggregators that hold them, in their state after one step.

    Args:
        place: Returns the bytes at an offset of the planes, of a given size; see `Arrivals`.
        ranges: What comes from each aggregator, by its index; see `copied_ranges`.
        number: The number of the requests.
    """

    def __init__(
        self, place: Callable[[int, int], memoryview], ranges: dict[int, Ranges], step: int, number: int
    ) -> None:
        self._place, self._step, self._number = place, step, number
        self._of = {index: Arrival(chunks_of(some)) for index, some in ranges.items()}
        self._stored: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Store nothing from now on: the memory is that of another copy."""
        with self._lock:
            self._closed = True

    def store(self, index: int, chunk: Chunk, payload: memoryview) -> None:
        """Put a chunk that is awaited in its place, by any thread; `take` then only notes it."""
        arrival = self._of.get(index)
        with self._lock:
            if self._closed or arrival is None or (chunk.step, chunk.number) != (self._step, self._number):
                return
            if arrival.expects(chunk.offset, len(payload)) and len(payload):
                # NumPy does not hold the interpreter's lock meanwhile, which is long where memory is new
                target = np.frombuffer(self._place(chunk.offset, len(payload)), np.uint8)
                np.copyto(target, np.frombuffer(payload, np.uint8))
                self._stored.add((index, chunk.offset))

    def take(self, index: int, chunk: Chunk, payload: bytes) -> bool:
        """Take a chunk; returns whether it was awaited."""
        arrival = self._of.get(index)
        if arrival is None or (chunk.step, chunk.number) != (self._step, self._number):
            return False
        if not arrival.expects(chunk.offset, len(payload)):
            return False
        if (index, chunk.offset) not in self._stored:
            self._place(chunk.offset, len(payload))[:] = payload
        arrival.took(chunk.offset)
        return True

    def check(self, index: int, check: ChunkQuery) -> Lacking | None:
        """List the chunks of a copy that was sent as a whole which have not arrived; None for none."""
        arrival = self._of.get(index)
        if arrival is None or (check.step, check.number) != (self._step, self._number):
            return None
        missing = arrival.missing
        return Lacking(check.step, check.number, check.question, missing) if missing else None

    @property
    def lacking(self) -> tuple[int, ...]:
        """The aggregators from which something is missing."""
        return tuple(index for index, arrival in self._of.items() if not arrival.complete)
