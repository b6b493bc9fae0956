"""The record of one run of a job's Keras callbacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallbackRunRecord:
    """What came of the callbacks when an epoch or a step had ended, and of those that begin the next.

    Attributes:
        epoch: The epoch, 0-based; -1 for the beginning of training.
        step: The last step.
        state: Their state, JSON, from which the next run goes on in any worker.
        rate_scale: The learning rate that they have set, over the one that the model was compiled with.
        learning_rate: The learning rate that they have set; None if the optimizer follows a schedule.
        stopped_by: The class of the callback that stopped training; empty if none did.
        keep_best: Whether an EarlyStopping keeps this epoch's weights as the best; None if none keeps any.
        batch: Number of the step within the epoch, from 0; None at the end of the epoch.
        rates_ahead: At the beginning of training, the learning rate of each epoch over the compiled one, where it is
            known beforehand; else empty.
    """

    epoch: int
    step: int
    state: str
    rate_scale: float = 1.0
    learning_rate: float | None = None
    stopped_by: str = ""
    keep_best: bool | None = None
    batch: int | None = None
    rates_ahead: tuple[float, ...] = ()
