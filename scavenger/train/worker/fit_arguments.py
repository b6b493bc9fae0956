"""Arguments of Keras's `fit` that change the data: `class_weight` and `validation_split`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

from scavenger.sdk.job import KerasJob
from scavenger.train.failure import DataError
from scavenger.train.worker.data import Source, open_source

__all__ = ["open_data"]


class _Range:
    """Consecutive samples of a source."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source, self._start, self._length = source, start, stop - start

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        return self._source.batch(indices + self._start)


class _WeightedByClass:
    """A source of `(x, y)` with the weight of each sample's class."""

    def __init__(self, source: Source, class_weight: Mapping[int, float]) -> None:
        self._source, self._class_weight = source, dict(class_weight)
        sample = source.batch(np.zeros(1, dtype=np.int64))
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

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Any, ...]:
        x, y = self._source.batch(indices)
        return x, y, class_weight_to_sample_weights(y, self._class_weight)


def open_data(job: KerasJob) -> tuple[Source, Source | None]:
    """Open a job's training and validation data.

    Raises:
        DataError: If the data has an unsupported form, or does not go with the job's other arguments.
    """
    train = open_source(job.train, "train")
    validation = None if job.validation is None else open_source(job.validation, "validation")
    if job.validation_split:
        # in this order of operations, as Keras rounds it
        middle = math.floor(len(train) * (1.0 - job.validation_split))
        if middle in (0, len(train)):
            raise DataError(
                f"validation_split={job.validation_split} of {len(train)} samples leaves no sample on one side"
            )
        train, validation = _Range(train, 0, middle), _Range(train, middle, len(train))
    if job.class_weight is not None:
        train = _WeightedByClass(train, job.class_weight)
    return train, validation
