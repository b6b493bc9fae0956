"""A large table of which a batch names few rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from scavenger.sdk import KerasJob

ROWS, WIDTH, WORDS, SAMPLES = 400_000, 64, 16, 4096


def job() -> KerasJob:
    return trained_by(keras.optimizers.Adam(0.001))


def adagrad() -> KerasJob:
    return trained_by(keras.optimizers.Adagrad(0.01))


def sgd() -> KerasJob:
    return trained_by(keras.optimizers.SGD(0.1))


def trained_by(optimizer: Any) -> KerasJob:
    random = np.random.default_rng(3)
    x = random.integers(0, ROWS, size=(SAMPLES, WORDS), dtype="int32")
    y = (x.sum(axis=1) % 2).astype("int32")
    model = keras.Sequential(
        [
            keras.Input((WORDS,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return KerasJob(model=model, train=(x, y), validation=(x[:64], y[:64]))
