"""Operations that were requested of running jobs, as `scavenger status` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from scavenger.api.calls import Local, call
from scavenger.api.forms import JobKey, Limit, Number
from scavenger.api.values import Answer, gathered
from scavenger.domain.operation import Operation, operation_document, operation_from_document
from scavenger.domain.report import JobState
from scavenger.errors import NotFoundError
from scavenger.store.records import OPEN_STATES, JobRecord, OperationRecord, OperationState


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDocument:
    """An operation that was requested of a running job.

    Attributes:
        operation: With its `kind` and its fields.
        message: The answer, one line; empty before.
        started_at: When the job took it; null if it has not.
    """

    id: int
    job_id: str
    operation: dict[str, Any]
    requested_by: str
    state: OperationState
    message: str
    requested_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, record: OperationRecord) -> Self:
        """As it is on record."""
        return gathered(cls, record, operation=operation_document(record.operation))

    @property
    def asked(self) -> Operation:
        """What was asked for."""
        return operation_from_document(self.operation)

    @property
    def ended(self) -> bool:
        """Whether the operation was answered."""
        return self.state not in OPEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHead:
    """A job."""

    id: str
    name: str
    state: JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationAnswer(Answer):
    """What became of an operation so far."""

    job: JobHead
    operation: OperationDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsAnswer(Answer):
    """Operations of a job, oldest first."""

    operations: tuple[OperationDocument, ...]


@call("get", "jobs/{job}/operations", tag="operations", summary="Operations of a job")
def list_operations(at: Local, job: JobKey, limit: Limit = 20) -> OperationsAnswer:
    """The latest operations that were requested, oldest first."""
    found = at.store.operations(at.find_job(job).id, limit=limit)
    return OperationsAnswer(operations=tuple(map(OperationDocument.of, found)))


@call("get", "jobs/{job}/operations/{operation}", tag="operations", summary="One operation")
def show_operation(at: Local, job: JobKey, operation: Number) -> OperationAnswer:
    """What became of an operation."""
    record = at.find_job(job)
    return outcome(record, _operation(at, record, operation))


@call(
    "delete",
    "jobs/{job}/operations/{operation}",
    tag="operations",
    summary="Withdraw an operation",
    role="changer",
    writes="store",
)
def withdraw(at: Local, job: JobKey, operation: Number) -> OperationAnswer:
    """Withdraw an operation that the job has not started; one that it has is only shown."""
    record = at.find_job(job)
    by = "" if at.caller is None else f" by {at.user}"
    found = _operation(at, record, operation)
    message = f"withdrawn{by} before the job started it"
    return outcome(record, at.store.withdraw_operation(found.id, message))


def _operation(at: Local, job: JobRecord, number: int) -> OperationRecord:
    found = at.store.operation(number)
    if found.job_id != job.id:
        raise NotFoundError(f"there is no operation {number} of job {job.id}")
    return found


def outcome(job: JobRecord, record: OperationRecord) -> OperationAnswer:
    """What became of an operation so far."""
    return OperationAnswer(job=gathered(JobHead, job), operation=OperationDocument.of(record))
