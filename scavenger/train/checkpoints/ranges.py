"""Arrays of a checkpoint by key and range, which are found however they were cut when they were saved.

An array that was saved whole has its key as its name, as `weight.3`. A range of a larger array, elements in a row of
the flat array, has the index of its first element behind it, as `weight.3@4096`.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scavenger.train.checkpoints.format import Array


def range_name(key: str, first: int | None) -> str:
    """Return the name of a range that begins at element `first`; None for a whole array."""
    return key if first is None else f"{key}@{first}"


@dataclass(frozen=True, slots=True)
class SavedRange:
    """One array in a file of a checkpoint.

    Attributes:
        dtype: Its type.
        load: Reads it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Array]

    @property
    def key(self) -> str:
        """The key of the array that it is a range of."""
        return self.name.partition("@")[0]

    @property
    def begin(self) -> int:
        """Its first element in the flat array."""
        first = self.name.partition("@")[2]
        return int(first) if first.isdecimal() else 0

    @property
    def end(self) -> int:
        """The element after its last one."""
        return self.begin + math.prod(self.shape)


def ranges_of(tensors: Mapping[str, Array]) -> list[SavedRange]:
    """Return arrays that are in memory, by name."""
    return [
        SavedRange(name, array.shape, array.dtype, functools.partial(np.asarray, array))
        for name, array in tensors.items()
    ]


class SavedArrays:
    """The arrays of a checkpoint; only those ranges are loaded that are needed.

    A range whose end has not been read yet is kept, so each is loaded once if what is read of it follows in order.
    """

    def __init__(self, ranges: Iterable[SavedRange]) -> None:
        found: defaultdict[str, list[SavedRange]] = defaultdict(list)
        for one in ranges:
            found[one.key].append(one)
        self._ranges = {key: sorted(some, key=lambda one: one.begin) for key, some in found.items()}
        self._loaded: dict[str, Array] = {}

    def read(self, key: str, target: Array, *, first: int = 0, size: int | None = None) -> bool:
        """Fill an array with elements of a saved one.

        Args:
            key: The saved array's key.
            target: A contiguous array.
            first: The first element to read from the flat array.
            size: Elements of the whole array; by default that of `target`.

        Returns:
            Whether it is filled: whether there is such an array, of this size and type.
        """
        ranges, end = self._ranges.get(key, []), first + target.size
        fits = bool(ranges) and ranges[-1].end == (target.size if size is None else size)
        if not fits or any(one.dtype != target.dtype for one in ranges):
            return False
        if len(ranges) == 1 and size is None and ranges[0].shape != target.shape:
            return False
        flat, at = target.reshape(-1), first
        for one in ranges:
            if one.begin <= at < min(one.end, end):
                upto, loaded = min(one.end, end), self._loaded.pop(one.name, None)
                loaded = one.load() if loaded is None else loaded
                flat[at - first : upto - first] = loaded.reshape(-1)[at - one.begin : upto - one.begin]
                if upto < one.end:
                    self._loaded[one.name] = loaded
                at = upto
        return at == end
