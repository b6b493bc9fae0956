"""Operations on running jobs, as `scavenger status` and `scavenger scale` show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scavenger.control.documents.plain import SCHEMA_VERSION, plain
from scavenger.domain.operation import operation_document

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord, OperationRecord

__all__ = ["operation_row", "outcome_document"]


def operation_row(record: OperationRecord) -> dict[str, Any]:
    """The record as JSON values; its operation names its kind."""
    row: dict[str, Any] = plain(record)
    return {**row, "operation": operation_document(record.operation)}


def outcome_document(job: JobRecord, record: OperationRecord) -> dict[str, Any]:
    """What became of an operation so far."""
    return {
        "schema_version": SCHEMA_VERSION,
        "job": {"id": job.id, "name": job.name, "state": job.state},
        "operation": operation_row(record),
    }
