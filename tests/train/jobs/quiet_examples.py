"""`examples/starter`, `examples/charlm` and a small network in float64; see `quiet_digits`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import keras
from small import TRAIN, X, Y, network

from scavenger.sdk import KerasJob

_EXAMPLES = Path(__file__).parents[3] / "examples"


def _example(name: str) -> KerasJob:
    spec = importlib.util.spec_from_file_location(f"{name}_example", _EXAMPLES / name / "train.py")
    assert spec is not None
    assert spec.loader is not None
    keras.config.set_floatx("float64")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found: KerasJob = example.job()
    return found


def starter() -> KerasJob:
    return _example("starter")


def charlm() -> KerasJob:
    whole = _example("charlm")
    x, y = whole.train
    return KerasJob(whole.model, (x[:960], y[:960]), (x[960:1024], y[960:1024]))


def small() -> KerasJob:
    keras.config.set_floatx("float64")
    model = network(keras.optimizers.AdamW(0.003, weight_decay=0.1, epsilon=1e-4))
    return KerasJob(model, (X[TRAIN], Y[TRAIN]), (X[TRAIN], Y[TRAIN]))
