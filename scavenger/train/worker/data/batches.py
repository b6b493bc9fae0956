"""Data that comes in batches of one size, as `keras.utils.PyDataset`: sample i is row i mod b of batch i div b."""

from __future__ import annotations

from typing import Any

import keras

from scavenger.elastic.order import Blocks
from scavenger.train.failure import DataError
from scavenger.train.worker.data.blocks import BlockSource, rows_of
from scavenger.train.worker.data.items import threads_of
from scavenger.train.worker.data.source import Parts, parts_of, to_array


def batch_of(value: Any, number: int) -> Parts:
    """Convert a batch that the user's data gives.

    Raises:
        DataError: If it is none.
    """
    parts: Parts = keras.tree.map_structure(to_array, parts_of(value, f"batch {number}"))
    return parts


def is_py_dataset(data: Any) -> bool:
    """Whether data is a `PyDataset`, or a `Sequence` of another Keras."""
    return isinstance(data, keras.utils.PyDataset) or any(
        kind.__module__.partition(".")[0] in ("keras", "tensorflow", "tf_keras")
        and kind.__name__ == "Sequence"
        for kind in type(data).__mro__
    )


def open_py_dataset(data: Any) -> BlockSource:
    """Open a `PyDataset`, whose batches are shuffled whole, as Keras does, and then their rows.

    Reads the first and the last batch.

    Raises:
        DataError: If it has no end, no batch, or a last batch that is larger than the first.
    """
    name = type(data).__name__
    number = getattr(data, "num_batches", None) if isinstance(data, keras.utils.PyDataset) else len(data)
    if number is None:
        raise DataError(f"{name} has no end: give it a __len__, the number of its batches in an epoch")
    if number < 1:
        raise DataError("there is no batch")
    size = rows_of(batch_of(data[0], 0), "batch 0")
    last = rows_of(batch_of(data[number - 1], number - 1), f"batch {number - 1}")
    if not 0 < last <= size:
        raise DataError(
            f"the last batch has {last} samples and the first {size}: all must have one size, but the last may be "
            "smaller"
        )
    notes: tuple[str, ...] = (
        f"the batches of {name}, of {size}, are taken apart: Scavenger makes the batches",
    )
    if overridden := [one for one in ("on_epoch_begin", "on_epoch_end") if _overrides(data, one)]:
        notes += (f"{name} is used without its {' and '.join(overridden)}: Scavenger orders its batches",)
    return BlockSource(
        lambda block: batch_of(data[block], block),
        Blocks.alike((number - 1) * size + last, size),
        threads=threads_of(data),
        notes=notes,
    )


def _overrides(data: Any, name: str) -> bool:
    method = getattr(type(data), name, None)
    return method is not None and method.__module__.partition(".")[0] not in (
        "keras",
        "tensorflow",
        "tf_keras",
    )
