"""Workers that trials of a study share which run at once: a pool of the study, whose jobs are its trials."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.pools.asked import AskedJobs
from scavenger.domain.job import JobSpec
from scavenger.domain.operation import TakeShare
from scavenger.domain.pool import Pool, PoolShare
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.moving import Wanted, moves
from scavenger.scheduler.jobs.policies import Even
from scavenger.scheduler.jobs.seeing import PoolJob, Sizes, decided

__all__ = ["WorkerShares", "settings_within"]

_RULES = Rules(Even(keeps=True))
_LOOK_S = 1.0
"""Longest pause until jobs are asked again that could not be asked, or have refused."""

log = logging.getLogger(__name__)

Ask = Callable[[TakeShare], None]
"""Asks a job to take a share; raises `ScavengerError` if it cannot be asked at this moment."""


class _Member:
    """One trial.

    Attributes:
        seat: None while it waits.
        unasked: What its job is still to be asked for.
    """

    def __init__(self, number: int, sizes: Sizes, ask: Ask) -> None:
        self.number, self.sizes, self.ask = number, sizes, ask
        self.seat: PoolSeat | None = None
        self.unasked: TakeShare | None = None

    @property
    def id(self) -> str:
        return f"trial {self.number}"

    def as_job(self, share: PoolShare | None) -> PoolJob:
        seat = self.seat
        standing = None if seat is None else seat.standing()
        return PoolJob(self.id, "", 0, self.number, self.sizes, 0.0, standing, share, queued=seat is None)


def settings_within(job: JobSpec, limit: int) -> dict[str, Any]:
    """The settings with which a job of a server searches and trains with so many workers at most.

    Raises:
        ConfigurationError: If it needs more.
    """
    low, high = job.elastic_range
    _check_fits(max(low, job.worker_counts[0]), limit)
    counts = [count for count in job.worker_counts if count <= limit]
    return {"search.workers": counts, "elastic.min": low, "elastic.max": min(high, limit)}


def _check_fits(least: int, limit: int) -> None:
    if least > limit:
        raise ConfigurationError(
            f"a trial needs {least} workers, and the study's trials have {limit} together; raise workers= of the "
            "study, or lower search.workers"
        )


class WorkerShares:
    """Workers that several trials have together; safe to use from several threads.

    A job is asked for another number of workers by an operation that it answers later, as in the pool of a server; a
    thread that is there while any trial is watches for the answers.

    Args:
        study: Name of the study.
        limit: The most that all have at any time.
    """

    def __init__(self, study: str, limit: int) -> None:
        self.name, self.limit = f"study {study}", limit
        self._pool = Pool(study, limit, "even")
        self._members: list[_Member] = []
        self._shares: dict[str, PoolShare] = {}
        self._count = self._number = 0
        self._asked = AskedJobs(time.monotonic)
        self._changed, self._due = threading.Condition(), threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def in_use(self) -> int:
        """How many the trials may have now."""
        with self._changed:
            return sum(share.counts for share in self._shares.values())

    @contextmanager
    def share(self, sizes: Sizes, ask: Ask) -> Iterator[PoolSeat]:
        """Wait for workers of a trial, which has them while the block runs; gives its seat.

        Args:
            sizes: The workers that it can run with.
            ask: Called on any thread.

        Raises:
            ConfigurationError: If it needs more than there are.
        """
        _check_fits(sizes.least, self.limit)
        with self._changed:
            self._count += 1
            member = _Member(self._count, sizes, ask)
            self._members.append(member)
        try:
            with self._changed:
                self._decide()
                if self._watcher is None:
                    self._watcher = threading.Thread(target=self._watch, name="scavenger-shares", daemon=True)
                    self._watcher.start()
                self._changed.wait_for(lambda: member.seat is not None)
            assert member.seat is not None
            yield member.seat
        finally:
            with self._changed:
                self._members.remove(member)
                self._decide()
            self._due.set()

    def _watch(self) -> None:
        while True:
            self._due.wait(_LOOK_S)
            self._due.clear()
            with self._changed:
                if not self._members:
                    self._watcher = None
                    return
                self._decide()

    def _decide(self) -> None:
        """Decide who has how many, and ask those whose number changes; called with the lock."""
        jobs = [
            self._asked.heard(self._pool, member.as_job(self._shares.get(member.id)))
            for member in self._members
        ]
        decision, number = decided(self._pool, jobs, self._number, _RULES), self._number + 1
        wanted = {job_id: Wanted(slots) for job_id, slots in decision.slots.items()}
        self._shares, done = moves(self._pool, jobs, wanted, number, datetime.now(UTC))
        members = {member.id: member for member in self._members}
        self._asked.forget(members)
        for move in done:
            self._number = number
            if move.kind == "begin":
                members[move.job].seat = PoolSeat(self.name, self._shares[move.job], changed=self._due)
                self._changed.notify_all()
            else:
                self._asked.ask(move)
                members[move.job].unasked = TakeShare(move.slots, number)
        for member in self._members:
            if (share := member.unasked) is not None:
                try:
                    member.ask(share)
                    member.unasked = None
                except ScavengerError as error:  # it does something else, or is about to end
                    log.info("%s is to have %d workers: %s", member.id, share.slots, error)
