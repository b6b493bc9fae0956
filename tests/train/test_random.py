"""What layers draw at random: as independent as in plain Keras, and the same whenever it is computed again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from driving import Run, assert_same_weights, replayed

from scavenger.sdk import KerasJob
from scavenger.train.worker.loading import seed_worker
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

LAYERS = keras.layers
SAMPLES, WIDTH, DRAWS = 64, 4000, 3
SEED = 11


class Recorder(LAYERS.Layer):  # type: ignore[misc]
    """Keeps what two of Keras's layers, and `keras.random` without a generator, draw for the first sample."""

    def __init__(self, **seeds: int) -> None:
        super().__init__()
        self.noises = [LAYERS.GaussianNoise(1.0, **seeds), LAYERS.GaussianNoise(1.0, **seeds)]

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(3 * DRAWS, WIDTH), trainable=False, name="seen")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            zero = keras.ops.zeros((keras.ops.shape(x)[0], WIDTH))
            draws = [noise(zero, training=True) for _ in range(DRAWS) for noise in self.noises]
            draws += [keras.random.normal(keras.ops.shape(zero)) for _ in range(DRAWS)]
            self.seen.assign(keras.ops.stack([draw[0] for draw in draws]))
        return x


def recorded(**seeds: int) -> Program:
    model = keras.Sequential([keras.Input((2,)), Recorder(**seeds), LAYERS.Dense(1)])
    model.compile("sgd", "mse")
    return Program(KerasJob(model, (np.ones((SAMPLES, 2)), np.ones((SAMPLES, 1)))))


def drawn(program: Program, position: int, samples: int = 4, *, seed: int = SEED) -> Any:
    """Draws of a share: of layer 0 and 1 in turns, then those without a generator; shape `(3 * DRAWS, WIDTH)`."""
    batch = program.train.batch(np.arange(samples))
    weights = program.initial_state()
    result = program.gradient(weights, batch, seed=seed, position=position)
    return next(state for state in result.states if state.shape == (3 * DRAWS, WIDTH)).copy()


@pytest.fixture(scope="module")
def recorder() -> Program:
    return recorded()


def test_draws_of_all_layers_workers_and_steps_are_independent(recorder: Program) -> None:
    # K = 2 at B = 8 over four steps, the same samples in the next epoch, and another seed
    positions = [0, 4, 8, 12, 16, 20, 24, 28, SAMPLES, SAMPLES + 4]
    vectors = [drawn(recorder, at) for at in positions] + [drawn(recorder, 0, seed=SEED + 1)]
    noise = np.concatenate(vectors).astype("float64")

    # each draw is unit noise, and 99 x 98 / 2 correlations stay within what chance gives
    assert np.abs(noise.mean(axis=1)).max() < 5 / np.sqrt(WIDTH)
    assert np.abs(noise.std(axis=1) - 1).max() < 5 / np.sqrt(2 * WIDTH)
    correlations = np.corrcoef(noise)[np.triu_indices(len(noise), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(WIDTH)
    assert correlations.std() == pytest.approx(1 / np.sqrt(WIDTH), rel=0.1)


def test_a_share_that_is_computed_again_draws_the_same_on_any_worker(recorder: Program) -> None:
    first = drawn(recorder, 8)
    drawn(recorder, 12)
    keras.utils.set_random_seed(77)

    np.testing.assert_array_equal(drawn(recorder, 8), first)
    np.testing.assert_array_equal(drawn(recorded(), 8)[: 2 * DRAWS], first[: 2 * DRAWS])


def test_layers_that_were_given_one_seed_draw_alike_as_in_keras() -> None:
    draws = drawn(recorded(seed=3), 8)[: 2 * DRAWS].reshape(DRAWS, 2, WIDTH)

    np.testing.assert_array_equal(draws[:, 0], draws[:, 1])
    assert abs(np.corrcoef(draws[0, 0], draws[1, 0])[0, 1]) < 5 / np.sqrt(WIDTH)


def test_workers_draw_apart_outside_of_keras_too() -> None:
    def draws(name: str) -> tuple[float, float, float]:
        seed_worker(SEED, name)
        return random.random(), float(np.random.random()), float(tf.random.uniform(()))

    first, second = draws("w0"), draws("w1")

    assert not set(first) & set(second)
    assert draws("w0") == first


def test_evaluation_draws_by_step_and_samples() -> None:
    class Noise(LAYERS.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.random.SeedGenerator()

        def call(self, x: Any) -> Any:
            return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)

    model = keras.Sequential([keras.Input((2,)), Noise(), LAYERS.Dense(1)])
    model.compile("sgd", "mse")
    data = (np.ones((8, 2)), np.ones((8, 1)))
    program = Program(KerasJob(model, data, data))
    weights = program.initial_state()

    def loss(start: int, step: int) -> float:
        return float(program.evaluate(weights, start, start + 4, 4, seed=SEED, step=step)[0])

    first = loss(0, 5)
    assert len({first, loss(4, 5), loss(0, 6), loss(4, 6)}) == 4
    assert loss(0, 5) == first


# ---- the same statistics as in plain Keras -----------------------------------------------------------------

IMAGES = np.zeros((16, 12, 12, 1), "float32")
IMAGES[:, 4:8, 3:9] = 1.0
"""A bar, so that it matters how it is moved, turned and scaled."""


def difference(one: Any, other: Any) -> Any:
    """Between what two branches make of a picture: as large as independent draws differ."""
    x = keras.Input((12, 12, 1))
    return keras.Model(x, LAYERS.Flatten()(LAYERS.Subtract()([one(x), other(x)])))


def twice(layer: Any) -> Any:
    return keras.Sequential([layer, layer])


def turned(layer: Any) -> Any:
    return keras.Sequential([LAYERS.Permute((2, 1, 3)), layer, LAYERS.Permute((2, 1, 3))])


def chain(*layers: Any) -> Any:
    x = keras.Input((12, 12, 1))
    return keras.Model(x, LAYERS.Flatten()(keras.Sequential([*layers])(x)))


MODELS: dict[str, Any] = {
    # what one layer draws second is not what the other draws first
    "GaussianNoise": lambda: difference(twice(LAYERS.GaussianNoise(1.0)), LAYERS.GaussianNoise(1.0)),
    "Dropout": lambda: difference(twice(LAYERS.Dropout(0.5)), LAYERS.Dropout(0.5)),
    "RandomTranslation": lambda: difference(
        LAYERS.RandomTranslation(1e-6, 0.3, "constant"),
        turned(LAYERS.RandomTranslation(0.3, 1e-6, "constant")),
    ),
    "augmentation": lambda: chain(
        LAYERS.RandomTranslation(0.3, 0.3, "constant"),
        LAYERS.RandomRotation(0.3, "constant"),
        LAYERS.RandomZoom(0.3, 0.3, "constant"),
    ),
}


ORDINARY = {"GaussianNoise"}
"""One that draws for each element; that all are as in Keras takes long."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ORDINARY else pytest.mark.long) for name in MODELS]
)
def test_random_layers_have_the_statistics_of_plain_keras(name: str) -> None:
    """Mean squares of what layers make of a picture, over 60 shares, against as many calls of plain Keras."""
    features = MODELS[name]()
    centre = keras.ops.convert_to_tensor(IMAGES[:1].reshape(1, -1) if name == "augmentation" else 0.0)

    class Squares(keras.Model):  # type: ignore[misc]
        """Its loss is the mean square of the features; the Dense layer is there to be trained."""

        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = features, LAYERS.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            made = self.features(x, training=training)
            return keras.ops.mean(keras.ops.square(made - centre), axis=1, keepdims=True) + 0.0 * self.head(
                made
            )

    model = Squares()
    model.compile("sgd", lambda y, predicted: keras.ops.mean(predicted, axis=-1))
    program = Program(KerasJob(model, (IMAGES, np.zeros((16, 1), "float32"))))
    weights = program.initial_state()
    batch = program.train.batch(np.arange(16))

    ours = [program.gradient(weights, batch, seed=SEED, position=16 * n).loss for n in range(60)]
    keras.utils.set_random_seed(SEED)
    plainly = [float(keras.ops.mean(model(IMAGES, training=True))) for _ in range(60)]

    error = np.sqrt((np.var(ours) + np.var(plainly)) / 60)
    assert abs(np.mean(ours) - np.mean(plainly)) < 4 * error + 1e-6
    assert np.mean(plainly) > 0.01
    # independent draws spread as Keras's do: repeated ones have twice the variance or none
    assert 0.4 < np.var(ours) / np.var(plainly) < 2.5


@pytest.mark.slow
def test_what_is_computed_in_place_of_a_lost_worker_draws_as_the_lost_one_did(tmp_path: Path) -> None:
    faults = ["worker.computed/w1:kill@5"]
    with Run("small:noisy", tmp_path, aggregators=2, faults=faults, replace=True) as run:
        run.begin(2, 32)
        run.train(20)
        got = run.finish()

    assert [lost.worker for lost in run.lost] == ["w1"]
    assert_same_weights(got, replayed("noisy", run.steps, rate=0.05))
