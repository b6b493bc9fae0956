"""A job that is not submitted yet, as a pool would see it: its curve and its work are those of an earlier run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.pools.rented import apart_of
from scavenger.control.pools.standing import PoolStanding
from scavenger.domain.curve import TradeoffCurve
from scavenger.domain.document import report_from_document
from scavenger.domain.pool import RatePoint
from scavenger.scheduler.jobs.forecast import NewJob
from scavenger.scheduler.jobs.seeing import (
    change_s_of,
    even_parts,
    exponent_of,
    rates_of,
    sizes_in,
    sizes_of,
    users_of,
    with_apart,
)
from scavenger.store import Store
from scavenger.store.records import JobRecord

_NORMAL_90 = 1.645
"""Nine of ten normal deviates are within so many standard deviations."""
_RUNS_LOOKED_AT = 50


def as_new_job(
    store: Store, prepared: PreparedJob, pool: PoolStanding, *, user: str, priority: int
) -> tuple[NewJob, str | None]:
    """A job as a new row of a pool, and the id of the run by which it is known; None if there is no such run.

    The unit of its work is all that the job has to do, so its rate is one over its time.
    """
    apart = apart_of(pool.pool, prepared.job, prepared.job_file)
    sizes = sizes_in(pool.pool, replace(sizes_of(prepared.job), apart=apart))
    users = users_of(pool.decision.jobs)
    found = _earlier(store, prepared)
    points, log_sd = ((), 0.0) if found is None else curve_points(found[1])
    most = sizes.most
    if not points:
        claims = pool.decision.seen.claims
        parts = even_parts(pool.pool, np.r_[claims.least, sizes.least], np.r_[claims.most, sizes.most])
        most = int(parts[-1])
    standings = [job.standing for job in pool.decision.jobs]
    exponent = exponent_of([] if one is None else one.curve for one in standings)
    new = NewJob(
        least=sizes.least + sizes.apart,
        asked=min(sizes.asked, most) + sizes.apart,
        most=most + sizes.apart,
        rates=with_apart(rates_of(points, pool.pool.slots, exponent), sizes.apart),
        user=users.index(user) if user in users else len(users),
        priority=priority,
        left=1.0 if points else math.nan,
        left_log_sd=log_sd,
        change_s=change_s_of(standings) or 0.0,
    )
    return new, found[0].id if found is not None and points else None


def _earlier(store: Store, prepared: PreparedJob) -> tuple[JobRecord, TradeoffCurve] | None:
    """The latest run of the same job file, with the same values wherever it ran, whose curve tells times."""
    path, spec = os.path.realpath(prepared.job_file), _without_place(prepared.job.written())
    for one in store.jobs(_RUNS_LOOKED_AT, name=prepared.job.name):
        same = os.path.realpath(one.job_file) == path and _without_place(one.spec) == spec
        if same and (curve := curve_of(store.job(one.id).report)) is not None:
            return one, curve
    return None


def _without_place(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "infra"}


def curve_of(report: dict[str, Any] | None) -> TradeoffCurve | None:
    """The curve of a report, if it has one whose times are absolute."""
    if report is None or report.get("curve") is None:
        return None
    try:
        curve = report_from_document(report).curve
    except ValueError:
        return None
    return None if curve is None or curve.relative_only or not len(curve) else curve


def curve_points(curve: TradeoffCurve) -> tuple[tuple[RatePoint, ...], float]:
    """The rate with each number of workers at the best batch size, in jobs a second; and the log sd of the times."""
    workers = np.asarray(curve.configurations.workers)
    low, high = curve.time_interval_s.low, curve.time_interval_s.high
    points, spreads = [], []
    for count in np.unique(workers).tolist():
        rows = np.flatnonzero(workers == count)
        row = int(rows[np.argmin(curve.time_s[rows])])
        time_s = float(curve.time_s[row])
        if not (math.isfinite(time_s) and time_s > 0.0):
            continue
        points.append(RatePoint(count, 1.0 / time_s, bool(curve.marks.measured[row])))
        if 0.0 < low[row] < high[row] < math.inf:
            spreads.append(math.log(high[row] / low[row]) / (2.0 * _NORMAL_90))
    return tuple(points), float(np.median(spreads)) if spreads else 0.0
