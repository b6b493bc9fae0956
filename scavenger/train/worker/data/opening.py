"""Chooses how the user's data is read, and says in one line what is to be changed where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from platformdirs import user_cache_path

from scavenger.sdk.data import FromGenerator, ParquetFiles, TFRecords
from scavenger.train.failure import DataError
from scavenger.train.worker.data.batches import is_py_dataset, open_py_dataset
from scavenger.train.worker.data.items import ArraySource, ItemSource, threads_of
from scavenger.train.worker.data.sequence import open_generator
from scavenger.train.worker.data.source import SampleSource, parts_of

_INSTEAD = "give arrays (x, y), or an object whose [i] is one sample (x, y) and whose len() counts samples"
_ARRAYS = ("RaggedTensor", "SparseTensor")


def _kinds(data: Any) -> set[tuple[str, str]]:
    """Package and name of the classes of an object, to recognise those of packages that need not be installed."""
    return {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(data).__mro__}


def _refuse(data: Any) -> None:
    """Refuse data that gives batches of its own, or samples in its own order, and name the alternative."""
    name, kinds = type(data).__name__, _kinds(data)
    if ("torch", "DataLoader") in kinds:
        raise DataError(
            "a torch DataLoader makes its own batches: give its data set, loader.dataset, which Scavenger shuffles and "
            "batches; its collate_fn is not used"
        )
    if ("torch", "IterableDataset") in kinds:
        raise DataError(
            "a torch IterableDataset can be read only in order: give scavenger.sdk.FromGenerator(lambda: "
            "iter(dataset), length), or a map-style data set"
        )
    if kinds & {("grain", "DataLoader"), ("grain", "IterDataset")}:
        raise DataError(
            f"a grain {name} makes its own order: give the MapDataset or the data source that it reads, without "
            ".batch(), .repeat() and .to_iter_dataset()"
        )
    if _is_grain_batched(data):
        raise DataError("the grain MapDataset gives batches: remove .batch(), Scavenger makes the batches")
    if isinstance(data, Iterator) or callable(getattr(data, "send", None)):
        raise DataError(
            f"a {name} can be read only once and in order: give scavenger.sdk.FromGenerator(function, length), where "
            f"the function returns a new one at each call; or {_INSTEAD}"
        )
    if hasattr(data, "on_epoch_end"):
        raise DataError(
            f"{name} has on_epoch_end, as data that gives whole batches has: derive it from keras.utils.PyDataset if "
            "it does, else remove the method"
        )


def _is_grain_batched(data: Any) -> bool:
    """Whether a `grain.MapDataset` makes batches; a later transformation keeps its source among its parents."""
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if type(one).__module__.partition(".")[0] == "grain":
            if type(one).__name__ == "BatchMapDataset":
                return True
            waiting.extend(getattr(one, "_parents", ()))
    return False


def _open(data: Any, shuffle: bool) -> SampleSource:
    if isinstance(data, FromGenerator):
        return open_generator(data.make, data.length, data.shuffle_buffer)
    if isinstance(data, TFRecords):
        from scavenger.train.worker.data.files import RecordSource

        return RecordSource(data, user_cache_path("scavenger") / "tfrecords")
    if isinstance(data, ParquetFiles):
        from scavenger.train.worker.data.files import open_parquet

        return open_parquet(data)
    if ("tensorflow", "DatasetV2") in _kinds(data):
        from scavenger.train.worker.data.tf_dataset import open_dataset

        return open_dataset(data, shuffle=shuffle)
    if is_py_dataset(data):
        return open_py_dataset(data)
    _refuse(data)
    if isinstance(data, (tuple, list)):
        return ArraySource(parts_of(data))
    if isinstance(data, Mapping) or hasattr(data, "__array__") or type(data).__name__ in _ARRAYS:
        return ArraySource((data,))  # x alone
    if callable(getattr(data, "keys", None)):
        raise DataError(
            f"a {type(data).__name__} has keys instead of samples: give a tuple (x, y) or (x, y, sample_weight), "
            "whose x and y may be dicts of arrays"
        )
    if isinstance(data, Sequence) or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return ItemSource(data, threads=threads_of(data))
    hint = "; for what can be read only in order, scavenger.sdk.FromGenerator" * hasattr(data, "__iter__")
    raise DataError(
        f"a {type(data).__name__} cannot be read at any place, as its split over workers needs; {_INSTEAD}{hint}"
    )


def open_source(data: Any, name: str, *, shuffle: bool = True) -> SampleSource:
    """Open the user's data as a source.

    Args:
        data: See `scavenger.sdk.KerasJob`.
        name: `train` or `validation`, for error messages.
        shuffle: Whether epochs shuffle the data.

    Raises:
        DataError: If the data has an unsupported form, or no sample.
    """
    try:
        source = _open(data, shuffle)
    except DataError as error:
        samples = isinstance(data, list) and all(isinstance(one, (tuple, list, Mapping)) for one in data)
        hint = "; turn a list of samples into arrays: (np.array of the x, np.array of the y)"
        raise DataError(
            f"KerasJob.{name}: {error}{hint * (samples and 'np.array' not in str(error))}"
        ) from None
    if len(source) == 0:
        raise DataError(f"KerasJob.{name}: there is no sample")
    return source
