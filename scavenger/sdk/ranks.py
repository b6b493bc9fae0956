"""How the samples of a worker are divided among its processes, and what each of them has of the worker's arrays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.sdk.loop import STATISTICS

__all__ = ["cut", "joined", "part_of"]

Array = npt.NDArray[Any]


def cut(positions: range, number: int) -> list[range]:
    """Cut a range into so many ones, in order, whose lengths differ by at most one."""
    ends = [positions.start + len(positions) * one // number for one in range(number + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(ends)]


def joined(pushed: Sequence[Mapping[str, Array]], samples: Sequence[int]) -> dict[str, Array]:
    """The arrays of a worker, of what its processes push of a batch: in order of their ranks.

    Gradients are divided over the processes, and each is already that of all samples of the worker; so they stay apart.
    Statistics are means over the samples of each process, and become those over all.

    Args:
        pushed: The arrays of each process.
        samples: Those that each process has computed.
    """
    found = {
        name: _mean([arrays[name] for arrays in pushed], samples)
        for name in pushed[0]
        if name.startswith(STATISTICS)
    }
    for rank, arrays in enumerate(pushed):
        found |= {_named(name, rank): array for name, array in arrays.items() if name not in found}
    return found


def part_of(mean: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """What one process has of a worker's mean."""
    own = _named("", rank)
    return {
        name.removeprefix(own): array for name, array in mean.items() if name.startswith((own, STATISTICS))
    }


def _named(name: str, rank: int) -> str:
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
