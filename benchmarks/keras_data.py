"""Data drawn at random, and what small models of several kinds share, for `benchmarks.keras_projects`."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SAMPLES = 18
RANDOM = np.random.default_rng(8)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=(SAMPLES, *shape)).astype("float32")


def integers(below: int, *shape: int) -> Array:
    return RANDOM.integers(0, below, size=(SAMPLES, *shape))


TABLE, IMAGES, SERIES = numbers(6), numbers(8, 8, 3), numbers(7, 3)
TOKENS, CLASSES = integers(20, 7), integers(3)
PADDED = np.where(np.arange(7) < integers(6, 1) + 2, TOKENS + 1, 0)


def logits(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def compiled(model: Any, optimizer: Any = "adam", loss: Any = "mse", **options: Any) -> Any:
    model.compile(optimizer, loss, **options)
    return model
