"""A small convolutional network on scikit-learn's handwritten digits: 1,797 images of 8 x 8, nothing to download."""

import keras
import numpy as np
from sklearn.datasets import load_digits

from scavenger.sdk import KerasJob

_SIDE = 16  # enlarged from 8, so that a step is long enough to be worth sharing


def job() -> KerasJob:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
    images = images.repeat(_SIDE // 8, axis=1).repeat(_SIDE // 8, axis=2)
    order = np.random.default_rng(0).permutation(len(images))
    train, held_out = order[:1437], order[1437:]

    model = keras.Sequential(
        [
            keras.Input((_SIDE, _SIDE, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.02, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return KerasJob(
        model=model, train=(images[train], labels[train]), validation=(images[held_out], labels[held_out])
    )
