"""Fallback of `scavenger.train.aggregation.update` that applies any Keras optimizer with Keras itself.

Importing this module imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.errors import NotSupportedError
from scavenger.train.aggregation.keras_state import owners_of, parts_of, state_of
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.transport.messages.values import SlotSpec, TensorSpec

Array = npt.NDArray[Any]


class KerasUpdate:
    """A shard's tensors and their optimizer as TensorFlow variables, which are overwritten before each step.

    Args:
        tensors: The trainable tensors of the shard.
        optimizer: Keras's serialised optimizer, JSON: a configuration, never code.

    Raises:
        NotSupportedError: If the configuration is not that of one of Keras's own optimizers.
    """

    def __init__(self, tensors: Sequence[TensorSpec], optimizer: str) -> None:
        self._tensors, self._config = tuple(tensors), optimizer
        zeros = [np.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        self._optimizer, self._weights = self._built(zeros)
        self._all = parts_of(self._optimizer)
        self._scale = tf.Variable(1.0, trainable=False)
        self._at = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._rates: list[tuple[Any, np.float32]] = []
        for one in self._all:
            rate = one._learning_rate
            if isinstance(rate, keras.Variable):
                self._rates.append((rate, np.float32(rate.numpy())))
            else:
                one.learning_rate = _Scaled(rate, self._scale, self._at)
        self._iterations = [one._iterations for one in self._all]
        self._state = state_of(self._optimizer)
        self.slots = tuple(self._slot_specs())
        self._step = tf.function(lambda gradients: self._optimizer.apply(gradients, self._weights))

    def _built(self, values: Sequence[Array]) -> tuple[Any, list[Any]]:
        try:
            optimizer = _deserialised(json.loads(self._config))
            if not isinstance(optimizer, keras.optimizers.Optimizer):
                raise TypeError("it names none of Keras's own")
        except (TypeError, ValueError, KeyError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise NotSupportedError(
                f"the optimizer cannot be built from its configuration: {first}"
            ) from None
        weights = [_variable(tensor, value) for tensor, value in zip(self._tensors, values, strict=True)]
        optimizer.build(weights)
        return optimizer, weights

    def _slot_specs(self) -> Iterator[SlotSpec]:
        owners, seen = owners_of(self._optimizer, self._weights), Counter[int]()
        for variable in self._state:
            owner = owners.get(id(variable), -1)
            if owner < 0 and math.prod(variable.shape) > 1:
                raise NotSupportedError(
                    f"the optimizer {self._optimizer.name} keeps {variable.path}, but it is not known which "
                    "tensor this belongs to"
                )
            yield SlotSpec(variable.path, tuple(variable.shape), variable.dtype, "slot", owner, seen[owner])
            seen[owner] += 1

    def initial_slots(self, weights: Sequence[Array]) -> list[Array]:
        """Return the initial state of the optimizer, as Keras builds it on these weights."""
        optimizer, _ = self._built(weights)
        return [np.array(variable.numpy()) for variable in state_of(optimizer)]

    def trace(self) -> None:
        """Compile the optimizer's step."""
        self._step.get_concrete_function([tf.TensorSpec(one.shape, one.dtype) for one in self._tensors])

    def apply(
        self,
        gradients: Sequence[Array],
        before: ShardState,
        after: ShardState,
        *,
        step: int,
        lr_scale: float,
        schedule_step: int,
    ) -> None:
        """Apply one step of the optimizer. `gradients` may be the weights of `after`."""
        self._fill(before)
        self._scale.assign(lr_scale)
        self._at.assign(schedule_step)
        for variable, rate in self._rates:
            variable.assign(float(rate) * lr_scale)
        for iterations in self._iterations:
            iterations.assign(step - 1)
        self._step([tf.convert_to_tensor(gradient) for gradient in gradients])
        for variable, target in zip(self._weights, after.weights, strict=True):
            np.copyto(target, variable.numpy())
        for variable, target in zip(self._state, after.slots, strict=True):
            np.copyto(target, variable.numpy())

    def finalise(self, weights: Sequence[Array], slots: Sequence[Array], out: Sequence[Array]) -> None:
        """Write the final weights to `out`, with Keras's `finalize_variable_values`."""
        self._fill(ShardState(weights, slots))
        self._optimizer.finalize_variable_values(self._weights)
        for variable, target in zip(self._weights, out, strict=True):
            np.copyto(target, variable.numpy())

    def _fill(self, state: ShardState) -> None:
        for variable, value in zip(self._weights, state.weights, strict=True):
            variable.assign(value)
        for variable, value in zip(self._state, state.slots, strict=True):
            variable.assign(value)


def _deserialised(document: Any) -> Any:
    """Build the optimizer of a configuration, also one (e.g. Lamb) that Keras's `deserialize` does not find."""
    kind: Any = getattr(keras.optimizers, str(document["class_name"]), None)
    exported = isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
    if document.get("module") == "keras.optimizers" and exported:
        return kind.from_config(document["config"])
    return keras.optimizers.deserialize(document)


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A learning-rate schedule at the step that one variable has, multiplied by another."""

    def __init__(self, schedule: Any, scale: Any, at: Any) -> None:
        self._schedule, self._scale, self._at = schedule, scale, at

    def __call__(self, step: Any) -> Any:
        at = tf.cast(self._at, keras.backend.standardize_dtype(step.dtype))
        return self._schedule(at) * self._scale


def _variable(tensor: TensorSpec, value: Array) -> Any:
    """Create a variable with its path in the model, which some optimizers use to identify layers."""
    *scopes, name = tensor.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=tensor.dtype, name=name)
