"""How a pool stands: its jobs as they are on record, and what may be said of their future."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from scavenger.cloud.local import LocalCloud
from scavenger.control.pools.earlier import standing_before
from scavenger.control.pools.rented import MeansKnown, apart_of, rented_by
from scavenger.control.settings import load_settings
from scavenger.domain.curve import FloatArray
from scavenger.domain.forms import is_number
from scavenger.domain.job import JobSpec, LimitsSpec
from scavenger.domain.pool import MACHINE, JobStanding, Pool, PoolAllotment, PoolShare, RatePoint, pool_of
from scavenger.domain.pool_settings import pools_of
from scavenger.domain.submission import NewSubmission, RunnerSeen, Submission
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.seeing import (
    Group,
    Means,
    PoolDecision,
    PoolJob,
    Sizes,
    decided,
    rules_of,
    sizes_of,
    users_of,
)
from scavenger.store import Store


@dataclass(frozen=True)
class PoolStanding:
    """A pool with its jobs.

    Attributes:
        pool: As its server decides on it.
        jobs: All that wait or run, in the order of submission, with what may be said of their work and speed.
        names: Theirs, by id.
        allotment: The newest; None before the first.
        usd_per_slot_hour: Price of a slot; NaN where it is not known.
        means: What can be rented.
    """

    pool: Pool
    jobs: tuple[PoolJob, ...]
    names: Mapping[str, str]
    allotment: PoolAllotment | None
    usd_per_slot_hour: float
    means: Means = field(default_factory=Means)

    @cached_property
    def decision(self) -> PoolDecision:
        """What is seen, and what follows."""
        number = 0 if self.allotment is None else self.allotment.number
        return decided(self.pool, self.jobs, number, means=self.means)

    @cached_property
    def rules(self) -> Rules:
        """Those of the pool for the users of its jobs."""
        return rules_of(self.pool, users_of(self.decision.jobs))

    @property
    def usd_per_slot_s(self) -> FloatArray:
        """Price of each node's slots."""
        if self.means.nodes is None:
            return np.array([self.usd_per_slot_hour / 3600.0])
        return np.array([one.usd_per_hour / 3600.0 for one in self.decision.types])

    def row(self, job_id: str) -> int | None:
        """The row of a job in the decision; None if it has none: it is being paused."""
        return next((row for row, job in enumerate(self.decision.jobs) if job.id == job_id), None)


def standing_pools(store: Store) -> dict[str, PoolStanding]:
    """The pools of this machine and account, by name.

    A pool on record is as its server last decided on it; others are as the settings say. That of jobs with
    `infra: local` is left out while it has no job and others are there.
    """
    cloud = LocalCloud()
    price, _ = cloud.cpu_price()
    on_record = {one.pool.name: one for one in store.pools()}
    others = {name: one for name, one in load_settings().pool.items() if name not in on_record}
    known = pools_of(others, cloud.capacity()[0], rented_by)
    known |= {name: one.pool for name, one in on_record.items()}
    backlog = store.backlog(store.me().host, os.getuid(), None)
    by_pool: dict[str, list[Submission | RunnerSeen]] = {name: [] for name in known}
    open_ones: list[Submission | RunnerSeen] = [*backlog.queued, *backlog.running]
    for seen in open_ones:
        job = _submission(seen).job
        by_pool.get(pool_of(job.spec, rents=job.rents), []).append(seen)
    standings = store.standings([_submission(seen).id for seen in open_ones])
    now = datetime.now(UTC)
    found = {
        name: _standing(
            store,
            pool,
            by_pool[name],
            standings,
            on_record.get(name),
            price,
            now,
            MeansKnown(store, pool).at(now, on_record.get(name)),
        )
        for name, pool in known.items()
    }
    if len(found) > 1 and not found[MACHINE].jobs:
        del found[MACHINE]
    return found


def _standing(
    store: Store,
    pool: Pool,
    seen: Iterable[Submission | RunnerSeen],
    standings: Mapping[str, JobStanding],
    allotment: PoolAllotment | None,
    price: float,
    now: datetime,
    means: Means,
) -> PoolStanding:
    shares = {} if allotment is None else allotment.shares
    jobs, names = [], {}
    for entry in sorted(seen, key=lambda one: _submission(one).number):
        one = _submission(entry)
        names[one.id] = one.job.name
        job = pool_job(
            one,
            entry if isinstance(entry, RunnerSeen) else None,
            shares.get(one.id),
            standings.get(one.id),
            sizes_by_file(one.job, pool),
            waited_s=lambda since: max(0.0, (now - since).total_seconds()),
        )
        if needs_earlier(pool, job):
            job = with_earlier(job, standing_before(store, one.job))
        if job.standing is not None:
            per_slot = 1 if allotment is None else allotment.per_slot(job.vm)
            job = replace(job, standing=foreseeable(pool, job.standing, per_slot))
        jobs.append(job)
    vms = pool.vms
    return PoolStanding(
        pool, tuple(jobs), names, allotment, price if vms is None else vms.usd_per_hour, means
    )


def pool_job(
    one: Submission,
    seen: RunnerSeen | None,
    share: PoolShare | None,
    standing: JobStanding | None,
    sizes: Sizes,
    *,
    waited_s: Callable[[datetime], float],
) -> PoolJob:
    """A submission as a job of its pool.

    Args:
        seen: None while it has no runner.
        standing: As its runner, or an earlier one, has said last.
        waited_s: How long ago a moment is, seconds.
    """
    if seen is not None and standing is not None:
        standing = standing.under(None if seen.lease is None else seen.lease.token)
    together = one.job.study_workers
    return PoolJob(
        id=one.id,
        user=one.job.user,
        priority=one.job.priority,
        number=one.number,
        sizes=sizes,
        waited_s=(0.0 if share is None else share.waited_s)
        if seen is not None
        else waited_s((share and share.at) or one.submitted_at),
        standing=standing,
        share=share,
        queued=seen is None,
        changed_s=math.inf if share is None or share.changed is None else waited_s(share.changed),
        due_s=deadline_s(one.job) - waited_s(one.submitted_at),
        group=None if together is None else Group(one.job.name, together),
    )


def needs_earlier(pool: Pool, job: PoolJob) -> bool:
    """Whether it counts how long a job takes, which it has not told yet."""
    one = job.standing
    told = one is not None and one.left is not None and bool(one.curve)
    return POLICIES[pool.policy].keeps_deadlines and job.due_s < math.inf and not told


def with_earlier(job: PoolJob, before: JobStanding | None) -> PoolJob:
    """The job, with the speed and the work left of an earlier run."""
    if before is None:
        return job
    own = job.standing or JobStanding(0, "waiting" if job.queued else "starting")
    return replace(job, standing=replace(own, left=before.left, curve=before.curve))


def _submission(seen: Submission | RunnerSeen) -> Submission:
    return seen.submission if isinstance(seen, RunnerSeen) else seen


def deadline_s(job: NewSubmission) -> float:
    """Of a submitted job, after its submission; infinite for none."""
    found = (job.spec.get("constraints") or {}).get("deadline")
    return float(found) if is_number(found) else math.inf


def change_limit_s(spec: Mapping[str, Any]) -> float:
    """How long a submitted job may take for a change of its share."""
    try:
        return JobSpec.model_validate(spec).limits.change
    except ValidationError:  # of another version
        return LimitsSpec().change


def sizes_by_file(job: NewSubmission, pool: Pool | None) -> Sizes:
    """The sizes of a submitted job in its pool; None for one that is not there."""
    try:
        spec = JobSpec.model_validate(job.spec)
        apart = 0 if pool is None else apart_of(pool, spec, job.job_file)
        return replace(sizes_of(spec), apart=apart)
    except ValidationError:  # of another version
        return Sizes(1, 1, 1)


def foreseeable(pool: Pool, standing: JobStanding, per_slot: int = 1) -> JobStanding:
    """A standing from which a future follows: without any speed, the work left says nothing of time."""
    curve = standing.curve
    if standing.rate and standing.held and (pool.whole or not curve):
        # a job that has a whole pool has all slots, whatever number of workers it chose
        workers = pool.slots if pool.whole else standing.held * per_slot
        curve = (RatePoint(workers, standing.rate, True),)
    elif pool.whole:
        curve = ()
    return replace(standing, curve=curve, left=standing.left if curve else None)
