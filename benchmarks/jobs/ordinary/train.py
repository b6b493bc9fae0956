"""Eight small models as many people train them, each on data that is made of a known rule and noise."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from scavenger.sdk import KerasJob

VALIDATION = 1000
layers = keras.layers


def job(kind: str) -> KerasJob:
    """The job of a kind; see `KINDS`."""
    inputs, outputs, targets, model, rate = KINDS[kind](np.random.default_rng(0))
    regression = targets.dtype == np.float32
    model = keras.Sequential(
        [keras.Input(inputs.shape[1:], dtype=inputs.dtype), *model, layers.Dense(outputs)]
    )
    loss: Any = keras.losses.MeanSquaredError()
    if not regression:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=None if regression else ["accuracy"])
    train, validation = slice(VALIDATION, None), slice(VALIDATION)
    return KerasJob(model, (inputs[train], targets[train]), (inputs[validation], targets[validation]))


def _tabular(random: np.random.Generator) -> Any:
    x = random.normal(size=(9000, 20)).astype("float32")
    y = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2 - 0.5 > 0).astype("int32")
    return x, 2, y, [layers.Dense(128, "relu"), layers.Dense(128, "relu")], 1e-3


def _regression(random: np.random.Generator) -> Any:
    x = random.uniform(size=(9000, 10)).astype("float32")
    y = np.sin(np.pi * x[:, 0] * x[:, 1]) * 10 + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = y + random.normal(size=len(y))
    return x, 1, (y[:, None] / 5).astype("float32"), [layers.Dense(256, "relu") for _ in range(2)], 5e-4


def _images(random: np.random.Generator, noise: float) -> tuple[Any, Any]:
    """Bars in four directions, at any place, in noise."""
    y = random.integers(4, size=5000)
    at = random.uniform(-4, 4, size=(5000, 2))
    rows, columns = np.mgrid[-8:8, -8:8]
    turned = y * np.pi / 4
    off = (rows - at[:, :1, None]) * np.cos(turned)[:, None, None] + (columns - at[:, 1:, None]) * np.sin(
        turned
    )[:, None, None]
    x = np.exp(-(off**2)) + noise * random.normal(size=off.shape)
    return x[..., None].astype("float32"), y.astype("int32")


def _conv(random: np.random.Generator) -> Any:
    x, y = _images(random, 1.0)
    model = [
        layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
    ]
    return x, 4, y, [*model, layers.GlobalMaxPooling2D()], 5e-4


def _depthwise(random: np.random.Generator) -> Any:
    x, y = _images(random, 0.7)
    model = [layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")]
    for width in (32, 64):
        model += [layers.DepthwiseConv2D(3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
        model += [layers.Conv2D(width, 1), layers.BatchNormalization(), layers.ReLU()]
    return x, 4, y, [*model, layers.GlobalMaxPooling2D()], 1e-3


def _sequences(random: np.random.Generator) -> tuple[Any, Any]:
    """Numbers of which two are marked: the class is the sign of their sum."""
    values, marks = random.normal(size=(6000, 24)), np.zeros((6000, 24))
    places = random.permuted(np.tile(np.arange(24), (6000, 1)), axis=1)[:, :2]
    np.put_along_axis(marks, places, 1.0, axis=1)
    marked = np.take_along_axis(values, places, axis=1).sum(axis=1)
    return np.stack((values, marks), axis=2).astype("float32"), (marked > 0).astype("int32")


def _gru(random: np.random.Generator) -> Any:
    x, y = _sequences(random)
    return x, 2, y, [layers.GRU(32)], 2e-3


def _lstm(random: np.random.Generator) -> Any:
    x, y = _sequences(random)
    return x, 2, y, [layers.Conv1D(24, 3, padding="causal", activation="relu"), layers.LSTM(24)], 2e-3


def _embedding(random: np.random.Generator) -> Any:
    worth = random.normal(size=2000)
    x = random.integers(2000, size=(12000, 30))
    y = worth[x].sum(axis=1) > 0
    return (
        x.astype("int32"),
        2,
        y.astype("int32"),
        [layers.Embedding(2000, 32), layers.GlobalAveragePooling1D()],
        1e-3,
    )


def _denoising(random: np.random.Generator) -> Any:
    clean = np.tanh(random.normal(size=(8000, 6)) @ random.normal(size=(6, 64)))
    x = clean + 0.3 * random.normal(size=clean.shape)
    return (
        x.astype("float32"),
        64,
        clean.astype("float32"),
        [layers.Dense(256, "relu"), layers.Dense(256, "relu")],
        5e-4,
    )


KINDS = {
    "tabular": _tabular,
    "regression": _regression,
    "conv": _conv,
    "depthwise": _depthwise,
    "gru": _gru,
    "lstm": _lstm,
    "embedding": _embedding,
    "denoising": _denoising,
}
