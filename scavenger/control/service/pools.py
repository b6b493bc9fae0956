"""Shares out the pools of a server: shows `allot` what is there, records what follows, and tells the jobs.

All of it is one transaction, with the runners that are begun by it, so that nothing is done twice or by halves, whoever
dies and however many servers there are.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from scavenger.control.pools.asked import Asked, AskedJobs
from scavenger.control.pools.earlier import standing_before
from scavenger.control.pools.rented import MeansKnown
from scavenger.control.pools.standing import (
    change_limit_s,
    needs_earlier,
    pool_job,
    sizes_by_file,
    with_earlier,
)
from scavenger.domain.operation import REASON_MAX, TakeShare
from scavenger.domain.pool import JobStanding, Pool, PoolAllotment, PoolNode, PoolShare, pool_of
from scavenger.domain.submission import Backlog, RunnerSeen, Submission
from scavenger.presentation.formatting import clean, duration, plural
from scavenger.scheduler.jobs.moving import Move
from scavenger.scheduler.jobs.renting import Renting, is_used_up
from scavenger.scheduler.jobs.seeing import PoolJob, Sizes, decided, rental_of
from scavenger.scheduler.jobs.stepping import step_of, why_waiting
from scavenger.store import Store

logger = logging.getLogger(__name__)

DECIDE_S = 10.0
"""A pool is decided on anew after so long, whatever happens."""


@dataclass(slots=True)
class _Ages:
    """Ages of moments on record, which steps of the wall clock do not change while this process lives."""

    clock: Callable[[], float]
    since: dict[tuple[str, datetime], float] = field(default_factory=dict)

    def of(self, job_id: str, moment: datetime, now: datetime) -> float:
        """Seconds since a moment."""
        now_s = self.clock()
        begin_s = self.since.setdefault((job_id, moment), now_s - max(0.0, (now - moment).total_seconds()))
        return now_s - begin_s

    def forget(self, ids: Collection[str]) -> None:
        """Forget all jobs but these."""
        self.since = {key: value for key, value in self.since.items() if key[0] in ids}


@dataclass(frozen=True, slots=True)
class PoolsDecided:
    """What was decided on all pools.

    Attributes:
        begin: Ids of the submissions that begin.
        waiting: Why the other submissions of pools wait, by their ids.
        told: Ids of the jobs that are to be knocked at.
    """

    begin: frozenset[str]
    waiting: Mapping[str, str]
    told: tuple[str, ...]


class Pools:
    """The pools of a server.

    Args:
        pools: By name.
        hosts: Of a pool by its name, as they were seen last; None where none were.
        clock: Monotonic seconds.

    Attributes:
        waiting: Why submissions wait, by their ids, as last decided.
        late: Why jobs have not done what they were told for longer than their limits, by their ids.
        stopped: Jobs that are to be stopped at once, by their ids: the budget of their pool is used up.
        renting: What is decided of the VMs of pools that rent them, and how long one waits for a job, by name.
    """

    def __init__(
        self,
        store: Store,
        pools: Mapping[str, Pool],
        *,
        hosts: Callable[[str], tuple[PoolNode, ...] | None] = lambda name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._pools, self._hosts, self._clock = store, pools, hosts, clock
        self._sizes: dict[str, Sizes] = {}
        self._before: dict[str, JobStanding | None] = {}
        self._ages = _Ages(clock)
        self._limits_s: dict[str, float] = {}
        self._asked = AskedJobs(clock)
        self._means = {name: MeansKnown(store, pool, clock) for name, pool in pools.items()}
        self._seen: object = None
        self._due_at = -math.inf
        self.waiting: Mapping[str, str] = {}
        self.late: Mapping[str, str] = {}
        self.stopped: frozenset[str] = frozenset()
        self.renting: dict[str, tuple[Renting, float]] = {}

    def due(self, backlog: Backlog, able: Collection[str]) -> bool:
        """Whether something has happened since the last decision, or it was long ago.

        Args:
            able: Ids of those that wait and lack nothing but slots.
        """
        return self._clock() >= self._due_at or self._signature(backlog, able) != self._seen

    def _signature(self, backlog: Backlog, able: Collection[str]) -> object:
        """What a decision follows from, but for what changes all the time."""
        running = [seen for seen in backlog.running if _pool(seen.submission)]
        standings = self._store.standings([seen.submission.id for seen in running])
        rows = []
        for seen in running:
            one = standings.get(seen.submission.id)
            rows.append(
                (
                    seen.submission.id,
                    seen.submission.cancelling,
                    seen.ended,
                    None
                    if one is None
                    else (one.token, one.state, one.held, one.size, one.obeyed, one.refusing),
                )
            )
        return tuple(rows), frozenset(able), tuple(map(self._hosts, self._pools))

    def decide(
        self,
        backlog: Backlog,
        able: Collection[str],
        alive: Callable[[RunnerSeen], bool],
        now: datetime,
    ) -> PoolsDecided:
        """Decide on every pool, record what follows, and ask the jobs; to be called in a transaction.

        Args:
            able: As of `due`.
            alive: Whether the process that holds the lease of a runner lives.

        Raises:
            ScavengerError: Something has changed that the transaction has not seen: it is to be given up.
        """
        running = {seen.submission.id: seen for seen in backlog.running}
        standings = self._store.standings([*running, *(one.id for one in backlog.queued)])
        begin: set[str] = set()
        told: list[str] = []
        waiting: dict[str, str] = {}
        late: dict[str, str] = {}
        stopped: set[str] = set()
        again_s = DECIDE_S
        for name in sorted({_pool(one) for one in _all(backlog)} | set(self._pools)):
            if not name:
                continue
            here = [one for one in _all(backlog) if _pool(one) == name]
            if (pool := self._pools.get(name)) is None:
                waiting |= {one.id: _missing(name) for one in here if one.id not in running}
                continue
            last = self._store.allotment(name)
            means = self._means[name].at(now, last, self._hosts(name))
            if (rental := rental_of(pool, means)) is not None:
                renting = decided(pool, (), means=means).renting
                assert renting is not None
                self.renting[name] = renting, rental.idle_s
                if is_used_up(means.left_usd, means.usd_per_s):
                    stopped |= {one.id for one in here if one.id in running}
            stands = last is not None and last.pool == pool and last.nodes == (means.nodes or ())
            if not here and last is not None and not last.shares and stands:
                continue  # a new pool is put on record, for those who ask for it before it has jobs
            shares = {} if last is None else last.shares
            jobs = [
                self._job(
                    pool, one, running.get(one.id), shares.get(one.id), standings.get(one.id), alive, now
                )
                for one in here
                if one.id in running or one.id in able
            ]
            names = {one.id: one.job.name for one in here}
            step = step_of(pool, jobs, last, names, now, means, there=names)
            if step.renting is not None and rental is not None:
                self.renting[name] = step.renting, rental.idle_s
            if step.allotment is not last:
                self._store.put_allotment(step.allotment)
                for line in step.allotment.moves:
                    logger.info("pool %s, allotment %d: %s", name, step.allotment.number, line)
            told += self._tell(name, step.moves, step.allotment)
            self._asked.settle(jobs, told)
            begin |= {move.job for move in step.moves if move.kind == "begin"}
            waiting |= why_waiting(pool, jobs, step, names)
            late |= {job.id: job.share.late for job in jobs if job.share is not None and job.share.late}
            again_s = min(again_s, step.again_s)
        here_now = {one.id for one in _all(backlog)}
        self._ages.forget(here_now)
        self._sizes = {key: one for key, one in self._sizes.items() if key in here_now}
        self._before = {key: one for key, one in self._before.items() if key in here_now}
        self._limits_s = {key: one for key, one in self._limits_s.items() if key in running}
        self._asked.forget(running)
        self._seen, self._due_at = self._signature(backlog, able), self._clock() + max(0.5, again_s)
        self.waiting, self.late, self.stopped = waiting, late, frozenset(stopped)
        return PoolsDecided(frozenset(begin), waiting, tuple(told))

    def _tell(self, name: str, done: Sequence[Move], allotment: PoolAllotment) -> list[str]:
        told = []
        for move in done:
            if move.kind == "begin":
                continue
            self._asked.ask(move)
            why = clean(allotment.shares[move.job].reason)[:REASON_MAX]
            self._store.submit_operation(
                move.job, TakeShare(move.slots, allotment.number, why), f"pool {name}"
            )
            told.append(move.job)
        return told

    def _job(
        self,
        pool: Pool,
        one: Submission,
        seen: RunnerSeen | None,
        share: PoolShare | None,
        standing: JobStanding | None,
        alive: Callable[[RunnerSeen], bool],
        now: datetime,
    ) -> PoolJob:
        job = pool_job(
            one,
            seen,
            share,
            standing,
            self._sizes_of(one),
            waited_s=lambda since: self._ages.of(one.id, since, now),
        )
        if needs_earlier(pool, job):
            if one.id not in self._before:
                self._before[one.id] = standing_before(self._store, one.job)
            job = with_earlier(job, self._before[one.id])
        if seen is None:
            return job
        lives = not seen.ended and seen.lease is not None and alive(seen)
        held_back = not lives or one.cancelling or self._busy(one.id)
        heard = replace(job, held_back=True) if held_back else self._asked.heard(pool, job)
        return heard if share is None else replace(heard, share=replace(share, late=self._late(one, heard)))

    def _busy(self, job_id: str) -> bool:
        return self._store.open_operation(job_id) is not None

    def _late(self, one: Submission, job: PoolJob) -> str:
        """Why the job has not done what it was told for longer than its limit; empty if it has, or may still."""
        share, asked, now_s = job.share, self._asked.by_job.get(one.id), self._clock()
        if asked is None and job.awaited and share is not None:  # by an earlier server
            asked = self._asked.by_job[one.id] = Asked(share.told, now_s)
        if share is None or asked is None or not (job.awaited or asked.refused):
            return ""
        if one.id not in self._limits_s:
            self._limits_s[one.id] = change_limit_s(one.job.spec)
        if now_s - asked.since_s <= self._limits_s[one.id]:
            return ""
        aim = f"changed to {plural(asked.slots, 'slot')}" if asked.slots else "been paused"
        words = f"for more than {duration(self._limits_s[one.id])} it has not {aim}"
        if job.awaited:
            return f"{words}: it has not answered allotment {share.since}"
        answers = self._store.operations(one.id, limit=1)
        return f"{words}: {answers[-1].message if answers else 'it could not'}"

    def _sizes_of(self, one: Submission) -> Sizes:
        if (sizes := self._sizes.get(one.id)) is None:
            pool = self._pools.get(_pool(one))
            sizes = self._sizes[one.id] = sizes_by_file(one.job, pool)
        return sizes


def _all(backlog: Backlog) -> list[Submission]:
    """All submissions, in the order in which they came."""
    found = [*backlog.queued, *(seen.submission for seen in backlog.running)]
    return sorted(found, key=lambda one: one.number)


def _pool(one: Submission) -> str:
    return pool_of(one.job.spec, rents=one.job.rents)


def _missing(name: str) -> str:
    return f"there is no pool {name}: [pool.{name}] in the settings file, or `scavenger serve --pool FILE`, makes it"
