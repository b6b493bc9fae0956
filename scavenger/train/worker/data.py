"""Sources that read batches from the user's data: arrays or map-style data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt

from scavenger.train.failure import DataError

__all__ = ["Source", "open_source"]


class Source(Protocol):
    """Random access to samples by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        """Return `(x, y)` or `(x, y, sample_weight)` of the samples, stacked along the first axis.

        Args:
            indices: Sample indices, shape `(n,)`.
        """


def _array(value: Any) -> npt.NDArray[Any]:
    """Convert to an array as Keras does: floats to the default float type, everything else unchanged."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise DataError("the data is ragged: its samples differ in shape") from None
    if array.dtype == object:
        raise DataError("the data holds Python objects instead of numbers of one shape")
    if array.dtype.kind in "USmM":
        raise DataError(f"the data holds {array.dtype.name} instead of numbers: turn it into numbers first")
    if np.issubdtype(array.dtype, np.floating):
        return np.asarray(array, dtype=keras.config.floatx(), order="C")
    return array


_LISTS = "a list is taken for several inputs: turn a list of samples into an array, np.array(x)"


class _Arrays:
    """Arrays in memory."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts = tuple(keras.tree.map_structure(_array, part) for part in parts)
        leaves = keras.tree.flatten(self._parts)
        if not leaves:
            raise DataError("there is no array")
        listed = any(isinstance(part, list) for part in parts)
        hint = f"; {_LISTS}"
        if any(leaf.ndim == 0 for leaf in leaves):
            raise DataError("data arrays need a first axis of samples" + hint * listed)
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1:
            raise DataError(
                f"data arrays disagree on the number of samples: {sorted(lengths)}" + hint * listed
            )
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        return tuple(keras.tree.map_structure(lambda leaf: leaf[indices], part) for part in self._parts)


class _Items:
    """A map-style data set."""

    def __init__(self, items: Any) -> None:
        if len(items) == 0:
            raise DataError("there is no sample")
        self._items = items
        parts = _parts(_first(items))
        if any(_holds_listed_numbers(part) for part in parts):
            raise DataError(
                "a sample has a list of numbers, which is taken for several inputs: make it np.array(x)"
            )
        self._width = len(parts)

    def __len__(self) -> int:
        return len(self._items)

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        samples = [_parts(self._items[int(index)]) for index in indices]
        return tuple(
            keras.tree.map_structure(_stack, *[sample[part] for sample in samples])
            for part in range(self._width)
        )


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


def _stack(*leaves: Any) -> npt.NDArray[Any]:
    try:
        return _array(np.stack(leaves))
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"samples differ in shape: {sorted({np.shape(leaf) for leaf in leaves})}") from None


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping):
        keys = ", ".join(map(repr, list(value)[:4]))
        raise DataError(
            f"a sample is a {type(value).__name__} with {keys}: make it a tuple (x, y) or (x, y, sample_weight), "
            "whose x and y may be dicts"
        )
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        raise DataError(f"data must be (x, y) or (x, y, sample_weight), not a {type(value).__name__}{count}")
    return tuple(value)


def _refuse_batches(data: Any) -> None:
    """Refuse data that yields whole batches, or samples in its own order, and name the alternative."""
    instead = "give arrays (x, y), or an object whose [i] is one sample (x, y) and whose len() counts samples"
    if isinstance(data, keras.utils.PyDataset) or any(
        kind.__module__.partition(".")[0] in ("keras", "tensorflow", "tf_keras")
        and kind.__name__ == "Sequence"
        for kind in type(data).__mro__
    ):
        raise DataError(
            f"{type(data).__name__} is a PyDataset (keras.utils.Sequence), which gives whole batches, but Scavenger "
            f"chooses the batches itself: {instead}"
        )
    if hasattr(data, "on_epoch_end"):
        raise DataError(
            f"{type(data).__name__} has on_epoch_end, as data that gives whole batches has, but Scavenger chooses "
            f"the batches itself: {instead}"
        )
    if isinstance(data, Mapping) or callable(getattr(data, "keys", None)):
        raise DataError(
            f"a {type(data).__name__} has keys instead of samples: give a tuple (x, y) or (x, y, sample_weight), "
            "whose x and y may be dicts of arrays"
        )
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(data).__mro__}
    if kinds & {("tensorflow", "DatasetV2"), ("torch", "DataLoader"), ("grain", "DataLoader")}:
        raise DataError(
            f"a {type(data).__name__} gives batches in an order of its own, but every worker must read any sample "
            f"at any time: {instead}"
        )
    if isinstance(data, Iterator) or callable(getattr(data, "send", None)):
        raise DataError(f"a {type(data).__name__} can be read only once and in order: {instead}")


def open_source(data: Any, name: str) -> Source:
    """Open the user's data as a source.

    Args:
        data: See `scavenger.sdk.KerasJob`.
        name: `train` or `validation`, for error messages.

    Raises:
        DataError: If the data has an unsupported form, or no sample.
    """
    try:
        _refuse_batches(data)
        source: Source
        if isinstance(data, (tuple, list)):
            source = _Arrays(_parts(data))
        elif isinstance(data, Sequence) or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            source = _Items(data)
        else:
            raise DataError(
                f"a {type(data).__name__} cannot be read at any place, as its split over workers needs; give "
                "arrays (x, y), or an object with __len__ and __getitem__"
            )
    except DataError as error:
        samples = isinstance(data, list) and all(isinstance(one, (tuple, list, Mapping)) for one in data)
        hint = "; turn a list of samples into arrays: (np.array of the x, np.array of the y)"
        raise DataError(
            f"KerasJob.{name}: {error}{hint * (samples and 'np.array' not in str(error))}"
        ) from None
    if len(source) == 0:
        raise DataError(f"KerasJob.{name}: there is no sample")
    return source
