"""The arrays of a model shard after a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scavenger.train.aggregation.kernels import Array


@dataclass(frozen=True, slots=True)
class ShardState:
    """Weights of a shard, one per tensor, and the optimizer's arrays, one per slot."""

    weights: Sequence[Array]
    slots: Sequence[Array]
