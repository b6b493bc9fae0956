"""A job that is not submitted yet, as a pool would see it: its curve and its work are those of an earlier run."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.pools.earlier import curve_points, earlier_run
from scavenger.control.pools.rented import apart_of
from scavenger.control.pools.standing import PoolStanding
from scavenger.scheduler.jobs.forecast import NewJob
from scavenger.scheduler.jobs.seeing import (
    change_costs,
    even_parts,
    exponent_of,
    rates_of,
    sizes_in,
    sizes_of,
    users_of,
    with_apart,
)
from scavenger.store import Store


def as_new_job(
    store: Store, prepared: PreparedJob, pool: PoolStanding, *, user: str, priority: int
) -> tuple[NewJob, str | None]:
    """A job as a new row of a pool, and the id of the run by which it is known; None if there is no such run.

    The unit of its work is all that the job has to do, so its rate is one over its time.
    """
    apart = apart_of(pool.pool, prepared.job, prepared.job_file)
    sizes = sizes_in(pool.pool, replace(sizes_of(prepared.job), apart=apart))
    users = users_of(pool.decision.jobs)
    found = earlier_run(store, prepared.job.name, str(prepared.job_file), prepared.job.written())
    points, log_sd = ((), 0.0) if found is None else curve_points(found[1])
    most = sizes.most
    if not points:
        claims = pool.decision.seen.claims
        parts = even_parts(pool.pool, np.r_[claims.least, sizes.least], np.r_[claims.most, sizes.most])
        most = int(parts[-1])
    deadline = prepared.job.constraints.deadline
    standings = [job.standing for job in pool.decision.jobs]
    change_s, worker_s = change_costs([*standings, None])
    exponent = exponent_of([] if one is None else one.curve for one in standings)
    rates, first = (
        with_apart(rates_of(points, pool.pool.slots, exponent), sizes.apart),
        pool.decision.types[0],
    )
    new = NewJob(
        least=sizes.least + sizes.apart,
        asked=min(sizes.asked, most) + sizes.apart,
        most=most + sizes.apart,
        rates=rates,
        user=users.index(user) if user in users else len(users),
        priority=priority,
        left=1.0 if points else math.nan,
        left_log_sd=log_sd,
        change_s=float(change_s[-1]),
        worker_s=float(worker_s[-1]),
        deadline_s=math.inf if deadline is None else deadline,
        others=tuple(
            rates * (one.cpus / first.cpus if one.cpus and first.cpus else 1.0)
            for one in pool.decision.types[1:]
        ),
    )
    return new, found[0].id if found is not None and points else None
