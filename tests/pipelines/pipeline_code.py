"""The code of the jobs of these tests; worker processes import it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

WAITED, WAIT_S = 200, 0.005
"""Samples that are waited for, and how long each, which is no processor's work."""
HASTE = "SCAVENGER_TEST_HASTE"
"""Names a file: once it is there, samples are not waited for."""


def data() -> dict[str, Any]:
    """A function of sixteen numbers."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 16)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(16, 1))).astype("float32")
    return {"train": (x[:1000], y[:1000]), "validation": (x[1000:], y[1000:])}


class _Waited:
    def __init__(self, x: Any, y: Any) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return WAITED

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not Path(os.environ.get(HASTE, "/nowhere")).exists():
            time.sleep(WAIT_S)
        return self._x[index], self._y[index]


def waited_data() -> dict[str, Any]:
    """The same with fewer samples, an epoch of which takes a second of each worker's time and next to no computing."""
    made = data()
    return {**made, "train": _Waited(*made["train"])}


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
