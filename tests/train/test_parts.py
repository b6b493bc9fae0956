"""A worker that is out of memory computes its gradient in parts, and says how many samples were too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scavenger.sdk import KerasJob
from scavenger.train.transport.rows import Rows
from scavenger.train.worker.gradients import _SPARSE_FROM, Gradient
from scavenger.train.worker.parts import InParts, joined
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(3)
X = _RANDOM.normal(size=(40, 5)).astype("float32")
WORDS = _RANDOM.integers(0, 50, size=(40, 3))
Y = _RANDOM.integers(0, 3, size=40)
LAYERS = keras.layers
NO_LIMIT = 10**6


class Greedy(keras.layers.Layer):
    """Asks for a pebibyte where a batch has more than `most` samples: TensorFlow's allocator waits, and refuses."""

    def __init__(self, most: int, **more: Any) -> None:
        super().__init__(**more)
        self.most = most

    def call(self, inputs: Any) -> Any:
        size = tf.where(tf.shape(inputs)[0] > self.most, tf.constant(2**48, tf.int64), 1)
        return inputs + 0.0 * tf.reduce_sum(tf.zeros(tf.reshape(size, (1,)), inputs.dtype))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "most": self.most}


class Hungry(Greedy):
    """Runs out of memory at once, in an operation of its own."""

    def call(self, inputs: Any) -> Any:
        none = tf.numpy_function(self.take, [tf.shape(inputs)[0]], tf.float32)
        none.set_shape(())
        return inputs + tf.cast(none, inputs.dtype)

    def take(self, samples: Any) -> Any:
        if samples > self.most:
            raise MemoryError(f"no room for {samples} samples")
        return np.float32(0.0)


def dense(most: int, taker: type[Greedy] = Hungry) -> Any:
    hidden = [LAYERS.Dense(4, activation="tanh", kernel_regularizer="l2"), taker(most)]
    return keras.Sequential([keras.Input((5,)), *hidden, LAYERS.Dense(3)])


def embedding(most: int) -> Any:
    rows = LAYERS.Embedding(_SPARSE_FROM // 8, 8)
    return keras.Sequential([keras.Input((3,)), rows, LAYERS.Flatten(), Hungry(most), LAYERS.Dense(3)])


def normalised(most: int) -> Any:
    hidden = [LAYERS.Dense(4), LAYERS.BatchNormalization(), Hungry(most)]
    return keras.Sequential([keras.Input((5,)), *hidden, LAYERS.Dense(3)])


def program(build: Callable[[int], Any], most: int, x: Any = X) -> Program:
    keras.utils.set_random_seed(1)
    model = build(most)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    return Program(KerasJob(model, (x, Y), (x[:30], Y[:30])))


def gradient(of: Any, program: Program, samples: int) -> Gradient:
    batch = program.train.batch(np.arange(samples))
    return of.gradient(program.initial_state(), batch, seed=1, position=0)


def values(found: Gradient) -> list[Any]:
    every = [*found.gradients, *found.states, *found.metrics, found.loss, found.half_sqnorm]
    return [part.values if isinstance(part, Rows) else part for part in every]


def assert_close(one: Gradient, other: Gradient) -> None:
    for a, b in zip(values(one), values(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "x"),
    [(dense, X), (embedding, WORDS)],
)
def test_a_gradient_in_parts_is_that_of_all_samples_at_once(build: Any, x: Any) -> None:
    roomy, tight = program(build, NO_LIMIT, x), program(build, 12, x)
    told: list[int] = []
    in_parts = InParts(tight, told.append)

    found = [gradient(in_parts, tight, 37) for _ in range(2)]

    for one in found:
        assert_close(one, gradient(roomy, roomy, 37))
    assert told == [37, 18]


@pytest.mark.long
def test_what_tensorflows_allocator_refuses_is_computed_in_parts() -> None:
    roomy = program(dense, NO_LIMIT)
    tight = program(lambda most: dense(most, Greedy), 20)
    told: list[int] = []

    assert_close(gradient(InParts(tight, told.append), tight, 40), gradient(roomy, roomy, 40))
    assert told == [40]


def test_what_fits_is_computed_at_once() -> None:
    tight = program(dense, 12)
    told: list[int] = []

    assert_close(gradient(InParts(tight, told.append), tight, 12), gradient(tight, tight, 12))
    assert told == []


def test_a_sample_that_does_not_fit_alone_is_the_error_that_it_is() -> None:
    tight = program(dense, NO_LIMIT)
    for layer in tight.model.layers:
        if isinstance(layer, Hungry):
            layer.most = 0
    told: list[int] = []

    with pytest.raises(tf.errors.ResourceExhaustedError):
        gradient(InParts(tight, told.append), tight, 8)
    assert told == [8, 4]


def test_parts_with_statistics_of_their_own_are_as_the_shares_of_two_workers() -> None:
    roomy, tight = program(normalised, NO_LIMIT), program(normalised, 10)
    in_parts = InParts(tight, lambda samples: None)
    weights = roomy.initial_state()
    parts = [
        roomy.gradient(weights, roomy.train.batch(np.arange(a, b)), seed=1, position=a)
        for a, b in ((0, 10), (10, 20))
    ]

    assert_close(gradient(in_parts, tight, 20), joined(*parts, share=0.5))
    noisy = in_parts.with_noise(parts[0], weights, tight.train.batch(np.arange(20)), seed=1, position=0)
    assert noisy is parts[0]


def test_an_evaluation_goes_on_with_smaller_batches() -> None:
    roomy, tight = program(dense, NO_LIMIT), program(dense, 9)
    weights = roomy.initial_state()

    found = InParts(tight, lambda samples: None).evaluate(weights, 0, 30, 30)

    for a, b in zip(found, roomy.evaluate(weights, 0, 30, 30), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
