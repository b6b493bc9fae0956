"""The optimizer's state in a block, as a worker reads it for the saved model, or writes that of an earlier training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from scavenger.train.aggregation.keras_state import OptimizerState
from scavenger.train.aggregation.loss_scale import make_update
from scavenger.train.transport.shared_memory import Layout, OptimizerMemory

__all__ = ["SavedOptimizer"]

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
        tensors = layout.manifest.tensors
        self._earlier = layout.manifest.iterations
        self.memories: dict[int, OptimizerMemory] = {}
        self._slots = {}
        for index, part in enumerate(layout.parts):
            trainable = [i for i in part if tensors[i].role == "trainable"]
            if trainable:
                slots = make_update(
                    [tensors[i] for i in trainable], layout.manifest.optimizer, threads=1
                ).slots
                self.memories[index] = OptimizerMemory(fd, layout, index, slots)
                # trainable tensors come first in a manifest, so the index of one is that among them
                self._slots[index] = [(trainable[s.tensor] if s.tensor >= 0 else -1, s.number) for s in slots]

    def write_initial(self, slots: Mapping[tuple[int, int], Array]) -> None:
        """Write the state before the first step: arrays by tensor and number, as in `OptimizerState`."""
        for index, memory in self.memories.items():
            for key, target in zip(self._slots[index], memory.slots(0), strict=True):
                target[...] = slots[key]

    def state(self, step: int, lr_scale: float) -> OptimizerState:
        """Return the state after `step`, as views of the block."""
        arrays = {
            key: array
            for index, memory in self.memories.items()
            for key, array in zip(self._slots[index], memory.slots(step), strict=True)
        }
        return OptimizerState(step + self._earlier, lr_scale, arrays)
