"""Jobs that train in milliseconds: one small network, several optimizers, data drawn from a fixed seed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scavenger.sdk import FromGenerator, KerasJob

_RANDOM = np.random.default_rng(42)
X = _RANDOM.normal(size=(230, 6)).astype("float32")
Y = (X @ _RANDOM.normal(size=(6, 3)) + 0.3 * _RANDOM.normal(size=(230, 3))).argmax(axis=1)
WORDS = np.random.default_rng(43).integers(0, 300, size=(230, 6)) * 15
TRAIN, HELD_OUT = slice(0, 170), slice(170, 230)


def network(optimizer: Any, *layers: Any) -> Any:
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(12, activation="tanh"), *layers, keras.layers.Dense(3)]
    )
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def arrays(model: Any) -> KerasJob:
    return KerasJob(model, (X[TRAIN], Y[TRAIN]), (X[HELD_OUT], Y[HELD_OUT]))


def momentum() -> KerasJob:
    return arrays(network(keras.optimizers.SGD(0.05, momentum=0.9)))


def adam() -> KerasJob:
    return arrays(network(keras.optimizers.Adam(0.003, epsilon=1e-4)))


def wide() -> KerasJob:
    """With a tensor that is large enough for its gradient to be rounded."""
    return arrays(network(keras.optimizers.Adam(0.003, epsilon=1e-4), keras.layers.Dense(400, "tanh")))


def exact() -> KerasJob:
    """In double precision, its loss too, so that no order of sums shows."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model = network(keras.optimizers.Adam(0.003, epsilon=1e-4))
    finally:
        keras.config.set_dtype_policy(before)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    model.compile(model.optimizer, loss, metrics=["accuracy"])
    return arrays(model)


def decayed() -> KerasJob:
    return arrays(network(keras.optimizers.AdamW(0.003, weight_decay=0.1, global_clipnorm=0.5, epsilon=1e-4)))


def normalised() -> KerasJob:
    return arrays(network(keras.optimizers.SGD(0.05), keras.layers.BatchNormalization()))


def overflowing() -> KerasJob:
    """One sample whose loss is not finite, so that loss scaling skips a step of every epoch."""
    x = X[TRAIN].copy()
    x[5] = np.inf
    adam = keras.optimizers.Adam(0.003, epsilon=1e-4)
    model = network(keras.optimizers.LossScaleOptimizer(adam, initial_scale=1024.0, dynamic_growth_steps=3))
    return KerasJob(model, (x, Y[TRAIN]), (X[HELD_OUT], Y[HELD_OUT]))


@keras.saving.register_keras_serializable("small")
class Fading(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule that only workers can compute."""

    def __call__(self, step: Any) -> Any:
        return 0.05 / (1 + keras.ops.cast(step, "float32") / 10)

    def get_config(self) -> dict[str, Any]:
        return {}


def fading() -> KerasJob:
    return arrays(network(keras.optimizers.SGD(Fading(), momentum=0.9)))


def annealed() -> KerasJob:
    return arrays(
        network(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 300), momentum=0.9))
    )


def noisy() -> KerasJob:
    layers = keras.layers.Dropout(0.3), keras.layers.GaussianNoise(0.2)
    return arrays(network(keras.optimizers.SGD(0.05), *layers))


def embedded() -> KerasJob:
    """A table large enough for sparse gradients, of which a sample names six rows, the same one sometimes twice."""
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(4500, 60),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.5),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return KerasJob(model, (WORDS[TRAIN], Y[TRAIN]), (WORDS[HELD_OUT], Y[HELD_OUT]))


class _Slow:
    """The same samples, each of which takes a moment to read."""

    def __len__(self) -> int:
        return 170

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return X[index], Y[index]


class _Holding:
    """The same samples, one of which is computed for seconds without letting any other thread run."""

    def __init__(self) -> None:
        self._reads = 0

    def __len__(self) -> int:
        return 170

    def __getitem__(self, index: int) -> Any:
        self._reads += 1
        if self._reads == 1500:
            usual = sys.getswitchinterval()
            sys.setswitchinterval(3600.0)
            until = time.monotonic() + 4.0
            while time.monotonic() < until:
                pass
            sys.setswitchinterval(usual)
        return X[index], Y[index]


def holding() -> KerasJob:
    return KerasJob(network(keras.optimizers.SGD(0.05, momentum=0.9)), _Holding(), (X[HELD_OUT], Y[HELD_OUT]))


def exact_slow() -> KerasJob:
    return KerasJob(exact().model, _Slow(), (X[HELD_OUT], Y[HELD_OUT]))


def slow() -> KerasJob:
    return KerasJob(network(keras.optimizers.SGD(0.02, momentum=0.9)), _Slow(), (X[HELD_OUT], Y[HELD_OUT]))


def _pairs() -> Iterator[Any]:
    yield from zip(X[TRAIN], Y[TRAIN], strict=True)


def streamed() -> KerasJob:
    """Training data that can be read only in sequence, in windows, and validation data in batches of 25."""
    slices = tf.data.Dataset.from_tensor_slices((X[HELD_OUT], Y[HELD_OUT]))
    held_out = slices.batch(25).map(lambda x, y: (x, y))
    train = FromGenerator(_pairs, 170, shuffle_buffer=48)
    return KerasJob(network(keras.optimizers.SGD(0.05, momentum=0.9)), train, held_out)
