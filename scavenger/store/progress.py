"""The store's records of a running job: its processes, events and measurements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Unpack, cast, get_args

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from scavenger.domain.configuration import Configuration
from scavenger.domain.document import without_nonfinite
from scavenger.domain.measurement import Measurement
from scavenger.store.base import Part, job_row
from scavenger.store.records import (
    EventLevel,
    EventRecord,
    ProcessRecord,
    ProcessRole,
    ProcessState,
    ProcessUpdate,
)
from scavenger.store.schema import EventRow, MeasurementRow, ProcessRow

EVENTS_MAX = 1_000
"""Most events kept of one job, the newest, so that a job that fails in a loop does not fill the disk."""

MESSAGE_MAX = 2_000
"""Longest stored message of an event, characters; the log has the rest."""

_MEASURED = (
    "steps",
    "step_time_s",
    "step_time_spread_s",
    "compute_s",
    "sync_s",
    "gradient_noise",
    "noise_scale",
    "memory_bytes",
)


class ProgressPart(Part):
    """The part of `Store` that holds the processes, events and measurements of jobs.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve
    it; those that write raise `ConfigurationError` where there is no such job.
    """

    def set_process(self, job_id: str, process: str, **known: Unpack[ProcessUpdate]) -> None:
        """Record the state of one process; see `set_processes`."""
        self.set_processes(job_id, {process: known})

    def set_processes(self, job_id: str, processes: Mapping[str, ProcessUpdate]) -> None:
        """Record the states of processes, by their names within the job, in one transaction.

        Fields that are left out, or None, are unchanged; but a `detail` is removed with the state that it explains.
        """
        with self._database.writing() as session:
            job_row(session, job_id)
            for process, known in processes.items():
                row = session.get(ProcessRow, (job_id, process)) or ProcessRow(
                    job_id=job_id, process=process, state="", detail=""
                )
                if row.state != known["state"]:
                    row.detail = ""
                row.updated_at = self._clock()
                for name, value in known.items():
                    if value is not None:
                        setattr(row, "view_number" if name == "view" else name, value)
                session.add(row)

    def processes(self, job_id: str) -> tuple[ProcessRecord, ...]:
        """The processes of a job, by role and name."""
        query = select(ProcessRow).where(ProcessRow.job_id == job_id)
        with self._database.reading() as session:
            records = [_process(row) for row in session.scalars(query)]
        roles = get_args(ProcessRole)
        return tuple(
            sorted(
                records, key=lambda record: (roles.index(record.role), len(record.process), record.process)
            )
        )

    def add_event(
        self,
        job_id: str,
        kind: str,
        message: str,
        *,
        level: EventLevel = "info",
        data: Mapping[str, Any] | None = None,
        replacing: bool = False,
    ) -> None:
        """Record an event; the oldest beyond `EVENTS_MAX` of the job are deleted.

        Args:
            kind: One word, as `view` or `worker`.
            message: Text for the user.
            level: Severity.
            data: Machine-readable details, of JSON types; NaN and infinity in it become null.
            replacing: Delete the job's earlier events of this kind.
        """
        with self._database.writing() as session:
            job_row(session, job_id)
            session.add(
                EventRow(
                    job_id=job_id,
                    at=self._clock(),
                    level=level,
                    kind=kind,
                    message=message[:MESSAGE_MAX],
                    data=without_nonfinite(data) if data else None,
                )
            )
            session.flush()
            if replacing:
                same = (EventRow.job_id == job_id, EventRow.kind == kind)
                newest = select(func.max(EventRow.id)).where(*same).scalar_subquery()
                session.execute(delete(EventRow).where(*same, EventRow.id < newest))
            ids = select(EventRow.id).where(EventRow.job_id == job_id).order_by(EventRow.id.desc())
            newest_to_go = ids.offset(EVENTS_MAX).limit(1).scalar_subquery()
            session.execute(delete(EventRow).where(EventRow.job_id == job_id, EventRow.id <= newest_to_go))

    def events(
        self,
        job_id: str,
        *,
        limit: int = 100,
        after: int = 0,
        kind: str | None = None,
        without: Collection[str] = (),
    ) -> tuple[EventRecord, ...]:
        """The newest `limit` events of a job, of one kind or all but some, with an id above `after`, oldest first."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > after)
        if without:
            query = query.where(EventRow.kind.not_in(without))
        if kind is not None:
            query = query.where(EventRow.kind == kind)
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(EventRow.id.desc()).limit(limit)).all()
            return tuple(map(_event, reversed(rows)))

    def events_after(self, job_id: str, limit: int, after: int) -> tuple[EventRecord, ...]:
        """The first `limit` events of a job with an id above `after`, oldest first."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > after)
        with self._database.reading() as session:
            return tuple(map(_event, session.scalars(query.order_by(EventRow.id).limit(limit))))

    def latest_data(self, job_ids: Collection[str], kind: str) -> dict[str, dict[str, Any]]:
        """The data of the newest event of a kind of each of these jobs, by job; those without one are left out."""
        query = select(EventRow.job_id, EventRow.data).where(
            EventRow.job_id.in_(job_ids), EventRow.kind == kind
        )
        with self._database.reading() as session:
            return {job: data or {} for job, data in session.execute(query.order_by(EventRow.id))}

    def add_measurements(self, job_id: str, measurements: Sequence[Measurement]) -> None:
        """Record measurements, all or none; a new measurement of a configuration replaces the old one.

        Raises:
            StoreError: A time is not positive, or not a number.
        """
        with self._database.writing() as session:
            job_row(session, job_id)
            for measurement in measurements:
                at = asdict(measurement.configuration)
                row = session.scalar(select(MeasurementRow).filter_by(job_id=job_id, **at))
                row = row or MeasurementRow(job_id=job_id, **at)
                for name in _MEASURED:
                    setattr(row, name, getattr(measurement, name))
                session.add(row)
                session.flush()

    def measurements(self, job_id: str) -> tuple[Measurement, ...]:
        """The measurements of a job, in the order in which their configurations were first measured."""
        query = select(MeasurementRow).where(MeasurementRow.job_id == job_id).order_by(MeasurementRow.id)
        with self._database.reading() as session:
            return tuple(
                Measurement(
                    Configuration(row.vm, row.workers, row.global_batch_size),
                    **{name: getattr(row, name) for name in _MEASURED},
                )
                for row in session.scalars(query)
            )


def _event(row: EventRow) -> EventRecord:
    level = cast(EventLevel, row.level)
    return EventRecord(row.id, row.job_id, row.at, level, row.kind, row.message, row.data or {})


def _process(row: ProcessRow) -> ProcessRecord:
    return ProcessRecord(
        row.job_id,
        row.process,
        cast(ProcessRole, row.role),
        row.pid,
        cast(ProcessState, row.state),
        row.detail,
        row.step,
        row.view_number,
        row.updated_at,
        row.host,
    )


def close_processes(session: Session, job_id: str, state: ProcessState, *, at: datetime) -> None:
    """Set the state of all processes of a job that have not ended; `session` holds the write lock."""
    ended: tuple[ProcessState, ...] = ("lost", "failed", "gone")
    session.execute(
        update(ProcessRow)
        .where(ProcessRow.job_id == job_id, ProcessRow.state.not_in(ended))
        .values(state=state, detail="", updated_at=at)
    )


def forget_processes(session: Session, job_id: str) -> None:
    """Delete the processes of an attempt, since the next one reuses their names; `session` holds the write lock."""
    session.execute(delete(ProcessRow).where(ProcessRow.job_id == job_id))
