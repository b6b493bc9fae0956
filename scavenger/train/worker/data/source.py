"""What a source of samples offers, and how the user's values become arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt

from scavenger.elastic.order import Blocks
from scavenger.train.failure import DataError

Array = npt.NDArray[Any]
Parts = tuple[Any, ...]
"""`(x,)`, `(x, y)` or `(x, y, sample_weight)`; each an array, or a tuple, list or dict of arrays."""

_BLOCKLESS_MAX = 1 << 24
_LARGE_BLOCK, _LARGE_MIXED = 1024, 1024
"""Data of more samples is shuffled by blocks: a permutation of it would take more than 128 MiB in every process."""


class SampleSource(Protocol):
    """Random access to samples by index."""

    @property
    def blocks(self) -> Blocks | None:
        """Samples that are read together, by which the order of an epoch goes; None if there are none."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of how the data is read."""

    def __len__(self) -> int: ...

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        """Return the samples, stacked along the first axis. Only one thread calls it at a time.

        Args:
            indices: Sample indices, shape `(n,)`.
            seed: From which `scavenger.sdk.sample_seed` follows, with the index; another one in each epoch.

        Raises:
            DataError: If the samples do not fit together, or are not what the data said of itself.
        """


def blocks_of_large(samples: int) -> Blocks | None:
    """Blocks of data whose samples can be read one by one: None, unless a permutation of it would be too large."""
    return None if samples <= _BLOCKLESS_MAX else Blocks.alike(samples, _LARGE_BLOCK, mixed=_LARGE_MIXED)


def within_reach(source: SampleSource) -> int:
    """The samples, from the first on, among which a check may choose.

    They are all samples, since data may be sorted; of data that is read in sequence, those of its first block.
    """
    blocks = source.blocks
    return blocks.runs[0][1] if blocks is not None and blocks.in_sequence else len(source)


def to_array(value: Any) -> Array:
    """Convert to an array as Keras does: floats to the default float type, text to objects, all else unchanged.

    Raises:
        DataError: If it cannot be an array of numbers or of text.
    """
    if type(value).__name__ in ("RaggedTensor", "RaggedTensorValue"):
        raise DataError(
            "a RaggedTensor has samples of different shapes: pad them, x.to_tensor(), and mask what was added"
        )
    if type(value).__name__ in ("SparseTensor", "SparseTensorValue") or hasattr(value, "tocsr"):
        raise DataError(
            f"a {type(value).__name__} is sparse: make it dense, or give an object whose [i] is one dense sample"
        )
    if callable(getattr(value, "detach", None)):  # a torch tensor, maybe on a device
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError:
        raise DataError("the data is ragged: its samples differ in shape") from None
    if array.dtype.kind in "UST":
        return array.astype(object)
    if array.dtype == object:
        if array.size and all(isinstance(one, (str, bytes)) for one in array.flat):
            return array
        raise DataError("the data holds Python objects instead of numbers of one shape, or of text")
    if array.dtype.kind in "mM":
        raise DataError(f"the data holds {array.dtype.name} instead of numbers: turn it into numbers first")
    if np.issubdtype(array.dtype, np.floating):
        return np.asarray(array, dtype=keras.config.floatx(), order="C")
    return array


def parts_of(value: Any, what: str = "data") -> Parts:
    """Split a sample or a batch as Keras does; anything but a tuple or a list is x alone.

    Raises:
        DataError: If it is a tuple of another length, or None.
    """
    if value is None:
        raise DataError(f"{what} is None: leave it out before, since len() counts it")
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(parts) not in (1, 2, 3) or parts[0] is None:
        raise DataError(
            f"{what} must be x, (x, y) or (x, y, sample_weight), not a {type(value).__name__} of {len(parts)}"
        )
    while parts[-1] is None:
        parts = parts[:-1]
    if any(part is None for part in parts):
        raise DataError(f"{what} has a sample_weight, but y is None")
    return parts


def stack(samples: list[Parts]) -> Parts:
    """Stack samples along a new first axis.

    Raises:
        DataError: If they differ in structure or shape.
    """
    return _together(samples, _stack)


def join(batches: list[Parts]) -> Parts:
    """Concatenate batches along their first axis.

    Raises:
        DataError: If they differ in structure, or in shape but for the first axis.
    """
    return batches[0] if len(batches) == 1 else _together(batches, _concatenate)


def _together(all_parts: list[Parts], put_together: Callable[..., Array]) -> Parts:
    try:
        together: Parts = keras.tree.map_structure(put_together, *all_parts)
    except (TypeError, ValueError) as error:
        kinds = sorted({str(_skeleton(parts)) for parts in all_parts})
        if isinstance(error, DataError) or len(kinds) == 1:
            raise
        raise DataError(f"samples differ in structure: {' and '.join(kinds[:2])}") from None
    return together


def _skeleton(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _skeleton(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(_skeleton, value))
    return type(value).__name__


def _stack(*leaves: Any) -> Array:
    arrays = [to_array(leaf) for leaf in leaves]
    try:
        return np.stack(arrays)
    except ValueError:
        raise DataError(
            f"samples differ in shape: {sorted({np.shape(leaf) for leaf in arrays})}: pad them"
        ) from None


def _concatenate(*leaves: Any) -> Array:
    try:
        return np.concatenate(leaves)
    except ValueError:
        raise DataError(
            f"samples differ in shape: {sorted({np.shape(leaf)[1:] for leaf in leaves})}: pad them"
        ) from None
