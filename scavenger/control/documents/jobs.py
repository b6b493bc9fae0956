"""Jobs, as `scavenger status` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scavenger.control.documents.operations import operation_row
from scavenger.control.documents.plain import SCHEMA_VERSION, plain
from scavenger.domain.progress import PROGRESS, Progress

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import EventRecord, JobRecord, OperationRecord, ProcessRecord

__all__ = ["JobStatus", "job_document", "jobs_document", "progress_of", "status_document", "status_of"]

EVENTS_SHOWN = 12
OPERATIONS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job with its progress, and what happened last.

    Attributes:
        progress: None if it made no step.
        events: The latest, oldest first, without those that report progress.
        operations: The latest, oldest first.
    """

    job: JobRecord
    progress: Progress | None
    processes: tuple[ProcessRecord, ...]
    operations: tuple[OperationRecord, ...]
    events: tuple[EventRecord, ...]


def progress_of(store: Store, job: JobRecord) -> Progress | None:
    """How far a job is, or was at its end; None if it made no step."""
    told = store.events(job.id, limit=1, kind=PROGRESS)
    return Progress.read(told[0].data) if told else None


def status_of(store: Store, job: JobRecord) -> JobStatus:
    """Read what `status` shows of one job."""
    latest = store.events(job.id, limit=EVENTS_SHOWN + 1)  # one of them may be the progress
    return JobStatus(
        job,
        progress_of(store, job),
        store.processes(job.id),
        store.operations(job.id, limit=OPERATIONS_SHOWN),
        tuple(event for event in latest if event.kind != PROGRESS)[-EVENTS_SHOWN:],
    )


def job_document(store: Store, job: JobRecord) -> dict[str, Any]:
    """A job as JSON values, and whether its process is alive."""
    return {**plain(job), "alive": store.is_alive(job)}


def jobs_document(store: Store, jobs: Iterable[JobRecord]) -> dict[str, Any]:
    """A list of jobs."""
    rows = [job_document(store, job) for job in jobs]
    return {"schema_version": SCHEMA_VERSION, "store": store.name, "jobs": rows}


def status_document(store: Store, status: JobStatus) -> dict[str, Any]:
    """One job with its progress, processes, operations and events."""
    return {
        "schema_version": SCHEMA_VERSION,
        "store": store.name,
        "job": job_document(store, status.job),
        "progress": plain(status.progress),
        "processes": plain(status.processes),
        "operations": [operation_row(operation) for operation in status.operations],
        "events": plain(status.events),
    }
