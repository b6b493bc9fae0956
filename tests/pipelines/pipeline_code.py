"""The code of the jobs of these tests; worker processes import it."""

from __future__ import annotations

from typing import Any


def data() -> dict[str, Any]:
    """A function of sixteen numbers."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 16)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(16, 1))).astype("float32")
    return {"train": (x[:1000], y[:1000]), "validation": (x[1000:], y[1000:])}


def model(width: int = 16, learning_rate: float = 0.05) -> Any:
    """A small network."""
    import keras

    made = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)]
    )
    made.compile(optimizer=keras.optimizers.SGD(learning_rate), loss="mse")
    return made


def fails() -> Any:
    """No job."""
    raise ValueError("there is no data")
