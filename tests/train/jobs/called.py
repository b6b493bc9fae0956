"""A job with callbacks, whose files go to the folder that the environment names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras
from small import HELD_OUT, TRAIN, X, Y, network

from scavenger.sdk import KerasJob

FOLDER = "CALLED_FOLDER"


class Seen(keras.callbacks.Callback):
    """Notes in a file, which it writes as a whole, what every epoch showed it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.lines: list[str] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.lines.append(
            f"epoch {epoch} begins with {float(self.model.optimizer.learning_rate.numpy()):.6f}"
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        x, y = X[HELD_OUT], Y[HELD_OUT]
        right = (self.model.predict(x, verbose=0).argmax(axis=1) == y).mean()
        steps = int(self.model.optimizer.iterations.numpy())
        self.lines.append(f"epoch {epoch}: {right:.4f} right, {logs['val_accuracy']:.4f}, {steps} steps")
        self.path.write_text("\n".join(self.lines))

    def on_train_end(self, logs: Any = None) -> None:
        self.path.write_text("\n".join([*self.lines, "end"]))


class Cycle(keras.callbacks.Callback):
    """Sets the rate of every batch, notes what each showed it, and stops within an epoch."""

    def __init__(self, path: Path, last: int = 13) -> None:
        super().__init__()
        self.path, self.last = path, last
        self.rows: list[list[float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.2 / (1 + len(self.rows) % 7)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        right = (self.model.predict(X[HELD_OUT], verbose=0).argmax(axis=1) == Y[HELD_OUT]).mean()
        rate = float(self.model.optimizer.learning_rate.numpy())
        self.rows.append([batch, rate, logs["loss"], logs["accuracy"], right])
        self.model.stop_training = len(self.rows) == self.last

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.rows.append([epoch, -1.0, logs["loss"], logs["val_loss"], logs["val_accuracy"]])
        self.last += 1  # of the row that this is

    def on_train_end(self, logs: Any = None) -> None:
        self.path.write_text(json.dumps(self.rows))


def _warm_up(epoch: int, rate: float) -> float:
    return 0.4 * (epoch + 1) / 2 if epoch < 2 else rate


def callbacks(folder: Path) -> list[Any]:
    return [
        keras.callbacks.LearningRateScheduler(_warm_up),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, cooldown=1),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(folder / "{epoch:02d}.keras"),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        Seen(folder / "seen.txt"),
    ]


def _job(of_job: list[Any]) -> KerasJob:
    return KerasJob(
        network(keras.optimizers.SGD(0.05, momentum=0.9)),
        (X[TRAIN], Y[TRAIN]),
        (X[HELD_OUT], Y[HELD_OUT]),
        callbacks=of_job,
    )


def called() -> KerasJob:
    return _job(callbacks(Path(os.environ[FOLDER])))


def by_batches(folder: Path) -> list[Any]:
    return [
        Cycle(folder / "rows.json"),
        keras.callbacks.ModelCheckpoint(folder / "{batch}.keras", save_freq=4),
    ]


def cycled() -> KerasJob:
    return _job(by_batches(Path(os.environ[FOLDER])))
