"""The store's records of jobs: creation, progress, end and resumption."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Unpack, cast

from sqlalchemy import Select, and_, delete, false, or_, select
from sqlalchemy.orm import Session, undefer

from scavenger.domain.cost import LedgerEntry
from scavenger.domain.document import without_nonfinite
from scavenger.domain.report import JobState
from scavenger.domain.submission import not_begun
from scavenger.errors import ConfigurationError, NotFoundError, StoreError, TransientError
from scavenger.store.base import (
    KEY_PREFIX_MIN,
    Part,
    job_row,
    open_submissions,
)
from scavenger.store.job_rows import COPIED, LISTED, as_stored, job_from, job_of, live_row, write_progress
from scavenger.store.ledger import note
from scavenger.store.operations import end_open_operation
from scavenger.store.owner import is_alive
from scavenger.store.progress import close_processes, forget_processes
from scavenger.store.records import (
    LIVE_STATES,
    RESUMABLE_STATES,
    JobProgress,
    JobRecord,
    JobUpdate,
)
from scavenger.store.schema import FingerprintRow, FleetSpecRow, IntentRow, JobRow, SubmissionRow

_NOT_RESUMED: dict[str, str] = {
    "planned": "it is a plan, which ends where training would begin; `scavenger optimize {file}` trains",
    "succeeded": "it has succeeded, so nothing is left to do",
    "target_missed": "it trained all of its goal.max_epochs; `scavenger resume {id} --max-epochs N` trains on",
}
"""Why a job that has ended cannot be resumed, by its state."""


def _epochs(spec: Mapping[str, Any]) -> int:
    """The most epochs of a job's specification."""
    return int((spec.get("goal") or {}).get("max_epochs") or 0)


class JobsPart(Part):
    """The part of `Store` that holds jobs.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve
    it, and `ConfigurationError` where there is no such job.
    """

    def create_job(
        self,
        name: str,
        *,
        spec: Mapping[str, Any],
        job_file: str | os.PathLike[str],
        job_id: str | None = None,
    ) -> JobRecord:
        """Record a new job in state `starting`, owned by the calling process.

        Args:
            name: As in the job file; need not be unique.
            spec: The validated job file as JSON.
            job_file: Path of the job file; stored as an absolute path.
            job_id: Id of its submission; None for a job that was not submitted.
        """
        owner, now = self.me(), self._clock()
        row = JobRow(
            id=job_id or str(uuid.uuid4()),
            name=name,
            state="starting",
            phase="",
            detail="",
            spec=without_nonfinite(spec),
            job_file=_absolute(job_file),
            owner_pid=owner.pid,
            owner_host=owner.host,
            owner_started_at_s=owner.started_at_s,
            owner_user=owner.user,
            owner_uid=owner.uid,
            owner_birth=owner.birth or None,
            owner_installation=owner.installation or None,
            heartbeat_at=now,
            created_at=now,
            error="",
        )
        with self._database.writing() as session:
            session.add(row)
            return as_stored(session, row)

    def recover_job(self, record: JobRecord, earlier: LedgerEntry | None = None) -> bool:
        """Record a job again that was lost with another store, exactly as given; see `record_file.read_record`.

        Args:
            earlier: What it has used; None where only its dollars are known.

        Returns:
            Whether it was missing; a job that is on record is left as it is.
        """
        owner = record.owner
        row = JobRow(
            **{name: getattr(record, name) for name in COPIED},
            spec=without_nonfinite(record.spec),
            report=without_nonfinite(record.report),
            owner_pid=owner.pid,
            owner_host=owner.host,
            owner_started_at_s=owner.started_at_s,
            owner_user=owner.user or None,
            owner_uid=owner.uid,
            owner_birth=owner.birth or None,
            owner_installation=owner.installation or None,
        )
        fields: dict[str, Any] = {
            name: getattr(record, name) for name in ("fingerprint", "chosen", "predicted", "actual")
        }
        with self._database.writing() as session:
            if session.get(JobRow, record.id) is not None:
                return False
            session.add(row)
            session.flush()
            write_progress(session, row, cast(JobProgress, fields), record.heartbeat_at)
            if record.cost_usd is not None:
                earlier = earlier or LedgerEntry(0.0, record.cost_usd)
                note(session, record.id, "earlier", earlier, record.heartbeat_at)
            return True

    def update_job(self, job_id: str, **fields: Unpack[JobUpdate]) -> None:
        """Change a job that has not ended; the first `profiling` or `running` sets `started_at`.

        Raises:
            ConfigurationError: There is no such job.
            StoreError: The job has ended, or `state` is final (`finish_job` ends a job).
            TypeError: A field that `JobUpdate` does not have.
        """
        if unknown := set(fields) - set(JobUpdate.__annotations__):
            raise TypeError(f"update_job() got unexpected fields: {', '.join(sorted(unknown))}")
        with self._database.writing() as session:
            write_progress(session, live_row(session, job_id), fields, self._clock())
            row = job_row(session, job_id)
            if row.state not in LIVE_STATES:
                raise StoreError(f"job {job_id} cannot be updated to {row.state}, a state that ends it")
            if row.started_at is None and row.state != "starting":
                row.started_at = self._clock()

    def heartbeat(self, job_id: str) -> None:
        """Record that the owner is alive; no effect on a job that has ended."""
        with self._database.writing() as session:
            row = job_row(session, job_id)
            if row.state in LIVE_STATES:
                row.heartbeat_at = self._clock()

    def finish_job(
        self,
        job_id: str,
        *,
        state: JobState,
        report: Mapping[str, Any] | None,
        error: str = "",
        exit_code: int | None,
        **fields: Unpack[JobProgress],
    ) -> JobRecord:
        """End a job, with its report; NaN and infinity in the report become null.

        Its open operation is ended with it, and its processes become `gone`.

        Args:
            state: A final state.
            report: As `scavenger.domain.document.report_document` makes it.
            error: One line.
            exit_code: Exit code of the command; None if unknown.
            **fields: Further changes, as for `update_job`.

        Raises:
            ConfigurationError: There is no such job.
            StoreError: The job has ended already, or `state` is not final.
        """
        if state in LIVE_STATES:
            raise StoreError(f"job {job_id} cannot end as {state}, which is the state of a live job")
        with self._database.writing() as session:
            row, now = live_row(session, job_id), self._clock()
            write_progress(session, row, fields, now)
            row.state, row.error, row.exit_code, row.ended_at = state, error, exit_code, now
            row.report = without_nonfinite(report)
            end_open_operation(session, job_id, state, error, row.ended_at)
            close_processes(session, job_id, "gone", at=row.ended_at)
            return as_stored(session, row)

    def check_resumable(
        self, job: JobRecord, *, again: bool = False, spec: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse a job that `resume_job` would refuse.

        Args:
            again: Whether it may start again from its first step where it has no checkpoint.
            spec: The specification with which it is to go on; None for its own.

        Raises:
            ConfigurationError: It ended with nothing left to do, has no checkpoint, or ran from another machine,
                which alone can check that its process is gone.
            TransientError: It is running.
        """
        begin = f"job {job.name} ({job.id[:8]}) cannot be resumed: "
        if job.state in LIVE_STATES and self.is_alive(job):
            raise TransientError(f"{begin}it runs, driven by process {job.owner.pid} on {job.owner.host}")
        if job.state in LIVE_STATES and not job.owner.is_same_machine(self.me()):
            raise ConfigurationError(
                f"{begin}it is driven from {job.owner.host}, which has been silent since "
                f"{job.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC; resume it there"
            )
        longer = job.state == "target_missed" and spec is not None and _epochs(spec) > _epochs(job.spec)
        if job.ended and job.state not in RESUMABLE_STATES and not longer:
            raise ConfigurationError(begin + _NOT_RESUMED[job.state].format(file=job.job_file, id=job.id[:8]))
        if job.checkpoint is None and not again:
            raise ConfigurationError(
                f"{begin}it ended before its first checkpoint; `scavenger optimize {job.job_file}` starts again"
            )

    def resume_job(
        self,
        job_id: str,
        *,
        again: bool = False,
        spec: Mapping[str, Any] | None = None,
        checkpoint: str | None = None,
    ) -> JobRecord:
        """Resume a job that ended before its goal, owned by the calling process, in state `starting`.

        Its error, report and processes are deleted; choice, prediction, measurements and cost are kept.

        Args:
            again, spec: See `check_resumable`; a new specification is recorded.
            checkpoint: Where its checkpoints are from now on; None for where they were.

        Returns:
            The job, with its number of attempts incremented.

        Raises:
            ConfigurationError, TransientError: As of `check_resumable`; or there is no such job.
        """
        owner, now = self.me(), self._clock()
        with self._database.writing() as session:
            row = job_row(session, job_id)
            self.check_resumable(job_from(row, with_report=False), again=again, spec=spec)
            if spec is not None:
                row.spec = without_nonfinite(spec)
            if checkpoint is not None:
                row.checkpoint = checkpoint
            end_open_operation(session, job_id, "failed", "its process is gone", now)
            forget_processes(session, job_id)
            row.state, row.phase, row.detail, row.error = "starting", "", "", ""
            row.ended_at = row.report = row.actual = row.exit_code = None
            row.owner_pid, row.owner_host, row.owner_started_at_s = owner.pid, owner.host, owner.started_at_s
            row.owner_user, row.owner_uid, row.owner_birth = owner.user, owner.uid, owner.birth or None
            row.owner_installation = owner.installation
            row.heartbeat_at = now
            row.attempts += 1
            return as_stored(session, row)

    def states_of(self, job_ids: Collection[str]) -> dict[str, tuple[JobState, float | None]]:
        """State and cost so far of those of these jobs that are on record, by id."""
        query = select(JobRow.id, JobRow.state, JobRow.cost_usd).where(JobRow.id.in_(job_ids))
        with self._database.reading() as session:
            return {key: (cast(JobState, state), cost) for key, state, cost in session.execute(query)}

    def has_job(self, job_id: str) -> bool:
        """Whether a job of exactly this id is on record."""
        with self._database.reading() as session:
            return session.get(JobRow, job_id) is not None

    def job(self, key: str, *, user: str | None = None) -> JobRecord:
        """A job by its id, its name (the latest of that name), or the first characters of its id, at least 4.

        Args:
            key: Id, name, or beginning of an id.
            user: Only among the jobs that this user submitted: those of others are not mentioned either.

        Raises:
            NotFoundError: There is no such job; the message suggests similar names, and tells of one that has
                not begun.
            ConfigurationError: Several ids begin so, or the key is no text.
        """
        if not isinstance(key, str):
            raise ConfigurationError(f"a job is named by its id or its name, a text, not {key!r}")
        with self._database.reading() as session:
            query = _of_user(select(JobRow).options(undefer(JobRow.report)), user)
            row = session.scalar(query.where(JobRow.id == key))
            row = row or session.scalar(_latest(query.where(JobRow.name == key)).limit(1))
            if row is None and len(key) >= KEY_PREFIX_MIN:
                found = session.scalars(
                    _latest(query.where(JobRow.id.startswith(key, autoescape=True))).limit(4)
                ).all()
                if len(found) > 1:
                    ids = ", ".join(each.id[: len(key) + KEY_PREFIX_MIN] for each in found)
                    raise ConfigurationError(
                        f"{key!r} begins the ids of several jobs ({ids}, ...); give more of it"
                    )
                row = found[0] if found else None
            if row is None:
                raise NotFoundError(self._no_job(session, key, user))
            return job_from(row, with_report=True)

    def _no_job(self, session: Session, key: str, user: str | None) -> str:
        begins = SubmissionRow.id.startswith(key, autoescape=True) if len(key) >= KEY_PREFIX_MIN else false()
        query = select(SubmissionRow).order_by(SubmissionRow.number.desc()).limit(1)
        query = query if user is None else query.where(SubmissionRow.user == user)
        waiting = session.scalar(query.where((SubmissionRow.name == key) | begins))
        if waiting is not None:
            return not_begun(waiting.id, waiting.name, waiting.state, waiting.reason)
        names = list(session.scalars(_of_user(select(JobRow.name).distinct(), user)))
        if not names:
            return f"there is no job {key!r}: {self._database.name} holds no job yet"
        near = get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`scavenger status` lists the jobs"
        return f"there is no job {key!r}; {hint}"

    def jobs(
        self,
        limit: int = 50,
        *,
        states: Collection[str] = (),
        name: str | None = None,
        user: str | None = None,
        after: tuple[datetime, str] | None = None,
    ) -> tuple[JobRecord, ...]:
        """The latest jobs, newest first, without their reports.

        Args:
            limit: Most jobs.
            states: Only those in one of these states; empty: in any.
            name: Only those whose name matches this pattern, in which `*` stands for any characters.
            user: Only those that this user submitted.
            after: Only those that follow the job with this `created_at` and id, for the next page.
        """
        query = _of_user(select(JobRow), user)
        if after is not None:
            at, job_id = after
            same = and_(JobRow.created_at == at, JobRow.id > job_id)
            query = query.where(JobRow.created_at <= at, or_(JobRow.created_at < at, same))
        if states:
            query = query.where(JobRow.state.in_(states))
        if name is not None:
            parts = (re.sub(r"([\\%_])", r"\\\1", part) for part in name.split("*"))
            query = query.where(JobRow.name.like("%".join(parts), escape="\\"))
        return self._listed(_latest(query).limit(limit))

    def check_deletable(self, job: JobRecord) -> None:
        """Refuse a job whose record is still needed.

        Raises:
            ConfigurationError: It rented VMs: its record tells what they cost.
            TransientError: It is running, or was last seen running on another machine.
        """
        with self._database.reading() as session:
            _check_deletable(session, job)

    def delete_jobs(self, ids: Sequence[str]) -> None:
        """Delete jobs with their processes, events, operations and measurements, all or none.

        Their fitted models are kept, and so is what they have cost.

        Raises:
            ConfigurationError, TransientError: As of `check_deletable`.
        """
        with self._database.writing() as session:
            for job_id in ids:
                row = job_row(session, job_id)
                _check_deletable(session, job_from(row, with_report=False))
                session.execute(delete(SubmissionRow).where(SubmissionRow.id == job_id))
                session.delete(row)

    def is_alive(self, job: JobRecord) -> bool:
        """Whether a job has not ended and its owner is alive; see `scavenger.store.owner.is_alive`."""
        return is_alive(job, at=self._clock())

    def running_jobs(self, job_file: str | os.PathLike[str] | None = None) -> tuple[JobRecord, ...]:
        """Live jobs, newest first, of one job file or of all."""
        query = _latest(select(JobRow).where(JobRow.state.in_(LIVE_STATES)))
        if job_file is not None:
            query = query.where(JobRow.job_file == _absolute(job_file))
        return tuple(job for job in self._listed(query) if self.is_alive(job))

    def reap_dead_jobs(self) -> tuple[JobRecord, ...]:
        """End as `failed` the jobs whose owner is gone from this machine; those of others are left alone.

        A job whose submission is open is left alone, too: a server starts another runner. The open operations of
        the others are ended with them, and their processes become `lost`.

        Returns:
            The jobs as they were before.
        """
        me = self.me()
        query = _latest(select(JobRow).where(JobRow.state.in_(LIVE_STATES)))
        query = query.where(JobRow.id.not_in(open_submissions()))
        found = (job for job in self._listed(query) if job.owner.is_same_machine(me))
        dead = [job for job in found if not self.is_alive(job)]
        if not dead:
            return ()
        with self._database.writing() as session:
            for job in dead:
                row = job_row(session, job.id)
                if row.state in LIVE_STATES:  # it may have been reaped meanwhile
                    row.state, row.ended_at = "failed", self._clock()
                    row.error = (
                        f"its process {job.owner.pid} ended unexpectedly: killed, or the machine restarted"
                    )
                    end_open_operation(session, job.id, "failed", row.error, row.ended_at)
                    close_processes(session, job.id, "lost", at=row.ended_at)
        return tuple(dead)

    def _listed(self, query: Select[Any]) -> tuple[JobRecord, ...]:
        with self._database.reading() as session:
            rows = session.execute(query.with_only_columns(*LISTED, maintain_column_froms=True)).all()
            digests = {row.fingerprint_id for row in rows if row.fingerprint_id is not None}
            known: dict[str | None, FingerprintRow] = {}
            if digests:
                found = session.scalars(select(FingerprintRow).where(FingerprintRow.id.in_(digests)))
                known = {one.id: one for one in found}
            return tuple(job_of(row, known.get(row.fingerprint_id), None) for row in rows)


def _of_user(query: Select[Any], user: str | None) -> Select[Any]:
    """Only jobs that a user submitted; None: of all."""
    if user is None:
        return query
    return query.where(JobRow.id.in_(select(SubmissionRow.id).where(SubmissionRow.user == user)))


def _latest(query: Select[Any]) -> Select[Any]:
    return query.order_by(JobRow.created_at.desc(), JobRow.id)


def _check_deletable(session: Session, job: JobRecord) -> None:
    begin = f"job {job.name} ({job.id[:8]}) cannot be deleted: "
    if not job.ended:
        raise TransientError(
            f"{begin}it runs, driven by process {job.owner.pid} on {job.owner.host}; end it with "
            f"`scavenger stop {job.id[:8]}`"
        )
    for row in (FleetSpecRow, IntentRow):
        if session.scalar(select(row.job_id).where(row.job_id == job.id).limit(1)) is not None:
            raise ConfigurationError(f"{begin}its record tells what its VMs cost")


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(path)
