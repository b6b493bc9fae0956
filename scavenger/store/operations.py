"""The store's queue of operations that users request of running jobs, one operation per job at a time.

The requester submits an operation and reads its record until it has ended; the process that runs the job takes the
operation, carries it out, and ends it. If the job ends first, the operation ends with it, so no requester waits in
vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from scavenger.domain.operation import (
    Operation,
    StopJob,
    describe,
    operation_document,
    operation_from_document,
)
from scavenger.domain.report import JobState
from scavenger.errors import ConfigurationError, NotFoundError, StoreError, TransientError
from scavenger.store.base import Part, job_row
from scavenger.store.owner import is_owner_alive, owner_of
from scavenger.store.records import (
    LIVE_STATES,
    OPEN_STATES,
    RESUMABLE_STATES,
    OperationRecord,
    OperationState,
    Verdict,
)
from scavenger.store.schema import JobRow, OperationRow

KEPT = "study"
"""As `POOL`, of VMs that a study keeps between its trials."""
VMS_OF = "vms_of"
"""As `POOL`, of VMs that a pool keeps between its jobs: its name."""
POOL = "pool"
"""Key of the place in the spec of a record that is no job's: of a pool that rents nodes."""

MESSAGE_MAX = 2_000
"""Longest stored answer, characters; the log has the rest."""


class OperationsPart(Part):
    """The part of `Store` that holds operations.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve
    it, and `ConfigurationError` where there is no such job or operation.
    """

    def submit_operation(self, job_id: str, operation: Operation, requested_by: str) -> OperationRecord:
        """Request an operation of a running job.

        Raises:
            ConfigurationError: The job has ended, or its process is gone.
            TransientError: It has another operation that has not ended.
        """
        with self._database.writing() as session:
            job, now = job_row(session, job_id), self._clock()
            if POOL in job.spec:
                raise ConfigurationError(
                    f"{job.name} ({job.id[:8]}) is no job, but a pool with rented nodes: SIGTERM to process "
                    f"{job.owner_pid} on {job.owner_host} ends it"
                )
            if KEPT in job.spec:
                raise ConfigurationError(
                    f"{job.name} ({job.id[:8]}) is no job, but the VMs that study {job.spec[KEPT]} keeps; they end "
                    f"with process {job.owner_pid} on {job.owner_host}"
                )
            if VMS_OF in job.spec:
                raise ConfigurationError(
                    f"{job.name} ({job.id[:8]}) is no job, but the VMs that pool {job.spec[VMS_OF]} keeps; they end "
                    f"with its server, process {job.owner_pid} on {job.owner_host}"
                )
            name, request = f"job {job.name} ({job.id[:8]})", describe(operation)
            if job.state not in LIVE_STATES:
                hint = f"; `scavenger resume {job.id[:8]}` goes on with it"
                raise ConfigurationError(
                    f"{name} cannot be asked to {request}: it has ended as "
                    f"{job.state.replace('_', ' ')}"
                    + (hint if job.state in RESUMABLE_STATES and job.checkpoint is not None else "")
                )
            owner = owner_of(job)
            if not is_owner_alive(owner, job.heartbeat_at, at=now):
                raise ConfigurationError(
                    f"{name} cannot be asked to {request}: its process {owner.pid} on "
                    f"{owner.host} is gone; `scavenger resume {job.id[:8]}` goes on with it"
                )
            if (other := _open_row(session, job_id)) is not None:
                raise _occupied(job, other)
            row = OperationRow(
                job_id=job_id,
                operation=operation_document(operation),
                requested_by=requested_by,
                state="pending",
                message="",
                requested_at=now,
            )
            session.add(row)
            try:
                session.flush()
            except IntegrityError:  # writers take turns; this is the database's own word should one not
                raise TransientError(
                    f"{name} was asked for something else at the same moment; try again"
                ) from None
            session.refresh(row)
            return _operation(row)

    def next_operation(self, job_id: str) -> OperationRecord | None:
        """Take the job's pending operation, which is then `running`; None if there is none.

        Cheap if none is pending, since nothing is written. One that cannot be read, as of a newer
        Scavenger, is ended as `failed`.
        """
        with self._database.reading() as session:
            waiting = _open_row(session, job_id)
            if waiting is None or waiting.state != "pending":
                return None
        with self._database.writing() as session:
            row = session.get_one(OperationRow, waiting.id)
            if row.state != "pending":  # withdrawn, or taken, since it was seen
                return None
            try:
                _read(row.operation)
            except StoreError as error:
                _end_row(row, "failed", str(error), self._clock())
                return None
            row.state, row.started_at = "running", self._clock()
            session.flush()
            session.refresh(row)
            return _operation(row)

    def open_operation(self, job_id: str) -> OperationRecord | None:
        """The open operation of a job, `pending` or `running`; None if there is none."""
        with self._database.reading() as session:
            row = _open_row(session, job_id)
            return None if row is None else _operation(row)

    def end_operation(self, operation_id: int, state: Verdict, message: str) -> OperationRecord:
        """Answer an operation; one that has ended keeps its first answer.

        Args:
            operation_id: As in `OperationRecord.id`.
            state: `done`, `refused` (nothing was changed) or `failed`.
            message: One line for the requester.

        Returns:
            The operation as it is now.
        """
        return self._end(operation_id, OPEN_STATES, state, message)

    def withdraw_operation(self, operation_id: int, message: str) -> OperationRecord:
        """Withdraw an operation that was not started: it becomes `refused`. One that was taken continues.

        Returns:
            The operation as it is now; its state shows whether it was withdrawn.
        """
        return self._end(operation_id, ("pending",), "refused", message)

    def _end(
        self, operation_id: int, among: tuple[OperationState, ...], state: Verdict, message: str
    ) -> OperationRecord:
        with self._database.writing() as session:
            row = _row(session, operation_id)
            if row.state in among:
                _end_row(row, state, message, self._clock())
                session.flush()
                session.refresh(row)
            return _operation(row)

    def operation(self, operation_id: int) -> OperationRecord:
        """An operation by its number."""
        with self._database.reading() as session:
            return _operation(_row(session, operation_id))

    def operations(self, job_id: str, *, limit: int = 20) -> tuple[OperationRecord, ...]:
        """The newest operations of a job, oldest first."""
        query = select(OperationRow).where(OperationRow.job_id == job_id)
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(OperationRow.id.desc()).limit(limit)).all()
            return tuple(_operation(row) for row in reversed(rows))


def end_open_operation(session: Session, job_id: str, state: JobState, reason: str, at: datetime) -> None:
    """End a job's open operation as the job ends: a stop that was taken is `done`, any other is not.

    Args:
        session: A session that holds the write lock.
        state: Final state of the job.
        reason: The job's error, one line; empty if it has none.
        at: Time of the end.
    """
    row = _open_row(session, job_id)
    if row is None:
        return
    ending = f"the job ended as {state.replace('_', ' ')}" + (f": {reason}" if reason else "")
    if row.state == "pending":
        _end_row(row, "refused", f"not begun: {ending}", at)
        return
    in_order = not reason or state in ("interrupted", "stopped")
    stopped = in_order and row.operation.get("kind") == operation_document(StopJob())["kind"]
    _end_row(row, "done" if stopped else "failed", ending, at)


def _end_row(row: OperationRow, state: Verdict, message: str, at: datetime) -> None:
    row.state, row.ended_at = state, at
    row.message = " ".join(message.split())[:MESSAGE_MAX]


def _open_row(session: Session, job_id: str) -> OperationRow | None:
    query = select(OperationRow).where(OperationRow.job_id == job_id, OperationRow.ended_at.is_(None))
    return session.scalar(query)


def _row(session: Session, operation_id: int) -> OperationRow:
    row = session.get(OperationRow, operation_id)
    if row is None:
        raise NotFoundError(f"there is no operation {operation_id}; `scavenger status JOB` lists a job's")
    return row


def _occupied(job: JobRow, other: OperationRow) -> TransientError:
    doing = "is about to" if other.state == "pending" else "is busy: it was asked to"
    return TransientError(
        f"job {job.name} ({job.id[:8]}) {doing} {describe(_read(other.operation))} (asked by "
        f"{other.requested_by}); one thing at a time: try again when `scavenger status {job.id[:8]}` shows its end"
    )


def _read(document: Mapping[str, Any]) -> Operation:
    try:
        return operation_from_document(document)
    except ValueError as error:
        raise StoreError(f"a stored operation cannot be read: {error}") from error


def _operation(row: OperationRow) -> OperationRecord:
    return OperationRecord(
        id=row.id,
        job_id=row.job_id,
        operation=_read(row.operation),
        requested_by=row.requested_by,
        state=cast(OperationState, row.state),
        message=row.message,
        requested_at=row.requested_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
