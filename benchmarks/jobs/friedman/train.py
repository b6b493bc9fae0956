"""Regression: a wide network learns Friedman's first function from noisy samples, made by scikit-learn."""

from __future__ import annotations

import keras
from sklearn.datasets import make_friedman1

from scavenger.sdk import KerasJob

SAMPLES, TRAIN, WIDTH = 6000, 5000, 768


def job() -> KerasJob:
    x, y = make_friedman1(SAMPLES, n_features=10, noise=1.0, random_state=0)
    x, y = x.astype("float32"), y.astype("float32")
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((x.shape[1],)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.0003), keras.losses.MeanSquaredError(), metrics=["mae"])
    return KerasJob(model=model, train=(x[:TRAIN], y[:TRAIN]), validation=(x[TRAIN:], y[TRAIN:]))
