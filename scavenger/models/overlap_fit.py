"""The most probable overlap law given measured points; the notation is that of `overlap_law` and `kriging`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from scavenger.domain.curve import FloatArray
from scavenger.models.kriging import SCATTER, Kriging, Places, ProfiledStepTime, Scatter
from scavenger.models.overlap_law import (
    BELIEFS,
    COEFFICIENTS,
    Beliefs,
    OverlapLaw,
    Prior,
    overlap_prior,
)

SCATTER_LOG_SD = 0.04
"""What a law leaves of a step that computing decides, where no point has told yet: the wide side of `WIDTHS`."""

WIDTHS = (0.01, 0.02, 0.04, 0.08)
"""Standard deviations of that scatter that are weighed against each other once there are points."""

WIDTH_PRIOR = (0.02, 0.35)
"""Log-normal prior of the width: median, and standard deviation of the logarithm. All points of a job say 0.011 to
0.021 for 18 of 19 public ones, and 0.04 for one."""

ITERATIONS_MAX = 40
"""Some ten are usual; points that contradict each other may need more, and then the last is as good as any."""

STEP_MAX = 1.5
"""No unknown moves by more at once: the logarithms are linear over about a factor e."""

LEVELS = np.array([1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0], dtype=np.float64)
"""Mask of the unknowns that are logarithms of seconds."""

UNTOLD = 0.95
"""The points determine an unknown if they lower its deviation below this share of the prior's."""

HALVINGS_MAX = 10
"""A thousandth of a step that leads uphill is none: what it started from is as good."""

IMPROVEMENT_MIN = 1e-10
"""Of half the squared deviations; below this nothing that is ever shown moves."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """What several widths of the scatter say together.

    Attributes:
        coefficients: Mean of the laws' coefficients, shape `(p,)`.
        covariance: Theirs, within and between the widths, shape `(p, p)`.
        scatter_log_sd: Root mean square of the widths.
        log_evidence: Marginal likelihood of the points over all widths, up to a constant.
    """

    coefficients: FloatArray
    covariance: FloatArray
    scatter_log_sd: float
    log_evidence: float


def prior_of(
    measured: Sequence[ProfiledStepTime], places: Places | None = None, beliefs: Beliefs = BELIEFS
) -> Prior:
    """The prior at the scale of some points; without any, at one second and the middle of `places`."""
    if measured:
        unit_s = math.exp(float(np.mean([math.log(m.step_time_s) for m in measured])))
        return overlap_prior(unit_s, math.exp(float(np.mean([math.log(m.work) for m in measured]))), beliefs)
    work = 1.0 if places is None else math.exp(float(np.mean(np.log(places.work))))
    return overlap_prior(1.0, work, beliefs)


def fit_overlap(
    measured: Sequence[ProfiledStepTime],
    *,
    prior: Prior | None = None,
    scatter: Scatter = SCATTER,
    scatter_log_sd: float = SCATTER_LOG_SD,
    start: FloatArray | None = None,
) -> OverlapLaw:
    """Levenberg-Marquardt steps on the posterior; the kernel follows the law from step to step.

    Args:
        start: The unknowns to begin from, shape `(11,)`; the prior's if None.
    """
    prior = prior_of(measured) if prior is None else prior
    observed = np.log([m.step_time_s for m in measured])
    unknowns = (prior.mean if start is None else start).copy()
    observed = np.log([m.step_time_s for m in measured])
    damping = 1e-3
    law = best = OverlapLaw.from_unknowns(unknowns)
    kriging = Kriging(law, measured, scatter_log_sd, scatter)
    least = surprise(kriging, law, prior)

    def deviation(candidate: FloatArray, law: OverlapLaw) -> float:
        residual = observed - np.log(law.evaluate(*kriging.places)[0])
        off = candidate - prior.mean
        return float(residual @ cho_solve(kriging.factor, residual) + off @ prior.precision @ off) / 2.0

    for _ in range(ITERATIONS_MAX):
        curvature = kriging.information() + prior.precision
        here = deviation(unknowns, law)
        damped = curvature + damping * np.diag(np.diag(curvature))
        move = np.linalg.solve(damped, _downhill(kriging, unknowns, prior))
        # The level of computing, hence of all, may be far off at first; everything else stays near.
        move *= min(1.0, STEP_MAX / max(float(np.abs(move - move[:2].mean() * LEVELS).max()), 1e-300))
        there = OverlapLaw.from_unknowns(unknowns + move)
        gain = here - deviation(unknowns + move, there)
        if gain < 0.0:
            damping *= 10.0
            if damping > 1e8:
                break
            continue
        law, unknowns, damping = there, unknowns + move, max(damping / 10.0, 1e-9)
        kriging = Kriging(law, measured, scatter_log_sd, scatter)
        # Each step is judged by the kernel of the law before it; over all of them only the probability tells.
        if (now := surprise(kriging, law, prior)) <= least:
            best, least = law, now
        if gain < IMPROVEMENT_MIN:
            break
    return best


def fit_widths(measured: Sequence[ProfiledStepTime], prior: Prior) -> tuple[OverlapLaw, Mixture]:
    """The law fitted under each of `WIDTHS`, and their mixture; no unknown strays from one width to the next."""
    law, fitted = fit_each_width(measured, prior)
    krigings = [Kriging(one, measured, width, SCATTER) for one, width in zip(fitted, WIDTHS, strict=True)]
    mixture = mix_widths(krigings, prior.precision, [one.unknowns() for one in fitted], prior.mean)
    before = np.sqrt(np.diag(np.linalg.inv(prior.precision)))
    free = tuple((np.sqrt(np.diag(mixture.covariance)) < UNTOLD * before).tolist())
    middle = _checked(law, mixture.coefficients - law.unknowns(), measured, mixture.scatter_log_sd, prior)
    return replace(middle, free=free), mixture


def fit_each_width(measured: Sequence[ProfiledStepTime], prior: Prior) -> tuple[OverlapLaw, list[OverlapLaw]]:
    """The law under the most usual width, and one under each of `WIDTHS`; these are near, a step away at most."""
    law = fit_overlap(measured, prior=prior, scatter_log_sd=WIDTH_PRIOR[0])
    return law, [_stepped(law, measured, width, prior) for width in WIDTHS]


def surprise(kriging: Kriging, law: OverlapLaw, prior: Prior) -> float:
    """-ln of the probability density of the points and of the law that they are predicted by, up to a constant."""
    off = law.unknowns() - prior.mean
    spread = float(np.log(np.diag(kriging.factor[0])).sum())
    return 0.5 * (kriging.misfit() + float(off @ prior.precision @ off)) + spread


def _downhill(kriging: Kriging, unknowns: FloatArray, prior: Prior) -> FloatArray:
    """Minus the gradient of half the squared deviations, shape `(p,)`."""
    weighted = cho_solve(kriging.factor, kriging.residual)
    return np.asarray(kriging.features.T @ weighted - prior.precision @ (unknowns - prior.mean))


def _stepped(law: OverlapLaw, measured: Sequence[ProfiledStepTime], width: float, prior: Prior) -> OverlapLaw:
    """One checked Gauss-Newton step under a width of the scatter."""
    unknowns, kriging = law.unknowns(), Kriging(law, measured, width, SCATTER)
    move = np.linalg.solve(kriging.information() + prior.precision, _downhill(kriging, unknowns, prior))
    return _checked(law, np.clip(move, -STEP_MAX, STEP_MAX), measured, width, prior)


def _checked(
    law: OverlapLaw, move: FloatArray, measured: Sequence[ProfiledStepTime], width: float, prior: Prior
) -> OverlapLaw:
    """As much of a move as makes the points no less probable; the law it started from if none does."""
    unknowns = law.unknowns()
    here = surprise(Kriging(law, measured, width, SCATTER), law, prior)
    for _ in range(HALVINGS_MAX):
        there = OverlapLaw.from_unknowns(unknowns + move)
        if surprise(Kriging(there, measured, width, SCATTER), there, prior) <= here:
            return there
        move = move / 2.0
    return law


def undetermined(law: OverlapLaw) -> list[str]:
    """A note on the coefficients that the points do not determine, if any."""
    names = [name for name, told in zip(COEFFICIENTS, law.free, strict=True) if not told]
    return (
        [f"these points do not tell some things, which are taken as they usually are: {', '.join(names)}"]
        if names
        else []
    )


def mix_widths(
    krigings: Sequence[Kriging], precision: FloatArray, coefficients: Sequence[FloatArray], mean: FloatArray
) -> Mixture:
    """Weigh fits under different widths of the scatter by how well each explains the points.

    The mixture is summed up by its mean and covariance (Bayesian model averaging; Hoeting et al., 1999).

    Args:
        krigings: One per width, with the law fitted under it.
        precision: Prior inverse covariance of the coefficients, shape `(p, p)`.
        coefficients: Of each law, shape `(p,)`.
        mean: Of their prior.
    """
    centre, spread = WIDTH_PRIOR
    widths = np.array([k.scatter_log_sd for k in krigings])
    log_weights = -0.5 * (np.log(widths / centre) / spread) ** 2
    log_weights -= logsumexp(log_weights)
    log_weights += [log_evidence(k, precision, c - mean) for k, c in zip(krigings, coefficients, strict=True)]
    total = float(logsumexp(log_weights))
    weights = np.exp(log_weights - total)
    middle = weights @ np.array(coefficients)
    covariance = np.zeros_like(precision)
    for weight, kriging, own in zip(weights, krigings, coefficients, strict=True):
        off = own - middle
        covariance += weight * (posterior_covariance(kriging, precision) + np.outer(off, off))
    return Mixture(np.asarray(middle), covariance, math.sqrt(float(weights @ widths**2)), total)


def log_evidence(kriging: Kriging, precision: FloatArray, off: FloatArray) -> float:
    """ln of the marginal likelihood of the points, to second order around the fitted law (Laplace).

    Args:
        precision: Prior inverse covariance of the coefficients, shape `(p, p)`.
        off: How far the fitted coefficients are from the prior's mean, shape `(p,)`.
    """
    misfit = kriging.misfit() + float(off @ precision @ off)
    volume = _log_det(kriging.information() + precision) - _log_det(precision)
    spread = 2.0 * float(np.log(np.diag(kriging.factor[0])).sum())
    return -0.5 * (misfit + volume + spread + len(kriging.residual) * math.log(2.0 * math.pi))


def _log_det(matrix: FloatArray) -> float:
    return float(np.linalg.slogdet(matrix)[1])


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
