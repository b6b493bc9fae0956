"""Random access to the elements of a `tf.data.Dataset` whose functions are called here, not by TensorFlow's `at`.

`tf.data.experimental.at` keeps a function of the data set with the kernel that was the first to ask for an element.
TensorFlow drops its kernels whenever a seed is set (`tf.random.set_seed`, `keras.utils.set_random_seed`) or a session
is cleared, and the next `at` then ends the process by a signal. The workers' start sets seeds, and so may the user's
code at any time. So `at` reads only what has no functions left to call, and the data sets above that are followed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.util import nest, structure

_Read = Callable[[int], list[Any]]
"""Gives the tensors of an element, in the order of its flattened structure."""


class Elements:
    """The elements of a data set; safe to be read by several threads.

    Args:
        dataset: The data set.
        read: Gives the tensors of an element.
    """

    def __init__(self, dataset: Any, read: _Read) -> None:
        self._spec, self._read, self._length = dataset.element_spec, read, _count(dataset)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        with tf.device("CPU:0"):  # where TensorFlow runs the functions of a data set
            return structure.from_tensor_list(self._spec, self._read(index))


def open_elements(dataset: Any) -> Elements | None:
    """Give random access to a data set of known length; None if it has none. Reads its first and its last element."""
    read = _reader(dataset)
    if read is None:
        return None
    elements = Elements(dataset, read)
    for index in (0, len(elements) - 1):
        elements[index]
    return elements


def chain(dataset: Any) -> Iterator[Any]:
    """All data sets that a data set is made of, from the last to the first."""
    yield dataset
    for one in dataset._inputs():
        yield from chain(one)


def reshuffles(dataset: Any) -> bool:
    """Whether a data set, or one that it is made of, comes in another order each time."""
    return any(type(one).__name__ == "_ShuffleDataset" and not _repeatable(one) for one in chain(dataset))


def _repeatable(shuffled: Any) -> bool:
    seeded = bool(int(shuffled._seed) or int(shuffled._seed2))
    return seeded and shuffled._reshuffle_each_iteration is False


def _count(dataset: Any) -> int:
    return int(dataset.cardinality())


def _reader(dataset: Any) -> _Read | None:
    """How to read an element of a data set; None if it cannot be read alone."""
    if _count(dataset) < 1:
        return None
    name, other_order = type(dataset).__name__, reshuffles(dataset)
    # once a cache is full, it calls no function
    if not other_order and (name == "CacheDataset" or not any(one._functions() for one in chain(dataset))):
        return _by_tensorflow(dataset)
    follow = _FOLLOWED.get(name)
    inputs = [] if follow is None else [_reader(one) for one in dataset._inputs()]
    given = [read for read in inputs if read is not None]
    return follow(dataset, *given) if follow is not None and len(given) == len(inputs) else None


def _by_tensorflow(dataset: Any) -> _Read | None:
    def read(index: int) -> list[Any]:
        tensors: list[Any] = structure.to_tensor_list(spec, tf.data.experimental.at(dataset, index))
        return tensors

    spec, last = dataset.element_spec, _count(dataset) - 1
    try:
        read(0), read(last)  # which fills a cache, as that reads all elements before
    except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError):
        return None
    return read


# ---- data sets that are followed -------------------------------------------------------------------------------


def _map(dataset: Any, read: _Read) -> _Read:
    function = dataset._map_func.function
    return lambda index: list(function(*read(index)))


def _batch(dataset: Any, read: _Read) -> _Read | None:
    if not all(isinstance(spec, tf.TensorSpec) for spec in nest.flatten(dataset.element_spec)):
        return None
    size, rows = int(dataset._batch_size), _count(dataset._input_dataset)

    def batch(index: int) -> list[Any]:
        taken = [read(row) for row in range(index * size, min((index + 1) * size, rows))]
        return [tf.stack(column) for column in zip(*taken, strict=True)]

    return batch


def _skip(dataset: Any, read: _Read) -> _Read:
    skipped = _count(dataset._input_dataset) - _count(dataset)
    return lambda index: read(index + skipped)


def _shard(dataset: Any, read: _Read) -> _Read:
    shards, first = int(dataset._num_shards), int(dataset._index)
    return lambda index: read(index * shards + first)


def _zip(dataset: Any, *reads: _Read) -> _Read:
    return lambda index: [tensor for read in reads for tensor in read(index)]


def _concatenate(dataset: Any, first: _Read, second: _Read) -> _Read:
    of_first = _count(dataset._inputs()[0])
    return lambda index: first(index) if index < of_first else second(index - of_first)


def _repeat(dataset: Any, read: _Read) -> _Read:
    once = _count(dataset._input_dataset)
    return lambda index: read(index % once)


def _shuffle(dataset: Any, read: _Read) -> _Read | None:
    """One order, the same at every worker, in place of another one each time."""
    if _repeatable(dataset):
        return None  # its own order counts
    order = np.random.default_rng(_count(dataset)).permutation(_count(dataset))
    return lambda index: read(int(order[index]))


def _cache(dataset: Any, read: _Read) -> _Read:
    """A cache of what comes in one order here, and would not in TensorFlow."""
    if dataset._filename.numpy():
        return read  # it would not fit into memory
    kept: dict[int, list[Any]] = {}

    def cached(index: int) -> list[Any]:
        if index not in kept:
            kept[index] = read(index)
        return kept[index]

    return cached


def _same(dataset: Any, read: _Read) -> _Read:
    return read


_FOLLOWED: dict[str, Callable[..., _Read | None]] = {
    "_MapDataset": _map,
    "_ParallelMapDataset": _map,
    "_BatchDataset": _batch,
    "_ParallelBatchDataset": _batch,
    "_SkipDataset": _skip,
    "_TakeDataset": _same,
    "_ShardDataset": _shard,
    "_ZipDataset": _zip,
    "_ConcatenateDataset": _concatenate,
    "_RepeatDataset": _repeat,
    "_ShuffleDataset": _shuffle,
    "CacheDataset": _cache,
    "_PrefetchDataset": _same,
    "_OptionsDataset": _same,
}
"""By names of TensorFlow's private classes, which a data set tells of itself; others are read in sequence."""
