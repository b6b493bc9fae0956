"""Dynamic loss scaling as `keras.optimizers.LossScaleOptimizer` does it, around the update of the optimizer inside.

Workers multiply the loss by the scale and divide the gradients by it, so that small gradients in half precision are
not lost. If a gradient overflows, the step leaves the weights and the optimizer as they were, and the scale is halved;
after some steps in a row without overflow, it is doubled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from scavenger.train.aggregation.constraints import Constraint
from scavenger.train.aggregation.kernels import Array
from scavenger.train.aggregation.mean_gradient import Contribution, Norms
from scavenger.train.aggregation.schedules import read_named
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.aggregation.update import Differing, Update
from scavenger.train.transport.messages.values import SlotSpec, TensorSpec

_SLOTS = (("iterations", "int64"), ("step_counter", "int64"), ("dynamic_scale", "float32"))
"""State of the scaling: updates of the inner optimizer, finite steps since the scale changed, and the scale."""


class _Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of a `LossScaleOptimizer`."""

    inner_optimizer: dict[str, Any]
    initial_scale: float = 2.0**15
    dynamic_growth_steps: int = 2000
    name: str | None = None


def make_update(
    tensors: Sequence[TensorSpec],
    optimizer: str,
    constraints: Mapping[int, Constraint] | None = None,
    *,
    threads: int | None = None,
) -> Update | ScaledUpdate:
    """Build the update of a shard's tensors from Keras's serialised optimizer; see `Update`.

    Raises:
        NotSupportedError: If the configuration is not that of one of Keras's own optimizers.
    """
    try:
        name, config = read_named(json.loads(optimizer), "keras.optimizers")
        scaling = msgspec.convert(config, _Scaling) if name == "lossscaleoptimizer" else None
    except (ValueError, KeyError):
        scaling = None
    if scaling is None:
        return Update(tensors, optimizer, constraints, threads=threads)
    inner = Update(tensors, json.dumps(scaling.inner_optimizer), constraints, threads=threads)
    return ScaledUpdate(inner, scaling)


class ScaledUpdate:
    """An update with dynamic loss scaling. A shard that has tensors must hold all of the model's.

    Args:
        update: The update of the inner optimizer, from gradients that are divided by the scale.
        scaling: The configuration.

    Attributes:
        slots: Those of `update`, followed by the state of the scaling.
    """

    def __init__(self, update: Update, scaling: _Scaling) -> None:
        self._update, self._scaling = update, scaling
        first = sum(slot.tensor < 0 for slot in update.slots)
        self.slots = update.slots + tuple(
            SlotSpec(f"loss_scale/{name}", (), dtype, "slot", -1, first + number)
            for number, (name, dtype) in enumerate(_SLOTS)
        )

    def initial_slots(self, weights: Sequence[Array]) -> list[Array]:
        begin = (0, 0, self._scaling.initial_scale)
        own = [np.array(value, dtype) for value, (_, dtype) in zip(begin, _SLOTS, strict=True)]
        return self._update.initial_slots(weights) + own

    def trace(self) -> None:
        self._update.trace()

    def loss_scale(self, slots: Sequence[Array]) -> float:
        """Return the scale of the step after the one that left these slots."""
        return float(slots[-1])

    def apply(
        self,
        contributions: Sequence[Contribution],
        before: ShardState,
        after: ShardState,
        *,
        step: int,
        lr_scale: float = 1.0,
        schedule_step: int | None = None,
        differing: Differing | None = None,
    ) -> Norms:
        """Apply one step, or skip it if a gradient is not finite; see `Update.apply`.

        The inner optimizer counts only the steps that are not skipped. The norms of a skipped step are 0 and finite,
        unless the scale has become 0 by halving: then no later step could be applied, and this one is not finite.
        Every row is written, as in a skipped step, so `differing` is left as it is.
        """
        own = len(_SLOTS)
        iterations, counter, scale = before.slots[-own:]
        norms = self._update.apply(
            contributions,
            ShardState(before.weights, before.slots[:-own]),
            ShardState(after.weights, after.slots[:-own]),
            step=int(iterations) + 1,
            lr_scale=lr_scale,
            schedule_step=schedule_step,
        )
        new_iterations, new_counter, new_scale = after.slots[-own:]
        if not norms.finite:
            targets, values = (*after.weights, *after.slots), (*before.weights, *before.slots)
            for target, value in zip(targets, values, strict=True):
                np.copyto(target, value)
            new_counter[...] = 0
            np.multiply(scale, np.float32(0.5), out=new_scale)
            return Norms(0.0, bool(new_scale > 0.0))
        new_iterations[...] = iterations + 1
        grows = int(counter) == self._scaling.dynamic_growth_steps - 1
        new_counter[...] = 0 if grows else counter + 1
        np.multiply(scale, np.float32(2.0 if grows else 1.0), out=new_scale)
        return norms

    def finalise(self, weights: Sequence[Array], slots: Sequence[Array], out: Sequence[Array]) -> None:
        self._update.finalise(weights, slots[: -len(_SLOTS)], out)
