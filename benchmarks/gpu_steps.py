"""A worker's gradients on one device, in a process of its own: their time beside plain Keras, and what memory holds.

A child process of the benchmark `gpu`; its last line on standard output is a JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

_TIMEOUT_S = 540.0
_WARM_UP = 3


def measured(
    environment: dict[str, str], *, batches: tuple[int, ...], steps: int, most: int
) -> dict[str, Any]:
    """Measure in a fresh process.

    Args:
        environment: Variables in addition to this process's, such as those that hold it to a GPU.
        batches: Batch sizes at which to time `steps` steps.
        most: Samples up to which batches are doubled to see what memory does not hold.

    Returns:
        `device`; `steps`, by batch size: `keras_s`, `whole_s`, `with_noise_s`, medians; `too_many`, the batch size that
        was computed in parts, None if none was; `parts_error`, how far its gradient was from the mean of its halves.

    Raises:
        RuntimeError: If the process fails.
    """
    command = [sys.executable, "-m", __name__, "--steps", str(steps), "--most", str(most)]
    command += ["--batches", ",".join(map(str, batches))]
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        command,
        env={**os.environ, **defaults, **environment},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"measuring on the device failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _model() -> Any:
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((32, 32, 3))])
    for width in (32, 64, 128):
        model.add(layers.Conv2D(width, 3, padding="same", activation="relu"))
        model.add(layers.Conv2D(width, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss, jit_compile=False)
    return model


def _median_s(step: Callable[[], object], steps: int) -> float:
    took = []
    for _ in range(_WARM_UP + steps):
        begin = time.perf_counter()
        step()
        took.append(time.perf_counter() - begin)
    return statistics.median(took[_WARM_UP:])


def _measure(batches: tuple[int, ...], steps: int, most: int) -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    from scavenger.sdk import KerasJob
    from scavenger.train.worker.parts import InParts
    from scavenger.train.worker.program import Program

    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, size=1024)
    program, plain = Program(KerasJob(_model(), (x, y))), _model()
    told: list[int] = []
    in_parts = InParts(program, told.append)
    weights = program.initial_state()

    def batch_of(samples: int) -> Any:
        return program.train.batch(np.arange(samples) % len(x))

    def gradient(batch: Any) -> Any:
        return in_parts.gradient(weights, batch, seed=0, position=0)

    def with_noise(batch: Any) -> Any:
        return in_parts.with_noise(gradient(batch), weights, batch, seed=0, position=0)

    found: dict[str, Any] = {}
    for size in batches:
        batch = batch_of(size)
        found[str(size)] = {
            "keras_s": _median_s(partial(plain.train_on_batch, *batch), steps),
            "whole_s": _median_s(partial(gradient, batch), steps),
            "with_noise_s": _median_s(partial(with_noise, batch), steps),
        }
    size = batches[-1]
    while not told and 2 * size <= most:
        size *= 2
        gradient(batch_of(size))
    error = None
    if told:
        batch = batch_of(told[-1])
        whole = gradient(batch).gradients
        first, second = (
            gradient(tuple(leaf[part] for leaf in batch)).gradients
            for part in (slice(0, told[-1] // 2), slice(told[-1] // 2, None))
        )
        error = max(
            float(np.abs(a - (b + c) / 2).max() / np.abs(a).max())
            for a, b, c in zip(whole, first, second, strict=True)
        )
    devices = tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")
    details = tf.config.experimental.get_device_details(devices[0])
    return {
        "device": details.get("device_name", devices[0].device_type),
        "steps": found,
        "too_many": told[-1] if told else None,
        "parts_error": error,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--most", type=int, required=True)
    options = parser.parse_args()
    sizes = tuple(int(size) for size in options.batches.split(","))
    print(json.dumps(_measure(sizes, options.steps, options.most)))
