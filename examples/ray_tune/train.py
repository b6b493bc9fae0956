"""Handwritten digits again, as a model with hyperparameters and its data."""

from typing import Any

import keras
from sklearn.datasets import load_digits

_TRAIN = 1437


def data() -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    return {"train": (images[:_TRAIN], labels[:_TRAIN]), "validation": (images[_TRAIN:], labels[_TRAIN:])}


def model(learning_rate: float = 0.05, momentum: float = 0.9, dropout: float = 0.0) -> keras.Model:
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.Flatten()]
    made = keras.Sequential(
        [*layers, keras.layers.Dropout(dropout), keras.layers.Dense(10, activation="softmax")]
    )
    optimizer = keras.optimizers.SGD(learning_rate, momentum=momentum)
    made.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made
