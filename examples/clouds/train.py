"""A small convolutional network on scikit-learn's handwritten digits: 1,797 images of 8 x 8, nothing to download."""

import keras
import numpy as np
from sklearn.datasets import load_digits

from scavenger.sdk import KerasJob

_SIDE = 32  # enlarged from 8, so that a step is long enough to be worth sharing
_TRAIN = 1437


def _data() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    images = images.repeat(_SIDE // 8, axis=1).repeat(_SIDE // 8, axis=2)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order], labels[order]


def _model() -> keras.Model:
    layers = [keras.Input((_SIDE, _SIDE, 1))]
    for width in (48, 48, 96):
        layers += [keras.layers.Conv2D(width, 3, padding="same", activation="relu")]
        layers += [keras.layers.Conv2D(width, 3, padding="same", activation="relu")]
        layers += [keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dropout(0.3), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def job() -> KerasJob:
    images, labels = _data()
    model = _model()
    model.compile(
        optimizer=keras.optimizers.SGD(0.001, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return KerasJob(
        model=model,
        train=(images[:_TRAIN], labels[:_TRAIN]),
        validation=(images[_TRAIN:], labels[_TRAIN:]),
    )
