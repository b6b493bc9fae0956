"""The learning-rate schedule of a job's optimizer, laid out over its run for the forecast of its metric."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from scavenger.models.curve_shapes import Schedule
from scavenger.train.aggregation.schedules import LearningRate, read_learning_rate

__all__ = ["rates_ahead", "schedule_of"]

LAW_STEPS = 24_000.0
"""Steps of a run that the law of schedules was fitted to; a job's schedule counts as long."""

BEFORE, AHEAD = 64, 448
"""Places at which the rate is read, even up to now and in their logarithm from now on."""

RATE_MIN = 1e-3
"""Least rate that counts, relative to the highest."""


def schedule_of(optimizer: str) -> LearningRate | None:
    """The schedule of a Keras optimizer in its JSON form; None for a constant rate or one that cannot be read here."""
    document = json.loads(optimizer)["config"].get("learning_rate")
    if not isinstance(document, dict):
        return None
    try:
        return read_learning_rate(document)
    except ValueError:
        return None


def rates_ahead(
    rate: LearningRate, at: Sequence[float], steps: Sequence[int], *, steps_per_unit: float, limit: float
) -> Schedule | None:
    """The rates of a whole run over the unit of its evaluations; None if they are the same everywhere.

    Args:
        at, steps: Where the evaluations were, in epochs and in optimizer steps, increasing.
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
    rates = np.array([float(rate(int(step))) for step in taken])
    rates = np.maximum(rates, RATE_MIN * rates.max())
    changes = np.flatnonzero(np.diff(rates))
    if not len(changes) or not rates.max() > 0.0:
        return None
    return Schedule(places, rates, LAW_STEPS / float(places[changes[-1]]))
