"""Payloads between hosts: ranges of one process's block are copied to the same place in another's.

Every process works on a block of the same layout. Where worker and aggregator share one, nothing has to move.
Where they do not, a worker's gradients go to the aggregators, and the weights come back, in chunks over ZeroMQ;
whatever happens around that is the same code.

A payload is sent once. Where its receiver is still waited for, because it is slow or because a connection broke, the
sender asks it what has not arrived, and sends that alone (`scavenger.elastic.payloads`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.elastic.membership import worker_slot
from scavenger.elastic.payloads import Arrival, Delivery
from scavenger.elastic.view import SLOTS_PER_WORKER, Piece
from scavenger.train.transport.messages import Check, Chunk, Lacking, Pull
from scavenger.train.transport.shared_memory import Block, Layout

__all__ = [
    "CHUNK_BYTES",
    "Inbox",
    "Outbox",
    "Payload",
    "Send",
    "WeightsInbox",
    "initial_payload",
    "pack",
    "piece_payload",
    "weights_payload",
]

CHUNK_BYTES = 4 << 20
"""Measured to be the best between latency and calls; see benchmarks/README.md."""

Ranges = tuple[tuple[int, int], ...]
Send = Callable[[Any, Any], None]
"""Sends one message to one receiver, with bytes or None."""


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


def pack(layout: Layout, arrays: Sequence[npt.NDArray[Any]]) -> memoryview:
    """Arrays, in the manifest's order, as they lie in a state section."""
    section = np.zeros(layout.weights_bytes, np.uint8)
    for offset, array in zip(layout.offsets, arrays, strict=True):
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        section[offset : offset + raw.size] = raw
    return section.data


# ---- what is sent ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes for one receiver.

    Attributes:
        head: What each chunk says, but for its offset.
        ranges: Of a state section.
        read: The bytes from an offset on, of a size.
    """

    head: Chunk
    ranges: Ranges
    read: Callable[[int, int], memoryview]

    def chunks(self, only: Collection[int] | None = None) -> Iterator[tuple[Chunk, memoryview]]:
        """All chunks, or those at the offsets `only`."""
        for offset, size in _chunks(self.ranges):
            if only is None or offset in only:
                yield msgspec.structs.replace(self.head, offset=offset), self.read(offset, size)


def piece_payload(block: Block, index: int, view: int, step: int, piece: Piece) -> Payload:
    """An aggregator's part of a piece that lies in the worker's slot."""
    at = block.layout.slot_at(piece.slot)
    head = Chunk(step, 0, piece.number, piece.slot, view)
    return Payload(head, _ranges(block.layout, index), lambda offset, size: block.range(at + offset, size))


def weights_payload(block: Block, index: int, pull: Pull) -> Payload:
    """An aggregator's part of the weights that a worker asked for."""
    at, ranges = block.layout.state_at(pull.step), (block.layout.part_ranges[index],)
    head = Chunk(pull.step, 0, pull.number)
    return Payload(head, ranges, lambda offset, size: block.range(at + offset, size))


def initial_payload(layout: Layout, index: int, packed: memoryview, number: int) -> Payload:
    """An aggregator's part of the weights that the job begins with."""
    ranges = (layout.part_ranges[index],)
    return Payload(Chunk(0, 0, number), ranges, lambda offset, size: packed[offset : offset + size])


class Outbox:
    """What one receiver was sent."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], Delivery] = {}

    def push(self, payload: Payload, send: Send) -> None:
        """Send a payload; or, where that was done before, ask the receiver which of its chunks have not arrived."""
        head = payload.head
        if (delivery := self._sent.get((head.step, head.piece))) is not None:
            send(Check(head.step, head.piece, delivery.ask(), head.slot, head.view), None)
            return
        self._sent[head.step, head.piece] = Delivery()
        for chunk, data in payload.chunks():
            send(chunk, data)

    def resend(self, answer: Lacking, payload: Payload, send: Send) -> bool:
        """Send what the receiver lacks, where its answer still holds; returns whether it does."""
        delivery = self._sent.get((answer.step, answer.piece))
        if delivery is None or not delivery.answered(answer.question):
            return False
        for chunk, data in payload.chunks(frozenset(answer.offsets)):
            send(chunk, data)
        return True

    def forget_before(self, step: int) -> None:
        """Nobody asks for payloads of earlier steps any more."""
        self._sent = {key: delivery for key, delivery in self._sent.items() if key[0] >= step}


# ---- what arrives ------------------------------------------------------------------------------------------


def _answer(arrival: Arrival, check: Check) -> Lacking | None:
    missing = arrival.missing
    return Lacking(check.step, check.piece, check.question, missing) if missing else None


class Inbox:
    """What workers push to one aggregator.

    Args:
        block: The aggregator's.
        index: The aggregator's place.
    """

    def __init__(self, block: Block, index: int) -> None:
        self._block, self._layout = block, block.layout
        self._chunks = tuple(_chunks(_ranges(block.layout, index)))
        self._fitting = frozenset(self._chunks)
        self._arrivals: dict[int, tuple[tuple[int, int], Arrival]] = {}

    def take(self, worker: str, chunk: Chunk, payload: bytes) -> bool:
        """Put a chunk in its place; True where it makes its piece complete.

        A chunk that does not fit, or that would lie in somebody else's slot, is refused before a byte is copied.
        """
        fits = (chunk.offset, len(payload)) in self._fitting
        if chunk.slot not in self._slots(worker) or not fits:
            print(f"refused a chunk of {worker}: slot {chunk.slot}, offset {chunk.offset}", flush=True)
            return False
        arrival = self._arrival(chunk.slot, chunk.piece)
        if arrival is None or not arrival.expects(chunk.offset, len(payload)):
            return False
        self._block.range(self._layout.slot_at(chunk.slot) + chunk.offset, len(payload))[:] = payload
        arrival.took(chunk.offset)
        return arrival.complete

    def check(self, worker: str, check: Check) -> Lacking | None:
        """What has not arrived of a piece all of which was sent; None for nothing, or if it is not the worker's."""
        if check.slot not in self._slots(worker):
            return None
        arrival = self._arrival(check.slot, check.piece)
        return None if arrival is None else _answer(arrival, check)

    def _arrival(self, slot: int, piece: int) -> Arrival | None:
        """How much of a piece is there; None where its place is another's by now.

        Slots and pieces are numbered through the whole job, so one of a lower number comes too late: from a worker
        that had the place before, or of what is done.
        """
        place, newest = self._layout.place_of(slot), (slot, piece)
        known, arrival = self._arrivals.get(place, ((-1, -1), None))
        if newest < known:
            return None
        if arrival is None or newest > known:
            arrival = Arrival(self._chunks)
            self._arrivals[place] = (newest, arrival)
        return arrival

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
        self._arrivals: dict[int, Arrival] = {}
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
            self._arrivals = {index: Arrival(_chunks(ranges)) for index, ranges in self._ranges.items()}

    def take(self, index: int, chunk: Chunk, payload: bytes) -> None:
        """Put a chunk of the weights in its place; one that was not asked for, or does not fit, is passed over."""
        arrival = self._arrivals.get(index)
        if arrival is None or (chunk.step, chunk.piece) != (self._step, self.number):
            return
        if arrival.expects(chunk.offset, len(payload)):
            at = self._block.layout.state_at(chunk.step) + chunk.offset
            self._block.range(at, len(payload))[:] = payload
            arrival.took(chunk.offset)
            self.received_bytes += len(payload)

    def check(self, index: int, check: Check) -> Lacking | None:
        """What has not arrived of weights all of which were sent; None for nothing, or if they are wanted no more."""
        arrival = self._arrivals.get(index)
        if arrival is None or (check.step, check.piece) != (self._step, self.number):
            return None
        return _answer(arrival, check)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Whose part of the wanted weights is not all there."""
        return tuple(index for index, arrival in self._arrivals.items() if not arrival.complete)
