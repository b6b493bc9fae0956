"""Replication between hosts: copies ranges of one process's block to the same offsets in another process's block.

Every process works on a block of the same layout. If a worker and an aggregator share one, nothing has to be copied.
If they do not, the weights go to the worker, in chunks over ZeroMQ; the code around that is the same in both cases.
Gradients go to the aggregator as it asks for them (`scavenger.train.aggregation.arriving_sums`).

A payload is sent once. If the receiver does not confirm it in time, because it is slow or because a connection broke,
the sender asks the receiver what has not arrived, and sends only that (`scavenger.elastic.payloads`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.elastic.payloads import Arrival, Delivery
from scavenger.train.transport.layout import Layout, Ranges
from scavenger.train.transport.messages import Chunk, ChunkQuery, Lacking, Pull
from scavenger.train.transport.shared_memory import Block, OptimizerMemory

CHUNK_BYTES = 4 << 20
"""The measured best compromise between latency and the number of calls; see ADR 35."""

Send = Callable[[Any, Any], None]
"""Sends one message to one receiver, with its payload or None."""


def chunks_of(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each chunk; an empty range has one empty chunk, so that it also has an arrival."""
    for begin, end in ranges:
        for at in range(begin, max(end, begin + 1), CHUNK_BYTES):
            yield at, min(CHUNK_BYTES, end - at)


def pack(layout: Layout, arrays: Sequence[npt.NDArray[Any]]) -> memoryview:
    """Pack arrays, in the manifest's order, into bytes with the layout of a state section's tensors."""
    section = np.zeros(layout.weights_bytes, np.uint8)
    for offset, array in zip(layout.offsets, arrays, strict=True):
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        section[offset : offset + raw.size] = raw
    return section.data


# ---- sending -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes for one receiver.

    Attributes:
        head: The header that all chunks share, except for their offsets.
        ranges: The ranges of a state section to send.
        read: Returns the bytes at an offset, of a given size.
    """

    head: Chunk
    ranges: Ranges
    read: Callable[[int, int], memoryview]

    def chunks(self, only: Collection[int] | None = None) -> Iterator[tuple[Chunk, memoryview]]:
        """Yield all chunks, or those at the offsets `only`."""
        for offset, size in chunks_of(self.ranges):
            if only is None or offset in only:
                yield msgspec.structs.replace(self.head, offset=offset), self.read(offset, size)


def weights_payload(
    block: Block, layout: Layout, index: int, pull: Pull, optimizer: OptimizerMemory | None = None
) -> Payload:
    """Make the payload of an aggregator's share of the weights, and the optimizer's state, that a worker requested."""
    head, ranges = Chunk(pull.step, 0, pull.number), _weights_ranges(layout, index, optimizer)
    return Payload(head, ranges, functools.partial(_weights_bytes, block, optimizer, pull.step))


def _weights_ranges(layout: Layout, index: int, optimizer: OptimizerMemory | None) -> Ranges:
    """Return an aggregator's share of a state section, followed by the optimizer's state behind all sections."""
    parts, end = layout.part_ranges[index], layout.state_bytes
    behind = () if optimizer is None else optimizer.ranges
    return (*parts, *((end + first, end + last) for first, last in behind))


def _weights_bytes(
    block: Block, optimizer: OptimizerMemory | None, step: int, offset: int, size: int
) -> memoryview:
    """Return the bytes at an offset of `_weights_ranges`."""
    beyond = offset - block.layout.state_bytes
    if beyond >= 0 and optimizer is not None:
        return optimizer.range(step, beyond, size)
    return block.range(block.layout.state_at(step) + offset, size)


def initial_payload(
    layout: Layout, index: int, packed: memoryview, number: int, optimizer: OptimizerMemory | None = None
) -> Payload:
    """Make the payload of an aggregator's share of the job's initial weights, and of the optimizer's state if any."""

    def read(offset: int, size: int) -> memoryview:
        if optimizer is not None and offset >= layout.state_bytes:
            return optimizer.range(0, offset - layout.state_bytes, size)
        return packed[offset : offset + size]

    return Payload(Chunk(0, 0, number), _weights_ranges(layout, index, optimizer), read)


class Outbox:
    """Sends payloads to one receiver, and remembers which were sent."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], Delivery] = {}

    def push(self, payload: Payload, send: Send) -> None:
        """Send a payload; or, if it was sent before, ask the receiver which of its chunks have not arrived."""
        head = payload.head
        if (delivery := self._sent.get((head.step, head.number))) is not None:
            send(ChunkQuery(head.step, head.number, delivery.ask()), None)
            return
        self._sent[head.step, head.number] = Delivery()
        for chunk, data in payload.chunks():
            send(chunk, data)

    def resend(self, answer: Lacking, payload: Payload, send: Send) -> bool:
        """Send the chunks that the receiver lacks, if its answer is up to date; returns whether it is."""
        delivery = self._sent.get((answer.step, answer.number))
        if delivery is None or not delivery.answered(answer.question):
            return False
        for chunk, data in payload.chunks(frozenset(answer.offsets)):
            send(chunk, data)
        return True

    def forget_before(self, step: int) -> None:
        """Forget the payloads of earlier steps, which no receiver needs any more."""
        self._sent = {key: delivery for key, delivery in self._sent.items() if key[0] >= step}


# ---- receiving ---------------------------------------------------------------------------------------------


def _answer(arrival: Arrival, check: ChunkQuery) -> Lacking | None:
    missing = arrival.missing
    return Lacking(check.step, check.number, check.question, missing) if missing else None


class WeightsInbox:
    """Receives weights from aggregators that do not share the receiver's memory.

    Args:
        block: The receiver's block.
        remote: Indices of those aggregators.
        layout: The layout with the map of buckets that tells what comes from whom, that of the block by default; may
            change.

    Attributes:
        number: The number of the newest request for weights.
        received_bytes: The bytes received so far.
    """

    def __init__(
        self,
        block: Block,
        remote: Sequence[int],
        layout: Layout | None = None,
    ) -> None:
        self._block, self._remote = block, tuple(remote)
        self.layout = layout or block.layout
        self._optimizers: Mapping[int, OptimizerMemory] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._step: int | None = None
        self._map = 0
        self._wanted_at = 0.0
        self._arrived_at: dict[int, float] = {}
        self.number = 0
        self.received_bytes = 0

    def want(
        self, step: int, *, changed: bool = False, optimizers: Mapping[int, OptimizerMemory] | None = None
    ) -> None:
        """Accept only the weights of `step` from now on.

        Args:
            changed: Whether the weights of that step have changed, so that they are needed even if they are here.
            optimizers: Where to put the optimizer's state of that step, for each aggregator; None if it is not needed.
        """
        layout = self.layout
        if step != self._step or layout.map_number != self._map or changed:
            self._step, self.number, self._optimizers = step, self.number + 1, optimizers or {}
            self._map = layout.map_number
            self._wanted_at, self._arrived_at = time.perf_counter(), {}
            self._arrivals = {
                index: Arrival(chunks_of(_weights_ranges(layout, index, self._optimizers.get(index))))
                for index in self._remote
                if layout.part_ranges[index]
            }

    def pull(self) -> Pull:
        """Return the request for what is wanted."""
        assert self._step is not None
        return Pull(self._step, self.number, bool(self._optimizers))

    def take(self, index: int, chunk: Chunk, payload: bytes) -> None:
        """Copy a chunk of the weights into the block; one that was not requested, or does not fit, is ignored."""
        arrival = self._arrivals.get(index)
        if arrival is None or (chunk.step, chunk.number) != (self._step, self.number):
            return
        if arrival.expects(chunk.offset, len(payload)):
            optimizer = self._optimizers.get(index)
            _weights_bytes(self._block, optimizer, chunk.step, chunk.offset, len(payload))[:] = payload
            arrival.took(chunk.offset)
            self.received_bytes += len(payload)
            if arrival.complete:
                self._arrived_at[index] = time.perf_counter()

    def check(self, index: int, check: ChunkQuery) -> Lacking | None:
        """List the chunks of fully sent weights that have not arrived; None for none, or if they are not wanted."""
        arrival = self._arrivals.get(index)
        if arrival is None or (check.step, check.number) != (self._step, self.number):
            return None
        return _answer(arrival, check)

    def took_s(self) -> tuple[tuple[int, float], ...]:
        """Return the seconds that each aggregator's whole share took to arrive, by its index; tells of it once."""
        arrived, self._arrived_at = self._arrived_at, {}
        return tuple((index, at - self._wanted_at) for index, at in sorted(arrived.items()))

    @property
    def lacking(self) -> tuple[int, ...]:
        """Indices of the aggregators whose share of the wanted weights is incomplete."""
        return tuple(index for index, arrival in self._arrivals.items() if not arrival.complete)
