"""The learning rates of a job, planned or so far, laid out over its run for the forecast of its metric."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np

from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.curve import FloatArray
from scavenger.domain.measurement import EpochRecord
from scavenger.models.curve_shapes import RateSchedule
from scavenger.train.aggregation.schedules import LearningRate, read_learning_rate

BEFORE, AHEAD = 64, 448
"""Places at which the rate is read, even up to now and in their logarithm from now on."""

REPORTED = ("learning_rate", "lr")
"""Metrics by which loops tell their learning rate."""


def schedule_of(optimizer: str) -> LearningRate | None:
    """The schedule of a Keras optimizer in its JSON form; None for a constant rate or one that cannot be read here."""
    document = json.loads(optimizer)["config"].get("learning_rate")
    if not isinstance(document, dict):
        return None
    try:
        return read_learning_rate(document)
    except ValueError:
        return None


def rate_of_epochs(runs: Sequence[CallbackRunRecord]) -> Callable[[int], float] | None:
    """The rate after a number of epochs, as callbacks told it beforehand; None if they did not, or do otherwise.

    Args:
        runs: Of the callbacks, oldest first.
    """
    ahead = runs[0].rates_ahead if runs else ()
    if not ahead:
        return None

    def rate(epochs: int) -> float:
        return ahead[min(epochs, len(ahead) - 1)]

    # Another function may have been resumed with.
    follows = all(
        math.isclose(run.rate_scale, rate(run.epoch + 1), rel_tol=1e-4) for run in runs if run.batch is None
    )
    return rate if follows else None


def rates_ahead(
    rate: Callable[[int], float | np.float32],
    at: Sequence[float],
    steps: Sequence[int],
    *,
    steps_per_unit: float,
    limit: float,
) -> RateSchedule | None:
    """The rates of a whole run over the unit of its evaluations; None if it is never positive.

    Args:
        rate: By optimizer steps, or by epochs.
        at, steps: Where the evaluations were, in epochs and in what `rate` counts, increasing.
        steps_per_unit: Steps of an epoch from now on.
        limit: Where the run ends at the latest, in epochs.
    """
    now = at[-1]
    places = np.linspace(0.0, now, BEFORE + 1)[1:]
    if limit > now:
        places = np.append(places, np.geomspace(now, limit, AHEAD + 1)[1:])
    # A rate holds from the place before.
    begins = np.append(0.0, places[:-1])
    taken = np.interp(begins, [0.0, *at], [0.0, *steps]) + np.maximum(begins - now, 0.0) * steps_per_unit
    return _of(places, [float(rate(int(step + 1e-6))) for step in taken])


def rates_so_far(
    epochs: Sequence[EpochRecord], runs: Sequence[CallbackRunRecord], worth: float
) -> RateSchedule | None:
    """The rates up to now, as a loop reports or callbacks have set them; None if unknown.

    Args:
        runs: Of the callbacks, oldest first.
        worth: Units of the schedule for which an epoch counts.
    """
    by_callbacks = {run.epoch + 1: run.rate_scale for run in runs if run.batch is None}
    rates = [
        next(
            (epoch.metrics[name] for name in REPORTED if name in epoch.metrics),
            by_callbacks.get(epoch.epoch, np.nan),
        )
        for epoch in epochs
    ]
    if not np.all(np.isfinite(rates)) or min(rates, default=0.0) <= 0.0:
        return None
    return _of(worth * np.array([epoch.epoch + 1.0 for epoch in epochs]), rates)


def _of(places: FloatArray, rates: Sequence[float]) -> RateSchedule | None:
    return RateSchedule.of(places, np.array(rates)) if max(rates) > 0.0 else None
