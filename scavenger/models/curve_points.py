"""The evaluations of a run as points that curves are drawn through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scavenger.domain.curve import FloatArray

EVALUATIONS_MIN = 2
"""Fewest evaluations that a forecast can be made from; from so few it is mostly the prior."""

RECENT = 0.35
"""Only evaluations since this share of the run are fitted: what came before tells of warming up, not of the end."""

POINTS_MAX = 16
"""Evaluations are averaged to so many points, as evenly spaced in s as in ln s."""

OUTLIER = 20.0
"""Evaluations further from the target than so many gaps count as if they were there."""


class Evaluations(NamedTuple):
    """Evaluations with a finite value, the best value so far, and each one's own; smaller ones are better."""

    at: FloatArray
    best: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, at: Sequence[float] | FloatArray, values: Sequence[float] | FloatArray) -> Evaluations:
        where, losses = np.asarray(at, dtype=np.float64), np.asarray(values, dtype=np.float64)
        known = np.isfinite(losses) & (where > 0.0)
        if int(known.sum()) < EVALUATIONS_MIN:
            raise ValueError(f"a forecast needs {EVALUATIONS_MIN} evaluations, not {int(known.sum())}")
        return cls(where[known], np.minimum.accumulate(losses[known]), losses[known])

    def every(self) -> float:
        """The time between two evaluations, lately."""
        return float(np.median(np.diff(self.at[-6:])))

    def half_step(self) -> float:
        """Half of it relative to now: the target is only seen to be reached at an evaluation."""
        return 0.5 * self.every() / float(self.at[-1])

    def points(self, *, raw: bool = False) -> tuple[FloatArray, FloatArray, FloatArray]:
        """At most `POINTS_MAX` points of the recent course: s / t, the best value so far, and evaluations averaged.

        Args:
            raw: Take the values themselves in place of the best so far.
        """
        first = min(int(np.searchsorted(self.at, RECENT * self.at[-1])), len(self.at) - EVALUATIONS_MIN)
        at, best = self.at[first:], (self.values if raw else self.best)[first:]
        if len(at) <= POINTS_MAX:
            return at / self.at[-1], best, np.ones(len(at))
        even = (np.log(at / at[0]) / math.log(at[-1] / at[0]) + (at - at[0]) / (at[-1] - at[0])) / 2.0
        group = np.minimum((even * POINTS_MAX).astype(np.int64), POINTS_MAX - 1)
        counts = np.bincount(group, minlength=POINTS_MAX).astype(np.float64)
        filled = counts > 0.0
        logs = np.bincount(group, np.log(at / self.at[-1]), POINTS_MAX)[filled] / counts[filled]
        means = np.bincount(group, best, POINTS_MAX)[filled] / counts[filled]
        return np.exp(logs), means, counts[filled]
