"""Training code that goes wrong, each in its own way."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from small import TRAIN, X, Y, network

from scavenger.sdk import KerasJob


class _Samples:
    """Calls `at_read` with the number of the reading before each sample, those of the warm-up included."""

    def __init__(self, at_read: Callable[[int], Any]) -> None:
        self._at_read, self._reads = at_read, itertools.count(1)

    def __len__(self) -> int:
        return 170

    def __getitem__(self, index: int) -> Any:
        return X[index] * np.float32(self._at_read(next(self._reads)) or 1.0), Y[index]


def _job(at_read: Callable[[int], Any]) -> KerasJob:
    return KerasJob(network(keras.optimizers.SGD(0.01)), _Samples(at_read))


def _raise(reads: int) -> None:
    if reads > 300:
        raise RuntimeError("the disk is on fire")


def raises_in_data() -> KerasJob:
    return _job(_raise)


def gives_nan() -> KerasJob:
    return _job(lambda reads: float("nan") if reads > 300 else 1.0)


def hangs() -> KerasJob:
    return _job(lambda reads: time.sleep(600) if reads > 300 else None)


def _hang_once(reads: int) -> None:
    """Hang in the one process that gets there first."""
    if reads > 300:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.environ["HANGS_ONCE"], os.O_CREAT | os.O_EXCL))
            time.sleep(600)


def hangs_once() -> KerasJob:
    return _job(_hang_once)


def leaves() -> KerasJob:
    return _job(lambda reads: os._exit(7) if reads > 300 else None)


def _slow_validation(seconds: float) -> KerasJob:
    """An evaluation that takes so long, over its 10 samples, and more where they are read again."""

    class Slow:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            if index == 9:  # not among the samples of the warm-up
                time.sleep(seconds)
            return X[index], Y[index]

    model = network(keras.optimizers.SGD(0.01))
    return KerasJob(model, (X[TRAIN], Y[TRAIN]), Slow())


def evaluates_slowly() -> KerasJob:
    return _slow_validation(5.0)


def hangs_in_evaluation() -> KerasJob:
    return _slow_validation(600.0)


class Raising(keras.layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        raise ValueError("this layer does not feel like it")


def raises_in_call() -> KerasJob:
    model = network(keras.optimizers.SGD(0.01), Raising())
    return KerasJob(model, (X[TRAIN], Y[TRAIN]))


def unruly() -> KerasJob:
    """Ignores polite signals, keeps a thread that never ends, and starts a child that hides in its own
    session.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    print("child", subprocess.Popen(child, start_new_session=True).pid, flush=True)
    print("child", subprocess.Popen(child).pid, flush=True)
    return _job(lambda reads: None)
