"""Arguments of Keras's `fit` that change the data or its order, such as `class_weight` and `steps_per_epoch`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

from scavenger.elastic.order import Passes
from scavenger.errors import NotSupportedError
from scavenger.sdk.job import KerasJob
from scavenger.train.failure import DataError
from scavenger.train.worker.data import ArraySource, Parts, SampleSource, blocks_of_large, open_source


class _Range:
    """Consecutive samples of arrays, which several threads may read."""

    def __init__(self, source: ArraySource, start: int, stop: int) -> None:
        self._source, self._start, self._length = source, start, stop - start
        self.blocks = blocks_of_large(self._length)
        self.notes = source.notes

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        return self._source.batch(indices + self._start, seed)


class _WeightedByClass:
    """A source of `(x, y)` with the weight of each sample's class."""

    def __init__(self, source: SampleSource, class_weight: Mapping[int, float]) -> None:
        self._source, self._class_weight = source, dict(class_weight)
        self.blocks, self.notes = source.blocks, source.notes
        sample = source.batch(np.zeros(1, dtype=np.int64))
        if len(sample) < 2:
            raise DataError("class_weight needs the class y of each sample, but a sample is x alone")
        if len(sample) > 2:
            raise DataError(
                "class_weight and sample weights exclude each other, as in Keras: multiply the sample weights by "
                "those of the classes"
            )
        if keras.tree.is_nested(sample[1]):
            raise DataError(
                "class_weight is for models with a single output, as in Keras: give sample weights for each output"
            )

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, indices: npt.NDArray[np.int64], seed: int = 0) -> Parts:
        x, y = self._source.batch(indices, seed)
        return x, y, class_weight_to_sample_weights(y, self._class_weight)


def open_data(job: KerasJob) -> tuple[SampleSource, SampleSource | None]:
    """Open a job's training and validation data.

    Raises:
        DataError: If the data has an unsupported form, or does not go with the job's other arguments.
    """
    train = open_source(job.train, "train", shuffle=job.shuffle)
    validation = None if job.validation is None else open_source(job.validation, "validation")
    if job.validation_split:
        train, validation = _split(train, job.validation_split)
    if job.class_weight is not None:
        train = _WeightedByClass(train, job.class_weight)
    return train, validation


def lock_arrays(data: Iterable[Any]) -> None:
    """Make the arrays of a job's data read-only, so that no callback can change the data of one worker alone."""
    for leaf in keras.tree.flatten([one for one in data if isinstance(one, (tuple, dict, np.ndarray))]):
        while isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False
            leaf = leaf.base


def passes_of(job: KerasJob, samples: int) -> Passes:
    """Return how a job's epochs go through its training data.

    Raises:
        NotSupportedError: If Keras would cut an epoch short at the end of the data.
    """
    if job.steps_per_epoch is None or job.batch_size is None:
        return Passes(shuffle=job.shuffle)
    size = job.steps_per_epoch * job.batch_size
    epochs, rest = divmod(samples, size)
    if rest:
        raise NotSupportedError(
            f"KerasJob(steps_per_epoch={job.steps_per_epoch}, batch_size={job.batch_size}): epochs of {size} samples "
            f"do not divide the {samples} samples of the data, so Keras cuts an epoch short where the data ends; "
            "choose other numbers, or leave both out"
        )
    return Passes(epochs, job.shuffle)


def _split(source: SampleSource, share: float) -> tuple[SampleSource, SampleSource]:
    """Split off the last share of the samples."""
    if not isinstance(source, ArraySource):
        raise DataError("validation_split is for arrays, as in Keras: split the data and give validation=")
    middle = math.floor(len(source) * (1.0 - share))  # in this order of operations, as Keras rounds it
    if middle in (0, len(source)):
        raise DataError(f"validation_split={share} of {len(source)} samples leaves no sample on one side")
    return _Range(source, 0, middle), _Range(source, middle, len(source))
