"""What the fork server runs: importing this module imports all that a worker needs, above all TensorFlow."""

from __future__ import annotations

from scavenger.train import process
from scavenger.train.later_imports import later

with later():
    import keras
    import numpy as np

    from scavenger.sdk.job import KerasJob
    from scavenger.train.worker import worker
    from scavenger.train.worker.program import Program

__all__ = ["main", "warm_up", "worker"]

main = process.main
"""What a forked process runs."""

_SAMPLES = 4


def warm_up() -> None:
    """Have TensorFlow and Keras do once what is slower the first time: their runtime, kernels, tracing, gradients.

    No code of the user's runs, and what a job could notice of it is undone: names, seeds and graphs of Keras.
    """
    layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3, activation="relu"), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(2, activation="softmax")])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    data = np.zeros((_SAMPLES, 8, 8, 1), np.float32), np.zeros(_SAMPLES, np.int64)
    program = Program(KerasJob(model, train=data, validation=data))
    values, batch = program.initial_state(), program.train.batch(np.arange(_SAMPLES))
    program.gradient(values, batch, seed=0, position=0)
    program.evaluate(values, 0, _SAMPLES, _SAMPLES)
    del program, model, layers
    keras.utils.clear_session()
