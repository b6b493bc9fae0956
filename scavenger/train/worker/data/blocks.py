"""Data that is read block by block: batches, row groups of files, windows of a stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from scavenger.elastic.order import Blocks
from scavenger.train.failure import DataError
from scavenger.train.worker.data.items import Readers
from scavenger.train.worker.data.source import Parts, join

_KEPT_MORE = 2  # blocks of the next window, read while samples of the present one are still to come


def rows_of(parts: Parts, what: str) -> int:
    """The number of samples in a batch.

    Raises:
        DataError: If its arrays disagree, or have no first axis.
    """
    lengths = {leaf.shape[0] if leaf.ndim else -1 for leaf in keras.tree.flatten(parts)}
    if len(lengths) != 1 or -1 in lengths:
        raise DataError(f"{what} must have arrays of one length, not {sorted(lengths)}")
    return int(lengths.pop())


class BlockSource:
    """Samples of blocks, each of which is read at once.

    The last blocks read are kept, as many as a window of the epoch's order mixes and some more. So a worker reads a
    block once in a window, however the order mixes its samples. Another epoch reads it again, as it may be augmented.

    Args:
        read: Reads a block by its number: the block's samples, stacked along the first axis.
        blocks: The blocks, as they are in the data.
        threads: Threads that may read blocks at once.
        notes: See `Source`.
    """

    def __init__(
        self,
        read: Callable[[int], Parts],
        blocks: Blocks,
        *,
        threads: int = 1,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._read, self.blocks, self.notes = read, blocks, notes
        sizes = blocks.sizes()
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self._readers = Readers(threads)
        self._kept: OrderedDict[int, Parts] = OrderedDict()
        self._seed = 0

    def __len__(self) -> int:
        return int(self._ends[-1])

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        if seed != self._seed:
            self._seed = seed
            self._kept.clear()
        where = np.searchsorted(self._ends, indices, side="right")
        # in the order of their first samples; data in sequence would otherwise be read from its beginning again
        needed = list(dict.fromkeys(where.tolist()))
        if self.blocks.in_sequence:
            needed.sort()
        found: list[Parts] = []
        for low in range(0, len(needed), self._readers.threads):
            some = needed[low : low + self._readers.threads]
            for block, parts in zip(some, self._blocks(some), strict=True):
                found.append(_rows(parts, indices[where == block] - self._starts[block]))
        taken = np.concatenate([np.flatnonzero(where == block) for block in needed])
        return _rows(join(found), np.argsort(taken))

    def _blocks(self, numbers: list[int]) -> list[Parts]:
        """Return blocks, and keep them as those used last."""
        lacking = [number for number in numbers if number not in self._kept]
        read = dict(zip(lacking, self._readers.map(self._checked, lacking), strict=True))
        found = [read[number] if number in read else self._kept.pop(number) for number in numbers]
        self._kept.update(zip(numbers, found, strict=True))
        while len(self._kept) > self.blocks.mixed + _KEPT_MORE:
            self._kept.popitem(last=False)
        return found

    def _checked(self, number: int) -> Parts:
        parts = self._read(number)
        rows, expected = rows_of(parts, f"batch {number}"), int(self._ends[number] - self._starts[number])
        if rows != expected:
            raise DataError(
                f"batch {number} has {rows} samples instead of {expected}: all batches must have one size, but the last"
            )
        return parts


def _rows(parts: Any, rows: npt.NDArray[np.int64]) -> Parts:
    taken: Parts = keras.tree.map_structure(lambda leaf: leaf[rows], parts)
    return taken
