"""The same training twice: by the code of workers and aggregators in one process, and by `fit` of plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.keras_training import by_fit, by_job, furthest
from scavenger.train.worker.program import Program

__all__ = ["assert_as_fit", "assert_close", "by_fit", "by_job"]


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
