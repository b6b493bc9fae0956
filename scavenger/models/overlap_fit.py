"""The most probable overlap law given measured points; the notation is that of `overlap_law` and `kriging`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from scavenger.domain.curve import FloatArray
from scavenger.models.kriging import SCATTER, Kriging, Measured, Places, Scatter, places_of
from scavenger.models.overlap_law import COEFFICIENTS, OverlapLaw, Prior, overlap_prior

__all__ = ["SCATTER_LOG_SD", "fit_overlap", "held_out_errors", "posterior_covariance", "prior_of"]

SCATTER_LOG_SD = 0.04
"""Prior of what a law leaves of a step that computing decides; the points soon outweigh it."""

ITERATIONS_MAX = 40
"""Some ten are usual; points that contradict each other may need more, and then the last is as good as any."""

STEP_MAX = 1.5
"""No unknown moves by more at once: the logarithms are linear over about a factor e."""

LEVELS = np.array([1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0], dtype=np.float64)
"""Mask of the unknowns that are logarithms of seconds."""

UNTOLD = 0.95
"""The points determine an unknown if they lower its deviation below this share of the prior's."""

IMPROVEMENT_MIN = 1e-10
"""Of half the squared deviations; below this nothing that is ever shown moves."""


def prior_of(measured: Sequence[Measured], places: Places | None = None) -> Prior:
    """The prior at the scale of some points; without any, at one second and the middle of `places`."""
    if measured:
        unit_s = math.exp(float(np.mean([math.log(m.step_time_s) for m in measured])))
        return overlap_prior(unit_s, math.exp(float(np.mean([math.log(m.work) for m in measured]))))
    work = 1.0 if places is None else math.exp(float(np.mean(np.log(places.work))))
    return overlap_prior(1.0, work)


def fit_overlap(
    measured: Sequence[Measured], *, prior: Prior | None = None, scatter: Scatter = SCATTER
) -> tuple[OverlapLaw, list[str]]:
    """Levenberg-Marquardt steps on the posterior; the kernel follows the law from step to step.

    Returns:
        The law, and a note on the coefficients that the points do not determine.
    """
    prior = prior_of(measured) if prior is None else prior
    places = places_of(measured)
    observed = np.log([m.step_time_s for m in measured])
    unknowns = prior.mean.copy()
    damping = 1e-3
    kriging = Kriging(OverlapLaw.from_unknowns(unknowns), measured, SCATTER_LOG_SD, scatter)

    def deviation(candidate: FloatArray, law: OverlapLaw) -> float:
        residual = observed - np.log(law.evaluate(*places)[0])
        off = candidate - prior.mean
        return float(residual @ cho_solve(kriging.factor, residual) + off @ prior.precision @ off) / 2.0

    for _ in range(ITERATIONS_MAX):
        weighted = cho_solve(kriging.factor, kriging.residual)
        downhill = kriging.features.T @ weighted - prior.precision @ (unknowns - prior.mean)
        curvature = kriging.information() + prior.precision
        here = deviation(unknowns, OverlapLaw.from_unknowns(unknowns))
        damped = curvature + damping * np.diag(np.diag(curvature))
        move = np.linalg.solve(damped, downhill)
        # The level of computing, hence of all, may be far off at first; everything else stays near.
        move *= min(1.0, STEP_MAX / max(float(np.abs(move - move[:2].mean() * LEVELS).max()), 1e-300))
        there = OverlapLaw.from_unknowns(unknowns + move)
        gain = here - deviation(unknowns + move, there)
        if gain < 0.0:
            damping *= 10.0
            if damping > 1e8:
                break
            continue
        unknowns, damping = unknowns + move, max(damping / 10.0, 1e-9)
        kriging = Kriging(there, measured, SCATTER_LOG_SD, scatter)
        if gain < IMPROVEMENT_MIN:
            break
    covariance = posterior_covariance(kriging, prior.precision)
    return _named(OverlapLaw.from_unknowns(unknowns), covariance, prior)


def _named(law: OverlapLaw, covariance: FloatArray, prior: Prior) -> tuple[OverlapLaw, list[str]]:
    before = np.sqrt(np.diag(np.linalg.inv(prior.precision)))
    free = tuple((np.sqrt(np.diag(covariance)) < UNTOLD * before).tolist())
    law = OverlapLaw.from_unknowns(law.unknowns(), free)
    names = [name for name, told in zip(COEFFICIENTS, free, strict=True) if not told]
    return law, [f"the profile does not tell, so held at what is usual: {', '.join(names)}"] if names else []


def posterior_covariance(kriging: Kriging, precision: FloatArray) -> FloatArray:
    """Of the coefficients given the points, to first order, shape `(p, p)`."""
    factor = cho_factor(kriging.information() + precision, lower=True)
    return np.asarray(cho_solve(factor, np.eye(len(precision))))


def held_out_errors(kriging: Kriging, law: OverlapLaw, prior: Prior) -> FloatArray:
    """Absolute log error at each point if it had been left out, to first order, shape `(n,)`.

    Rasmussen and Williams, "Gaussian Processes for Machine Learning", eq. 5.12, with the coefficients part of
    the process.
    """
    features = kriging.features
    total = kriging.kernel + features @ np.linalg.solve(prior.precision, features.T)
    inverse = np.linalg.inv(total)
    off = kriging.residual - features @ (prior.mean - law.unknowns())
    return np.asarray(np.abs(inverse @ off / np.diag(inverse)))
