"""Experimental design: the next configuration to profile, which lowers the uncertainty most for its cost.

Doubt is the mean variance of ln τ over the configurations that matter. How far one more measurement lowers it is known
before it is made: to first order in the coefficients the variance does not depend on what will be measured (integrated,
or I-optimal, design; Atkinson, Donev and Tobias, "Optimum Experimental Designs", 2007, §10.6; for a process with a
discrepancy Cohn, "Neural network exploration using optimal experiment design", 1996). The overlap law serves for it
whichever law will predict in the end, since it contains steps that simply add up (φ → 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.domain.curve import BoolArray, FloatArray
from scavenger.models.kriging import Kriging, Places, Scatter, places_of
from scavenger.models.overlap_fit import SCATTER_LOG_SD, fit_overlap, posterior_covariance, prior_of
from scavenger.models.overlap_law import BELIEFS, Beliefs, OverlapLaw
from scavenger.models.parallel import MEASUREMENT_LOG_SD_MIN, extrapolation_variance, joined
from scavenger.models.step_laws import StepTimes

TARGETS_MAX = 200
"""Largest number of target configurations; of more, this many evenly spread ones represent all."""

CHUNK = 4096
"""Number of candidates evaluated at once, which bounds the memory."""

CURVATURE = Scatter(sync=4.5, smooth_compute=4.0, smooth_sync=5.0)
"""A design that takes the law of computing for straight never measures where it would bend. Hence a smooth
deviation that is larger than usual, as large as what is seen at worst: 16 % between two batch sizes. What each number
of workers has for itself is left out: no other point tells of it, so points would be spent on the numbers alone."""

MACHINES_AT = (2, 4)
"""After so many points of a search that counts costs the next one is on a second, and on a third number of machines;
where all workers share one, on another number of workers. Two numbers do not show whether one of them is odd."""

REACH_LOG_SD = 0.2
"""What a design counts for each factor e beyond the profiled K or x: more than such predictions err by in the mean, for
otherwise many workers would not be worth their price, and the search would never see where they stop to pay."""

GAIN_MIN = 0.01
"""A measurement that lowers the mean variance by less than this share of it is not worth its time."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A configuration that may be profiled; `contention` as in `StepTimes`."""

    workers: int
    global_batch_size: int
    workers_per_node: int = 1
    contention: float = 1.0

    def __post_init__(self) -> None:
        if not (1 <= self.workers <= self.global_batch_size and self.workers_per_node >= 1):
            raise ValueError(f"a candidate needs 1 <= K <= B and a worker per node: {self}")
        if not 1.0 <= self.contention < float("inf"):
            raise ValueError(f"contention is a number from 1 on: {self}")


@dataclass(frozen=True, slots=True)
class ProfilingCost:
    """What one measurement costs, in worker-seconds: K steps τ + max(K - ready, 0) setup.

    Attributes:
        steps: Steps measured in each configuration, positive.
        setup_s: Time until a worker that has to be started can join.
        ready: Number of workers that are already running.
    """

    steps: int
    setup_s: float
    ready: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.ready < 0 or not 0.0 <= self.setup_s < float("inf"):
            raise ValueError(f"profiling costs steps and time: {self}")


def propose(
    candidates: Sequence[Candidate],
    measured: Sequence[StepTimes],
    *,
    target: Sequence[Candidate] | None = None,
    cost: ProfilingCost | None = None,
    beliefs: Beliefs = BELIEFS,
) -> int | None:
    """The index of the candidate to profile next; None if no useful one is left.

    Deterministic: of equally useful ones the first in the order of (K, B). With nothing measured it is the one
    with the fewest workers and the smallest batch, which any machine can run and which costs least. With costs, the
    largest batch on as many workers follows, and after `MACHINES_AT` points a number of machines that is new.

    Args:
        candidates: Configurations that may be profiled; those already measured are skipped.
        measured: Measurements so far; bad ones are dropped.
        target: Configurations whose uncertainty is to be lowered; all candidates if None.
        cost: Cost of a measurement; None if all cost the same.
        beliefs: Prior of the law.
    """
    done = {(t.workers, t.global_batch_size, t.workers_per_node) for t in measured if t.usable()}
    open_ = [i for i, c in enumerate(candidates) if _key(c) not in done]
    open_.sort(key=lambda i: (candidates[i], i))
    if not open_:
        return None
    if not done:
        return open_[0]
    at = places([candidates[i] for i in open_])
    aim = candidates if target is None else target
    log_time, gain, now = _gain(at, aim, candidates, measured, beliefs, reach=cost is not None)
    useful = gain >= GAIN_MIN * now
    if not useful.any():
        return None
    worth = gain
    if cost is not None:
        started = np.maximum(at.workers - cost.ready, 0.0)
        worth = gain / (at.workers * cost.steps * np.exp(log_time) + started * cost.setup_s)
        first = useful & _first(at, places(aim), places_of(joined([t for t in measured if t.usable()])))
        worth = np.where(first, worth, 0.0) if first.any() else worth
    # Rounding must not decide between equal gains.
    return open_[int(np.argmax(worth >= worth.max() * (1.0 - 1e-9)))]


def _first(at: Places, aim: Places, seen: Places) -> BoolArray:
    """Where to measure before gain for cost decides, shape `(n,)`; nowhere if it may decide already.

    Another point where workers run already costs so little beside the start of one that the least gain would win, and
    every point would lie on one worker. Hence the ends of the batches there, and then other numbers of machines.
    """
    fewest = at.workers == min(seen.workers.min(), at.workers.min())
    if len(seen.workers) == 1 and fewest.any():
        return np.asarray(fewest & (at.work == at.work[fewest].max()))
    wanted = sum(len(seen.workers) >= count for count in MACHINES_AT) + 1
    for of_workers in (_machines, _workers):
        known = np.unique(of_workers(seen))
        other = np.isin(of_workers(at), np.setdiff1d(of_workers(aim), known))
        if len(known) < wanted and other.any():
            return np.asarray(other)
    return np.zeros(len(at.workers), dtype=np.bool_)


def _machines(at: Places) -> FloatArray:
    return np.asarray(np.ceil(at.workers / np.minimum(at.workers_per_node, at.workers)))


def _workers(at: Places) -> FloatArray:
    return at.workers


def expected_log_sd(
    candidates: Sequence[Candidate],
    measured: Sequence[StepTimes],
    *,
    target: Sequence[Candidate] | None = None,
) -> FloatArray:
    """Root mean square deviation of ln τ over the target once each candidate has been measured too, shape `(n,)`.

    Raises:
        ValueError: If there is no candidate, or an empty target.
    """
    aim = candidates if target is None else target
    if not candidates or not aim:
        raise ValueError("expected_log_sd needs candidates, and something to predict")
    _, gain, now = _gain(places(candidates), aim, candidates, measured, BELIEFS, reach=False)
    return np.sqrt(np.maximum(now - gain, 0.0))


def places(candidates: Sequence[Candidate]) -> Places:
    """Convert candidates to the input of the laws."""
    rows = [
        (c.workers, -(-c.global_batch_size // c.workers) * c.contention, c.contention, c.workers_per_node)
        for c in candidates
    ]
    return Places(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def _key(candidate: Candidate) -> tuple[int, int, int]:
    return (candidate.workers, candidate.global_batch_size, candidate.workers_per_node)


def _thinned(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    if len(candidates) <= TARGETS_MAX:
        return candidates
    ordered = sorted(candidates)
    return [ordered[i * len(ordered) // TARGETS_MAX] for i in range(TARGETS_MAX)]


def _gain(
    at: Places,
    aim: Sequence[Candidate],
    candidates: Sequence[Candidate],
    measured: Sequence[StepTimes],
    beliefs: Beliefs,
    *,
    reach: bool,
) -> tuple[FloatArray, FloatArray, float]:
    """ln τ expected at each place, how far measuring there lowers the mean variance over the aim, and that now.

    The lowering is mean_i cov(i, j)² / (var(j) + measurement error²).

    Args:
        reach: Count also what lies beyond the profiled range. Where every point costs the same, the covariances
            alone lead far enough; where many workers cost more, nothing else would ever reach the most.
    """
    points = joined([t for t in measured if t.usable()])
    prior = prior_of(points, places(candidates), beliefs)
    law = fit_overlap(points, prior=prior) if points else OverlapLaw.from_unknowns(prior.mean)
    kriging = Kriging(law, points, SCATTER_LOG_SD, CURVATURE)
    covariance = posterior_covariance(kriging, prior.precision)
    wanted = places(_thinned(aim))
    log_time, variance = kriging.predict(at, covariance)
    now = kriging.predict(wanted, covariance)[1]
    gain = np.empty(len(log_time))
    for start in range(0, len(log_time), CHUNK):
        part = at.part(start, start + CHUNK)
        shared = kriging.covariance_between(part, wanted, covariance) ** 2
        gain[start : start + CHUNK] = shared.mean(axis=1)
    gain /= variance + MEASUREMENT_LOG_SD_MIN**2
    if points and reach:
        beyond, nearer = _extrapolation(places_of(points), at, wanted)
        return log_time, gain + nearer, float((now + beyond).mean())
    return log_time, gain, float(now.mean())


def _extrapolation(seen: Places, at: Places, wanted: Places) -> tuple[FloatArray, FloatArray]:
    """What lying beyond the profiled range adds at each place wanted; by how much each new point lowers its mean."""
    workers = float(seen.workers.min()), float(seen.workers.max())
    work = float(seen.work.min()), float(seen.work.max())
    beyond = extrapolation_variance(wanted, workers, work, REACH_LOG_SD)
    nearer = np.empty(len(at.work))
    for start in range(0, len(nearer), CHUNK):
        count, load = (column[start : start + CHUNK, None] for column in (at.workers, at.work))
        left = extrapolation_variance(
            wanted,
            (np.minimum(workers[0], count), np.maximum(workers[1], count)),
            (np.minimum(work[0], load), np.maximum(work[1], load)),
            REACH_LOG_SD,
        )
        nearer[start : start + CHUNK] = (beyond - left).mean(axis=1)
    return beyond, nearer
