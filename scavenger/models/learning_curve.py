"""When a run will reach its target, from the course of its metric so far.

==========  ====================================================  ==============================================
s, t        epochs (or steps) at an evaluation; at the last one
z           the metric; ln of it, or of what it lacks to 1        `_scaled`
y           best z so far less the target's, in units of the      so y(t) = 1, and the target is 0
            gap that is left
T           when the target is reached; r = T / t > 1
φ           how far above the target a curve is, by its shape     `curve_shapes`
==========  ====================================================  ==============================================

Every pair of a shape and a T is one curve, `y(s) = c φ(s; T)`, with φ(T; T) = 0 and the slope c >= 0 that fits best. It
is weighed by how well it passes through the evaluations, whose errors are those of

    evaluations that are correlated with their neighbours       AR(1), `curve_fits`
    + what no shape explains, a Brownian motion in ln s that     variance η² ln(t / s) times that of evaluations;
      is 0 now: the older an evaluation, the less it tells       every η of `Errors`, by evidence
    + the same between now and T: the further the target, the    variance κ² η² ln r, shared by all evaluations
      less do the shapes tell of it

with one unknown scale, so that the weight of a curve falls with a power of its residual, as Student's t does: a few
evaluations far off weigh little. Curves whose asymptote falls short of the target stand for a run that never reaches
it. Before any evaluation every ln T is as probable as r^-`early`: that a run is looked at now and not at another time
makes T near t the more probable [1]_. Beside a hint that tells nothing, and r^-`hinted` is left of it. A run that has
one may also stand on a plateau, which ends at no known time.

All curves are fitted at once, so that an update takes some milliseconds.

Where the noise of an evaluation is known (of an accuracy, from the number of samples), y are the evaluations
themselves, in units of their noise if that is more than the gap, T is where their mean is at the target, which may be
behind, and the run ends at the first evaluation that is good enough, see `first_passage`.

References:
    .. [1] Gott, "Implications of the Copernican principle for our future prospects", Nature 363, 1993.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtri

from scavenger.domain.curve import FloatArray, IntArray
from scavenger.models.curve_fits import Errors, Fit, covariance
from scavenger.models.curve_points import OUTLIER, Evaluations
from scavenger.models.curve_shapes import Family, RateSchedule, annealed, ending, log_priors, waiting
from scavenger.models.earlier_runs import EarlierRun
from scavenger.models.first_passage import evaluations_ahead, first_passage, resampled

ALONE = Errors(
    temper=0.16, freedom=6.4, floor=0.012, drifts=(0.67, 3.4, 17.0), shared=0.8, early=2.0, hinted=1.0
)
"""Where nothing but the metric is known, by public curves (`python -m benchmarks curves`)."""
SCHEDULE = Errors(
    temper=0.3, freedom=6.0, floor=0.01, drifts=(0.2, 1.0, 5.0, 20.0), shared=1.0, early=1.15, hinted=1.15
)
"""Where a schedule tells more of the curve."""
NOISY = Errors(
    temper=0.5, freedom=6.0, floor=0.06, drifts=(0.6, 2.0, 6.0, 20.0), shared=1.0, early=1.3, hinted=0.3
)
"""Where the noise of an evaluation is known."""

COARSE = 0.1
"""Floor of the scale by which it is judged *whether* the target is reached: real runs look as if they came to rest long
before their last fall."""

DOUBT = 0.03
"""Probability that the course so far tells nothing."""

NEVER = 0.05
"""Prior probability of a run that stays short of its target."""

SHORT = (0.1, 0.3, 1.0)
"""How far short of the target the asymptotes of such runs lie, in units of the gap."""

RATIO_MAX, FAR_STEP = 30.0, 0.15
"""Largest T / t without a hint, and the steps of ln T beyond, where a hint lies there."""

MISLED, MISLED_WIDTH = 0.8, 2.0
"""Probability that a hint is worth less than it claims, and by what its deviation is larger then; by judgement,
as no data tells how users err."""

RATIOS = np.exp(np.concatenate(([0.002, 0.005, 0.01], np.geomspace(0.02, math.log(RATIO_MAX), 60))))
ENDING = ending()
BEHIND = np.exp(np.linspace(-0.9, -0.02, 23))
"""T / t of means that are at their target, where no evaluation was good enough yet."""

CURVES = 256
"""Curves that a first passage is averaged over."""

SAME_SAMPLES = 0.8
"""Noise from one evaluation to the next over that of the samples' draw, as all evaluations are of the same samples."""

QUANTILES = np.array((0.05, 0.5, 0.95))
QUANTILE_Z = ndtri(QUANTILES)

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Hint:
    """What is known of T before the run: log-normal, `log_sd` being the standard deviation of ln T."""

    median: float
    log_sd: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the target will be reached, counted from the beginning of the run, in the unit of the course.

    Attributes:
        seen: The last evaluation of the course.
        total: Median of where the run ends: at the target, or at the limit. Without a limit, of those runs that
            reach the target.
        low, high: Its 90 % interval.
        never: Probability that the target is not reached before the limit.
        log_sd: Standard deviation of ln of the total, of a run that reaches its target: that for which a 90 %
            interval is as wide.
        totals, reached: Probability that the target is reached by each of `totals`.
    """

    seen: float
    total: float
    low: float
    high: float
    never: float
    log_sd: float
    totals: tuple[float, ...]
    reached: tuple[float, ...]

    def reached_by(self, total: float) -> float:
        """Probability that the target is reached by then."""
        return float(np.interp(total, self.totals, self.reached, left=0.0))


def forecast(
    at: Sequence[float] | FloatArray,
    values: Sequence[float] | FloatArray,
    target: float,
    *,
    mode: Mode,
    limit: float | None = None,
    hint: Hint | None = None,
    schedule: RateSchedule | None = None,
    earlier: Sequence[EarlierRun] = (),
    noise: float = 0.0,
) -> Forecast:
    """Forecast when the best value so far reaches the target.

    Args:
        at: Epochs or steps of the evaluations, positive and increasing, shape `(n,)`.
        values: The metric there, shape `(n,)`; evaluations that are not finite are left out.
        mode: Whether the metric is to become small or large.
        limit: Where the run ends if it has not reached the target.
        schedule: Learning rates of the whole run, over the unit of `at`, or those so far; None if unknown. Rates that
            are the same everywhere tell nothing of the end.
        earlier: The same metric in finished runs of similar jobs.
        noise: Standard deviation of an evaluation near the target; 0 if unknown.

    Raises:
        ValueError: If fewer than `EVALUATIONS_MIN` values are finite, or one has reached the target.
    """
    if schedule is not None and schedule.is_constant:
        schedule = None
    scale = _scale(values, target, mode, annealed=schedule is not None)
    course, goal = Evaluations.of(at, scale(values)), float(scale(target))
    if course.best[-1] <= goal:
        raise ValueError("the target has been reached")
    now, gap = float(course.at[-1]), float(course.best[-1] - goal)
    sigma = SAME_SAMPLES * abs(float(scale(target - noise if mode == "max" else target + noise)) - goal)
    if noise > 0.0:
        gap = max(gap, sigma)
    x, y, counts = course.points(raw=noise > 0.0)
    y = np.minimum((y - goal) / gap, OUTLIER)
    ratios = _ratios(now, hint)
    totals = now * ratios
    shapes = ENDING.log_prior + sum(run.log_weights(ENDING, ALONE, scale, goal) for run in earlier)
    families = [replace(ENDING, log_prior=shapes), *(() if hint is None else (waiting(now),))]
    if schedule is not None:
        families.append(annealed(schedule if schedule.steps[-1] > now else schedule.continued(totals[-1])))
    errors = SCHEDULE if schedule is not None else NOISY if noise > 0.0 else ALONE
    early = errors.early if hint is None else errors.hinted
    curves, prior = _Curves(families, errors, now, x, y, counts), _prior(ratios, totals, hint, early)
    if noise > 0.0:
        means = np.concatenate((BEHIND, ratios))
        chances = (means, _prior_of_means(means, now, hint, early))
        return _passage(curves, course, chances, (totals, prior), limit, floor=sigma / gap)
    log_reached, short = curves.evidence(ratios, prior)
    never = (1.0 - DOUBT) * short + DOUBT * NEVER
    when = (1.0 - DOUBT) * np.exp(log_reached) + DOUBT * prior
    mass = np.append((1.0 - never) * when, never)
    return _summary(now, totals, mass, limit, late=now * course.half_step())


def passage_log_sd(
    at: Sequence[float] | FloatArray,
    values: Sequence[float] | FloatArray,
    target: float,
    *,
    mode: Mode,
    noise: float,
    limit: float,
) -> float:
    """Standard deviation of ln of the epochs of a run by the noise of its evaluations alone, by the course of another.

    Where an epoch brings less than the noise, the first evaluation that is good enough is as late as chance will have
    it. The curves of the mean are those that a forecast would weigh, here beside all of a run that has ended; each has
    a first passage from the beginning of a run, and the variances of their logarithms are averaged, each by
    its probability to be reached.

    Args:
        at, values, mode: As of `forecast`, of a run of the same job.
        noise: Standard deviation from one evaluation to the next near the target, above 0.
        limit: Evaluations after it do not count.
    """
    scale = _scale(values, target, mode, annealed=False)
    course, goal = Evaluations.of(at, scale(values)), float(scale(target))
    now = float(course.at[-1])
    sigma = abs(float(scale(target - noise if mode == "max" else target + noise)) - goal)
    if not (0.0 < sigma < math.inf and np.all(np.isfinite(np.diff(course.values)))):
        return 0.0  # no noise beside values of this size
    gap = max(float(course.best[-1] - goal), sigma)
    x, y, counts = course.points(raw=True)
    curves = _Curves([ENDING], NOISY, now, x, np.minimum((y - goal) / gap, OUTLIER), counts)
    means = np.concatenate((BEHIND, RATIOS))
    chances = _prior_of_means(means, now, None, NOISY.hinted)  # that now is the end of the run is no chance
    places, of_each = evaluations_ahead(0.0, course.every(), max(limit, now))
    mass = first_passage(*curves.drawn(means, chances, places, floor=sigma / gap), of_each)
    weight, logs = mass.sum(axis=1), np.log(places)
    if not np.any(weight > 0.0):
        return 0.0
    share = mass / np.maximum(weight, np.finfo(np.float64).tiny)[:, None]
    variance = np.maximum(share @ logs**2 - (share @ logs) ** 2, 0.0)
    return math.sqrt(float(np.average(variance, weights=weight)))


def _passage(
    curves: _Curves,
    course: Evaluations,
    means: tuple[FloatArray, FloatArray],
    totals: tuple[FloatArray, FloatArray],
    limit: float | None,
    *,
    floor: float,
) -> Forecast:
    """When an evaluation reaches the target, by curves of its mean.

    Args:
        means: T / t of the mean with the probability of each, of a run that reaches its target.
        totals: The same of T.
    """
    now = curves.now
    end = float(totals[0][-1]) if limit is None else 1.3 * limit
    at, counts = evaluations_ahead(now, course.every(), end)
    mass = first_passage(*curves.drawn(*means, at, floor=floor), counts).mean(axis=0)
    doubted = np.diff(np.interp(at, totals[0], np.cumsum(totals[1])), prepend=0.0)
    reached = (1.0 - DOUBT) * mass + DOUBT * (1.0 - NEVER) * doubted
    return _summary(now, at, np.append(reached, max(0.0, 1.0 - float(reached.sum()))), limit, single=True)


def _scale(
    values: Sequence[float] | FloatArray, target: float, mode: Mode, *, annealed: bool
) -> Callable[[float | Sequence[float] | FloatArray], FloatArray]:
    """The scale z on which the metric is followed; on it, smaller is better.

    Where everything is positive, ln of a metric that falls, unless the law of a schedule is asked, which is one of the
    loss itself; and where everything is a share, ln of what one that grows lacks to 1: from 0.98 to 0.99 is as far as
    from 0.8 to 0.9, as half of the errors are left.
    """
    known = np.append(np.asarray(values, dtype=np.float64), target)
    known = known[np.isfinite(known)]
    if mode == "min" and not annealed and np.all(known > 0.0):
        return lambda metric: np.log(np.maximum(metric, np.finfo(np.float64).tiny))
    if mode == "max" and np.all((known >= 0.0) & (known < 1.0)):
        return lambda metric: np.log1p(-np.minimum(metric, 1.0 - 1e-9))
    sign = 1.0 if mode == "min" else -1.0
    return lambda metric: sign * np.asarray(metric, dtype=np.float64)


class _Curves(NamedTuple):
    """All curves in question beside the points, which they are weighed by.

    Attributes:
        families: Where the curves are from.
        errors: How far they are from evaluations.
        now: t.
        x, y, counts: The points: s / t, y, and how many evaluations each is averaged over.
    """

    families: list[Family]
    errors: Errors
    now: float
    x: FloatArray
    y: FloatArray
    counts: FloatArray

    def evidence(self, ratios: FloatArray, prior: FloatArray) -> tuple[FloatArray, float]:
        """ln of the probability of each T, if it is reached, and the probability that the target is not reached.

        Args:
            ratios, prior: T / t with the probability of each before the run.
        """
        nodes, bounded = self._log_priors()
        points, least = len(self.y), max(COARSE, self.errors.floor) ** 2 * self.errors.freedom
        when, whether, short = [], [], []
        for reaching, staying in self._fits(ratios):
            when.append(reaching.log_weight(points, self.errors) + nodes[:, None])
            whether.append(reaching.log_weight(points, self.errors, least=least) + nodes[:, None])
            short.append(staying.log_weight(points, self.errors, least=least) + bounded[:, None])
        log_when = logsumexp(np.concatenate(when), axis=0) + np.log(prior)
        log_reached = logsumexp(logsumexp(np.concatenate(whether), axis=0) + np.log(prior * (1.0 - NEVER)))
        log_short = logsumexp(np.array(short)) + math.log(NEVER / len(SHORT))
        return np.asarray(log_when - logsumexp(log_when)), float(
            np.exp(log_short - np.logaddexp(log_reached, log_short))
        )

    def drawn(
        self, ratios: FloatArray, prior: FloatArray, at: FloatArray, *, floor: float
    ) -> tuple[FloatArray, FloatArray]:
        """`CURVES` equally probable curves: y at places to come, `(n, j)`, and the noise of an evaluation, `(n,)`.

        Args:
            ratios, prior: T / t with the probability of each, of a run that reaches its target.
            at: The places, shape `(j,)`.
            floor: Noise of an evaluation, which the points may correct, in units of y.
        """
        fits, (nodes, bounded) = list(self._fits(ratios)), self._log_priors()
        least = max(self.errors.floor, floor) ** 2 * self.errors.freedom
        reaching = np.array([fit.log_weight(len(self.y), self.errors, least=least) for fit, _ in fits])
        reaching += nodes[:, None] + np.log(prior * (1.0 - NEVER))
        staying = np.array([fit.log_weight(len(self.y), self.errors, least=least) for _, fit in fits])
        staying += bounded[:, None] + math.log(NEVER / len(SHORT))
        # Along T, so that draws at even quantiles are even in it.
        parts = [np.moveaxis(part, 2, 0) for part in (reaching, staying)]
        log_mass = np.concatenate([part.ravel() for part in parts])
        chosen = resampled(np.exp(log_mass - log_mass.max()), CURVES)
        split = chosen < parts[0].size
        target, drift, node = np.unravel_index(chosen[split], parts[0].shape)
        short, of_drift, of_node = np.unravel_index(chosen[~split] - parts[0].size, parts[1].shape)

        def of(name: str, which: int, *index: IntArray) -> FloatArray:
            return np.asarray(np.array([getattr(pair[which], name) for pair in fits])[index])

        above = self._above(at, self.now * ratios)[node, target]
        ahead = np.log(at / self.now) / np.maximum(np.log(ratios[target]), 1e-9)[:, None]
        shared = of("shared", 0, drift, node, target)[:, None] * np.clip(1.0 - ahead, 0.0, 1.0)
        reached = of("slope", 0, drift, node, target)[:, None] * above + shared
        stays = self._staying(at)[of_node]
        stayed = np.array(SHORT)[short][:, None] + of("slope", 1, of_drift, of_node, short)[:, None] * stays
        residuals = np.concatenate(
            (of("residual", 0, drift, node, target), of("residual", 1, of_drift, of_node, short))
        )
        noise = np.sqrt((residuals + least) / (len(self.y) + self.errors.freedom))
        return np.concatenate((reached, stayed)), noise

    def _fits(self, ratios: FloatArray) -> Iterator[tuple[Fit, Fit]]:
        """By drift, the fits of the curves that reach the target, and of those that stay short of it by `SHORT`."""
        seen = self.now * self.x
        above, staying = self._above(seen, self.now * ratios), self._staying(seen)[:, None, :]
        short = self.y - np.array(SHORT)[:, None]
        for drift in self.errors.drifts:
            near = covariance(self.x, self.counts, drift)
            shared = (self.errors.shared * drift) ** 2
            reaching = Fit.of(above, self.y, near, shared * np.abs(np.log(ratios)))
            yield reaching, Fit.of(staying, short, near, np.full(len(SHORT), shared))

    def _above(self, at: FloatArray, totals: FloatArray) -> FloatArray:
        return np.concatenate([family.above(at, totals) for family in self.families])

    def _staying(self, at: FloatArray) -> FloatArray:
        return np.concatenate([family.staying(at) for family in self.families if family.staying is not None])

    def _log_priors(self) -> tuple[FloatArray, FloatArray]:
        """ln of the prior weights of curves that reach the target, and of those that stay short of it."""
        here = np.array([self.now])
        bounded = [
            (family.share, len(family.staying(here)))
            for family in self.families
            if family.staying is not None
        ]
        whole = math.fsum(share for share, _ in bounded)
        staying = np.concatenate(
            [np.full(count, math.log(share / whole / count)) for share, count in bounded]
        )
        return np.concatenate(log_priors(self.families)), staying


def _prior_of_means(ratios: FloatArray, now: float, hint: Hint | None, early: float) -> FloatArray:
    """Probability of each place where the mean is at the target, behind or ahead, shape `(k,)`."""
    density = np.gradient(np.log(ratios)) / np.maximum(ratios, 1.0) ** early
    return _hinted(density, now * ratios, hint)


def _ratios(now: float, hint: Hint | None) -> FloatArray:
    """The r in question, shape `(n,)`: up to `RATIO_MAX`, and on to what a hint may mean."""
    if hint is None:
        return RATIOS
    most = hint.median / now * math.exp(2.0 * MISLED_WIDTH * hint.log_sd)
    if most <= RATIO_MAX:
        return RATIOS
    more = math.ceil(math.log(most / RATIO_MAX) / FAR_STEP)
    return np.concatenate((RATIOS, RATIO_MAX * np.exp(FAR_STEP * np.arange(1.0, more + 1.0))))


def _prior(ratios: FloatArray, totals: FloatArray, hint: Hint | None, early: float) -> FloatArray:
    """Probability of each total, of a run that reaches its target, shape `(n,)`."""
    return _hinted(np.gradient(np.log(ratios)) / ratios**early, totals, hint)


def _hinted(density: FloatArray, totals: FloatArray, hint: Hint | None) -> FloatArray:
    """A density times that of a hint, summing to 1."""
    if hint is not None:
        away = (np.log(totals) - math.log(hint.median)) / hint.log_sd
        wide = MISLED / MISLED_WIDTH * np.exp(-0.5 * (away / MISLED_WIDTH) ** 2)
        density = density * ((1.0 - MISLED) * np.exp(-0.5 * away**2) + wide + 1e-12)
    return np.asarray(density / density.sum())


def _summary(
    now: float,
    totals: FloatArray,
    mass: FloatArray,
    limit: float | None,
    *,
    late: float = 0.0,
    single: bool = False,
) -> Forecast:
    """Quantiles of a distribution over the totals and, last, never.

    Args:
        late: By how much later the target is seen to be reached, in the mean.
        single: Each of `totals` is an evaluation, which has its mass: by it, all of that is reached.
    """
    every = np.cumsum(mass[:-1])
    reached = every if single else every - 0.5 * mass[:-1]

    def quantiles(cumulative: FloatArray) -> FloatArray:
        if single:
            return np.asarray(totals[np.minimum(np.searchsorted(cumulative, QUANTILES), len(totals) - 1)])
        return np.asarray(np.exp(np.interp(QUANTILES, cumulative, np.log(totals + late))))

    of_reaching = quantiles(reached / every[-1])
    if limit is None:
        found, never = of_reaching, float(mass[-1])
    else:
        found = np.where(reached[-1] < QUANTILES, limit, np.minimum(quantiles(reached), limit))
        never = 1.0 - float(np.interp(limit, totals, reached, left=0.0))
    low, total, high = (max(now, float(value)) for value in found)
    log_sd = float(np.log(of_reaching[-1] / of_reaching[0])) / (QUANTILE_Z[2] - QUANTILE_Z[0])
    return Forecast(now, total, low, high, never, log_sd, tuple(totals.tolist()), tuple(reached.tolist()))
