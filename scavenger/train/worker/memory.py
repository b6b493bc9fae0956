"""The memory block as a worker uses it: reads weights, writes gradients into its slots, and the initial weights."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scavenger.train.norms import copied_sqnorm, sqnorm
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.data import Lacking, Seed
from scavenger.train.transport.messages.values import Manifest, RowCounts
from scavenger.train.transport.replication import Outbox, Payload, Send, initial_payload, pack
from scavenger.train.transport.rows import Rows
from scavenger.train.transport.shared_memory import Block, OptimizerMemory
from scavenger.train.worker.gradients import Gradient
from scavenger.train.worker.program import Program
from scavenger.train.worker.rounding import Rounding
from scavenger.train.worker.saved_optimizer import SavedOptimizer

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Written(NamedTuple):
    """A gradient in a slot.

    Attributes:
        rows: Which segments' gradients are sparse in the slot: those that are smaller so.
        sqnorm: |g|² over all tensors.
    """

    rows: RowCounts
    sqnorm: float


def keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next one.

    Otherwise it gives large arrays back, and gets them from the kernel again in every step: that took a tenth to a
    fifth of the time of 13 million gradients.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # of the GNU C library
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_THRESHOLD, 2**30)


class WorkerMemory:
    """The mapped memory block of one worker.

    Args:
        fd: Descriptor of the block.
        manifest: The model.
        aggregators: Number of aggregators.
        program: The worker's model, whose weights are to be in the block.
        rounding: Rounds gradients; None for one that rounds none.

    Attributes:
        layout: The layout of the block.
        block: The block.
    """

    def __init__(
        self,
        fd: int,
        manifest: Manifest,
        aggregators: int,
        program: Program,
        rounding: Rounding | None = None,
    ) -> None:
        self.layout = Layout.of(manifest, aggregators)
        self.block = Block(fd, self.layout)
        arrays = [self.block.tensors(self.layout.state_at(turn)) for turn in (0, 1)]
        self._weights = [program.alias(turn) for turn in arrays]
        self._slots: dict[int, list[Any]] = {}
        self._rounding = rounding or Rounding(())

    def weights(self, step: int) -> list[Any]:
        """Return the weights after a step, if they are in this memory, without a copy."""
        return self._weights[step % 2]

    def write(self, result: Gradient, slot: int) -> Written:
        """Write the results for a piece to its slot, where the aggregators read them."""
        at, counts, square = self.layout.slot_at(slot), list[tuple[int, int]](), 0.0
        if slot not in self._slots:
            self._slots[slot] = [*self.block.tensors(at), *self.block.metrics(at)]
        gradients = self._slots[slot][: len(result.gradients)]
        others = self._slots[slot][len(result.gradients) :]
        with np.errstate(all="ignore"):  # a gradient that is not finite is reported by its norm
            for index, (target, value) in enumerate(zip(gradients, result.gradients, strict=True)):
                if isinstance(value, Rows):
                    counts += self.block.write_sparse(at, index, value)
                    square += sqnorm(value.values.reshape(-1))
                elif self._rounding.rounds(index):
                    square += self._rounding.write(index, value, target)
                else:
                    square += copied_sqnorm(value, target)
        for target, value in zip(others, (*result.states, *result.metrics), strict=True):
            np.copyto(target, value)
        return Written(tuple(sorted(counts)), square)

    def touch(self) -> None:
        """Map the pages of the weights now, so that the first step does not wait for it."""
        for turn in (0, 1):
            self.block.touch(self.layout.state_at(turn), self.layout.state_bytes)


class InitialWeights:
    """The weights that this worker's model began with, for a job that has none yet.

    Args:
        values: The weights, in the manifest's order.
        packed: Whether an aggregator on another host may request them.
        fd: Descriptor of the worker's block.
        slots: State of an optimizer that has taken steps before the job; see `OptimizerState`.

    Attributes:
        seeded: Whether they are in this host's memory, as the weights of step 0.
    """

    def __init__(
        self,
        memory: WorkerMemory,
        values: list[Any],
        *,
        packed: bool,
        fd: int,
        slots: Mapping[tuple[int, int], Any] | None = None,
    ) -> None:
        self._memory, self._fd, self._slots = memory, fd, slots
        self._values: list[Any] | None = values
        self._layout = memory.layout
        self._optimizers: Mapping[int, OptimizerMemory] = {}
        self._packed = pack(memory.layout, values) if packed else None
        self._asked: dict[int, Seed] = {}
        self._outboxes = [Outbox() for _ in range(memory.layout.aggregators)]
        self.seeded = False

    def publish(self) -> bool:
        """Write them to this host's memory; returns False if they are there, or were dropped."""
        if self._values is None:
            return False
        memory = self._memory
        for target, value in zip(memory.block.tensors(memory.layout.state_at(0)), self._values, strict=True):
            target[...] = value
        if self._slots is not None:
            SavedOptimizer(self._fd, memory.layout).write_initial(self._slots)
        self._values, self.seeded = None, True
        return True

    def drop(self) -> None:
        """Free what only this host's memory needs, since the job has weights; others may be lost with their memory."""
        self._values, self._optimizers = None, {}
        if self._packed is None:
            self._slots = None

    def send(self, index: int, request: Seed, send: Send) -> None:
        """Send an aggregator its share, as the answer to its request."""
        if self._packed is not None:
            self._asked[index] = request
            self._outboxes[index].push(self._payload(index, request), send)

    def resend(self, index: int, answer: Lacking, send: Send) -> None:
        """Send the chunks that an aggregator reports as missing."""
        request = self._asked.get(index)
        if self._packed is not None and request is not None and request.number == answer.number:
            self._outboxes[index].resend(answer, self._payload(index, request), send)

    def _payload(self, index: int, request: Seed) -> Payload:
        assert self._packed is not None
        if request.holders != self._layout.holders:
            self._layout, self._optimizers = self._layout.moved(request.holders, 0), {}
        if self._slots is not None and not self._optimizers:
            self._optimizers = packed_optimizers(self._layout, self._slots)
        return initial_payload(self._layout, index, self._packed, request.number, self._optimizers.get(index))


def packed_optimizers(layout: Layout, slots: Mapping[tuple[int, int], Any]) -> Mapping[int, OptimizerMemory]:
    """Write the optimizer's state to memory that no aggregator shares, by aggregator."""
    fd = create_block()
    try:
        saved = SavedOptimizer(fd, layout)
        saved.write_initial(slots)
    finally:
        os.close(fd)  # what is mapped stays
    return saved.memories
