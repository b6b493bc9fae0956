"""How a user's module hands its model and data to Scavenger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["KerasJob"]


@dataclass(frozen=True, slots=True)
class KerasJob:
    """A compiled Keras model and its data, as the object that `train: module:object` names, or what it returns.

    Every worker builds it for itself, after the seed of the job has been set, so a function that builds the model
    gives every worker the same one.

    Attributes:
        model: A compiled `keras.Model` with a built-in optimizer and the default `train_step`.
        train: Arrays `(x, y)` or `(x, y, sample_weight)`, where `x` and `y` may be tuples or dicts of arrays with
            samples along the first axis; or a map-style data set: an object with `__len__` and `__getitem__`,
            whose items are `(x, y)` or `(x, y, sample_weight)` of one sample. What gives whole batches, as
            `keras.utils.PyDataset` and `tf.data.Dataset`, is refused.
        validation: The same; None for a job whose goal is a training metric.
    """

    model: Any
    train: Any
    validation: Any = None
