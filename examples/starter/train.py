"""A small network on scikit-learn's handwritten digits: put your own data and model in their place."""

import keras
import numpy as np
from sklearn.datasets import load_digits

from scavenger.sdk import KerasJob


def job() -> KerasJob:
    # each worker calls this, so read files relative to __file__, and split the data in the same way every time
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16.0).astype("float32"), y[order]

    model = keras.Sequential(
        [keras.Input(x.shape[1:]), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return KerasJob(model=model, train=(x[:1437], y[:1437]), validation=(x[1437:], y[1437:]))
