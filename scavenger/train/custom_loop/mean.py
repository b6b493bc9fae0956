"""The sample-weighted mean of the workers' arrays, independent of the order in which they arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.errors import NonFiniteError, TrainingCodeError
from scavenger.sdk.loop import STATISTICS
from scavenger.train.custom_loop.messages import Array
from scavenger.train.norms import sqnorm

__all__ = ["Contribution", "Means", "weighted_mean"]

Contribution = tuple[str, int, dict[str, Array]]
"""A worker, its number of samples (at least 1), and its means over them."""

_BLOCK = 64 * 1024
"""Elements that are summed at once: in double precision, they stay in the processor's cache. The mean of two arrays of
25 million took 39 ms of a processor with half as many, 36 with these, 34 with twice as many."""


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a step.

    Attributes:
        arrays: By name, of the shapes and types that the first worker pushed.
        worker_sqnorm: Mean over the samples of the squared norm of each worker's gradient, as
            `scavenger.models.noise` defines it.
        sqnorm: Squared norm of the mean gradient.
    """

    arrays: dict[str, Array]
    worker_sqnorm: float
    sqnorm: float


def weighted_mean(
    contributions: Sequence[Contribution], *, step: int, into: dict[str, Array] | None = None
) -> Means:
    """Mean of named arrays over samples, summed in double precision.

    Args:
        contributions: Those of at least one worker.
        step: The step, for error messages.
        into: Arrays to write the means to, of the types and shapes that were pushed; None for new ones.

    Raises:
        TrainingCodeError: If a worker pushed other names, shapes or types than the first.
        NonFiniteError: If a mean is NaN or infinite.
    """
    _check_alike(contributions, step)
    pattern = contributions[0][2]
    total = sum(samples for _, samples, _ in contributions)
    shares = [samples / total for _, samples, _ in contributions]
    means = {name: np.empty_like(like) for name, like in pattern.items()} if into is None else into
    worker_sqnorm = mean_sqnorm = 0.0
    for name in pattern:
        parts = [_flat(tensors[name]) for _, _, tensors in contributions]
        squares = _average(parts, shares, means[name].reshape(-1))
        if squares is None:
            bad = [worker for worker, _, tensors in contributions if not np.isfinite(tensors[name]).all()]
            who = " and ".join(bad) or "the workers together"
            raise NonFiniteError(f"{who} pushed NaN or infinity in {name!r} at step {step}")
        if not name.startswith(STATISTICS):
            worker_sqnorm += squares[0]
            mean_sqnorm += squares[1]
    return Means(means, worker_sqnorm, mean_sqnorm)


def _average(parts: Sequence[Array], shares: Sequence[float], mean: Array) -> tuple[float, float] | None:
    """Write the mean of flat arrays; returns the mean squared norm and the norm of the mean, None if not finite."""
    worker_sqnorm = mean_sqnorm = 0.0
    sums, part = np.empty(_BLOCK), np.empty(_BLOCK)
    for at in range(0, mean.size, _BLOCK):
        length = min(_BLOCK, mean.size - at)
        total, scaled = sums[:length], part[:length]
        for index, (given, share) in enumerate(zip(parts, shares, strict=True)):
            block = given[at : at + length]
            worker_sqnorm += share * sqnorm(block)
            target = scaled if index else total
            np.copyto(target, block)
            target *= share
            if index:
                total += scaled
        square = sqnorm(total)
        if not np.isfinite(square) and not np.isfinite(total).all():
            return None
        mean_sqnorm += square
        np.copyto(mean[at : at + length], total, casting="same_kind")
    return worker_sqnorm, mean_sqnorm


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)


def _check_alike(contributions: Sequence[Contribution], step: int) -> None:
    first, _, pattern = contributions[0]
    for worker, _, tensors in contributions:
        for name in pattern.keys() | tensors.keys():
            a, b = pattern.get(name), tensors.get(name)
            if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
                raise TrainingCodeError(
                    f"in step {step}, {first} and {worker} pushed different arrays as {name!r}: "
                    f"{_describe(a)} and {_describe(b)}"
                )


def _describe(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
