"""`KerasJob`: the model and data that a user's module gives to Scavenger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["KerasJob"]


@dataclass(frozen=True, slots=True)
class KerasJob:
    """A compiled Keras model and its data: the object that `train: module:object` names, or its return value.

    Every worker builds it separately, after the job's seed has been set, so a function that builds the model
    gives every worker the same one.

    Attributes:
        model: A compiled `keras.Model` with a built-in optimizer and the default `train_step`.
        train: Arrays `(x, y)` or `(x, y, sample_weight)`, where `x` and `y` may be tuples or dicts of arrays with
            samples along the first axis; or a map-style data set: an object with `__len__` and `__getitem__`,
            whose items are `(x, y)` or `(x, y, sample_weight)` of one sample. Objects that give whole batches, as
            `keras.utils.PyDataset` and `tf.data.Dataset`, are refused.
        validation: Validation data in the same forms; None for a job whose goal is a training metric.
    """

    model: Any
    train: Any
    validation: Any = None
