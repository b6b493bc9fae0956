"""The store's queue of submitted jobs, the leases of their runners, and the servers.

Every transition is one transaction that checks the state before it, so that of several servers one succeeds. Rows of
the queue are read with `FOR UPDATE SKIP LOCKED` on PostgreSQL; on SQLite the transaction has the write lock.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import cast

from sqlalchemy import delete, literal, select
from sqlalchemy.orm import Session

from scavenger.domain.document import without_nonfinite
from scavenger.domain.intent import Fence, Lease
from scavenger.domain.pool import Pool, document_of, pool_from
from scavenger.domain.report import JobState
from scavenger.domain.submission import (
    OPEN_SUBMISSIONS,
    Backlog,
    GivenEnvironment,
    NewSubmission,
    RunnerSeen,
    RunnerStarts,
    ServerRecord,
    Spending,
    Submission,
    SubmissionState,
    runner_lease,
)
from scavenger.errors import ConfigurationError
from scavenger.store.base import KEY_PREFIX_MIN, Part
from scavenger.store.documents import budget_of
from scavenger.store.intent_rows import lease_of
from scavenger.store.intents import held_lease
from scavenger.store.ledger import check_left_of_study, spending_of, study_funds
from scavenger.store.owner import is_owner_alive, owner_of
from scavenger.store.quarantine import new_lease
from scavenger.store.records import LIVE_STATES, Owner
from scavenger.store.schema import JobRow, LeaseRow, SubmissionRow
from scavenger.store.sealing import seal, unseal
from scavenger.store.service_schema import ServerRow

_FIELDS = tuple(name for name in NewSubmission.__dataclass_fields__ if name != "environment")
_OF_PLANS = "#plans"
"""Follows the host of submissions that are only planned. A server of an earlier version, which serves on while a store
is upgraded, would run them as jobs; it takes the submissions of its own host, which no host's name is with this."""
_OF_SERVERS = tuple(
    name for name in ServerRecord.__dataclass_fields__ if name not in ("birth", "installation")
)
_WAKE_FILE = "server-asked"
_OWN = tuple(name for name in Submission.__dataclass_fields__ if name not in ("job", "starts"))


class SubmissionsPart(Part):
    """The part of `Store` that holds submissions and servers.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    # ---- the queue -----------------------------------------------------------------------------------------

    def submit(self, new: NewSubmission, *, study_budget_usd: float | None = None) -> Submission:
        """Put a job into the queue; with an idempotency key that the user has used before, returns that submission.

        Args:
            new: The job.
            study_budget_usd: Budget of all jobs of this name and user: this one gets at most what is left of it.

        Raises:
            ConfigurationError: The key was used for another job file or another content of it.
            LimitReachedError: Nothing is left of the study's budget.
        """
        with self._database.writing() as session:
            if new.idempotency_key is not None:
                query = select(SubmissionRow).where(
                    SubmissionRow.user == new.user, SubmissionRow.idempotency_key == new.idempotency_key
                )
                if (before := session.scalar(query)) is not None:
                    given = replace(new, spec=without_nonfinite(new.spec))
                    if study_budget_usd is not None:  # what was left then
                        given = _within(given, budget_of(before.spec))
                    if (before.job_file, before.spec) != (given.job_file, given.spec):
                        raise ConfigurationError(
                            f"the idempotency key {new.idempotency_key!r} was used for another job, {before.id}"
                        )
                    return _submission(before)
            if study_budget_usd is not None:
                funds = study_funds(session, new.name, study_budget_usd, self._clock(), user=new.user)
                new = _within(new, funds.grant(new.reserved_usd))
            return self._add(session, new, str(uuid.uuid4()))

    def submit_again(
        self, job_id: str, new: NewSubmission, *, study_budget_usd: float | None = None
    ) -> Submission:
        """Put a job that has ended into the queue, to be resumed; its earlier submission, if any, is replaced.

        Args:
            study_budget_usd: See `submit`; it goes on only if what it may cost is left.

        Raises:
            ConfigurationError: It is in the queue, or a runner has it.
            LimitReachedError: What it may cost is not left of the study's budget.
        """
        with self._database.writing() as session:
            row = session.scalar(select(SubmissionRow).where(SubmissionRow.id == job_id))
            if row is not None:
                if row.state in OPEN_SUBMISSIONS:
                    raise ConfigurationError(f"job {job_id[:8]} is {row.state} already")
                session.delete(row)
                session.flush()
            if study_budget_usd is not None:
                check_left_of_study(session, job_id, new, study_budget_usd, self._clock())
            return self._add(session, new, job_id, None if row is None else row.environment)

    def _add(
        self, session: Session, new: NewSubmission, job_id: str, environment: str | None = None
    ) -> Submission:
        fields = {name: getattr(new, name) for name in _FIELDS}
        installation = self.me().installation if new.host == socket.gethostname() else None
        fields["host"] += "" if new.run else _OF_PLANS
        row = SubmissionRow(
            **{**fields, "spec": without_nonfinite(new.spec), "job_file": os.path.realpath(new.job_file)},
            id=job_id,
            environment=environment if new.environment is None else self._sealed(new.environment),
            installation=installation,
            state="queued",
            reason="",
            cancelling=False,
            starts=0,
            fruitless=0,
            faults=0,
            submitted_at=self._clock(),
        )
        session.add(row)
        session.flush()
        session.refresh(row)
        return _submission(row)

    def _sealed(self, given: GivenEnvironment) -> str:
        with self._database.errors():
            return seal(json.dumps(asdict(given)), self._database.own_folder)

    def environment_of(self, job_id: str) -> GivenEnvironment | None:
        """What the runner of a submission is to be started with; None for the server's environment.

        Raises:
            ConfigurationError: It cannot be read, since the key by which it was sealed is gone.
        """
        with self._database.reading() as session:
            sealed = session.scalar(select(SubmissionRow.environment).where(SubmissionRow.id == job_id))
        if sealed is None:
            return None
        with self._database.errors():
            return GivenEnvironment(**json.loads(unseal(sealed, self._database.own_folder)))

    def submission(self, key: str) -> Submission | None:
        """A submission by its id, its name (the latest of that name), or the first characters of its id, at least 4.

        Raises:
            ConfigurationError: Several ids begin so.
        """
        latest = select(SubmissionRow).order_by(SubmissionRow.number.desc())
        with self._database.reading() as session:
            row = session.scalar(latest.where(SubmissionRow.id == key))
            row = row or session.scalar(latest.where(SubmissionRow.name == key).limit(1))
            if row is None and len(key) >= KEY_PREFIX_MIN:
                begun = latest.where(SubmissionRow.id.startswith(key, autoescape=True))
                found = session.scalars(begun.limit(2)).all()
                if len(found) > 1:
                    raise ConfigurationError(f"{key!r} begins the ids of several jobs; give more of it")
                row = found[0] if found else None
            return None if row is None else _submission(row)

    def submissions(
        self,
        limit: int = 50,
        *,
        states: Collection[str] = (),
        user: str | None = None,
        before: int | None = None,
    ) -> tuple[Submission, ...]:
        """The latest submissions, newest first.

        Args:
            limit: Most submissions.
            states: Only those in one of these states; empty: in any.
            user: Only those of this user.
            before: Only those with a lower number, for the next page.
        """
        query = select(SubmissionRow).order_by(SubmissionRow.number.desc()).limit(limit)
        if states:
            query = query.where(SubmissionRow.state.in_(states))
        if user is not None:
            query = query.where(SubmissionRow.user == user)
        if before is not None:
            query = query.where(SubmissionRow.number < before)
        with self._database.reading() as session:
            return tuple(map(_submission, session.scalars(query)))

    def has_runner(self, job_id: str) -> bool:
        """Whether a submitted job runs, or waits for its next runner."""
        query = select(SubmissionRow.id).where(SubmissionRow.id == job_id, SubmissionRow.state == "running")
        with self._database.reading() as session:
            return session.scalar(query) is not None

    def have_runners(self, job_ids: Collection[str]) -> frozenset[str]:
        """Those of the jobs that are submitted and run, or wait for their next runner."""
        query = select(SubmissionRow.id).where(
            SubmissionRow.id.in_(job_ids), SubmissionRow.state == "running"
        )
        with self._database.reading() as session:
            return frozenset(session.scalars(query))

    def cancel(self, job_id: str, reason: str) -> Submission | None:
        """Withdraw a submission that waits; of one that runs, tell its runner to stop. One that has ended stays so.

        Returns:
            The submission as it is now; None if there is none.
        """
        with self._database.writing() as session:
            row = session.scalar(select(SubmissionRow).where(SubmissionRow.id == job_id))
            if row is None:
                return None
            if row.state == "queued":
                _end(row, "cancelled", reason, self._clock())
            elif row.state == "running":
                row.cancelling, row.reason = True, reason
            session.flush()
            return _submission(row)

    # ---- servers and runners -------------------------------------------------------------------------------

    def backlog(self, host: str, uid: int, since: datetime | None) -> Backlog:
        """Read what a server has to do, for the jobs of its installation and account.

        Args:
            host: Name of the machine, for submissions without an installation.
            uid: Number of the account.
            since: Start of the period of budgets, a month. None if there are no budgets: nothing is counted.
        """
        unnamed = SubmissionRow.installation.is_(None) & SubmissionRow.host.in_((host, host + _OF_PLANS))
        mine = (SubmissionRow.installation == self._database.installation) | unnamed
        here = mine & (SubmissionRow.uid == uid)
        all_here = select(SubmissionRow).where(here)
        with self._database.reading() as session:
            queued = session.scalars(
                all_here.where(SubmissionRow.state == "queued").order_by(SubmissionRow.number)
            ).all()
            running = session.execute(
                select(SubmissionRow, JobRow, LeaseRow)
                .outerjoin(JobRow, JobRow.id == SubmissionRow.id)
                .outerjoin(LeaseRow, LeaseRow.name == literal(runner_lease("")) + SubmissionRow.id)
                .where(here, SubmissionRow.state == "running")
                .order_by(SubmissionRow.number)
            ).all()
            return Backlog(
                tuple(map(_submission, queued)),
                tuple(_seen(*found) for found in running),
                self._busy_files(session, {row.job_file for row in queued}),
                Spending({}, {}) if since is None else spending_of(session, since, self._clock()),
            )

    def _busy_files(self, session: Session, files: Collection[str]) -> dict[str, str]:
        """Those of the files that a live job uses, with the job's id."""
        if not files:
            return {}
        now = self._clock()
        live = select(JobRow).where(JobRow.state.in_(LIVE_STATES), JobRow.job_file.in_(files))
        return {
            job.job_file: job.id
            for job in session.scalars(live)
            if is_owner_alive(owner_of(job), job.heartbeat_at, at=now)
        }

    def explain_waiting(self, reasons: dict[str, str]) -> None:
        """Record why submissions wait, by their ids; those that wait no longer are left alone."""
        with self._database.writing() as session:
            query = select(SubmissionRow).where(
                SubmissionRow.id.in_(reasons), SubmissionRow.state == "queued"
            )
            for row in session.scalars(query):
                row.reason = reasons[row.id]

    def start_runner(self, job_id: str, holder: str, seen: Lease | None) -> Lease | None:
        """Take the lease of a job's runner, in order to start one; the submission is then `running`.

        The caller has made sure that the holder of the lease, if it has one, is dead.

        Args:
            job_id: Id of the submission.
            holder: The calling server; the runner takes the lease over with `hand_over_lease`.
            seen: The lease as it was read; None if there was none.

        Returns:
            The lease; None if it has changed since, the submission is not open, or it waits and was cancelled.
        """
        with self._database.writing() as session:
            query = select(SubmissionRow).where(
                SubmissionRow.id == job_id, SubmissionRow.state.in_(OPEN_SUBMISSIONS)
            )
            row = session.scalar(query.with_for_update(skip_locked=True))
            lease = session.get(LeaseRow, runner_lease(job_id))
            if row is None or lease_of(lease) != seen:
                return None
            lease = lease or new_lease(session, runner_lease(job_id))
            lease.holder, lease.token, lease.beats = holder, lease.token + 1, 0
            job = session.get(JobRow, job_id)
            step = None if job is None else job.step
            further = (step or 0) > (row.step or 0)
            row.fruitless = 1 if further else row.fruitless + 1
            row.faults = 0 if further else row.faults
            row.state, row.starts, row.step, row.reason = "running", row.starts + 1, step, ""
            row.started_at = row.started_at or self._clock()
            session.flush()
            return lease_of(lease)

    def requeue(self, fence: Fence, job_id: str, reason: str) -> bool:
        """Put a submission that could not begin for a fault that passes back into the queue.

        Its last start counts as such a fault, and not as fruitless.

        Returns:
            False if the lease is another's.
        """
        return self._leave(fence, job_id, "queued", reason)

    def pause_submission(self, fence: Fence, job_id: str, reason: str) -> bool:
        """Put a submission that has given its slots back into the queue, at its old place; its lease is released.

        Its last start counts neither as fruitless nor as a fault. One that is to be stopped ends.

        Returns:
            False if the lease is another's, or the submission is not open.
        """
        return self._leave(fence, job_id, "queued", reason, paused=True)

    def end_submission(self, fence: Fence | None, job_id: str, reason: str) -> bool:
        """Record that a submission needs no runner any more, and release its lease.

        Args:
            fence: Fencing token of the runner, or of the server that has found it dead; None for a submission that
                never had a runner.
            job_id: Id of the submission.
            reason: How it ended, one line.

        Returns:
            False if the lease is another's, or the submission is not open.
        """
        return self._leave(fence, job_id, "ended", reason)

    def _leave(
        self,
        fence: Fence | None,
        job_id: str,
        state: SubmissionState,
        reason: str,
        *,
        paused: bool = False,
    ) -> bool:
        with self._database.writing() as session:
            lease = None if fence is None else held_lease(session, fence)
            row = session.scalar(select(SubmissionRow).where(SubmissionRow.id == job_id))
            if row is None or row.state not in OPEN_SUBMISSIONS or (fence is not None and lease is None):
                return False
            if fence is None and row.state != "queued":
                return False
            if lease is not None:
                lease.holder = ""
            if paused and row.cancelling:
                _end(row, "ended", row.reason, self._clock())
            elif state == "queued":
                row.state, row.reason = state, reason
                row.started_at = None if paused else row.started_at  # what has ended before is no end of it
                row.fruitless, row.faults = max(0, row.fruitless - 1), (row.faults or 0) + (not paused)
            else:
                _end(row, state, reason, self._clock())
            return True

    def put_server(self, server: ServerRecord, pools: Collection[Pool] = ()) -> None:
        """Record a server, or its sign of life, in place of what was recorded of it; `heartbeat_at` is set to now.

        Args:
            pools: That it shares out.
        """
        document = {pool.name: document_of(pool) for pool in pools}
        with self._database.writing() as session:
            session.merge(
                ServerRow(**{**asdict(server), "heartbeat_at": self._clock()}, pools=document or None)
            )

    def pools_of_server(self, server_id: str) -> dict[str, Pool]:
        """The pools that a server shares out, by name; none if they are not on record."""
        with self._database.reading() as session:
            row = session.get(ServerRow, server_id)
            found = {} if row is None or row.pools is None else row.pools
            return {name: pool_from(document) for name, document in found.items()}

    def remove_server(self, server_id: str) -> None:
        """Delete a server's record; no effect if there is none."""
        with self._database.writing() as session:
            session.execute(delete(ServerRow).where(ServerRow.id == server_id))

    def wake_servers(self) -> None:
        """Have the servers of this account and installation look at once; without it, they look once a second.

        To be called once what they are to see is committed. Where it cannot be written, they look later.
        """
        with suppress(OSError):
            self._wake_file.touch(mode=0o600)

    def servers_woken_ns(self) -> int:
        """When servers were last told to look, by the clock of the file system; 0 for never."""
        try:
            return self._wake_file.stat().st_mtime_ns
        except OSError:
            return 0

    @cached_property
    def _wake_file(self) -> Path:
        return self._database.own_folder / f"{_WAKE_FILE}-{os.getuid()}"

    def servers(self, *, alive: bool = True) -> tuple[ServerRecord, ...]:
        """Servers on record, the oldest first; `alive` leaves out those that are dead or silent."""
        now = self._clock()
        with self._database.reading() as session:
            rows = session.scalars(select(ServerRow).order_by(ServerRow.started_at, ServerRow.id)).all()
        found = (
            ServerRecord(
                **{name: getattr(row, name) for name in _OF_SERVERS},
                birth=row.birth or "",
                installation=row.installation or "",
            )
            for row in rows
        )
        return tuple(
            one
            for one in found
            if not alive
            or is_owner_alive(
                Owner(one.pid, one.host, one.started_at_s, birth=one.birth), one.heartbeat_at, at=now
            )
        )


def _end(row: SubmissionRow, state: SubmissionState, reason: str, at: datetime) -> None:
    row.state, row.reason, row.ended_at = state, reason, at


def _submission(row: SubmissionRow) -> Submission:
    own = {name: getattr(row, name) for name in _OWN}
    given = {name: getattr(row, name) for name in _FIELDS}
    given["run"] = row.run is not False  # earlier versions, which only ran jobs, have left it open
    own["starts"] = RunnerStarts(row.starts, row.fruitless, row.faults or 0, row.step)
    own["installation"] = row.installation or ""
    given["host"] = row.host.removesuffix(_OF_PLANS)
    return Submission(job=NewSubmission(**given), **own)


def _seen(row: SubmissionRow, job: JobRow | None, held: LeaseRow | None) -> RunnerSeen:
    lease = lease_of(held)
    standing = row.standing or {}
    return RunnerSeen(
        _submission(row),
        lease,
        None if job is None else cast(JobState, job.state),
        job is not None and job.ended_at is not None and job.ended_at >= (row.started_at or row.submitted_at),
        None if job is None else job.step,
        0.0 if job is None else job.cost_usd or 0.0,
        lease is not None and (standing.get("state"), standing.get("token")) == ("pausing", lease.token),
    )


def _within(new: NewSubmission, most_usd: float | None) -> NewSubmission:
    """A submission whose job may cost at most so much."""
    if most_usd is None or (new.reserved_usd is not None and new.reserved_usd <= most_usd):
        return new
    limits = {**(new.spec.get("constraints") or {}), "budget": most_usd}
    return replace(new, spec={**new.spec, "constraints": limits}, reserved_usd=most_usd)
