"""Data whose samples can be read one by one: arrays in memory, and data sets whose `[i]` is one sample."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from scavenger.elastic.order import Blocks
from scavenger.sdk.data import sample_seed_set
from scavenger.train.failure import DataError
from scavenger.train.worker.data.source import Parts, blocks_of_large, parts_of, stack, to_array

_LISTS = "a list is taken for several inputs: turn a list of samples into an array, np.array(x)"
_THREADS_MAX = 64
_LENGTH_MAX = 1 << 48


def threads_of(data: Any) -> int:
    """Threads that may read data at once: its attribute `workers`, as a `PyDataset` has it; 1 if it has none."""
    workers = getattr(data, "workers", None)
    return min(max(1, workers), _THREADS_MAX) if type(workers) is int else 1


def cpus() -> int:
    """CPUs that this process may use, for readers that are safe to be used by several threads."""
    return min(len(os.sched_getaffinity(0)), _THREADS_MAX)


class Readers:
    """Threads that read at once, so that the parts of a batch are not waited for one after the other.

    Args:
        threads: At least 1; with 1, the calling thread reads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def map(self, read: Callable[[int], Parts], numbers: Sequence[int]) -> list[Parts]:
        """Read each; returns the results in order, or raises an error of one, with its traceback."""
        if self.threads == 1 or len(numbers) < 2:
            return [read(number) for number in numbers]
        found: dict[int, Parts] = {}
        errors: list[BaseException] = []
        waiting = iter(numbers)  # of a sequence, so that threads may share it

        def work() -> None:
            for number in waiting:
                try:
                    found[number] = read(number)
                except BaseException as error:  # noqa: BLE001 - raised below, whatever user code raised
                    errors.append(error)
                if errors:
                    return

        # not of a pool, whose threads a process that ends would wait for, though they hang in user code
        threads = [
            threading.Thread(target=work, name=f"read-{number}", daemon=True)
            for number in range(min(self.threads, len(numbers)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [found[number] for number in numbers]


class ArraySource:
    """Arrays in memory.

    Args:
        parts: x, y and sample weights, with samples along the first axis.

    Raises:
        DataError: If they are no arrays of one length.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, parts: Parts) -> None:
        self._parts: Parts = keras.tree.map_structure(to_array, parts)
        leaves = keras.tree.flatten(self._parts)
        if not leaves:
            raise DataError("there is no array")
        hint = f"; {_LISTS}" if any(isinstance(part, list) for part in parts) else ""
        if any(leaf.ndim == 0 for leaf in leaves):
            raise DataError("data arrays need a first axis of samples" + hint)
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1:
            raise DataError(f"data arrays disagree on the number of samples: {sorted(lengths)}" + hint)
        self._length = lengths.pop()
        self.blocks = blocks_of_large(self._length)

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        taken: Parts = keras.tree.map_structure(lambda leaf: leaf[indices], self._parts)
        return taken


class ItemSource:
    """A data set whose `[i]` is one sample and whose `len()` counts samples.

    Args:
        items: The data set.
        threads: Threads that may use it at once.
        notes: See `Source`.

    Raises:
        DataError: If it has no sample, or its first one is none.
    """

    def __init__(self, items: Any, *, threads: int = 1, notes: tuple[str, ...] = ()) -> None:
        self._length = len(items)
        if self._length == 0:
            raise DataError("there is no sample")
        if self._length > _LENGTH_MAX:
            raise DataError(
                f"a {type(items).__name__} of {self._length} samples is endless: remove .repeat()"
            )
        parts = parts_of(_first(items), "a sample")
        if any(_holds_listed_numbers(part) for part in parts):
            raise DataError(
                "a sample has a list of numbers, which is taken for several inputs: make it np.array(x)"
            )
        self._items, self._readers = items, Readers(threads)
        self.blocks: Blocks | None = blocks_of_large(self._length)
        self.notes = notes

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        def read(index: int) -> Parts:
            with sample_seed_set(seed, index):
                return parts_of(self._items[index], f"sample {index}")

        return stack(self._readers.map(read, indices.tolist()))


def _first(items: Any) -> Any:
    """The sample at index 0.

    Raises:
        DataError: If the data set knows no index 0, as one whose keys are names.
    """
    try:
        return items[0]
    except KeyError as error:
        if error.args != (0,):
            raise
        raise DataError(
            f"a {type(items).__name__} has no [0]: its [i] must be one sample (x, y), for i from 0 to len() - 1"
        ) from None


def _holds_listed_numbers(part: Any) -> bool:
    if isinstance(part, Mapping):
        return any(map(_holds_listed_numbers, part.values()))
    if isinstance(part, (tuple, list)):
        listed = isinstance(part, list)
        return any((listed and isinstance(one, (int, float))) or _holds_listed_numbers(one) for one in part)
    return False
