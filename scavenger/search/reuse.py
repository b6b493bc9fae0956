"""Selects stored models that a job can reuse, and detects when they no longer fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.fingerprint import Fingerprint, settings_of
from scavenger.models.job_model import JobModel

DRIFT_MAX = 0.25
"""A stored model whose step time is off by more than this factor, less one, is of another job or another
machine: what the laws leave of a measured configuration is a tenth of it."""

SIMILAR_MAX = 2.5
"""The distance up to which a stored model of the same hardware makes a search shorter: settings and goal may differ, or
the data set be up to some ten times larger; another architecture is further away."""

DISTANCE_LOG_SD = 0.35
"""Of the epochs that a job at a distance takes, for each unit of it: another learning rate or target, which are 0.5 to
2 away, may halve or double them."""

DIFFERENCES = {
    "architecture": 4.0,
    "optimizer": 1.0,
    "training code": 2.0,
    "data": 2.0,
    "params": 1.0,
    "goal": 1.0,
    "vm": 2.0,
    "hardware": 2.0,
}
"""What a difference that has no size counts for, in factors of e of a difference that has one: another
architecture outweighs a fifty times larger one of the same kind, and other hardware changes only the step
time. Other training code or data may change anything, so that two of these are no help at all."""

_WORDS = ("architecture", "goal", "vm", "hardware")


def distance(one: Fingerprint, other: Fingerprint) -> float:
    """Distance between two jobs: 0 if and only if their fingerprints are equal; symmetric.

    The sum of |ln ratio| of parameters, data set size and sample size (each plus one, so that 0 may stand),
    and of `DIFFERENCES` for each word that differs. Optimizers of one class with other settings count half.
    """
    sizes = (
        (one.parameters, other.parameters),
        (one.dataset_size, other.dataset_size),
        (one.sample_bytes, other.sample_bytes),
    )
    total = math.fsum(abs(math.log((a + 1) / (b + 1))) for a, b in sizes)
    total += math.fsum(DIFFERENCES[word] for word in _WORDS if getattr(one, word) != getattr(other, word))
    ours, theirs = settings_of(one.optimizer), settings_of(other.optimizer)
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            total += DIFFERENCES.get(name, DIFFERENCES["optimizer"])
    own, its = ours["optimizer"], theirs["optimizer"]
    return (
        total - DIFFERENCES["optimizer"] / 2.0
        if own != its and _class_name(own) == _class_name(its)
        else total
    )


def as_prior(model: JobModel, away: float) -> JobModel:
    """Use a stored model as a prior for a job at a distance: the uncertainty of its epochs grows with the distance.

    Its step times need no more uncertainty than `models.transfer` gives them: one measurement of this job corrects
    them.
    """
    statistical = model.statistical
    doubt = math.hypot(statistical.law_log_sd, statistical.run_log_sd, DISTANCE_LOG_SD * away)
    return replace(
        model,
        statistical=replace(
            statistical,
            run_log_sd=doubt,
            level_log_var=statistical.level_log_var + doubt**2,
            shape_log_var=statistical.shape_log_var + doubt**2,
        ),
    )


def _class_name(optimizer: str) -> str:
    return optimizer.partition(":")[0]


def find_nearest(wanted: Fingerprint, stored: Sequence[Fingerprint]) -> int | None:
    """Index of the nearest stored job (of equals the first); None if none is stored."""
    return min(range(len(stored)), key=lambda index: distance(wanted, stored[index]), default=None)


def step_time_drift(
    model: JobModel, configuration: Configuration, offer: Offer, live_step_time_s: float
) -> float:
    """By which factor, less one, the model's step time is off from a live one, in either direction: 0 is a
    fit.

    Raises:
        ValueError: If the live step time is not positive and finite.
    """
    if not (math.isfinite(live_step_time_s) and live_step_time_s > 0.0):
        raise ValueError(f"a step time is positive and finite, not {live_step_time_s}")
    predicted = model.predict(
        offer, np.array([configuration.workers]), np.array([configuration.global_batch_size])
    )
    return math.expm1(abs(math.log(live_step_time_s / float(predicted.step_time_s[0]))))
