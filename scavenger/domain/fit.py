"""What was found of a script that calls `fit`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FitFound:
    """The first call of `fit` in a script.

    Attributes:
        place: Where it is called, as `train.py:31`.
        model: Class of the model.
        weights: Numbers that are trained.
        samples, validation_samples: Of an epoch, and of an evaluation.
        batch_size: Samples of a step.
        optimizer: Its class.
        callbacks: Their classes, of those that the job runs.
        notes: What the user should know of how the call becomes a job.
        start_s: Time until the call was reached and its model built, without imports of TensorFlow.
    """

    place: str
    model: str
    weights: int
    samples: int
    validation_samples: int
    batch_size: int
    epochs: int
    optimizer: str
    metrics: tuple[str, ...]
    callbacks: tuple[str, ...]
    notes: tuple[str, ...]
    start_s: float
