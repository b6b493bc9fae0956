"""The optimizer's state in a block, as a worker reads it for the saved model, or writes that of an earlier training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.train.aggregation.keras_state import OptimizerState
from scavenger.train.aggregation.loss_scale import make_update
from scavenger.train.transport.layout import Layout, Segment
from scavenger.train.transport.shared_memory import OptimizerMemory

Array = npt.NDArray[Any]


class SavedOptimizer:
    """The optimizer's state of all model shards in one block.

    Args:
        fd: Descriptor of the block.
        layout: The block's layout.

    Attributes:
        memories: The state of each aggregator that updates tensors. An aggregator that does not share the block has
            to send it first.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self._layout = layout
        self.memories: dict[int, OptimizerMemory] = {}
        self._slots: dict[int, list[tuple[Segment | None, int]]] = {}
        for index, part in enumerate(layout.parts):
            trainable = [one for n in part if (one := layout.segments[n]).spec.role == "trainable"]
            if trainable:
                specs = [segment.spec for segment in trainable]
                slots = make_update(specs, layout.manifest.optimizer, threads=1).slots
                self.memories[index] = OptimizerMemory(fd, layout, index, slots, trainable)
                self._slots[index] = [
                    (trainable[s.tensor] if s.tensor >= 0 else None, s.number) for s in slots
                ]

    def write_initial(self, slots: Mapping[tuple[int, int], Array]) -> None:
        """Write the state before the first step: arrays by tensor and number, as in `OptimizerState`."""
        for segment, number, target in self._arrays(0):
            if segment is None or segment.is_whole:
                target[...] = slots[_key(segment, number)]
            else:
                target[...] = segment.of(slots[_key(segment, number)])

    def state(self, step: int, lr_scale: float) -> OptimizerState:
        """Return the state after `step`: views of the block, or copies where a tensor is cut."""
        arrays: dict[tuple[int, int], Array] = {}
        tensors = self._layout.manifest.tensors
        for segment, number, array in self._arrays(step):
            key = _key(segment, number)
            if segment is None or segment.is_whole:
                arrays[key] = array
            else:
                whole = arrays.setdefault(key, np.empty(tensors[segment.tensor].shape, array.dtype))
                segment.of(whole)[...] = array
        return OptimizerState(step + self._layout.manifest.iterations, lr_scale, arrays)

    def _arrays(self, step: int) -> Iterator[tuple[Segment | None, int, Array]]:
        """Yield the segment, or None for what belongs to no tensor, the number and the array of each slot."""
        for index, memory in self.memories.items():
            for (segment, number), array in zip(self._slots[index], memory.slots(step), strict=True):
                yield segment, number, array


def _key(segment: Segment | None, number: int) -> tuple[int, int]:
    # trainable tensors come first in a manifest, so the index of one is that among them
    return (-1 if segment is None else segment.tensor), number
