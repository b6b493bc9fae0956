"""`examples/digits` without its dropout and in float64, for `make chaos`.

What dropout draws depends on where a batch is cut, which changes when a worker is lost: as on any data-parallel
trainer, the result is then another, equally good one, and there would be nothing to compare. In float32 the same
goes for the order in which gradients are added, which training amplifies until it shows.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import keras

from scavenger.sdk import KerasJob

_EXAMPLE = Path(__file__).parents[3] / "examples" / "digits" / "train.py"


def job() -> KerasJob:
    spec = importlib.util.spec_from_file_location("digits_example", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    keras.config.set_floatx("float64")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    noisy = example.job()
    layers = [layer for layer in noisy.model.layers if not isinstance(layer, keras.layers.Dropout)]
    model = keras.Sequential([keras.Input(noisy.model.input_shape[1:]), *layers])
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(noisy.model.optimizer))
    model.compile(optimizer, noisy.model.loss, metrics=["accuracy"])
    return KerasJob(model, noisy.train, noisy.validation)
