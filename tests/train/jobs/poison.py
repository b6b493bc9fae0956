"""A job with a sample that kills whoever reads it, by a signal as a faulty decoder would."""

from __future__ import annotations

import os
import signal
from typing import Any

import keras
from small import HELD_OUT, TRAIN, X, Y, network

from scavenger.sdk import KerasJob

POISON = 83


class _Poisoned:
    def __len__(self) -> int:
        return len(X[TRAIN])

    def __getitem__(self, index: int) -> Any:
        if index == POISON:
            os.kill(os.getpid(), signal.SIGSEGV)
        return X[index], Y[index]


def poisoned() -> KerasJob:
    return KerasJob(
        network(keras.optimizers.SGD(0.05, momentum=0.9)), _Poisoned(), (X[HELD_OUT], Y[HELD_OUT])
    )
