"""When a run will reach its target, from the course of its metric so far.

==========  ====================================================  ==============================================
s, t        epochs (or steps) at an evaluation; at the last one
z           the metric; ln of it, or of what it lacks to 1        `_scaled`
y           best z so far less the target's, in units of the      so y(t) = 1, and the target is 0
            gap that is left
T           when the target is reached; r = T / t > 1
φ           shape of a curve, one of many nodes                   `curve_shapes`
==========  ====================================================  ==============================================

Every pair of a shape and a T is one curve, `y(s) = c (φ(s) - φ(T))`, with the slope c >= 0 that fits best. It is
weighed by how well it passes through the evaluations, whose errors are those of

    evaluations that are correlated with their neighbours       AR(1), `curve_fits`
    + what no shape explains, a Brownian motion in ln s that     variance η² ln(t / s) times that of evaluations;
      is 0 now: the older an evaluation, the less it tells       every η of `DRIFTS`, by evidence

with one unknown scale, so that the weight of a curve falls with a power of its residual, as Student's t does: a few
evaluations far off weigh little. Curves whose asymptote falls short of the target stand for a run that never reaches
it. Before any evaluation every ln T is equally probable, or as a hint says; that a run is looked at now and not at
another time makes T near t the more probable, by 1 / r [1]_.

All curves of a shape need five inner products, so that an update takes a few milliseconds.

Where the noise of an evaluation is known (of an accuracy, from the number of samples), y are the evaluations
themselves, in units of their noise if that is more than the gap, T is where their mean is at the target, which may be
behind, and the run ends at the first evaluation that is good enough, see `first_passage`.

References:
    .. [1] Gott, "Implications of the Copernican principle for our future prospects", Nature 363, 1993.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtri

from scavenger.domain.curve import FloatArray
from scavenger.models.curve_fits import FLOOR, FREEDOM, TEMPER, Products, covariance
from scavenger.models.curve_shapes import ANNEALED, SHAPES, EarlierRun, Nodes, Schedule, join_nodes
from scavenger.models.first_passage import evaluations_ahead, first_passage, resampled

__all__ = ["EVALUATIONS_MIN", "Forecast", "Hint", "forecast", "value_by_shapes"]

EVALUATIONS_MIN = 2
"""Fewest evaluations that a forecast can be made from; from so few it is mostly the prior."""

RECENT = 0.35
"""Only evaluations since this share of the run are fitted: what came before tells of warming up, not of the end."""

POINTS_MAX = 16
"""Evaluations are averaged to so many points, as evenly spaced in s as in ln s."""

DRIFTS = (0.3, 1.0, 3.0, 10.0)

DOUBT = 0.03
"""Probability that the course so far tells nothing."""

NEVER = 0.1
"""Prior probability of a run that stays short of its target."""

SHORT = (0.1, 0.3, 1.0)
"""How far short of the target the asymptotes of such runs lie, in units of the gap."""

SCHEDULED = 4.0
"""How much more probable the law of a known schedule is than the shapes that know none."""

OUTLIER = 20.0
"""Evaluations further from the target than so many gaps count as if they were there."""

RATIO_MAX, FAR_STEP = 30.0, 0.15
"""Largest T / t without a hint, and the steps of ln T beyond, where a hint lies there."""

MISLED, MISLED_WIDTH = 0.8, 2.0
"""Probability that a hint is worth less than it claims, and by what its deviation is larger then: a hint 87 % too
high still leads to 48 % at half the way with 0.5."""

RATIOS = np.exp(np.concatenate(([0.002, 0.005, 0.01], np.geomspace(0.02, math.log(RATIO_MAX), 60))))
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
    schedule: Schedule | None = None,
    earlier: Sequence[EarlierRun] = (),
    noise: float = 0.0,
) -> Forecast:
    """Forecast when the best value so far reaches the target.

    Args:
        at: Epochs or steps of the evaluations, positive and increasing, shape `(n,)`.
        values: The metric there, shape `(n,)`; evaluations that are not finite are left out.
        mode: Whether the metric is to become small or large.
        limit: Where the run ends if it has not reached the target.
        schedule: Learning rates of the whole run, over the unit of `at`; None if unknown.
        earlier: The same metric in finished runs of similar jobs.
        noise: Standard deviation of an evaluation near the target; 0 if unknown.

    Raises:
        ValueError: If fewer than `EVALUATIONS_MIN` values are finite, or one has reached the target.
    """
    scale = _scale(values, target, mode, annealed=schedule is not None)
    course, goal = _Course.of(at, scale(values)), float(scale(target))
    if course.best[-1] <= goal:
        raise ValueError("the target has been reached")
    now, gap = float(course.at[-1]), float(course.best[-1] - goal)
    sigma = SAME_SAMPLES * abs(float(scale(target - noise if mode == "max" else target + noise)) - goal)
    if noise > 0.0:
        gap = max(gap, sigma)
    x, y, counts = course.points(raw=noise > 0.0)
    y = np.minimum((y - goal) / gap, OUTLIER)
    ratios = _ratios(now, hint)
    totals = now * (ratios + course.half_step())
    if noise > 0.0:
        ratios = np.concatenate((BEHIND, ratios))
    families = [(1.0, SHAPES.nodes(x, ratios))]
    if schedule is not None:
        families.append((SCHEDULED, ANNEALED.nodes(schedule, x * now, ratios * now)))
    scaled = (EarlierRun(run.at, scale(run.values)) for run in earlier)
    families.extend((1.0 / len(earlier), run.nodes(x * now, ratios * now)) for run in scaled)
    nodes = join_nodes(families)
    if noise > 0.0:
        curves = _Curves.of(
            nodes, ratios, (x, y, counts), _prior_of_means(ratios, now, hint), floor=sigma / gap
        )
        return _passage(curves, course, totals, _prior(ratios[len(BEHIND) :], totals, hint), limit)
    log_likelihood, log_short = _evidence(nodes, x, y, counts)
    prior = _prior(ratios, totals, hint)
    log_mass = np.append(log_likelihood + np.log(prior * (1.0 - NEVER)), log_short + math.log(NEVER))
    mass = np.exp(log_mass - logsumexp(log_mass))
    mass = (1.0 - DOUBT) * mass + DOUBT * np.append(prior * (1.0 - NEVER), NEVER)
    return _summary(now, totals, mass, limit)


def _passage(
    curves: _Curves, course: _Course, totals: FloatArray, prior: FloatArray, limit: float | None
) -> Forecast:
    """When an evaluation reaches the target, by curves of its mean.

    Args:
        prior: Probability of each of `totals`, of a run that reaches its target.
    """
    now = float(course.at[-1])
    end = float(totals[-1]) if limit is None else 1.3 * limit
    at, counts = evaluations_ahead(now, course.every(), end)
    mass = first_passage(*curves.ahead(at / now), counts)
    doubted = np.diff(np.interp(at, totals, np.cumsum(prior)), prepend=0.0)
    reached = (1.0 - DOUBT) * mass + DOUBT * (1.0 - NEVER) * doubted
    return _summary(now, at, np.append(reached, max(0.0, 1.0 - float(reached.sum()))), limit)


def _evidence(nodes: Nodes, x: FloatArray, y: FloatArray, counts: FloatArray) -> tuple[FloatArray, float]:
    """ln of how well the points are explained, by where the target is reached, and by curves that fall short of it."""
    weights, short = [], []
    bounded = nodes.bounded
    for drift in DRIFTS:
        products = Products.of(nodes.seen, y, covariance(x, counts, drift))
        weights.append(
            products.log_weight(products.fitted(nodes.ahead, np.zeros(1))[0]) + nodes.log_prior[:, None]
        )
        asymptotes, _ = products.fitted(np.zeros((len(nodes.seen), len(SHORT))), np.array(SHORT))
        short.append(products.log_weight(asymptotes[bounded]) + nodes.log_prior[bounded][:, None])
    log_short = float(logsumexp(np.concatenate(short))) - math.log(len(SHORT))
    return np.asarray(logsumexp(np.concatenate(weights), axis=0)), log_short


def value_by_shapes(
    at: Sequence[float] | FloatArray,
    values: Sequence[float] | FloatArray,
    end: float,
    *,
    mode: Mode,
    schedule: Schedule | None = None,
) -> float:
    """The best value that the run will have reached at its end, whatever its target; the median over curves.

    With a schedule this is the forecast to use; without, `final_value.forecast_value` errs less.

    Args:
        at, values, mode, schedule: As in `forecast`.
        end: When the run ends, after the last evaluation.

    Raises:
        ValueError: If fewer than `EVALUATIONS_MIN` values are finite.
    """
    course = _Course.of(at, values if mode == "min" else -np.asarray(values, dtype=np.float64))
    now = float(course.at[-1])
    x, best, counts = course.points()
    fallen = float(best[0] - best[-1])
    if fallen <= 0.0:
        return float(course.best[-1]) if mode == "min" else -float(course.best[-1])
    y = (best - best[-1]) / fallen
    if schedule is None:
        shapes, log_prior = SHAPES.values(x), SHAPES.log_prior
        ahead = SHAPES.values(np.array([end / now]))[:, 0]
    else:
        shapes, log_prior = ANNEALED.values(schedule, x * now), ANNEALED.log_prior
        ahead = ANNEALED.values(schedule, np.array([end]))[:, 0]
    log_weights, predicted = [], []
    for drift in (DRIFTS[0] / 10.0, *DRIFTS):
        products = Products.of(shapes, y, covariance(x, counts, drift))
        residual, value = products.free(ahead)
        log_weights.append(products.log_weight(residual, floor=1e-9) + log_prior)
        predicted.append(value)
    log_weight, value = np.concatenate(log_weights), np.concatenate(predicted)
    order = np.argsort(value)
    share = np.cumsum(np.exp(log_weight - logsumexp(log_weight))[order])
    middle = float(best[-1] + fallen * value[order][np.searchsorted(share, 0.5)])
    reached = min(middle, float(course.best[-1]))
    return reached if mode == "min" else -reached


class _Course(NamedTuple):
    """Evaluations with a finite value, the best value so far, and each one's own; smaller ones are better."""

    at: FloatArray
    best: FloatArray
    values: FloatArray

    @classmethod
    def of(cls, at: Sequence[float] | FloatArray, values: Sequence[float] | FloatArray) -> _Course:
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
    """Equally probable curves of the mean of a noisy series: `y(r) = offset + c (φ(r) - φ(T))`.

    Attributes:
        ratios: Places r of `shapes`, shape `(k,)`.
        shapes: φ of each curve, shape `(n, k)`.
        slope, reached, offset: c, φ(T), and how far short of the target it stays, shape `(n,)` each.
        noise: Standard deviation of an evaluation, shape `(n,)`.
    """

    ratios: FloatArray
    shapes: FloatArray
    slope: FloatArray
    reached: FloatArray
    offset: FloatArray
    noise: FloatArray

    @classmethod
    def of(
        cls,
        nodes: Nodes,
        ratios: FloatArray,
        points: tuple[FloatArray, FloatArray, FloatArray],
        prior: FloatArray,
        *,
        floor: float,
    ) -> _Curves:
        """Draw curves by how well they explain the points.

        Args:
            points: x, y and how many evaluations each is averaged over.
            prior: Of each T, shape `(k,)`; the rest to 1 is that of curves that stay short.
            floor: Noise of an evaluation, which the points may correct, in units of y.
        """
        x, y, counts = points
        never = np.zeros((len(nodes.seen), len(SHORT)))
        targets = np.concatenate((nodes.ahead, never), axis=1)
        offsets = np.concatenate((np.zeros(len(prior)), SHORT))
        stays = np.where(nodes.bounded, math.log(NEVER / len(SHORT)), -np.inf)[:, None] + never
        log_prior = np.concatenate(
            (np.log(prior * (1.0 - NEVER)) + np.zeros_like(nodes.ahead), stays), axis=1
        )
        log_weights, slopes, variances = [], [], []
        least = max(FLOOR, floor) ** 2 * FREEDOM
        for drift in DRIFTS:
            products = Products.of(nodes.seen, y, covariance(x, counts, drift))
            residual, slope = products.fitted(targets, offsets)
            log_weight = products.log_weight(residual, floor=least)
            log_weights.append(log_weight + nodes.log_prior[:, None] + log_prior)
            slopes.append(slope)
            variances.append((residual + least) / (TEMPER * len(y) + FREEDOM))
        log_weight = np.array(log_weights)
        mass = np.exp(log_weight - log_weight.max())
        # Along T, so that draws at even quantiles are even in it.
        order = np.moveaxis(mass, 2, 0)
        chosen = resampled(order.ravel(), CURVES)
        of_target, of_drift, of_shape = np.unravel_index(chosen, order.shape)
        at = (of_drift, of_shape, of_target)
        return cls(
            ratios,
            nodes.ahead[of_shape],
            np.array(slopes)[at],
            targets[of_shape, of_target],
            offsets[of_target],
            np.sqrt(np.array(variances)[at]),
        )

    def ahead(self, ratios: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means at places to come, shape `(n, j)`, and the noise of an evaluation, shape `(n,)`."""
        places = np.interp(np.log(ratios), np.log(self.ratios), np.arange(len(self.ratios)))
        before = np.minimum(places.astype(np.int64), len(self.ratios) - 2)
        share = places - before
        shapes = self.shapes[:, before] * (1.0 - share) + self.shapes[:, before + 1] * share
        return self.offset[:, None] + self.slope[:, None] * (shapes - self.reached[:, None]), self.noise


def _prior_of_means(ratios: FloatArray, now: float, hint: Hint | None) -> FloatArray:
    """Probability of each place where the mean is at the target, behind or ahead, shape `(k,)`."""
    density = np.gradient(np.log(ratios)) / np.maximum(ratios, 1.0)
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


def _prior(ratios: FloatArray, totals: FloatArray, hint: Hint | None) -> FloatArray:
    """Probability of each total, of a run that reaches its target, shape `(n,)`."""
    return _hinted(np.gradient(np.log(ratios)) / ratios, totals, hint)


def _hinted(density: FloatArray, totals: FloatArray, hint: Hint | None) -> FloatArray:
    """A density times that of a hint, summing to 1."""
    if hint is not None:
        away = (np.log(totals) - math.log(hint.median)) / hint.log_sd
        wide = MISLED / MISLED_WIDTH * np.exp(-0.5 * (away / MISLED_WIDTH) ** 2)
        density = density * ((1.0 - MISLED) * np.exp(-0.5 * away**2) + wide + 1e-12)
    return np.asarray(density / density.sum())


def _summary(now: float, totals: FloatArray, mass: FloatArray, limit: float | None) -> Forecast:
    """Quantiles of a distribution over the totals and, last, never."""
    reached = np.cumsum(mass[:-1]) - 0.5 * mass[:-1]
    if limit is None:
        quantiles = _quantiles(reached / mass[:-1].sum(), totals)
        never = float(mass[-1])
    else:
        quantiles = np.where(reached[-1] < QUANTILES, limit, np.minimum(_quantiles(reached, totals), limit))
        never = 1.0 - float(np.interp(limit, totals, reached, left=0.0))
    low, total, high = (max(now, float(value)) for value in quantiles)
    least, _, most = _quantiles(reached / mass[:-1].sum(), totals)
    log_sd = float(np.log(most / least)) / (QUANTILE_Z[2] - QUANTILE_Z[0])
    return Forecast(now, total, low, high, never, log_sd, tuple(totals.tolist()), tuple(reached.tolist()))


def _quantiles(cumulative: FloatArray, totals: FloatArray) -> FloatArray:
    return np.asarray(np.exp(np.interp(QUANTILES, cumulative, np.log(totals))))
