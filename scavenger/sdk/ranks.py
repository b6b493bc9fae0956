"""How the samples of a worker are divided among its processes, and what each of them has of the worker's arrays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from scavenger.sdk.loop import STATISTICS

__all__ = ["cut", "mean_of", "named", "part_of", "statistics"]

Array = npt.NDArray[Any]
Named = TypeVar("Named")


def cut(positions: range, number: int) -> list[range]:
    """Cut a range into so many ones, in order, whose lengths differ by at most one."""
    ends = [positions.start + len(positions) * one // number for one in range(number + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(ends)]


def named(of_ranks: Sequence[Mapping[str, Named]]) -> dict[str, Named]:
    """The gradients of a worker, by names of its own, of those of its processes, in order of their ranks.

    They are divided over the processes, and each is already that of all samples of the worker; so they stay apart.
    """
    return {
        _name(name, rank): one
        for rank, of_rank in enumerate(of_ranks)
        for name, one in of_rank.items()
        if not name.startswith(STATISTICS)
    }


def statistics(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Those of the arrays that are no gradients, which each process has for its own samples."""
    return {name: array for name, array in arrays.items() if name.startswith(STATISTICS)}


def mean_of(of_ranks: Sequence[Mapping[str, Array]], samples: Sequence[int]) -> dict[str, Array]:
    """The statistics of a worker, of those of its processes and of how many samples each has computed."""
    return {name: _mean([arrays[name] for arrays in of_ranks], samples) for name in of_ranks[0]}


def part_of(arrays: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """What one process has of a worker's arrays: its part of the gradients, and all statistics."""
    own = _name("", rank)
    return {
        name.removeprefix(own): array for name, array in arrays.items() if name.startswith((own, STATISTICS))
    }


def _name(name: str, rank: int) -> str:
    return f"rank {rank}/{name}"


def _mean(arrays: Sequence[Array], samples: Sequence[int]) -> Array:
    first = arrays[0]
    if all(np.array_equal(array, first, equal_nan=True) for array in arrays[1:]):
        return first  # with all bits, and infinities
    counted = [(array, number) for array, number in zip(arrays, samples, strict=True) if number]
    total = np.zeros(first.shape, np.float64)
    for array, number in counted:
        total += array * (number / sum(samples))
    return total.astype(first.dtype)
