"""How well each shape of a learning curve passes through evaluations, the scale of their errors integrated out.

The errors are correlated from one evaluation to the next, and those of old evaluations grow; see `learning_curve`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scavenger.domain.curve import FloatArray

__all__ = ["FLOOR", "FREEDOM", "TEMPER", "Products", "covariance"]

CORRELATION = 0.3

FREEDOM, FLOOR = 6.0, 0.09
"""Degrees of freedom of the scale before any evaluation, and its value then, in units of the gap."""

TEMPER = 0.6
"""An evaluation counts for so many: shapes are wrong in ways that later evaluations share."""


def covariance(x: FloatArray, counts: FloatArray, drift: float) -> FloatArray:
    """Covariance of the points, but for their scale, shape `(m, m)`."""
    places, age = np.arange(len(x)), -np.log(x)
    near = CORRELATION ** np.abs(places[:, None] - places) / (counts[:, None] * counts) ** 0.25
    return np.asarray(near + drift**2 * np.minimum(age[:, None], age) + 1e-9 * np.eye(len(x)))


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products, under the inverse of a covariance, of each shape φ, the constant 1 and the points y."""

    shape_shape: FloatArray
    shape_one: FloatArray
    shape_y: FloatArray
    one_one: float
    one_y: float
    y_y: float
    log_determinant: float
    points: int

    @classmethod
    def of(cls, shapes: FloatArray, y: FloatArray, covariance: FloatArray) -> Products:
        lower = np.linalg.cholesky(covariance)
        # A few rows only: the library's triangular solver would start threads for them.
        white = np.linalg.inv(lower) @ np.column_stack((shapes.T, np.ones(len(y)), y))
        shape, one, points = white[:, :-2], white[:, -2], white[:, -1]
        return cls(
            np.sum(shape**2, axis=0),
            one @ shape,
            points @ shape,
            float(one @ one),
            float(one @ points),
            float(points @ points),
            2.0 * float(np.log(np.diag(lower)).sum()),
            len(y),
        )

    def fitted(self, ahead: FloatArray, offsets: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Residual and slope of `y = offset + c (φ - ahead)` with the best c >= 0, shapes of `ahead`: `(n, k)`."""
        square = self.shape_shape[:, None] - 2.0 * ahead * self.shape_one[:, None] + ahead**2 * self.one_one
        cross = (
            self.shape_y[:, None]
            - offsets * self.shape_one[:, None]
            - ahead * (self.one_y - offsets * self.one_one)
        )
        whole = self.y_y - 2.0 * offsets * self.one_y + offsets**2 * self.one_one
        slope = np.maximum(cross, 0.0) / np.maximum(square, 1e-300)
        return np.maximum(whole - slope * cross, 0.0), slope

    def free(self, ahead: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Residual and value at `ahead` of `y = a + c φ` with the best a and c >= 0, both of shape `(n,)`."""
        mean, level = self.shape_one / self.one_one, self.one_y / self.one_one
        square = self.shape_shape - mean * self.shape_one
        cross = np.maximum(self.shape_y - mean * self.one_y, 0.0)
        slope = cross / np.maximum(square, 1e-300)
        residual = self.y_y - level * self.one_y - slope * cross
        return np.maximum(residual, 0.0), level + slope * (ahead - mean)

    def log_weight(self, residual: FloatArray, *, floor: float = FLOOR**2 * FREEDOM) -> FloatArray:
        """ln of the evidence, the scale integrated out; shape of `residual`."""
        power = 0.5 * (TEMPER * self.points + FREEDOM)
        return np.asarray(-power * np.log(residual + floor) - 0.5 * TEMPER * self.log_determinant)
