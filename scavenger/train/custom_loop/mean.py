"""The sample-weighted mean of the workers' arrays, independent of the order in which they arrived."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scavenger.errors import NonFiniteError, TrainingCodeError
from scavenger.train.custom_loop.messages import Array

__all__ = ["weighted_mean"]


def weighted_mean(
    contributions: Sequence[tuple[str, int, dict[str, Array]]], *, step: int
) -> dict[str, Array]:
    """Mean of named arrays over samples, summed in double precision.

    Args:
        contributions: For each of at least one worker, its name, its number of samples (at least 1), and its means
            over them.
        step: The step, for error messages.

    Returns:
        Arrays of the shapes and types that the first worker pushed.

    Raises:
        TrainingCodeError: If a worker pushed other names, shapes or types than the first.
        NonFiniteError: If a mean is NaN or infinite.
    """
    first, _, pattern = contributions[0]
    total = sum(samples for _, samples, _ in contributions)
    for worker, _, tensors in contributions:
        for name in pattern.keys() | tensors.keys():
            a, b = pattern.get(name), tensors.get(name)
            if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
                raise TrainingCodeError(
                    f"in step {step}, {first} and {worker} pushed different arrays as {name!r}: "
                    f"{_describe(a)} and {_describe(b)}"
                )
    means = {}
    for name, like in pattern.items():
        accumulated = np.zeros(like.shape, dtype=np.float64)
        share = np.empty_like(accumulated)
        for _, samples, tensors in contributions:
            np.multiply(tensors[name], samples / total, out=share, dtype=np.float64)
            accumulated += share
        if not np.isfinite(accumulated).all():
            bad = [worker for worker, _, tensors in contributions if not np.isfinite(tensors[name]).all()]
            who = " and ".join(bad) or "the workers together"
            raise NonFiniteError(f"{who} pushed NaN or infinity in {name!r} at step {step}")
        means[name] = accumulated.astype(like.dtype)
    return means


def _describe(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
