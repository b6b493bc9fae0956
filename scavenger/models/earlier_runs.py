"""Which shapes of a learning curve an earlier run of the same metric followed.

Where such a run reached a target is known, so each shape is weighed by how well it passes through what had been seen
at several times before, as it will be in the next run. Of a run that missed the target, the one that it did reach
serves: what is learned is how a curve bends, gains speed towards its end and scatters, not when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from scavenger.domain.curve import FloatArray
from scavenger.models.curve_fits import Errors, Fit, covariance
from scavenger.models.curve_points import OUTLIER, Evaluations
from scavenger.models.curve_shapes import Family

LOOKS = (0.35, 0.6, 0.85, 1.0)
"""Shares of the way to the target at which the shapes are weighed."""

BEFORE_MIN, LOOK_MIN = 4, 3
"""Fewest evaluations before the target, and until a look, that tell one shape from another."""

OWN_TARGET_AT = 0.9
"""A run that missed the target is taken at the best value that it had at this share of its length."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The course of a similar job's run.

    Attributes:
        at: Epochs or steps of the evaluations, positive and increasing, shape `(n,)`.
        values: The metric there, finite, shape `(n,)`.
    """

    at: FloatArray
    values: FloatArray

    def log_weights(
        self, family: Family, errors: Errors, scale: Callable[[FloatArray], FloatArray], goal: float
    ) -> FloatArray:
        """ln of how well each of a family's curves explains the run, up to a constant; 0 if it tells nothing.

        Args:
            scale: Turns the metric into values of which smaller ones are better.
            goal: The target on that scale.
        """
        values = np.asarray(scale(self.values))
        best = np.minimum.accumulate(values)
        if best[-1] > goal:
            goal = float(np.interp(OWN_TARGET_AT * self.at[-1], self.at, best))
        end = int(np.argmax(best <= goal))
        weights = np.zeros(len(family.log_prior))
        if end < BEFORE_MIN:
            return weights
        for look in LOOKS:
            seen = int(np.searchsorted(self.at[:end], look * self.at[end - 1], side="right"))
            if seen >= LOOK_MIN:
                course = Evaluations(self.at[:seen], best[:seen], values[:seen])
                weights += _explained(course, family, errors, goal, float(self.at[end]))
        return weights


def _explained(course: Evaluations, family: Family, errors: Errors, goal: float, end: float) -> FloatArray:
    """ln of the evidence of each curve that reaches the target at `end`."""
    now, gap = float(course.at[-1]), float(course.best[-1] - goal)
    x, y, counts = course.points()
    y = np.minimum((y - goal) / gap, OUTLIER)
    above, ahead = family.above(now * x, np.array([end])), np.array([math.log(end / now)])
    fits = [
        Fit.of(above, y, covariance(x, counts, drift), (errors.shared * drift) ** 2 * ahead)
        for drift in errors.drifts
    ]
    return np.asarray(logsumexp([fit.log_weight(len(y), errors)[:, 0] for fit in fits], axis=0))
