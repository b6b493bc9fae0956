"""Rows of jobs as records, and what changes them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Row
from sqlalchemy.orm import Session

from scavenger.domain.configuration import Configuration
from scavenger.domain.document import restored, without_nonfinite
from scavenger.domain.report import Actual, JobState, Predicted
from scavenger.errors import StoreError
from scavenger.store.base import fingerprint_of, fingerprint_row, job_row
from scavenger.store.ledger import note_counted
from scavenger.store.owner import owner_of
from scavenger.store.records import LIVE_STATES, JobProgress, JobRecord
from scavenger.store.schema import FingerprintRow, JobRow

_CONVERTED = {"owner", "spec", "report", "fingerprint", "chosen", "predicted", "actual"}
COPIED = tuple(set(JobRecord.__dataclass_fields__) - _CONVERTED)
"""Fields of a record that are stored as they are."""


def as_stored(session: Session, row: JobRow) -> JobRecord:
    session.flush()
    session.refresh(row)  # the database may hold text in another form than it was given
    return job_from(row, with_report=True)


def live_row(session: Session, job_id: str) -> JobRow:
    row = job_row(session, job_id)
    if row.state not in LIVE_STATES:
        raise StoreError(f"job {job_id} has already ended as {row.state}")
    return row


def write_progress(session: Session, row: JobRow, fields: JobProgress, at: datetime) -> None:
    changes: dict[str, Any] = dict(fields)
    if (fingerprint := changes.pop("fingerprint", None)) is not None:
        row.fingerprint = fingerprint_row(session, fingerprint)
    if (chosen := changes.pop("chosen", None)) is not None:
        row.chosen_vm, row.chosen_workers = chosen.vm, chosen.workers
        row.chosen_global_batch_size = chosen.global_batch_size
    for name in ("predicted", "actual"):
        if (value := changes.pop(name, None)) is not None:
            setattr(row, name, without_nonfinite(asdict(value)))
    for name, value in changes.items():
        setattr(row, name, value)
    if (cost_usd := changes.get("cost_usd")) is not None:
        note_counted(session, row, cost_usd, at)


LISTED = tuple(getattr(JobRow, one.key) for one in JobRow.__mapper__.column_attrs if one.key != "report")
"""Columns of lists, as rows of the table: objects would take about twice as long."""


def job_from(row: JobRow, *, with_report: bool) -> JobRecord:
    return job_of(row, row.fingerprint, row.report if with_report else None)


def job_of(
    row: JobRow | Row[Any], fingerprint: FingerprintRow | None, report: dict[str, Any] | None
) -> JobRecord:
    chosen = None
    if (
        row.chosen_vm is not None
        and row.chosen_workers is not None
        and row.chosen_global_batch_size is not None
    ):
        chosen = Configuration(row.chosen_vm, row.chosen_workers, row.chosen_global_batch_size)
    return JobRecord(
        id=row.id,
        name=row.name,
        state=cast(JobState, row.state),
        phase=row.phase,
        detail=row.detail,
        spec=row.spec,
        job_file=row.job_file,
        owner=owner_of(row),
        heartbeat_at=row.heartbeat_at,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        step=row.step,
        cost_usd=row.cost_usd,
        fingerprint=fingerprint_of(fingerprint) if fingerprint else None,
        chosen=chosen,
        predicted=restored(row.predicted or None, Predicted | None),
        actual=restored(row.actual or None, Actual | None),
        report=report,
        error=row.error,
        exit_code=row.exit_code,
        model_path=row.model_path,
        measurements_path=row.measurements_path,
        checkpoint=row.checkpoint,
        attempts=row.attempts,
    )
