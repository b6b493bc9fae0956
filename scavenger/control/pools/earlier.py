"""What earlier runs of a job tell of it: its curve, in jobs a second, so that all of its work is 1."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from scavenger.domain.curve import TradeoffCurve
from scavenger.domain.document import report_from_document
from scavenger.domain.pool import JobStanding, RatePoint, WorkLeft
from scavenger.domain.submission import NewSubmission
from scavenger.store import Store
from scavenger.store.records import JobRecord

_NORMAL_90 = 1.645
"""Nine of ten normal deviates are within so many standard deviations."""
_RUNS_LOOKED_AT = 50


def earlier_run(
    store: Store, name: str, job_file: str, spec: Mapping[str, Any]
) -> tuple[JobRecord, TradeoffCurve] | None:
    """The latest run of the same job file whose curve tells times, with the same values but for place and limits.

    Args:
        name, spec: Of the job, as in `NewSubmission`.
    """
    for one in store.jobs(_RUNS_LOOKED_AT, name=name):
        if not _same_file(one.job_file, job_file):
            continue
        asked = store.submission(one.id)  # a job of a pool is on record with the share that it was begun with
        ran = one.spec if asked is None else asked.job.spec
        if _work_of(ran) == _work_of(spec) and (curve := curve_of(store.job(one.id).report)) is not None:
            return one, curve
    return None


def is_same(one: NewSubmission, job_file: str, spec: Mapping[str, Any]) -> bool:
    """Whether a submission is of this job file with the same values but for place and limits."""
    return _same_file(one.job_file, job_file) and _work_of(one.spec) == _work_of(spec)


def _same_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _work_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in ("infra", "constraints")}


def standing_before(store: Store, job: NewSubmission) -> JobStanding | None:
    """How a submitted job stands by an earlier run before it has told itself; None if there is no such run."""
    found = earlier_run(store, job.name, job.job_file, job.spec)
    points, log_sd = ((), 0.0) if found is None else curve_points(found[1])
    return JobStanding(0, "waiting", left=WorkLeft(1.0, log_sd), curve=points) if points else None


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
