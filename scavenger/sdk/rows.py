"""Arrays of samples as the loader of a script: their rows in batches, in an order of its own each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import TrainingCodeError

__all__ = ["Rows"]


class Rows:
    """Batches of the rows of arrays, in a new order each epoch; the last batch of an epoch may be smaller.

    Args:
        arrays: Arrays by name or by place, whose rows are the samples.
        batch_size: Rows of a batch.
        seed: Of the orders.

    Attributes:
        samples: Rows of each array.
        batch_size: At most `samples`.
        steps: Batches of an epoch.

    Raises:
        TrainingCodeError: If they are no arrays of as many rows, or the batch has none.
    """

    def __init__(self, arrays: Any, batch_size: int, seed: int) -> None:
        self._pick = _picker(arrays)
        leaves = _leaves(arrays)
        lengths = {len(leaf) if np.ndim(leaf) else 0 for leaf in leaves}
        if len(lengths) != 1 or not min(lengths):
            raise TrainingCodeError(
                "the training data are arrays with as many rows each, and at least one, not "
                + ", ".join(str(np.shape(leaf)) for leaf in leaves)
            )
        if batch_size < 1:
            raise TrainingCodeError(f"batch_size={batch_size}: a batch has a sample at least")
        self.samples = lengths.pop()
        self.batch_size = min(batch_size, self.samples)
        self.steps = -(-self.samples // self.batch_size)
        self._seed, self._epoch = seed, -1
        self._order: npt.NDArray[np.int64] = np.arange(0)
        self._epochs = 0

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The rows of an epoch, in order; the same wherever the seed is."""
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self.samples)
            self._epoch = epoch
        return self._order

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        order, self._epochs = self.order(self._epochs), self._epochs + 1
        for start in range(0, self.samples, self.batch_size):
            yield self._pick(order[start : start + self.batch_size])

    def read(self, epoch: int, parts: Sequence[range], number: int, stride: int) -> Any:
        """See `Batches`."""
        part = parts[number]
        return self._pick(self.order(epoch)[part.start : part.stop])

    def few(self, epoch: int) -> Any:
        """See `Batches`."""
        return self._pick(self.order(epoch)[:2])


def _leaves(arrays: Any) -> list[Any]:
    if isinstance(arrays, dict):
        return list(arrays.values())
    return list(arrays) if isinstance(arrays, tuple | list) else [arrays]


def _picker(arrays: Any) -> Callable[[Any], Any]:
    if isinstance(arrays, dict):
        return lambda rows: {name: array[rows] for name, array in arrays.items()}
    if isinstance(arrays, tuple | list):
        return lambda rows: tuple(array[rows] for array in arrays)
    return lambda rows: arrays[rows]
