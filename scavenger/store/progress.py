"""What happens to a job while it runs: its processes, events and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast, get_args

from sqlalchemy import delete, select

from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import Measurement
from scavenger.store.base import Part, job_row
from scavenger.store.records import EventLevel, EventRecord, ProcessRecord, ProcessRole, ProcessState
from scavenger.store.schema import EventRow, MeasurementRow, ProcessRow

__all__ = ["EVENTS_MAX", "Progress"]

EVENTS_MAX = 1_000
"""Of one job; the oldest go first, so that a job that fails in a loop does not fill the disk."""

MESSAGE_MAX = 2_000
"""Characters of an event's message; the log has the rest."""

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


class Progress(Part):
    """The part of `Store` that holds the processes, events and measurements of jobs.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve
    it; those that write raise `ConfigurationError` where there is no such job.
    """

    def set_process(
        self,
        job_id: str,
        process: str,
        *,
        role: ProcessRole,
        state: ProcessState,
        pid: int | None = None,
        detail: str = "",
        step: int | None = None,
        view: int | None = None,
    ) -> None:
        """Record what is known of a process; None keeps what was known of `pid`, `step` and `view`."""
        with self._database.writing() as session:
            job_row(session, job_id)
            row = session.get(ProcessRow, (job_id, process)) or ProcessRow(job_id=job_id, process=process)
            row.role, row.state, row.detail, row.updated_at = role, state, detail, self._clock()
            for column, value in (("pid", pid), ("step", step), ("view_number", view)):
                if value is not None:
                    setattr(row, column, value)
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

    def add_event(self, job_id: str, kind: str, message: str, *, level: EventLevel = "info") -> None:
        """Record an event; the oldest beyond `EVENTS_MAX` of the job are forgotten."""
        with self._database.writing() as session:
            job_row(session, job_id)
            session.add(
                EventRow(
                    job_id=job_id, at=self._clock(), level=level, kind=kind, message=message[:MESSAGE_MAX]
                )
            )
            session.flush()
            ids = select(EventRow.id).where(EventRow.job_id == job_id).order_by(EventRow.id.desc())
            newest_to_go = ids.offset(EVENTS_MAX).limit(1).scalar_subquery()
            session.execute(delete(EventRow).where(EventRow.job_id == job_id, EventRow.id <= newest_to_go))

    def events(self, job_id: str, *, limit: int = 100, after: int = 0) -> tuple[EventRecord, ...]:
        """The newest `limit` events of a job with an id above `after`, in the order of time."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > after)
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(EventRow.id.desc()).limit(limit)).all()
            return tuple(
                EventRecord(row.id, row.job_id, row.at, cast(EventLevel, row.level), row.kind, row.message)
                for row in reversed(rows)
            )

    def add_measurements(self, job_id: str, measurements: Sequence[Measurement]) -> None:
        """Record measurements, all or none; a configuration measured again replaces what was measured before.

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
    )
