"""Handwritten digits again, as a hypermodel of KerasTuner and its data."""

from typing import Any

import keras
from sklearn.datasets import load_digits

_TRAIN = 1437


def data() -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    return {"train": (images[:_TRAIN], labels[:_TRAIN]), "validation": (images[_TRAIN:], labels[_TRAIN:])}


def build(hp: Any) -> keras.Model:
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten()]
    layers.append(keras.layers.Dense(hp.Choice("units", [32, 64]), activation="relu"))
    if hp.Boolean("dropout"):
        layers.append(keras.layers.Dropout(hp.Float("rate", 0.1, 0.4)))
    made = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    optimizer = keras.optimizers.SGD(hp.Float("learning_rate", 1e-3, 0.3, sampling="log"), momentum=0.9)
    made.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made
