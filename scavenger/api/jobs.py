"""Jobs, as `scavenger status` shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.costs import all_billed
from scavenger.api.operations import operation_row
from scavenger.api.values import SCHEMA_VERSION, Answer, plain
from scavenger.domain.epochs import EPOCHS
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.masking import mask_values

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import EventRecord, JobRecord, OperationRecord, ProcessRecord

EVENTS_SHOWN = 12
OPERATIONS_SHOWN = 5
_LIVE = ("ready", "training")


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job in a list.

    Attributes:
        alive: Whether its process lives.
        has_runner: Whether it was submitted, and has a runner or will have another one.
        progress: None if it made no step, or was not asked for.
    """

    job: JobRecord
    alive: bool
    has_runner: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class JobStatus(ListedJob):
    """A job with what happened last.

    Attributes:
        events: The latest, oldest first, without those that report progress.
        operations: The latest, oldest first.
    """

    processes: tuple[ProcessRecord, ...]
    operations: tuple[OperationRecord, ...]
    events: tuple[EventRecord, ...]


def progress_of(store: Store, job: JobRecord) -> Progress | None:
    """How far a job is, or was at its end; None if it made no step."""
    told = store.events(job.id, limit=1, kind=PROGRESS)
    return Progress.read(told[0].data) if told else None


def listed(store: Store, jobs: Sequence[JobRecord], *, progress: bool = True) -> tuple[ListedJob, ...]:
    """Read what lists show of jobs, with their bills; without `progress`, which takes about as long as the rest, in
    half the time."""
    ids = [job.id for job in jobs]
    alive = frozenset(job.id for job in jobs if store.is_alive(job))
    told, runners = store.latest_data(ids, PROGRESS) if progress else {}, store.have_runners(ids)
    return tuple(
        ListedJob(
            job,
            job.id in alive,
            job.id in runners,
            Progress.read(told[job.id]) if job.id in told else None,
        )
        for job in all_billed(store, jobs, alive)
    )


def status_of(store: Store, job: JobRecord) -> JobStatus:
    """Read what `status` shows of one job."""
    return JobStatus(
        job,
        store.is_alive(job),
        store.has_runner(job.id),
        progress_of(store, job),
        store.processes(job.id),
        store.operations(job.id, limit=OPERATIONS_SHOWN),
        store.events(job.id, limit=EVENTS_SHOWN, without=(PROGRESS, EPOCHS)),
    )


def job_document(seen: ListedJob) -> dict[str, Any]:
    """A job as JSON values without secrets, and whether its process and its runner are alive."""
    return {**mask_values(plain(seen.job)), "alive": seen.alive, "has_runner": seen.has_runner}


def jobs_document(store_name: str, jobs: Iterable[ListedJob]) -> dict[str, Any]:
    """A list of jobs, with their progress."""
    rows = [{**job_document(one), "progress": plain(one.progress)} for one in jobs]
    return {"schema_version": SCHEMA_VERSION, "store": store_name, "jobs": rows}


def status_document(store_name: str, status: JobStatus) -> dict[str, Any]:
    """One job with its progress, processes, operations and events."""
    return {
        "schema_version": SCHEMA_VERSION,
        "store": store_name,
        "job": job_document(status),
        "progress": plain(status.progress),
        "processes": plain(status.processes),
        "operations": [operation_row(operation) for operation in status.operations],
        "events": mask_values(plain(status.events)),
    }


def hosts_of(status: JobStatus) -> dict[str, int]:
    """The hosts of a job's live workers, each with how many there are; empty for a job that does not run."""
    if status.job.ended or not status.alive:
        return {}
    live = Counter(
        process.host
        for process in status.processes
        if process.role == "worker" and process.state in _LIVE and process.host
    )
    return dict(sorted(live.items()))


def hosts_document(store_name: str, job_id: str, hosts: Mapping[str, int]) -> dict[str, Any]:
    """The hosts of a job's live workers."""
    rows = [{"host": host, "slots": slots} for host, slots in hosts.items()]
    return {"schema_version": SCHEMA_VERSION, "store": store_name, "job_id": job_id, "hosts": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsDeleted(Answer):
    """Ids of jobs whose records were deleted, or would be."""

    deleted: tuple[str, ...]
    dry_run: bool


@call("delete", "jobs", tag="jobs", summary="Delete records of jobs", role="changer", writes="once")
def delete_jobs(
    at: Local,
    job: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100)
    ],
    dry_run: Annotated[bool, Field(description="Only tell whether it is allowed.")] = False,
) -> JobsDeleted:
    """Delete the records of jobs that have ended, all or none; files and fitted models are kept."""
    found = list({one.id: one for one in map(at.find_job, job)}.values())
    for one in found:
        at.store.check_deletable(one)
    if not dry_run:
        at.store.delete_jobs([one.id for one in found])
    return JobsDeleted(deleted=tuple(one.id for one in found), dry_run=dry_run)
