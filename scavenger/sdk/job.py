"""`KerasJob`: the model and data that a user's module gives to Scavenger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Never

from scavenger.errors import NotSupportedError

__all__ = ["KerasJob"]

_OF_FIT = {
    "class_weight": "weigh each sample by its class instead: train=(x, y, sample_weight) with "
    "sample_weight = np.array([class_weight[c] for c in y])",
    "sample_weight": "give it with the data: train=(x, y, sample_weight)",
    "validation_data": "give it as validation=",
    "validation_split": "split the data and give validation=, in the same way in every worker",
    "epochs": "the job file says it, as goal.max_epochs",
    "batch_size": "the job file says it, as search.batch_size",
}
"""What to do instead of arguments of Keras's `fit`."""


@dataclass(frozen=True, slots=True, init=False)
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
        callbacks: Keras callbacks, as for `fit`; they run once per job when an epoch ends.
    """

    model: Any
    train: Any
    validation: Any = None
    callbacks: Any = None

    def __init__(
        self, model: Any, train: Any, validation: Any = None, *, callbacks: Any = None, **of_fit: Never
    ) -> None:
        """See the attributes.

        Raises:
            NotSupportedError: For an argument of Keras's `fit` that is given differently here; says how.
            TypeError: For any other argument.
        """
        for name in of_fit:
            if name not in _OF_FIT:
                raise TypeError(f"KerasJob() got an unexpected keyword argument {name!r}")
            raise NotSupportedError(f"KerasJob({name}=...): {_OF_FIT[name]}")
        given = {"model": model, "train": train, "validation": validation, "callbacks": callbacks}
        for name, value in given.items():
            object.__setattr__(self, name, value)  # frozen
