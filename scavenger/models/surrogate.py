"""What hyperparameters lead to: a Gaussian process whose lengths are averaged by evidence.

==========  ====================================================  ==============================================
x           hyperparameters, each scaled to [0, 1]
y           a figure of trials there, smaller is better           standardised by median and spread
l           length of each hyperparameter                         one node is a set of lengths and a scatter
==========  ====================================================  ==============================================

The kernel is Matérn's with ν = 5/2 [1]_. Nothing is optimised: a fixed set of nodes, drawn from the prior, is weighed
by how well each explains the trials. So few trials give wide intervals, and no fit fails.

References:
    .. [1] Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, §4.2.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from scavenger.domain.curve import FloatArray

NODES, KEPT = 48, 8
"""Nodes that are weighed, and those of most weight that predict."""

LOG_LENGTH, LOG_LENGTH_SD = -0.7, 0.9
"""Prior of ln l: hyperparameters within half of their range act alike, or within any part of it."""

SCATTERS = (0.03, 0.1, 0.3)
"""Scatter of y at equal x, in units of its spread."""


class Surrogate:
    """A posterior of y given trials.

    Args:
        x: Shape `(n, d)`, in [0, 1], n at least 1.
        y: Shape `(n,)`.
        sd: Standard deviation of each y, as of one that was extrapolated; shape `(n,)`.
    """

    def __init__(self, x: FloatArray, y: FloatArray, sd: FloatArray) -> None:
        self._x = x
        self._level = float(np.median(y))
        self._spread = float(np.std(y)) or 1.0
        scaled, own = (y - self._level) / self._spread, (sd / self._spread) ** 2
        lengths = _lengths(x.shape[1])
        scatters = np.resize(np.array(SCATTERS), len(lengths))
        noise = own[None, :] + scatters[:, None] ** 2
        covariance = _matern(x, x, lengths)
        covariance[:, range(len(x)), range(len(x))] += noise
        lower = np.linalg.cholesky(covariance)
        white = np.linalg.solve(lower, np.broadcast_to(scaled[:, None], (len(lengths), len(x), 1)))[..., 0]
        diagonal = lower[:, range(len(x)), range(len(x))]
        log_evidence = -0.5 * (white**2).sum(1) - np.log(diagonal).sum(1)
        kept = np.argsort(log_evidence)[-KEPT:]
        weight = np.exp(log_evidence[kept] - log_evidence[kept].max())
        self._lengths, self._lower, self._white = lengths[kept], lower[kept], white[kept]
        self._weight = weight / weight.sum()

    @classmethod
    def exact(cls, x: FloatArray, y: FloatArray) -> Self:
        """Of values that were measured."""
        return cls(x, y, np.zeros(len(y)))

    def predict(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of y at each x, both of shape `(m,)`.

        Args:
            x: Shape `(m, d)`.
        """
        across = np.linalg.solve(self._lower, _matern(self._x, x, self._lengths))
        mean = np.einsum("kn,knm->km", self._white, across)
        variance = np.maximum(1.0 - (across**2).sum(1), 1e-9)
        middle = self._weight @ mean
        whole = self._weight @ (variance + (mean - middle) ** 2)
        return self._level + self._spread * middle, self._spread * np.sqrt(whole)


def _lengths(dimensions: int) -> FloatArray:
    """Nodes of l, shape `(NODES, d)`; the same at every call."""
    drawn = np.random.default_rng(dimensions).standard_normal((NODES, dimensions))
    return np.asarray(np.exp(LOG_LENGTH + 0.5 * np.log(dimensions) + LOG_LENGTH_SD * drawn))


def _matern(a: FloatArray, b: FloatArray, lengths: FloatArray) -> FloatArray:
    """Matérn's correlation of ν = 5/2, shape `(nodes, len(a), len(b))`."""
    square = (a[:, None, :] - b[None, :, :]) ** 2
    away = np.sqrt(5.0 * np.einsum("abd,kd->kab", square, 1.0 / lengths**2))
    return np.asarray((1.0 + away + away**2 / 3.0) * np.exp(-away))
