"""Trials to replay: learning curves of small networks, trained here, at every point of a grid of hyperparameters.

Every point is a trial that a search may begin: its metric after each epoch, and what an epoch costs. A table is made
once, in a few minutes for all tasks, and kept in the folder of the benchmark's results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

EPOCHS = 36
GRID: dict[str, tuple[float, ...]] = {
    "learning_rate": tuple(np.geomspace(1e-3, 3.0, 9).round(5).tolist()),
    "momentum": (0.0, 0.5, 0.9),
    "width": (16, 64, 256),
    "batch_size": (8, 32, 128, 512),
}
TASKS = ("digits", "mislabelled digits", "cancer", "clusters")

STEP_S, SAMPLE_S = 3e-3, 3e-7
"""Time of a step on one worker: whatever its batch; for each sample and each unit of the network's width."""
USD_PER_S, START_S = 0.13402 / 3600, 1.0
"""Price of a worker, and the time that it takes to start."""


@dataclass(frozen=True, slots=True)
class Table:
    """All trials of a task.

    Attributes:
        mode: Whether the metric is to become small or large.
        points: Index of each hyperparameter in `GRID`, shape `(n, 4)`.
        values: The metric after each epoch, shape `(n, epochs)`.
        epoch_usd: What an epoch costs, shape `(n,)`.
        start_usd: What a trial costs before its first epoch.
    """

    name: str
    mode: Literal["min", "max"]
    points: NDArray[np.int64]
    values: Floats
    epoch_usd: Floats
    start_usd: float

    @property
    def finals(self) -> Floats:
        """Best value of each trial that runs to its end, shape `(n,)`."""
        return np.asarray(self.values.max(axis=1) if self.mode == "max" else self.values.min(axis=1))


def tables(folder: Path) -> list[Table]:
    """The tables of all tasks, from the folder if they are there."""
    kept = folder / "search-tables.npz"
    if not kept.exists():
        np.savez_compressed(kept, *(_trained(task).astype(np.float32) for task in TASKS))
    with np.load(kept) as read:
        points = np.array(list(np.ndindex(*(len(choices) for choices in GRID.values()))))
        width = np.array(GRID["width"])[points[:, 2]]
        batch_size = np.array(GRID["batch_size"])[points[:, 3]]
        found = []
        for number, task in enumerate(TASKS):
            samples = len(_data(task)[0])
            step_s = STEP_S + SAMPLE_S * batch_size * width
            epoch_usd = np.ceil(samples / batch_size) * step_s * USD_PER_S
            values = read[f"arr_{number}"].astype(np.float64)
            found.append(Table(task, _mode(task), points, values, epoch_usd, START_S * USD_PER_S))
        return found


def _mode(task: str) -> Literal["min", "max"]:
    return "max" if task in ("digits", "clusters") else "min"


def _data(task: str) -> tuple[Singles, NDArray[np.int64], Singles, NDArray[np.int64]]:
    """Samples and classes to train with, and to validate with."""
    from sklearn.datasets import load_breast_cancer, load_digits, make_classification
    from sklearn.preprocessing import StandardScaler

    chance = np.random.default_rng(7)
    if task == "cancer":
        x, y = load_breast_cancer(return_X_y=True)
    elif task == "clusters":
        x, y = make_classification(
            2400, 30, n_informative=10, n_classes=5, n_clusters_per_class=3, flip_y=0.03, random_state=7
        )
    else:
        x, y = load_digits(return_X_y=True)
    order = chance.permutation(len(x))
    x, y = StandardScaler().fit_transform(x)[order].astype(np.float32), y[order].astype(np.int64)
    cut = len(x) * 3 // 5
    if task == "mislabelled digits":
        wrong = chance.random(cut) < 0.2
        y[:cut][wrong] = chance.integers(0, 10, int(wrong.sum()))
    return x[:cut], y[:cut], x[cut:], y[cut:]


def _trained(task: str) -> Floats:
    """The metric of every point of the grid after each epoch, in the grid's order."""
    shape = [len(choices) for choices in GRID.values()]
    values = np.empty((*shape, EPOCHS))
    for (at_width, width), (at_batch, batch) in (
        (w, b) for w in enumerate(GRID["width"]) for b in enumerate(GRID["batch_size"])
    ):
        for epoch, metric in enumerate(_course(task, int(width), int(batch))):
            values[:, :, at_width, at_batch, epoch] = metric.reshape(shape[:2])
    return values.reshape(-1, EPOCHS)


def _course(task: str, width: int, batch_size: int) -> Iterator[Floats]:
    """The metric after each epoch of all learning rates and momenta, which are trained side by side."""
    x, y, x_val, y_val = _data(task)
    classes = int(y.max()) + 1
    rates, momenta = (np.array(GRID[name], np.float32) for name in ("learning_rate", "momentum"))
    rate = np.repeat(rates, len(momenta))[:, None, None]
    momentum = np.tile(momenta, len(rates))[:, None, None]
    chance = np.random.default_rng(width * 1000 + batch_size)
    sizes = [(x.shape[1], width), (width, width), (width, classes)]
    weights = [
        np.repeat(chance.normal(0, np.sqrt(2 / n), (1, n, m)).astype(np.float32), len(rate), 0)
        for n, m in sizes
    ]
    biases = [np.zeros((len(rate), 1, m), np.float32) for _, m in sizes]
    both = weights + biases
    moving = [np.zeros_like(one) for one in both]
    targets = np.eye(classes, dtype=np.float32)[y]
    with np.errstate(all="ignore"):
        for _ in range(EPOCHS):
            order = chance.permutation(len(x))
            for begin in range(0, len(x), batch_size):
                rows = order[begin : begin + batch_size]
                for one, speed, slope in zip(
                    both, moving, _slopes(weights, biases, x[rows], targets[rows]), strict=True
                ):
                    speed *= momentum
                    speed -= rate * np.clip(slope, -1e3, 1e3)
                    one += speed
            yield _metric(task, _layers(weights, biases, x_val)[-1], y_val)


def _layers(weights: list[Singles], biases: list[Singles], x: Singles) -> list[Singles]:
    found = [np.repeat(x[None], len(weights[0]), 0)]
    for at, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        out = found[-1] @ weight + bias
        found.append(np.maximum(out, 0) if at + 1 < len(weights) else out)
    return found


def _shares(scores: Singles) -> Singles:
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _slopes(weights: list[Singles], biases: list[Singles], x: Singles, target: Singles) -> list[Singles]:
    """Gradients of the mean cross entropy: of the weights, then of the biases."""
    layers = _layers(weights, biases, x)
    slope = (_shares(layers[-1]) - target) / np.float32(len(x))
    of_weights, of_biases = [], []
    for at in reversed(range(len(weights))):
        of_weights.append(layers[at].swapaxes(1, 2) @ slope)
        of_biases.append(slope.sum(1, keepdims=True))
        slope = (slope @ weights[at].swapaxes(1, 2)) * (layers[at] > 0)
    return of_weights[::-1] + of_biases[::-1]


def _metric(task: str, scores: Singles, y: NDArray[np.int64]) -> Floats:
    """Accuracy, or cross entropy, of every network; a network that diverged knows as much as chance."""
    shares = np.nan_to_num(_shares(scores), nan=1.0 / scores.shape[-1])
    if _mode(task) == "max":
        return np.asarray((shares.argmax(-1) == y).mean(-1), dtype=np.float64)
    right = np.take_along_axis(shares, np.broadcast_to(y[None, :, None], (*shares.shape[:2], 1)), -1)
    return np.asarray(-np.log(np.maximum(right[..., 0], 1e-5)).mean(-1), dtype=np.float64)
