"""When jobs of a pool begin and end, and what they take, under the queue as it is: virtual time from a standing pool.

What a job has still to do is known with an error, so each of many runs draws it anew. Nothing is assumed of jobs whose
work left is unknown: some runs begin without them, as if they ended now, in the others they never end. What does not
depend on them is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.simulation import Run, Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, PoolSeen, Shares, Standing

INTERVAL = 0.9
"""Share of the runs that a range has in it."""
HORIZON_S = 30 * 86400.0
"""What comes later is told as that."""
_RUNS = 60
_JOBS_SIMULATED = 6000
"""In all runs together: about three seconds of a processor."""
_OF_A_DEADLINE = 3
"""A job whose deadline is kept takes as long as so many others besides."""
_RUNS_MIN = 20
_DECISIONS = 100
_DECISIONS_OF_A_JOB = 10
"""So many are taken in a run, and for each job: jobs that wait for a long time take turns without end."""


@dataclass(frozen=True, slots=True)
class Range:
    """A number of each job, over the runs.

    Attributes:
        middle: The median; NaN if it is unknown, infinite if it comes later than the horizon, or hangs on jobs whose
            work left is unknown.
        low, high: Nine runs of ten are between them.
    """

    middle: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class Forecast:
    """What comes of each job, if no other job is submitted.

    Attributes:
        start_s: From now to its first slot; 0 if it has some.
        end_s: From now to its end.
        slot_s: Slot-seconds from now on.
        usd: Dollars from now on; NaN where slots have no price.
    """

    start_s: Range
    end_s: Range
    slot_s: Range
    usd: Range


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is not there yet; attributes are those of `Claims` and `Standing`.

    Attributes:
        rates: Its curve: work a second with 0, 1, 2, ... slots.
        others: The same on nodes of the second type, the third and so on.
        deadline_s: From now.
    """

    least: int
    asked: int
    most: int
    rates: FloatArray
    user: int = 0
    priority: int = 0
    left: float = np.nan
    left_log_sd: float = 0.0
    change_s: float = 0.0
    deadline_s: float = inf
    worker_s: float = 0.0
    others: tuple[FloatArray, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What one more job would bring.

    Attributes:
        forecast: With the job, which is the last row.
        later_s: By how much later each of the others would end; negative for sooner, NaN where it is unknown.
    """

    forecast: Forecast
    later_s: Range


def forecast(
    seen: PoolSeen,
    rules: Rules,
    *,
    usd_per_slot_s: FloatArray | None = None,
    horizon_s: float = HORIZON_S,
    runs: int | None = None,
    seed: int = 0,
) -> Forecast:
    """Say when each job begins and ends, and what it takes.

    Args:
        usd_per_slot_s: Price of each node's slots.
        runs: How many; None for as many as are worth their time.
        seed: Of what is drawn. A job's draws are those of its row.
    """
    return _told(_Runs(seen, rules, usd_per_slot_s, horizon_s, seed, runs))


def what_if(
    seen: PoolSeen,
    rules: Rules,
    job: NewJob,
    *,
    usd_per_slot_s: FloatArray | None = None,
    horizon_s: float = HORIZON_S,
    seed: int = 0,
) -> WhatIf:
    """Say what comes if one more job is submitted now, and whom it delays: run by run, with the same draws."""
    more = with_job(seen, job)
    after = _Runs(more, rules, usd_per_slot_s, horizon_s, seed)
    before = _Runs(seen, rules, usd_per_slot_s, horizon_s, seed, runs=len(after.stay))
    others = slice(0, seen.jobs)
    with np.errstate(invalid="ignore"):
        later_s = after.column(_end_s)[0][:, others] - before.column(_end_s)[0]
    later_s[:, np.isnan(seen.standing.left)] = np.nan
    return WhatIf(_told(after), _range(later_s, later_s))


def with_job(seen: PoolSeen, job: NewJob) -> PoolSeen:
    """The pool with one more job, which was submitted last."""
    rates = seen.curves.rates
    columns = max(rates.shape[1], len(job.rates), 2)
    own = (job.rates, *(job.others or (job.rates for _ in seen.curves.others)))
    tables = [
        np.array([_longer(row, columns) for row in (*curves.rates, new)])
        for curves, new in zip(seen.curves.by_type, own, strict=True)
    ]
    claims, standing = seen.claims, seen.standing
    submitted_s = float(claims.submitted_s.max(initial=0.0)) + 1.0
    new = {**{one.name: getattr(job, one.name) for one in fields(job)}, "curve": len(rates)}
    claim = {**new, "submitted_s": submitted_s, "idle_most": job.most}
    return replace(
        seen,
        claims=Claims(**{name: _appended(getattr(claims, name), claim[name]) for name in _names(claims)}),
        standing=replace(
            standing,
            **{name: _appended(getattr(standing, name), new.get(name, 0)) for name in _names(standing)},
        ),
        curves=Curves(tables[0], tuple(tables[1:])),
    )


def _names(value: Claims | Standing) -> list[str]:
    return [one.name for one in fields(value)]


def _longer(rates: FloatArray, columns: int) -> FloatArray:
    """A curve with more slots: with those, its rate is that at its end."""
    return np.concatenate([rates, np.full(columns - len(rates), rates[-1])])


def _appended(column: NDArray[Any], value: float) -> NDArray[Any]:
    return np.append(column, np.asarray(value).astype(column.dtype))


class _Runs:
    """The runs of one pool: `stay` with jobs whose work left is unknown, `gone` without them."""

    def __init__(
        self,
        seen: PoolSeen,
        rules: Rules,
        usd_per_slot_s: FloatArray | None,
        horizon_s: float,
        seed: int,
        runs: int | None = None,
    ) -> None:
        self._seen, self._rules, self._price, self._horizon_s = seen, rules, usd_per_slot_s, horizon_s
        self.unknown = np.isnan(seen.standing.left)
        self.has_prices = usd_per_slot_s is not None
        known = np.flatnonzero(~self.unknown)
        sd = np.where(self.unknown, 0.0, seen.standing.left_log_sd)
        if runs is None:
            jobs = max(1, seen.jobs + _OF_A_DEADLINE * int(np.isfinite(seen.claims.deadline_s).sum()))
            runs = int(np.clip(_JOBS_SIMULATED // jobs, _RUNS_MIN, _RUNS)) if sd.any() else 1
        drawn = _normal(runs, seen.jobs, seed)
        left = seen.standing.left * np.exp(sd * drawn)
        left[:, self.unknown] = inf
        self.stay = [self._run(seen, work) for work in left]
        self._known: IntArray = known
        others = _rows(seen, known)
        self.gone = [self._run(others, work[known]) for work in left] if self.unknown.any() else []

    def _run(self, seen: PoolSeen, work: FloatArray) -> Run:
        claims, standing = seen.claims, seen.standing
        now = float(claims.submitted_s.max(initial=0.0))
        seen = replace(seen, claims=replace(claims, submitted_s=claims.submitted_s - now))
        return simulate(
            Workload(
                claims=seen.claims,
                curves=seen.curves,
                work=np.maximum(work, np.finfo(float).tiny),
                told=standing.left,
                told_log_sd=standing.left_log_sd,
                change_s=standing.change_s,
                worker_s=standing.worker_s,
            ),
            seen.nodes,
            self._rules,
            standing=seen,
            until_s=self._horizon_s,
            decisions_max=_DECISIONS + _DECISIONS_OF_A_JOB * seen.jobs,
            usd_per_slot_s=self._price,
        )

    def column(self, read: Callable[[Run, PoolSeen], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Values of all runs with the unknown jobs, and without them, shape `(runs, jobs)` both."""
        stay = np.array([read(run, self._seen) for run in self.stay])
        if not self.gone:
            return stay, stay
        gone = np.full_like(stay, np.nan)
        others = _rows(self._seen, self._known)
        gone[:, self._known] = [read(run, others) for run in self.gone]
        return stay, gone


def _normal(runs: int, jobs: int, seed: int) -> FloatArray:
    """Normal deviates of each run and job: of one job, one from each of so many equal parts of the distribution."""
    if runs == 1:
        return np.zeros((1, jobs))
    parts = ndtri((np.arange(runs) + 0.5) / runs)
    columns = [np.random.default_rng([seed, job]).permutation(parts) for job in range(jobs)]
    return np.array(columns).T.reshape(runs, jobs)


def _rows(seen: PoolSeen, rows: IntArray) -> PoolSeen:
    """The pool with so many of its jobs alone."""
    if len(rows) == seen.jobs:
        return seen
    place = np.full(seen.jobs, -1)
    place[rows] = np.arange(len(rows))
    shares, stays = seen.shares, place[seen.shares.job] >= 0
    return replace(
        seen,
        claims=Claims(**{name: getattr(seen.claims, name)[rows] for name in _names(seen.claims)}),
        standing=replace(
            seen.standing, **{name: getattr(seen.standing, name)[rows] for name in _names(seen.standing)}
        ),
        shares=Shares(place[shares.job[stays]], shares.node[stays], shares.slots[stays]),
    )


def _end_s(run: Run, seen: PoolSeen) -> FloatArray:
    claims = seen.claims
    end_s: FloatArray = run.completion_s + (claims.submitted_s - claims.submitted_s.max(initial=0.0))
    return end_s


def _told(runs: _Runs) -> Forecast:
    end_s = runs.column(_end_s)

    def until_end(read: Callable[[Run, PoolSeen], FloatArray]) -> Range:
        """Of what a job takes until its end: unknown with it."""
        stay, gone = runs.column(read)
        stay, gone = (
            np.where(np.isinf(end), inf, part) for part, end in zip((stay, gone), end_s, strict=True)
        )
        return _range(stay, gone, unknown=runs.unknown)

    usd = until_end(lambda run, seen: run.usd)
    nothing = np.full(len(runs.unknown), np.nan)
    return Forecast(
        start_s=_range(*runs.column(lambda run, seen: run.began_s)),
        end_s=_range(*end_s, unknown=runs.unknown),
        slot_s=until_end(lambda run, seen: run.slot_s),
        usd=usd if runs.has_prices else Range(nothing, nothing, nothing),
    )


def _range(stay: FloatArray, gone: FloatArray, unknown: FloatArray | None = None) -> Range:
    """Median of the runs in which nothing unknown ends, and the interval of all."""
    aside = 0.5 * (1.0 - INTERVAL)

    def at(part: float, values: FloatArray) -> FloatArray:
        if not values.shape[1]:
            return np.zeros(0)
        found: FloatArray = np.quantile(values, part, axis=0, method="inverted_cdf")
        return found

    low = np.fmin(at(aside, stay), at(aside, gone))
    middle, high = at(0.5, stay), np.fmax(at(1.0 - aside, stay), at(1.0 - aside, gone))
    if unknown is not None:
        low, middle, high = (np.where(unknown, np.nan, column) for column in (low, middle, high))
    return Range(middle, low, high)
