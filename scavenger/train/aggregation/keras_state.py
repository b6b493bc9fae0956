"""The variables of a Keras optimizer, by the tensors that they belong to.

Importing this module imports Keras.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.errors import NotSupportedError
from scavenger.train.aggregation.kernels import read_rule

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The state of a job's optimizer.

    Attributes:
        step: Number of steps that it has taken.
        lr_scale: Factor on its learning rate.
        slots: Its arrays by tensor and number, as in `SlotSpec`; here a tensor's index is that among all
            trainable tensors of the model.
    """

    step: int
    lr_scale: float
    slots: Mapping[tuple[int, int], Array]


def parts_of(optimizer: Any) -> list[Any]:
    """Return the optimizer that updates the weights, inside any loss scaling, and those that it consists of."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [inner, *getattr(inner, "optimizers", ())]


def iterations_of(optimizer: Any) -> int:
    """Return how many steps an optimizer has taken.

    Raises:
        NotSupportedError: If its parts have taken different numbers of steps.
    """
    inner, *others = parts_of(optimizer)
    taken = {int(one._iterations.numpy()) for one in (inner, *others) if one is inner or one.built}
    if len(taken) > 1:
        raise NotSupportedError(
            f"the optimizer's parts have taken different numbers of steps ({sorted(taken)}): compile the model again"
        )
    return taken.pop()


def state_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables except the update counter and the learning rate, which no step changes."""
    inner, *others = parts_of(optimizer)
    left_out = {
        id(variable) for one in (inner, *others) for variable in (one._iterations, one._learning_rate)
    }
    return [variable for variable in inner.variables if id(variable) not in left_out]


def owners_of(optimizer: Any, weights: Sequence[Any]) -> dict[int, int]:
    """Map the id of each state variable to the index of its tensor among `weights`.

    Names are not unique: Adafactor uses the same names for all layers of one kind. But in each Keras optimizer, a
    list with as many entries as there are tensors has one entry per tensor, in their order.
    """
    places = {id(weight): place for place, weight in enumerate(weights)}
    owners: dict[int, int] = {}
    for one in parts_of(optimizer):
        tensors = getattr(one, "_trainable_variables", ())
        for name, entries in vars(one).items():
            aligned = isinstance(entries, list) and len(entries) == len(tensors)
            if not aligned or name in ("_variables", "_trainable_variables"):
                continue
            for tensor, entry in zip(tensors, entries, strict=True):
                if isinstance(entry, keras.Variable) and id(tensor) in places:
                    owners.setdefault(id(entry), places[id(tensor)])
    return owners


def own_rate(optimizer: Any) -> list[Any]:
    """Return the optimizer's learning rate if it is code of the user's, a schedule or a function; else nothing."""
    rate = parts_of(optimizer)[0]._learning_rate
    keras_s = isinstance(rate, keras.Variable) or type(rate).__module__.startswith("keras.")
    return [] if keras_s else [rate]


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate of the optimizer, or of a part of it, follows the number of steps."""
    return any(not isinstance(one._learning_rate, keras.Variable) for one in parts_of(optimizer))


class Rate:
    """The learning rate of an optimizer by the number of its steps, where it is code of the user's; else 1.

    It multiplies the rate in `serialised`, which then is 1. The code is traced once, as in Keras's own training step.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._traced = tf.function(lambda: tf.cast(optimizer._get_current_learning_rate(), tf.float32))

    def __call__(self, steps: int) -> float:
        if not own_rate(self._optimizer):
            return 1.0
        iterations = self._optimizer._iterations
        before = int(iterations.numpy())
        iterations.assign(steps)
        rate = float(self._traced())
        iterations.assign(before)
        return rate


def serialised(optimizer: Any) -> str:
    """Return Keras's serialised optimizer, JSON, with a learning rate of 1 in place of the user's code."""
    inner = parts_of(optimizer)[0]
    kept = inner._learning_rate
    if own_rate(optimizer):  # in the instance's own namespace, past Keras's tracking of attributes
        vars(inner)["_learning_rate"] = tf.constant(1.0)
    try:
        return json.dumps(keras.optimizers.serialize(optimizer), default=float)
    finally:
        vars(inner)["_learning_rate"] = kept


def _slots_of(optimizer: Any, every: Sequence[Any], weights: Sequence[Any]) -> dict[tuple[int, int], Any]:
    """Return the variables of an optimizer by tensor and number, as in `SlotSpec`; builds it if it is not built.

    Args:
        every: The variables that it is built for.
        weights: Those that are updated, whose indices identify the tensors.
    """
    inner = parts_of(optimizer)[0]
    if not optimizer.built:
        optimizer.build(every)
    found = read_rule(serialised(inner))
    owners, owned = owners_of(optimizer, every), defaultdict(list)
    places = {id(weight): place for place, weight in enumerate(weights)}
    for variable in state_of(optimizer):
        owner = owners.get(id(variable), -1)
        if (place := -1 if owner < 0 else places.get(id(every[owner]))) is not None:
            owned[place].append(variable)
    if found is not None:  # the aggregators' own kernels number the arrays in an order of their own
        names = [f"_{name}" for name in found[0].slots]
        for tensor in range(len(weights)):
            owned[tensor] = [next(v for v in owned[tensor] if v.name.endswith(name)) for name in names]
        owned.pop(-1, None)
    if optimizer is not inner:
        owned[-1] += [inner._iterations, optimizer.step_counter, optimizer.dynamic_scale]
    return {
        (tensor, number): variable
        for tensor, variables in owned.items()
        for number, variable in enumerate(variables)
    }


def read_state(optimizer: Any, every: Sequence[Any], weights: Sequence[Any]) -> dict[tuple[int, int], Array]:
    """Return the arrays of an optimizer for `every` variable, by tensor and number, as in `OptimizerState`."""
    return {key: np.array(variable.numpy()) for key, variable in _slots_of(optimizer, every, weights).items()}


def assign_state(optimizer: Any, every: Sequence[Any], weights: Sequence[Any], state: OptimizerState) -> None:
    """Give an optimizer for `every` variable, built or not, the state that the aggregators have for `weights`.

    A learning rate that is a schedule keeps following its schedule, without the factor.

    Raises:
        KeyError: If the state lacks an array.
        ValueError: If an array has another shape than its variable.
    """
    slots = _slots_of(optimizer, every, weights)
    for one in parts_of(optimizer):
        one._iterations.assign(state.step)
        if state.lr_scale != 1.0 and isinstance(one._learning_rate, keras.Variable):
            one._learning_rate.assign(float(np.float32(one._learning_rate.numpy())) * state.lr_scale)
    for key, variable in slots.items():  # with loss scaling, also the number of steps that were not skipped
        variable.assign(state.slots[key])
