"""How well each curve passes through evaluations, the scale of their errors integrated out.

The errors are correlated from one evaluation to the next, those of old evaluations grow, and so does, with the distance
to the target, what all evaluations miss it by; see `learning_curve`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scavenger.domain.curve import FloatArray

CORRELATION = 0.4


class Errors(NamedTuple):
    """How far curves are from evaluations, beyond the scale, which is integrated out.

    Attributes:
        temper: An evaluation counts for so many: curves are wrong in ways that later evaluations share.
        freedom, floor: Degrees of freedom of the scale before any evaluation, and its value then, in units of the gap.
        drifts: η, weighed by evidence: what no curve explains, the more the longer ago.
        shared: κ: what the curves do not explain ahead, over what they do not explain of the course so far.
        early: How fast the prior falls with T / t. It is 1 for a run that is looked at at any time alike, and more
            where evaluations count for little, as the best slope favours targets far away, which any curve reaches.
        hinted: The same beside a hint, which is what is known of T: only what is more than 1 is left. With a
            schedule, of which the drops tell more than a hint, all of it is.
    """

    temper: float
    freedom: float
    floor: float
    drifts: tuple[float, ...]
    shared: float
    early: float
    hinted: float

    @property
    def least(self) -> float:
        """What is added to a sum of squares, for the scale before any evaluation."""
        return self.floor**2 * self.freedom


def covariance(x: FloatArray, counts: FloatArray, drift: float) -> FloatArray:
    """Covariance of the points, but for their scale and for what all of them share, shape `(m, m)`."""
    places, age = np.arange(len(x)), -np.log(x)
    near = CORRELATION ** np.abs(places[:, None] - places) / (counts[:, None] * counts) ** 0.25
    return np.asarray(near + drift**2 * np.minimum(age[:, None], age) + 1e-9 * np.eye(len(x)))


class Fit(NamedTuple):
    """Fits of `y = c above`, by curve and by where the target is reached, shape `(n, k)` each.

    Attributes:
        residual: Sum of squares with the best c >= 0, by the inverse of the covariance.
        slope: c.
        shared: What all points are off by, as far as it is known.
        log_determinant: Of the covariance, shape `(k,)`.
    """

    residual: FloatArray
    slope: FloatArray
    shared: FloatArray
    log_determinant: FloatArray

    @classmethod
    def of(cls, above: FloatArray, y: FloatArray, covariance: FloatArray, shared: FloatArray) -> Fit:
        """Fit every curve.

        Args:
            above: The curves at the points, shape `(n, k, m)`.
            y: The points, shape `(m,)`, or `(k, m)`.
            covariance: Of the points, shape `(m, m)`.
            shared: Variance of what all of them are off by, shape `(k,)`.
        """
        # A few rows only: the library's triangular solver would start threads for them.
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        curves, points, one = above @ root.T, y @ root.T, root.sum(axis=1)
        # By Sherman and Morrison, as the shared part has rank one.
        part = shared / (1.0 + shared * (one @ one))
        of_curves, of_points = curves @ one, points @ one
        square = np.sum(curves**2, axis=-1) - part * of_curves**2
        cross = np.maximum(np.sum(curves * points, axis=-1) - part * of_curves * of_points, 0.0)
        slope = cross / np.maximum(square, 1e-300)
        residual = np.maximum(np.sum(points**2, axis=-1) - part * of_points**2 - slope * cross, 0.0)
        log_determinant = -2.0 * np.log(np.diag(root)).sum() + np.log1p(shared * (one @ one))
        return cls(residual, slope, part * (of_points - slope * of_curves), log_determinant)

    def log_weight(self, points: int, errors: Errors, *, least: float | None = None) -> FloatArray:
        """ln of the evidence, the scale integrated out, shape `(n, k)`; `least` is that of the errors."""
        power = 0.5 * (errors.temper * points + errors.freedom)
        floor = errors.least if least is None else least
        return np.asarray(-power * np.log(self.residual + floor) - 0.5 * errors.temper * self.log_determinant)
