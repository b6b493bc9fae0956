"""The same training twice: by the code of workers and aggregators in one process, and by `fit` of plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from benchmarks import keras_training
from benchmarks.keras_training import by_job, furthest
from scavenger.train.worker.program import Program

__all__ = ["assert_as_fit", "assert_close", "by_fit", "by_job", "one_by_one"]


@contextmanager
def one_by_one() -> Iterator[None]:
    """Functions of TensorFlow run their operations one by one: to compile them takes longer than a few small steps."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def by_fit(build: Callable[[], Any], train: Any, **arguments: Any) -> Any:
    """Train with `fit`; see `keras_training.by_fit`."""
    with one_by_one():
        return keras_training.by_fit(build, train, **arguments)


def assert_close(got: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Compare arrays relative to the largest value of each."""
    assert furthest(got, expected) <= tolerance


def assert_as_fit(
    build: Callable[[], Any], train: Any, *, steps: int = 4, tolerance: float = 1e-5, **arguments: Any
) -> Program:
    """Train both ways, and compare the weights."""
    program, got = by_job(build, train, steps=steps, **arguments)
    plain = by_fit(build, train, steps=steps, **arguments)

    assert_close(got, plain.get_weights(), tolerance)
    return program
