"""The same training twice: by the code of workers and aggregators in one process, and by `fit` of plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from benchmarks.keras_support import in_pieces
from scavenger.sdk import KerasJob
from scavenger.train.worker.program import Program

__all__ = ["assert_as_fit", "assert_close", "by_fit", "by_job"]

_SEED = 3


def by_job(
    build: Callable[[], Any], train: Any, *, steps: int = 4, path: Path | None = None, **arguments: Any
) -> tuple[Program, list[Any]]:
    """Train in two unequal pieces with two aggregators; returns the program, and the weights as `get_weights` has them.

    Each step uses all samples once.
    """
    keras.utils.set_random_seed(_SEED)
    program = Program(KerasJob(build(), train, **arguments))
    samples = len(program.train)
    middle = samples * 5 // 9
    final = in_pieces(program, ((0, middle), (middle, samples)), path, steps=steps)
    for variable, value in zip(program.variables, final, strict=True):
        variable.assign(value)
    return program, program.model.get_weights()


def by_fit(build: Callable[[], Any], train: Any, *, steps: int = 4, **arguments: Any) -> Any:
    """Train with `fit`, all samples in one batch; returns the model."""
    keras.utils.set_random_seed(_SEED)
    model = build()
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(train)
    count = len(keras.tree.flatten(x)[0])
    model.fit(
        x,
        y,
        sample_weight=sample_weight,
        batch_size=count,
        epochs=steps,
        shuffle=False,
        verbose=0,
        **arguments,
    )
    return model


def assert_close(got: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Compare arrays relative to the largest value of each."""
    for a, b in zip(got, expected, strict=True):
        a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
        assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-2)


def assert_as_fit(
    build: Callable[[], Any], train: Any, *, steps: int = 4, tolerance: float = 1e-5, **arguments: Any
) -> Program:
    """Train both ways, and compare the weights."""
    program, got = by_job(build, train, steps=steps, **arguments)
    plain = by_fit(build, train, steps=steps, **arguments)

    assert_close(got, plain.get_weights(), tolerance)
    return program
