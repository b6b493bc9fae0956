"""When a noisy series first reaches a level that its mean may reach sooner, later or never.

An evaluation of an accuracy counts right answers among a few hundred samples, so it strays from its mean by more than
an epoch brings near a target. A run ends at the first evaluation that is good enough, which may be a lucky one: with
h_j the probability that the one at s_j is, given the curve of the mean,

    P(reached at s_j) = h_j (1 - h_1) ... (1 - h_(j-1)),     h_j = Φ(-y(s_j) / σ)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from scavenger.domain.curve import FloatArray, IntArray

SINGLE_MAX, GROUPS = 64, 96
"""Evaluations ahead that are looked at one by one, and groups of them, even in their logarithm, after that."""


def evaluations_ahead(now: float, every: float, end: float) -> tuple[FloatArray, FloatArray]:
    """Places of the evaluations to come until `end`, and how many each stands for, both of shape `(j,)`."""
    count = max(1, math.ceil((end - now) / every))
    if count <= SINGLE_MAX:
        return now + every * np.arange(1.0, count + 1.0), np.ones(count)
    edges = np.unique(np.round(np.geomspace(SINGLE_MAX, count, GROUPS + 1)))
    places = np.concatenate((np.arange(1.0, SINGLE_MAX + 1.0), (edges[:-1] + 1.0 + edges[1:]) / 2.0))
    return now + every * places, np.concatenate((np.ones(SINGLE_MAX), np.diff(edges)))


def first_passage(means: FloatArray, noise: FloatArray, counts: FloatArray) -> FloatArray:
    """Probability of each evaluation to be the first below 0, by curve.

    Args:
        means: Of the series at the evaluations, by curve, shape `(n, j)`.
        noise: Standard deviation of an evaluation of each curve, shape `(n,)`.
        counts: Evaluations that each of the j stands for, shape `(j,)`.

    Returns:
        Shape `(n, j)`; each sum is below 1 by the probability that none is.
    """
    log_missed = np.cumsum(counts * log_ndtr(means / noise[:, None]), axis=1)
    missed = np.exp(np.concatenate((np.zeros((len(means), 1)), log_missed), axis=1))
    return np.asarray(-np.diff(missed, axis=1))


def resampled(mass: FloatArray, count: int) -> IntArray:
    """Indices of `count` equally weighted draws from a distribution, at even quantiles, without chance."""
    cumulative = np.cumsum(mass)
    quantiles = (np.arange(count) + 0.5) / count * cumulative[-1]
    return np.asarray(np.searchsorted(cumulative, quantiles))
