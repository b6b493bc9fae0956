"""`KerasJob`: the model and data that a user's module gives to Scavenger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scavenger.errors import NotSupportedError

__all__ = ["KerasJob"]

_OF_FIT = {
    "epochs": "the job file says it, as goal.max_epochs",
    "initial_epoch": "epochs count from 0 in every job; leave it out",
    "validation_batch_size": "validation data are read in batches of a worker's batch size; leave it out",
    "validation_freq": "the job's goal needs an evaluation after every epoch; give less validation data to save time",
    "validation_steps": "all validation data are evaluated: give less of them",
    "verbose": "`scavenger optimize -q` hides the progress",
}
"""What to do instead of arguments of Keras's `fit`."""

_DEFAULTS: dict[str, Any] = {
    "epochs": 1,
    "initial_epoch": 0,
    "validation_freq": 1,
    "verbose": "auto",
}
"""Keras's own values of these arguments, which change nothing; of others, None."""


@dataclass(frozen=True, slots=True, init=False)
class KerasJob:
    """A compiled Keras model and its data: the object that `train: module:object` names, or its return value.

    Every worker builds it separately, after the job's seed has been set, so a function that builds the model
    gives every worker the same one.

    Attributes:
        model: A compiled `keras.Model` with a built-in optimizer and the default `train_step`.
        train: Arrays `(x, y)`, `(x, y, sample_weight)` or `x`, where `x` and `y` may be tuples or dicts of arrays with
            samples along the first axis; a map-style data set: an object with `__len__` and `__getitem__`, whose
            items are the same of one sample; a `keras.utils.PyDataset`, `tf.data.Dataset`, or `FromGenerator`,
            `TFRecords` or `ParquetFiles` of `scavenger.sdk`. docs/keras.md has the whole table.
        validation: Validation data in the same forms; None for a job whose goal is a training metric.
        class_weight: Weight of each class in training, as in `fit`; a class that is left out has weight 1.
        validation_split: Share of the training data, at its end, that is validation data, as in `fit`.
        callbacks: Keras callbacks, as for `fit`; they run once per job when an epoch ends, and at every step if they
            have hooks of batches.
        shuffle: Whether each epoch has an order of its own, which follows from the job's seed; otherwise every epoch
            goes through the data in their order.
        steps_per_epoch, batch_size: Together, the samples of an epoch: so many steps of this batch size, whatever batch
            size the job chooses. Epochs go on through the data; the next pass begins with the next epoch.
    """

    model: Any
    train: Any
    validation: Any = None
    class_weight: Mapping[int, float] | None = None
    validation_split: float = 0.0
    callbacks: Any = None
    shuffle: bool = True
    steps_per_epoch: int | None = None
    batch_size: int | None = None

    def __init__(
        self,
        model: Any,
        train: Any,
        validation: Any = None,
        *,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        validation_data: Any = None,
        validation_split: float = 0.0,
        callbacks: Any = None,
        shuffle: bool = True,
        steps_per_epoch: int | None = None,
        batch_size: int | None = None,
        **of_fit: Any,
    ) -> None:
        """See the attributes. `sample_weight` may be given here or in `train`; `validation_data` is `validation`.

        Raises:
            NotSupportedError: For an argument of Keras's `fit` that is given differently here; says how.
            TypeError: For any other argument.
            ValueError: For arguments that exclude each other, a `validation_split` outside [0, 1), or a number of
                steps or samples below 1.
        """
        for name, value in of_fit.items():
            if name not in _OF_FIT:
                raise TypeError(f"KerasJob() got an unexpected keyword argument {name!r}")
            if value is not None and value is not _DEFAULTS.get(name):
                raise NotSupportedError(f"KerasJob({name}=...): {_OF_FIT[name]}")
        _check_epochs(shuffle, steps_per_epoch, batch_size)
        if validation is not None and validation_data is not None:
            raise ValueError("validation and validation_data are the same argument: give one of them")
        if not 0.0 <= validation_split < 1.0:
            raise ValueError(f"validation_split must be from 0 to below 1, not {validation_split}")
        validation = validation_data if validation is None else validation
        for name, value in (
            ("model", model),
            ("train", train if sample_weight is None else _weighted(train, sample_weight)),
            ("validation", validation),
            ("class_weight", class_weight),
            ("validation_split", 0.0 if validation is not None else validation_split),  # as Keras does
            ("callbacks", callbacks),
            ("shuffle", shuffle),
            ("steps_per_epoch", steps_per_epoch),
            ("batch_size", batch_size),
        ):
            object.__setattr__(self, name, value)  # frozen


def _check_epochs(shuffle: Any, steps_per_epoch: int | None, batch_size: int | None) -> None:
    if not isinstance(shuffle, bool):
        raise NotSupportedError(
            f"KerasJob(shuffle={shuffle!r}): the job makes batches of any size, so it cannot shuffle whole ones; "
            "shuffle=True or False"
        )
    if steps_per_epoch is None and batch_size is not None:
        raise NotSupportedError("KerasJob(batch_size=...): the job file says it, as search.batch_size")
    if steps_per_epoch is not None and batch_size is None:
        raise NotSupportedError(
            "KerasJob(steps_per_epoch=...): the job chooses its batch size, so give batch_size=, too: an epoch is then "
            "so many steps of that size, and goal.max_epochs says how many epochs"
        )
    if steps_per_epoch is not None and batch_size is not None and min(steps_per_epoch, batch_size) < 1:
        raise ValueError("steps_per_epoch and batch_size must be at least 1")


def _weighted(train: Any, sample_weight: Any) -> tuple[Any, ...]:
    if not isinstance(train, (tuple, list)) or len(train) != 2:
        raise ValueError("sample_weight goes with train=(x, y); other data must hold the weights themselves")
    return (*train, sample_weight)
