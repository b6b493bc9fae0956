"""The comparisons' networks as jobs for Scavenger, on made-up samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from benchmarks.peers import shapes
from scavenger.sdk import KerasJob

_SAMPLES = 4096


def mlp_model(inputs: int = shapes.MLP_INPUTS, widths: Sequence[int] = shapes.MLP_WIDTHS) -> Any:
    """Fully connected, by default with 25 million parameters."""
    layers = [keras.Input((inputs,))]
    layers += [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([*layers, keras.layers.Dense(shapes.CLASSES)])


def cnn_model() -> Any:
    """Convolutional, a third of a million parameters."""
    layers = [keras.Input((shapes.CNN_SIDE, shapes.CNN_SIDE, 3))]
    for width in shapes.CNN_WIDTHS:
        layers += [keras.layers.Conv2D(width, 3, padding="same", activation="relu") for _ in range(2)]
        layers += [keras.layers.MaxPooling2D()]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(shapes.CLASSES)])


def mlp() -> KerasJob:
    """With Adam."""
    return _job(mlp_model(), keras.optimizers.Adam(shapes.LEARNING_RATE))


def mlp_sgd() -> KerasJob:
    """With plain SGD, the least that an aggregator can do with a gradient."""
    return _job(mlp_model(), keras.optimizers.SGD(shapes.LEARNING_RATE))


def quarter_sgd() -> KerasJob:
    """A quarter of the parameters, with plain SGD."""
    model = mlp_model(shapes.QUARTER_INPUTS, shapes.QUARTER_WIDTHS)
    return _job(model, keras.optimizers.SGD(shapes.LEARNING_RATE))


def cnn() -> KerasJob:
    """With Adam."""
    return _job(cnn_model(), keras.optimizers.Adam(shapes.LEARNING_RATE))


def _job(model: Any, optimizer: Any) -> KerasJob:
    random = np.random.default_rng(0)
    x = random.standard_normal((_SAMPLES, *model.input_shape[1:]), dtype=np.float32)
    y = random.integers(shapes.CLASSES, size=_SAMPLES)
    model.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return KerasJob(model=model, train=(x, y))
