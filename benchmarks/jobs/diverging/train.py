"""A model whose gradients have grown beyond what single precision can square, as just before a run fails."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from scavenger.sdk import KerasJob

WIDTH, SAMPLES, GROWN = 2048, 2048, 1e24


@keras.saving.register_keras_serializable("benchmarks")
def loss(y_true: Any, y_pred: Any) -> Any:
    """The mean squared error, of a size that a diverging model's has."""
    return GROWN * keras.losses.mean_squared_error(y_true, y_pred)


def job() -> KerasJob:
    random = np.random.default_rng(3)
    x = random.normal(size=(SAMPLES, WIDTH)).astype("float32")
    y = random.normal(size=(SAMPLES, 8)).astype("float32")
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(8)])
    model.compile(keras.optimizers.SGD(1e-30), loss)
    return KerasJob(model=model, train=(x, y), validation=(x[:64], y[:64]))
