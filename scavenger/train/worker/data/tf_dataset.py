"""`tf.data.Dataset` as a source: read element by element where TensorFlow can, else in sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from scavenger.elastic.order import Blocks
from scavenger.train.failure import DataError
from scavenger.train.worker.data.batches import batch_of
from scavenger.train.worker.data.blocks import BlockSource, rows_of
from scavenger.train.worker.data.items import ItemSource, cpus
from scavenger.train.worker.data.sequence import open_sequence
from scavenger.train.worker.data.source import SampleSource
from scavenger.train.worker.data.tf_elements import Elements, chain, open_elements, reshuffles

_BATCHES = ("_BatchDataset", "_ParallelBatchDataset")
_PADDED = "_PaddedBatchDataset"
_UNBATCHES = ("_UnbatchDataset", "_FlatMapDataset", "_InterleaveDataset", "_ParallelInterleaveDataset")
_KEEP_ROWS = ("_PrefetchDataset", "_OptionsDataset", "CacheDataset", "_MapDataset", "_ParallelMapDataset")
"""Names of TensorFlow's private classes, which a data set tells of itself; unknown ones are treated as opaque."""
_ANY_ORDER = (*_BATCHES, *_KEEP_ROWS, "_ShuffleDataset")
"""Of those of which an epoch has the same samples in whatever order their elements come."""

_RESHUFFLES = (
    "the data set shuffles by itself, in another order each time, but a sample that is read again must be the same: "
    "remove .shuffle() (Scavenger shuffles), or put it right before .batch(), or give shuffle=False to list_files"
)
_CARDINALITY = ".apply(tf.data.experimental.assert_cardinality(n))"


def open_dataset(given: Any, *, shuffle: bool = True) -> SampleSource:
    """Open a `tf.data.Dataset`.

    Scavenger makes the batches and shuffles, so a final `.shuffle().batch().prefetch()` is left out, with a note.
    Other batches are taken apart: they are shuffled whole, and then their rows. What they were shuffled by before is
    one order.

    Raises:
        DataError: If its length is not known, its elements come in an order that cannot be repeated, it is not clear
            whether they are samples or batches, or it shuffles although epochs do not.
    """
    dataset, left_out, batched = _peeled(given)
    within = reshuffles(dataset)
    if not shuffle and (within or ".shuffle()" in left_out):
        raise DataError(
            "shuffle=False, but the data set shuffles itself: remove its .shuffle(), or shuffle=False"
        )
    _check(dataset)
    size = 0 if batched or not _gives_batches(dataset) else _batch_size(dataset)
    notes: tuple[str, ...] = ()
    if left_out:
        notes = (f"the data set is taken without its final {''.join(left_out)}: Scavenger does it",)
    count = int(dataset.cardinality())
    elements = open_elements(dataset)
    if within and elements is None:
        raise DataError(_RESHUFFLES)
    if within:
        notes += ("a .shuffle() within the data set gives one order: Scavenger shuffles what follows it",)
    if not size:
        if elements is not None:
            return ItemSource(elements, threads=cpus(), notes=notes)
        return open_sequence(lambda start: _from(dataset, start), count, "the data set", notes=notes)
    samples = _samples(dataset, elements, count, size)
    notes += (f"the batches of the data set, of {size}, are taken apart: Scavenger makes the batches",)
    if elements is None:
        return open_sequence(
            lambda start: _from(dataset, start), samples, "the data set", batch_size=size, notes=notes
        )
    return BlockSource(
        lambda block: batch_of(elements[block], block),
        Blocks.alike(samples, size),
        threads=cpus(),
        notes=notes,
    )


def batches_of(given: Any) -> tuple[int, bool, bool]:
    """Samples of a batch of a `tf.data.Dataset`, whether it shuffles, and whether it drops a smaller last batch."""
    size, shuffles, drops = 0, False, False
    for one in chain(given):
        name = type(one).__name__
        shuffles |= name == "_ShuffleDataset"
        if name in (*_BATCHES, _PADDED) and not size:
            size, drops = int(one._batch_size), bool(one._drop_remainder)
    return size or _batch_size(given), shuffles, drops


def without_repeat(given: Any) -> Any:
    """A data set without a final `.repeat()` that has no end; the same one if it has none."""
    one = given
    while type(one).__name__ in ("_PrefetchDataset", "_OptionsDataset"):
        one = one._input_dataset
    endless = int(given.cardinality()) == tf.data.INFINITE_CARDINALITY
    return one._input_dataset if endless and type(one).__name__ == "_RepeatDataset" else given


def _peeled(dataset: Any) -> tuple[Any, list[str], bool]:
    """Remove what Scavenger does itself from the end of a data set.

    Returns:
        The rest, the names of what was removed, and whether that was a batching.
    """
    removed: list[str] = []
    while True:
        kind = type(dataset).__name__
        if kind in _BATCHES and not any("batch" in one for one in removed):
            removed.insert(0, f".batch({int(dataset._batch_size)})")
        elif kind == "_ShuffleDataset":
            removed.insert(0, ".shuffle()")
        elif kind not in ("_PrefetchDataset", "_OptionsDataset"):
            return dataset, removed, any("batch" in one for one in removed)
        dataset = dataset._input_dataset


def _check(dataset: Any) -> None:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            raise DataError(
                f"the data set gives a {type(spec).__name__.removesuffix('Spec')}: make it dense, as by .to_tensor() "
                "of a ragged and tf.sparse.to_dense of a sparse tensor in .map()"
            )
    one = dataset
    while type(one).__name__ in _ANY_ORDER:
        one = one._input_dataset
    if reshuffles(one):
        raise DataError(_RESHUFFLES)
    for one in chain(dataset):
        if str(getattr(one, "_deterministic", "")) == "false":
            raise DataError(
                "the data set has deterministic=False, but a sample that is read again must be the same: remove it"
            )
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise DataError("the data set has no end: remove .repeat(), Scavenger repeats the data")
    if count == tf.data.UNKNOWN_CARDINALITY:
        raise DataError(
            f"the data set does not know its length: if it has n elements, give dataset{_CARDINALITY}; for files, see "
            "scavenger.sdk.TFRecords"
        )
    if count == 0:
        raise DataError("there is no sample")


def _gives_batches(dataset: Any) -> bool:
    """Whether the elements are batches, as those that `fit` takes, and not samples.

    Raises:
        DataError: If nothing says so.
    """
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    if any(shape.rank == 0 for shape in shapes):
        return False
    for one in chain(dataset):
        if type(one).__name__ in _UNBATCHES:
            break
        if type(one).__name__ in (*_BATCHES, _PADDED):
            return True
    firsts = {None if shape.rank is None else shape[0] for shape in shapes}
    if firsts == {None}:
        return all(shape.rank is not None for shape in shapes)
    if len(firsts) == 1 and len(shapes) > 1:
        raise DataError(
            f"the data set gives {', '.join(str(tuple(shape)) for shape in shapes)}, which may be one sample or a "
            "batch of them: end it with .batch(n) if it gives samples, with .unbatch() and "
            f"{_CARDINALITY} if it gives batches"
        )
    return False


def _batch_size(dataset: Any) -> int:
    first = next(dataset.as_numpy_iterator())
    return rows_of(batch_of(first, 0), "batch 0")


def _samples(dataset: Any, elements: Elements | None, count: int, size: int) -> int:
    """The number of samples in batches of a size, of which the last may have fewer.

    Raises:
        DataError: If the size of the last one cannot be known without reading all of them.
    """
    if all(spec.shape[0] == size for spec in tf.nest.flatten(dataset.element_spec)):
        return count * size
    if elements is not None:
        last = batch_of(elements[count - 1], count - 1)
        return (count - 1) * size + rows_of(last, f"batch {count - 1}")
    one = dataset
    while type(one).__name__ in _KEEP_ROWS:
        one = one._input_dataset
    if type(one).__name__ in (*_BATCHES, _PADDED):
        inside = int(one._input_dataset.cardinality())
        if inside > 0 and int(one._batch_size) == size:
            return inside
    raise DataError(
        f"the size of the last batch is not known: if the batches have n samples in all, give "
        f"dataset.unbatch(){_CARDINALITY}"
    )


def _from(dataset: Any, start: int) -> Iterator[Any]:
    """Return an iterator over the elements from one on, in the same order each time."""
    options = tf.data.Options()
    options.deterministic = True
    iterator: Iterator[Any] = dataset.skip(start).with_options(options).as_numpy_iterator()
    return iterator
