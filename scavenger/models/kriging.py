"""Universal kriging of the step time: a law plus its residual, a smooth Gaussian process and scatter.

=========  ======================================================================================================
q          ∂ ln τ / ∂ ln(synchronisation) at a configuration: 0 where computing decides, 1 where synchronisation does
J          ∂ ln τ / ∂ coefficient, one row per configuration
σc, σs     scatter of a configuration's computing, and of its synchronisation, around anything smooth
γc, γs     smooth deviation of computing from its law, by x; of synchronisation, by x and the number of machines
γk         deviation of synchronisation that all x of one n share (on one machine, of one K), and no other does
γ2         the same of two machines, besides
S          covariance of the coefficients
=========  ======================================================================================================

ln τ = law + J δ + (1 - q) gc(ln x) + q (gs(ln x, ln n) + gk[n]) + scatter: universal kriging with the law as its
trend [1]_, that is a model with a discrepancy [2]_. Because computing scatters far less than a network does, whatever
is wrong with the law of one says little of the other, and a point in which synchronisation decides is believed less.

References:
    .. [1] Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, §2.7.
    .. [2] Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from scavenger.domain.curve import FloatArray
from scavenger.models.step_laws import Load
from scavenger.models.types import Count, NotNegative, Positive

CORRELATION_LOG_LENGTH = 0.5
"""Configurations within a factor of 1.6 in x, and in machines, deviate from the law alike; beyond a factor of 3
one says nothing of the other."""

LOG_TWO = float(np.log(2.0))

CHUNK = 8192
"""Configurations evaluated at once: their intermediate arrays stay in the processor's cache."""


class Places(NamedTuple):
    """Design points of step times; arrays of shape `(n,)`: K, x = b c, c, most workers per machine."""

    workers: FloatArray
    work: FloatArray
    contention: FloatArray
    workers_per_node: FloatArray

    def part(self, start: int, stop: int) -> Places:
        return Places(*(column[start:stop] for column in self))


@dataclass(frozen=True, slots=True, order=True)
class ProfiledStepTime:
    """The median step time of one profiled configuration; `log_sd` is the standard error of its logarithm."""

    workers: Count
    global_batch_size: Count
    step_time_s: Positive
    log_sd: Positive
    contention: Positive = 1.0
    workers_per_node: Count = 1

    @property
    def work(self) -> float:
        """x, samples."""
        return -(-self.global_batch_size // self.workers) * self.contention


def places_of(measured: Sequence[ProfiledStepTime]) -> Places:
    """Design points of the measurements."""
    rows = [(m.workers, m.work, m.contention, m.workers_per_node) for m in measured]
    return Places(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


class Law(Protocol):
    """Interface of a trend; implemented by `LinearLaw` and `OverlapLaw`."""

    @property
    def load(self) -> Load: ...

    def evaluate(
        self,
        workers: FloatArray,
        work: FloatArray,
        contention: FloatArray,
        workers_per_node: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]: ...

    def sync_elasticity(self, step_time_s: FloatArray, features: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class Scatter:
    """σs, γc, γs, γk and γ2 relative to σc."""

    sync: NotNegative = 0.0
    smooth_compute: NotNegative = 0.0
    smooth_sync: NotNegative = 0.0
    cluster_sync: NotNegative = 0.0
    pair_sync: NotNegative = 0.0


NO_SCATTER = Scatter()
"""Scatter of an averaged model, which has one deviation for everything."""

SMOOTH = tuple(field.name for field in fields(Scatter) if field.name != "sync")
"""The deviations that places share."""

SCATTER = Scatter(sync=4.0, smooth_compute=2.5, smooth_sync=3.0, cluster_sync=4.0, pair_sync=12.0)
"""With a scatter of 2 % in computing: 8 % of what goes over a shared network, smooth deviations 5 and 6 %, 8 % of each
number of machines and 24 % more of two. Set by the likelihood of public step times. The intervals rest on them.

On public clusters of T4s synchronisation of two machines takes a third longer than the law of three to sixteen says, on
A100s it does not."""


class PredictionParts(NamedTuple):
    """The parts of a prediction at one place.

    Attributes:
        law_s: Time of a step by the law alone.
        sync_share: q.
        deviations: ln of the factor that each smooth part changes it by, by the name of its field in `Scatter`.
        variances: Of the coefficients (`law`), of each smooth part, and of the rest (`scatter`); their sum is the
            variance of `Kriging.predict`.
        weights: ∂ ln τ / ∂ ln of each measured time, to first order, shape `(measured,)`.
    """

    law_s: float
    sync_share: float
    deviations: dict[str, float]
    variances: dict[str, float]
    weights: FloatArray


class Kriging:
    """The posterior of ln τ given a law and measured points (none at all will do).

    Args:
        scatter_log_sd: σc.
        scatter: The other deviations, relative to it.
    """

    def __init__(
        self,
        law: Law,
        measured: Sequence[ProfiledStepTime],
        scatter_log_sd: float,
        scatter: Scatter,
    ) -> None:
        self.law, self.scatter_log_sd, self.scatter = law, scatter_log_sd, scatter
        self.places = places_of(measured)
        step_time_s, self.features, self.sync = _relative(law, self.places)
        self.at = _coordinates(self.places, law.load)
        observed = np.array([m.step_time_s for m in measured], dtype=np.float64)
        self.residual = np.log(observed) - np.log(step_time_s)
        own = np.array([m.log_sd for m in measured], dtype=np.float64) ** 2
        smooth = self._smooth(self.sync, self.at)
        # The matrix can be factored, since the scatter of every point is positive.
        self.kernel = smooth + np.diag(own + self._scatter_variance(self.sync))
        self.factor = cho_factor(self.kernel, lower=True)

    def information(self) -> FloatArray:
        """Jᵀ (kernel)⁻¹ J, shape `(p, p)`."""
        return np.asarray(self.features.T @ cho_solve(self.factor, self.features))

    def misfit(self) -> float:
        """Squared distance of the points from the law, in deviations of scatter, smooth part and measurement."""
        return float(self.residual @ cho_solve(self.factor, self.residual))

    def predict(
        self, places: Places, covariance: FloatArray, law: Law | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Predict ln τ and its variance at unmeasured points, shape `(n,)` both.

        Args:
            covariance: Covariance of the coefficients given the points, shape `(p, p)`.
            law: The same law under another load than that of the points; None for theirs.
        """
        law = self.law if law is None else law
        count = len(places.workers)
        log_time, variance = np.empty(count), np.empty(count)
        root = _root(covariance)
        weights = cho_solve(self.factor, self.residual)
        trend = cho_solve(self.factor, self.features) @ root
        whiten = solve_triangular(self.factor[0], np.eye(len(weights)), lower=True).T
        for start in range(0, count, CHUNK):
            part = places.part(start, start + CHUNK)
            step_time_s, features, sync = _relative(law, part)
            at = _coordinates(part, law.load)
            cross = self._smooth(sync, at)
            explained = cross @ whiten
            spread = features @ root - cross @ trend
            prior = self._smooth_variance(sync, at) + self._scatter_variance(sync)
            stop = start + len(sync)
            log_time[start:stop] = np.log(step_time_s) + cross @ weights
            variance[start:stop] = np.einsum("ij,ij->i", spread, spread) + np.maximum(
                prior - np.einsum("ij,ij->i", explained, explained), 0.0
            )
        return log_time, variance

    def covariance_between(self, some: Places, others: Places, covariance: FloatArray) -> FloatArray:
        """Posterior covariance of ln τ without its scatter, shape `(len(some), len(others))`."""
        _, features, sync = _relative(self.law, some)
        _, features2, sync2 = _relative(self.law, others)
        here, there = _coordinates(some, self.law.load), _coordinates(others, self.law.load)
        cross, cross2 = self._smooth(sync, here), self._smooth(sync2, there)
        trend = features - cross @ cho_solve(self.factor, self.features)
        trend2 = features2 - cross2 @ cho_solve(self.factor, self.features)
        left = _correlated((sync, here), (sync2, there), self.scatter_log_sd, self.scatter)
        left -= cross @ cho_solve(self.factor, cross2.T)
        return np.asarray(trend @ covariance @ trend2.T + left)

    def explain(self, place: Places, covariance: FloatArray) -> PredictionParts:
        """Split the prediction at one place into its parts.

        A smooth part's variance is its covariance with the sum of them, so that the parts add up to the whole.

        Args:
            place: Arrays of length 1.
            covariance: As of `predict`.
        """
        step_time_s, features, sync = _relative(self.law, place)
        here = sync, _coordinates(place, self.law.load)
        measured, unit = (self.sync, self.at), self.scatter_log_sd
        solved = cho_solve(self.factor, self._smooth(*here).T)
        known = cho_solve(self.factor, self.residual)
        spread = features - solved.T @ self.features
        deviations: dict[str, float] = {}
        variances = {"law": float((spread @ covariance @ spread.T)[0, 0])}
        for name in SMOOTH:
            part = replace(NO_SCATTER, **{name: getattr(self.scatter, name)})
            cross = _correlated(here, measured, unit, part)
            deviations[name] = float((cross @ known)[0])
            variances[name] = float((_correlated(here, here, unit, part) - cross @ solved)[0, 0])
        variances["scatter"] = float(self._scatter_variance(sync)[0])
        weights = solved.T + spread @ covariance @ cho_solve(self.factor, self.features).T
        return PredictionParts(float(step_time_s[0]), float(sync[0]), deviations, variances, weights[0])

    def _scatter_variance(self, sync: FloatArray) -> FloatArray:
        return np.asarray(self.scatter_log_sd**2 * (1.0 + (self.scatter.sync * sync) ** 2))

    def _smooth_variance(self, sync: FloatArray, at: _Coordinates) -> FloatArray:
        compute, network = self.scatter.smooth_compute * (1.0 - sync), self.scatter.smooth_sync * sync
        return np.asarray(
            self.scatter_log_sd**2
            * (compute**2 + network**2 + sync**2 * _cluster_variance(self.scatter, at.log_nodes))
        )

    def _smooth(self, sync: FloatArray, at: _Coordinates) -> FloatArray:
        """Prior covariance of the parts that points share with the measured ones, shape `(n, measured)`."""
        return _correlated((sync, at), (self.sync, self.at), self.scatter_log_sd, self.scatter)


class _Coordinates(NamedTuple):
    """ln x, ln n of the machines that are waited for, and K where they share one machine, else 0."""

    log_work: FloatArray
    log_nodes: FloatArray
    together: FloatArray


_Point = tuple[FloatArray, _Coordinates]


def _correlated(some: _Point, others: _Point, unit: float, scatter: Scatter) -> FloatArray:
    """(1 - q)(1 - q') γc² k(x, x') + q q' (γs² k(x, x') k(n, n') + (γk² + γ2² [n = 2]) [n = n']), k the squared
    exponential.
    """
    (sync, at), (sync2, at2) = some, others
    by_work = (at.log_work[:, None] - at2.log_work) ** 2
    by_nodes = (at.log_nodes[:, None] - at2.log_nodes) ** 2
    alike = np.exp(by_work * (-0.5 / CORRELATION_LOG_LENGTH**2))
    near = np.exp(by_nodes * (-0.5 / CORRELATION_LOG_LENGTH**2))
    compute = (unit * scatter.smooth_compute) ** 2 * (1.0 - sync2)
    network = (unit * scatter.smooth_sync) ** 2 * sync2
    own = (
        unit**2
        * _cluster_variance(scatter, at2.log_nodes)
        * sync2
        * ((at.together[:, None] == at2.together) & (by_nodes == 0.0))
    )
    return np.asarray(
        alike * ((1.0 - sync)[:, None] * compute + sync[:, None] * network * near) + sync[:, None] * own
    )


def _cluster_variance(scatter: Scatter, log_nodes: FloatArray) -> FloatArray:
    """γk², and γ2² more where two machines are waited for, relative to σc²."""
    pair = log_nodes == LOG_TWO
    return np.asarray(scatter.cluster_sync**2 + np.where(pair, scatter.pair_sync**2, 0.0))


def _relative(law: Law, places: Places) -> tuple[FloatArray, FloatArray, FloatArray]:
    """τ, ∂ ln τ / ∂ coefficient and q."""
    step_time_s, features = law.evaluate(*places)
    sync = np.clip(law.sync_elasticity(step_time_s, features), 0.0, 1.0)
    features /= step_time_s[:, None]
    return step_time_s, features, sync


def _coordinates(places: Places, load: Load) -> _Coordinates:
    nodes = np.ceil(places.workers / np.minimum(places.workers_per_node, places.workers))
    together = np.where(nodes > 1.0, 0.0, places.workers)
    return _Coordinates(np.log(places.work), np.log(load.served(nodes)), together)


def _root(covariance: FloatArray) -> FloatArray:
    """A factor of a positive semi-definite matrix, without the directions in which it is nothing."""
    # In units of their own deviations, since seconds per step and per sample differ by many powers of ten.
    unit = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    values, vectors = np.linalg.eigh(covariance / np.outer(*[np.where(unit > 0.0, unit, 1.0)] * 2))
    keep = values > 1e-12 * len(values)
    return np.asarray(unit[:, None] * vectors[:, keep] * np.sqrt(values[keep]))
