"""The master weights follow the model's own Keras optimizer, to the last option."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest

from scavenger.errors import NotSupportedError
from scavenger.train.messages import TensorSpec
from scavenger.train.optimizer import MasterWeights, average

_RANDOM = np.random.default_rng(11)
_SHAPES = {"embedding/table": (6, 4), "dense/kernel": (4, 3), "dense/bias": (3,)}
_TENSORS = [TensorSpec(path, shape, "float32", "trainable") for path, shape in _SHAPES.items()]


def values() -> list[Any]:
    return [_RANDOM.normal(size=shape).astype("float32") for shape in _SHAPES.values()]


def keras_steps(optimizer: Any, start: list[Any], gradients: list[list[Any]], finalise: bool) -> list[Any]:
    """What Keras makes of the same gradients, with variables of the same paths."""
    variables = []
    for path, value in zip(_SHAPES, start, strict=True):
        scope, name = path.split("/")
        with keras.name_scope(scope):
            variables.append(keras.Variable(value, name=name))
    optimizer.build(variables)
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step], variables)
    if finalise:
        optimizer.finalize_variable_values(variables)
    return [variable.numpy() for variable in variables]


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam with decay and clipping": lambda: keras.optimizers.Adam(
        0.01, weight_decay=0.1, global_clipnorm=0.5, amsgrad=True
    ),
    "a schedule": lambda: keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "clipping by value": lambda: keras.optimizers.Adagrad(0.1, clipvalue=0.2),
    "moving averages": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "told by the layers' names": lambda: keras.optimizers.Muon(0.01, exclude_layers=["dense"]),
    "gradient accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_keras(name: str) -> None:
    start, gradients = values(), [values() for _ in range(5)]
    optimizer = OPTIMIZERS[name]()
    config = json.dumps(keras.optimizers.serialize(optimizer), default=float)
    master = MasterWeights(_TENSORS, start, config)
    out = values()

    for step in gradients:
        master.apply(step, out)
    expected = keras_steps(OPTIMIZERS[name](), start, gradients, finalise=False)
    for got, want in zip(out, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    master.finalise(out)
    expected = keras_steps(OPTIMIZERS[name](), start, gradients, finalise=True)
    for got, want in zip(out, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_initial_weights_are_copied_and_not_shared() -> None:
    start = values()
    first = [value.copy() for value in start]
    optimizer = json.dumps(keras.optimizers.serialize(keras.optimizers.SGD(0.0)), default=float)
    master = MasterWeights(_TENSORS, start, optimizer)
    out = values()

    for value in start:
        value[...] = 99
    master.apply(values(), out)

    for got, want in zip(out, first, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "config", ['{"class_name": "Nothing", "config": {}}', "{}", '{"module": "os", "class_name": "x"}']
)
def test_what_is_no_optimizer_of_keras_is_refused_in_one_line(config: str) -> None:
    with pytest.raises(NotSupportedError, match="optimizer cannot be built") as caught:
        MasterWeights(_TENSORS, values(), config)

    assert "\n" not in str(caught.value)


def test_the_mean_weighs_by_samples_and_passes_over_who_has_none() -> None:
    a, b, nothing = values(), values(), [np.full(shape, np.nan, "float32") for shape in _SHAPES.values()]
    out = values()

    worker_sqnorm, sqnorm = average([(3, a), (0, nothing), (1, b)], out)

    mean = [0.75 * x + 0.25 * y for x, y in zip(a, b, strict=True)]
    for got, want in zip(out, mean, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    squares = [sum(float(np.sum(g.astype("float64") ** 2)) for g in gradients) for gradients in (a, b, mean)]
    assert worker_sqnorm == pytest.approx(0.75 * squares[0] + 0.25 * squares[1], rel=1e-5)
    assert sqnorm == pytest.approx(squares[2], rel=1e-5)
    # Jensen: no mean is longer than the mean of lengths
    assert sqnorm <= worker_sqnorm
