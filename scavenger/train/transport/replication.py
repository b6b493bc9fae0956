"""Payloads between hosts: ranges of one process's block are copied to the same place in another's.

Every process works on a block of the same layout. Where worker and aggregator share one, nothing has to move.
Where they do not, a worker's gradients go to the aggregators, and the weights come back, in chunks over ZeroMQ;
whatever happens around that is the same code.

Chunks of one payload come in order. Where one is missing, because a connection broke, the rest of the payload is
passed over, and whoever waits for it asks again: so what is complete has no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.elastic.membership import worker_slot
from scavenger.elastic.view import SLOTS_PER_WORKER, Piece
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport.messages import Chunk, Pull
from scavenger.train.transport.shared_memory import Block, Layout
from scavenger.train.transport.sockets import Router

__all__ = ["CHUNK_BYTES", "Inbox", "WeightsInbox", "pack", "send_initial", "send_piece", "send_weights"]

CHUNK_BYTES = 4 << 20
"""Measured to be the best between latency and calls; see benchmarks/README.md."""

Ranges = tuple[tuple[int, int], ...]


def _ranges(layout: Layout, index: int) -> Ranges:
    """What of a slot an aggregator needs: its part, and the first one the metric sums too; never nothing."""
    part = layout.part_ranges[index]
    both = (part, (layout.weights_bytes, layout.state_bytes)) if index == 0 else (part,)
    return tuple(a_range for a_range in both if a_range[0] < a_range[1]) or (part,)


def _chunks(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Offset and size; an empty range is one empty chunk, so that its arrival is told as any other's."""
    for begin, end in ranges:
        for at in range(begin, max(end, begin + 1), CHUNK_BYTES):
            yield at, min(CHUNK_BYTES, end - at)


def send_piece(
    send: Callable[[Chunk, Any], None], block: Block, index: int, view: int, step: int, piece: Piece
) -> None:
    """Push an aggregator its part of a piece that lies in the worker's slot."""
    slot_at = block.layout.slot_at(piece.slot)
    for offset, size in _chunks(_ranges(block.layout, index)):
        send(Chunk(step, offset, piece.number, piece.slot, view), block.range(slot_at + offset, size))


def send_weights(router: Router, peer: str, part: ModelShard, pull: Pull) -> None:
    """Send a worker the part's weights that it asked for."""
    state_at = part.layout.state_at(pull.step)
    for offset, size in _chunks((part.layout.part_ranges[part.index],)):
        router.send(peer, Chunk(pull.step, offset, pull.number), part.block.range(state_at + offset, size))


def pack(layout: Layout, arrays: Sequence[npt.NDArray[Any]]) -> memoryview:
    """Arrays, in the manifest's order, as they lie in a state section."""
    section = np.zeros(layout.weights_bytes, np.uint8)
    for offset, array in zip(layout.offsets, arrays, strict=True):
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        section[offset : offset + raw.size] = raw
    return section.data


def send_initial(
    send: Callable[[Chunk, Any], None], layout: Layout, index: int, packed: memoryview, number: int
) -> None:
    """Send an aggregator its part of the weights that the job begins with."""
    for offset, size in _chunks((layout.part_ranges[index],)):
        send(Chunk(0, offset, number), packed[offset : offset + size])


class _Arrival:
    """How much of one payload is there."""

    def __init__(self, ranges: Ranges) -> None:
        self._left = list(ranges)
        self._next: int | None = ranges[0][0]

    @property
    def complete(self) -> bool:
        return self._next is None

    def expects(self, offset: int) -> bool:
        return offset == self._next

    def take(self, size: int) -> None:
        assert self._next is not None
        self._next += size
        if self._next == self._left[0][1]:
            self._left.pop(0)
            self._next = self._left[0][0] if self._left else None


def _inside(ranges: Ranges, chunk: Chunk, size: int) -> bool:
    return any(begin <= chunk.offset and chunk.offset + size <= end for begin, end in ranges)


class Inbox:
    """What workers push to one aggregator.

    Args:
        block: The aggregator's.
        index: The aggregator's place.
    """

    def __init__(self, block: Block, index: int) -> None:
        self._block, self._layout = block, block.layout
        self._ranges = _ranges(block.layout, index)
        self._arrivals: dict[int, tuple[tuple[int, int], _Arrival]] = {}

    def take(self, worker: str, chunk: Chunk, payload: bytes) -> bool:
        """Put a chunk in its place; True where its piece is complete, also where it was before.

        A chunk that does not fit, or that would lie in somebody else's slot, is refused before a byte is copied.
        """
        if chunk.slot not in self._slots(worker) or not _inside(self._ranges, chunk, len(payload)):
            print(f"refused a chunk of {worker}: slot {chunk.slot}, offset {chunk.offset}", flush=True)
            return False
        # slots and pieces are numbered through the whole job, so one of a lower number comes too late: from a worker
        # that had the place before, or of what is done
        place, newest = self._layout.place_of(chunk.slot), (chunk.slot, chunk.piece)
        known, arrival = self._arrivals.get(place, ((-1, -1), None))
        if newest < known:
            return False
        first = chunk.offset == self._ranges[0][0]
        if arrival is None or newest > known or (first and not arrival.complete):
            arrival = _Arrival(self._ranges)
            self._arrivals[place] = (newest, arrival)
        if arrival.expects(chunk.offset):
            self._block.range(self._layout.slot_at(chunk.slot) + chunk.offset, len(payload))[:] = payload
            arrival.take(len(payload))
        return arrival.complete and chunk.offset + len(payload) == self._ranges[-1][1]

    def holds(self, worker: str, piece: int) -> bool:
        """Whether all of a worker's piece has arrived."""
        for slot in self._slots(worker):
            known, arrival = self._arrivals.get(self._layout.place_of(slot), ((-1, -1), None))
            if arrival is not None and known == (slot, piece) and arrival.complete:
                return True
        return False

    def forget(self, worker: str) -> None:
        """Give the memory of a worker that is gone back, unless another has its place by now."""
        own = self._slots(worker)
        places = (self._arrivals.get(self._layout.place_of(slot)) for slot in own)
        if own and not any(entry is not None and entry[0][0] >= own.stop for entry in places):
            self._block.release_slots(own.start)

    def _slots(self, worker: str) -> range:
        """The worker's own; empty for whoever can have none."""
        try:
            own = worker_slot(worker)
        except ValueError:
            return range(0)
        return range(own, own + SLOTS_PER_WORKER) if own >= 0 else range(0)


class WeightsInbox:
    """Weights that aggregators send to whoever does not share their memory.

    Args:
        block: The receiver's.
        remote: Places of those aggregators.
    """

    def __init__(self, block: Block, remote: Sequence[int]) -> None:
        self._block = block
        ranges = block.layout.part_ranges
        self._ranges: dict[int, Ranges] = {i: (ranges[i],) for i in remote if ranges[i][0] < ranges[i][1]}
        self._arrivals: dict[int, _Arrival] = {}
        self._step: int | None = None
        self.number = 0
        self.received_bytes = 0

    def want(self, step: int, *, anew: bool = False) -> None:
        """From now on take the weights of `step` only.

        Args:
            anew: Also where they are there already: they have changed since.
        """
        if step != self._step or anew:
            self._step, self.number = step, self.number + 1
            self._arrivals = {index: _Arrival(ranges) for index, ranges in self._ranges.items()}

    def take(self, index: int, chunk: Chunk, payload: bytes) -> None:
        """Put a chunk of the weights in its place; one that was not asked for, or does not fit, is passed over."""
        arrival = self._arrivals.get(index)
        if arrival is None or (chunk.step, chunk.piece) != (self._step, self.number):
            return
        if arrival.complete or not _inside(self._ranges[index], chunk, len(payload)):
            return
        if chunk.offset == self._ranges[index][0][0]:
            arrival = self._arrivals[index] = _Arrival(self._ranges[index])
        if arrival.expects(chunk.offset):
            at = self._block.layout.state_at(chunk.step) + chunk.offset
            self._block.range(at, len(payload))[:] = payload
            arrival.take(len(payload))
            self.received_bytes += len(payload)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Whose part of the wanted weights is not all there."""
        return tuple(index for index, arrival in self._arrivals.items() if not arrival.complete)
