"""The sample-weighted mean of the workers' arrays, independent of the order in which they arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.errors import NonFiniteError, TrainingCodeError
from scavenger.sdk.loop import STATISTICS
from scavenger.train.custom_loop.messages import Array
from scavenger.train.norms import sqnorm, total_sqnorm

Contribution = tuple[str, int, dict[str, Array]]
"""A worker, its number of samples (at least 1), and its means over them."""

_BLOCK = 128 * 1024
"""Elements that are summed at once, so that they stay in the processor's cache. The mean of two arrays of 25 million
in double precision took 43 ms with an eighth as many, 33 with half, 30 with these or with twice as many."""


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
    """Mean of named arrays over samples, with the bits of a sum in double precision.

    Args:
        contributions: Those of at least one worker.
        step: The step, for error messages.
        into: Arrays to write the means to, of the types and shapes that were pushed; None for new ones, or for those of
            the only worker as it has pushed them.

    Raises:
        TrainingCodeError: If a worker pushed other names, shapes or types than the first.
        NonFiniteError: If a mean is NaN or infinite.
    """
    _check_alike(contributions, step)
    pattern = contributions[0][2]
    total = sum(samples for _, samples, _ in contributions)
    shares = [samples / total for _, samples, _ in contributions]
    alone = len(contributions) == 1 and into is None
    means = pattern if alone else into
    if means is None:
        means = {name: np.empty_like(like) for name, like in pattern.items()}
    worker_sqnorm = mean_sqnorm = 0.0
    for name in pattern:
        parts = [_flat(tensors[name]) for _, _, tensors in contributions]
        if alone and name.startswith(STATISTICS):
            continue
        if name.startswith(STATISTICS) and all(_same(parts[0], part) for part in parts[1:]):
            # such as a mask of attention, which is -inf where nothing is seen
            np.copyto(means[name].reshape(-1), parts[0])
            continue
        squares = _norm(parts[0]) if alone else _average(parts, shares, means[name].reshape(-1))
        if squares is None:
            bad = [worker for worker, _, tensors in contributions if not np.isfinite(tensors[name]).all()]
            raise not_finite(bad, name, step)
        if not name.startswith(STATISTICS):
            worker_sqnorm += squares[0]
            mean_sqnorm += squares[1]
    return Means(means, worker_sqnorm, mean_sqnorm)


def not_finite(workers: Sequence[str], name: str, step: int) -> NonFiniteError:
    """The error of a mean that is not finite, by these workers or, if there are none, by all together."""
    who = " and ".join(workers) or "the workers together"
    return NonFiniteError(f"{who} pushed NaN or infinity in {name!r} at step {step}")


def _average(parts: Sequence[Array], shares: Sequence[float], mean: Array) -> tuple[float, float] | None:
    """Write the mean of flat arrays; returns the mean squared norm and the norm of the mean, None if not finite."""
    worker_sqnorm = mean_sqnorm = 0.0
    scratch = np.empty((2, min(_BLOCK, mean.size)))
    is_pair = mean.dtype == np.float32 and list(shares) == [0.5, 0.5]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by its norm
        for at in range(0, mean.size, _BLOCK):
            blocks, target = [part[at : at + _BLOCK] for part in parts], mean[at : at + _BLOCK]
            worker_sqnorm += sum(share * sqnorm(block) for block, share in zip(blocks, shares, strict=True))
            if is_pair:
                _form_pair(blocks[0], blocks[1], target)
            else:
                _form(blocks, shares, target, scratch)
            square = sqnorm(target)
            if is_pair and not np.isfinite(square):  # their sum may be out of range where their mean is not
                _form(blocks, shares, target, scratch)
                square = sqnorm(target)
            if not np.isfinite(square) and not np.isfinite(target).all():
                return None
            mean_sqnorm += square
    return worker_sqnorm, mean_sqnorm


def _norm(part: Array) -> tuple[float, float] | None:
    """The squared norm of a flat array that is its own mean, twice; None if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = total_sqnorm(part)
        return None if not np.isfinite(square) and not np.isfinite(part).all() else (square, square)


def _form(blocks: Sequence[Array], shares: Sequence[float], mean: Array, scratch: Array) -> None:
    """Write the mean of blocks by their shares, summed in double precision in their order."""
    total, scaled = scratch[:, : mean.size]
    for index, (block, share) in enumerate(zip(blocks, shares, strict=True)):
        target = scaled if index else total
        np.copyto(target, block)
        target *= share
        if index:
            total += scaled
    np.copyto(mean, total, casting="same_kind")


def _form_pair(one: Array, other: Array, mean: Array) -> None:
    """Write the mean of two blocks in single precision, which has the bits of `_form` unless their sum is out of range.

    To halve is exact, except where it ends among the least numbers that there are; and a sum which is as small as that
    is exact itself, so that there, too, it is rounded once. To round a sum of two to double precision first changes
    nothing, since that has two bits more than twice as many, and one to spare [1]_.

    References:
        .. [1] Figueroa, "When is Double Rounding Innocuous?", 1995.
    """
    np.add(one, other, out=mean)
    mean *= mean.dtype.type(0.5)


def _flat(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1)


def _same(one: Array, other: Array) -> bool:
    """Whether two flat arrays have the same bits."""
    return bool(np.array_equal(one.view(np.uint8), other.view(np.uint8)))


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
