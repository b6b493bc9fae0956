"""Data that can be read only from its beginning to its end: generators and streams, read window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import keras

from scavenger.elastic.order import Blocks
from scavenger.train.failure import DataError
from scavenger.train.worker.data.batches import batch_of
from scavenger.train.worker.data.blocks import BlockSource, rows_of
from scavenger.train.worker.data.source import Parts, join, parts_of, stack

_WINDOW_SAMPLES = 1 << 14
_WINDOW_BYTES = 1 << 28
_NONE = object()


class _Elements:
    """Elements of a sequence by ranges; reads on from where it is, if it can."""

    def __init__(self, begin: Callable[[int], Iterator[Any]], length: int, name: str) -> None:
        self._begin, self._length, self._name = begin, length, name
        self._iterator: Iterator[Any] = iter(())
        self._at = length

    def read(self, start: int, stop: int) -> list[Any]:
        """Return elements `start` to `stop` (exclusive).

        Raises:
            DataError: If there are fewer, or more after the last one.
        """
        if start < self._at:
            self._iterator, self._at = self._begin(start), start
        skipped = sum(1 for _ in islice(self._iterator, start - self._at))
        found = list(islice(self._iterator, stop - start))
        self._at += skipped + len(found)
        if self._at < stop:
            raise DataError(f"{self._name} ended after {self._at} of {self._length}")
        if stop == self._length and next(self._iterator, _NONE) is not _NONE:
            raise DataError(f"{self._name} gives more than its {self._length}")
        return found


def open_sequence(
    begin: Callable[[int], Iterator[Any]],
    samples: int,
    name: str,
    *,
    batch_size: int = 0,
    shuffle_buffer: int | None = None,
    notes: tuple[str, ...] = (),
) -> BlockSource:
    """Open data that is read in sequence; an epoch's order shuffles it within windows.

    Every worker reads all of it and keeps a window, from which it takes its samples.

    Args:
        begin: Returns a new iterator over the elements from a given one on.
        samples: Their number.
        name: What an error message calls the data.
        batch_size: Samples of an element, of which the last may have fewer; 0 if an element is one sample.
        shuffle_buffer: Samples of a window; by default 16384, or fewer if they take more than 256 MiB.
        notes: See `Source`.

    Raises:
        DataError: If there is no element, or it is no sample.
    """
    rows = max(batch_size, 1)
    elements = _Elements(begin, -(-samples // rows), name)
    first = next(begin(0), _NONE)
    if first is _NONE or samples < 1:
        raise DataError("there is no sample")
    parts = batch_of(first, 0) if batch_size else stack([parts_of(first, "a sample")])
    if batch_size and rows_of(parts, "batch 0") != min(samples, batch_size):
        raise DataError(f"batch 0 has {rows_of(parts, 'batch 0')} samples instead of {batch_size}")
    per_window = max(1, (shuffle_buffer or _fitting(parts)) // rows)

    def read(block: int) -> Parts:
        start = block * per_window
        found = elements.read(start, min(start + per_window, -(-samples // rows)))
        if batch_size:
            return join([batch_of(element, start + place) for place, element in enumerate(found)])
        return stack([parts_of(element, f"sample {start + place}") for place, element in enumerate(found)])

    window = min(per_window * rows, samples)
    how = f"{name} is read in sequence, by every worker; shuffling is within windows of {window} samples"
    blocks = Blocks.alike(samples, window, in_sequence=True)
    return BlockSource(read, blocks, notes=(*notes, *((how,) if window < samples else ())))


def _fitting(parts: Parts) -> int:
    """The samples of a window, if all are as large as these."""
    size = sum(leaf.nbytes for leaf in keras.tree.flatten(parts)) / len(keras.tree.flatten(parts)[0])
    return max(1, min(_WINDOW_SAMPLES, int(_WINDOW_BYTES / max(size, 1))))


def open_generator(make: Callable[[], Any], length: int, shuffle_buffer: int | None) -> BlockSource:
    """Open `scavenger.sdk.FromGenerator`.

    Raises:
        DataError: If `make` does not return a new iterator at each call.
    """
    if iter(made := make()) is iter(again := make()) or made is again:
        raise DataError("FromGenerator: the function must return a new iterator at each call")
    return open_sequence(
        lambda start: islice(iter(make()), start, None),
        length,
        getattr(make, "__name__", "the generator"),
        shuffle_buffer=shuffle_buffer,
    )
