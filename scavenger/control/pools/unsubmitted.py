"""A job that is not submitted yet, as a pool would see it: its curve and its work are those of a run of its file."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.pools.earlier import curve_points, earlier_run, is_same
from scavenger.control.pools.rented import apart_of
from scavenger.control.pools.standing import PoolStanding
from scavenger.domain.pool import JobStanding, RatePoint
from scavenger.scheduler.jobs.forecast import NewJob
from scavenger.scheduler.jobs.seeing import (
    PoolJob,
    change_costs,
    curves_of,
    even_parts,
    exponent_of,
    sizes_in,
    sizes_of,
    users_of,
    with_per_slot,
)
from scavenger.store import Store


def as_new_job(
    store: Store, prepared: PreparedJob, pool: PoolStanding, *, user: str, priority: int
) -> tuple[NewJob, str | None]:
    """A job as a new row of a pool, and the id of the run by which it is known; None if there is no such run.

    The unit of its work is all that the job has to do, so its rate is one over its time.
    """
    apart, decision = apart_of(pool.pool, prepared.job, prepared.job_file), pool.decision
    run, points, log_sd = _known(store, prepared, pool)
    number = max((job.number for job in decision.jobs), default=0) + 1
    standing = JobStanding(0, "waiting", curve=points, vm=decision.types[0].name)
    sizes = replace(sizes_of(prepared.job), apart=apart)
    job = PoolJob("", user, priority, number, sizes, 0.0, standing, None, queued=True)
    job = with_per_slot([*decision.jobs, job], decision.types)[-1]
    sizes = sizes_in(pool.pool, sizes, job.per_slot)
    users = users_of(decision.jobs)
    most = sizes.most
    if not points:
        claims = decision.seen.claims
        parts = even_parts(pool.pool, np.r_[claims.least, sizes.least], np.r_[claims.most, sizes.most])
        most = int(parts[-1])
    deadline = prepared.job.constraints.deadline
    standings = [one.standing for one in decision.jobs]
    change_s, worker_s = change_costs([*standings, None])
    exponent = exponent_of([] if one is None else one.curve for one in standings)
    curves = curves_of([job], decision.types, pool.pool.slots, exponent)
    new = NewJob(
        least=sizes.least + sizes.apart,
        asked=min(sizes.asked, most) + sizes.apart,
        most=most + sizes.apart,
        rates=curves.rates[0],
        user=users.index(user) if user in users else len(users),
        priority=priority,
        left=1.0 if points else math.nan,
        left_log_sd=log_sd,
        change_s=float(change_s[-1]),
        worker_s=float(worker_s[-1]),
        deadline_s=math.inf if deadline is None else deadline,
        others=tuple(other[0] for other in curves.others),
    )
    return new, run if points else None


def _known(
    store: Store, prepared: PreparedJob, pool: PoolStanding
) -> tuple[str | None, tuple[RatePoint, ...], float]:
    """A run of the same file, its curve in jobs a second, and the log sd of its work; the latest that has ended, else
    one of this pool that is going on.
    """
    file, spec = str(prepared.job_file), prepared.job.written()
    if (found := earlier_run(store, prepared.job.name, file, spec)) is not None:
        return found[0].id, *curve_points(found[1])
    for job in pool.jobs:
        left = None if job.standing is None else job.standing.left
        if job.standing is None or left is None or not left.whole:
            continue
        one = store.submission(job.id)
        if one is not None and is_same(one.job, file, spec):
            curve = tuple(replace(one, rate=one.rate / left.whole) for one in job.standing.curve)
            return job.id, curve, left.log_sd
    return None, (), 0.0
