"""Jobs, as `scavenger status` shows them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from scavenger.api.bills import all_billed, billed
from scavenger.api.calls import Local, Remote, Source, call, read
from scavenger.api.forms import PAGE_MAX, Cursor, JobKey, Limit
from scavenger.api.operations import OperationDocument
from scavenger.api.paging import encode, job_place, number_place
from scavenger.api.submissions import SubmittedJob, submitted
from scavenger.api.values import SCHEMA_VERSION, Answer, gathered
from scavenger.domain.epochs import EPOCHS
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.domain.report import JobState
from scavenger.domain.submission import not_begun
from scavenger.errors import NotFoundError
from scavenger.store import Store
from scavenger.store.records import EventRecord, JobRecord, ProcessRecord

POLL_S = 0.5
"""Between two looks for events: faster would not be noticed, and a look costs a millisecond."""
EVENTS_SHOWN = 12
OPERATIONS_SHOWN = 5
_LIVE = ("ready", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressDocument(Progress):
    """How far a job is; the loss is null where it is not finite."""

    loss: float | None  # type: ignore[assignment]  # not a number again once it is read

    def __post_init__(self) -> None:
        if self.loss is None:
            object.__setattr__(self, "loss", math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument(JobRecord):
    """A job; `alive` tells whether its process lives, `has_runner` whether a server runs it or will again."""

    alive: bool
    has_runner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob(JobDocument):
    """A job in a list.

    Attributes:
        progress: Null if it made no step, or was not asked for.
    """

    progress: ProgressDocument | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage(Answer):
    """Jobs, newest first, without their reports.

    Attributes:
        next: Cursor of the next page; null on the last.
    """

    masked: ClassVar[bool] = True

    store: str
    jobs: tuple[ListedJob, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer(Answer):
    """A job with its bill, and what happened last.

    Attributes:
        job: Null while the submission waits for its runner.
        operations: The latest, oldest first.
        events: The latest, oldest first, without those that report progress.
        submission: Null for a job that a command runs itself.
    """

    masked: ClassVar[bool] = True

    store: str
    job: JobDocument | None
    progress: ProgressDocument | None
    processes: tuple[ProcessRecord, ...]
    operations: tuple[OperationDocument, ...]
    events: tuple[EventRecord, ...]
    submission: SubmittedJob | None

    @property
    def begun(self) -> JobDocument:
        """The job.

        Raises:
            NotFoundError: Only its submission is on record.
        """
        if self.job is None:
            assert self.submission is not None
            one = self.submission
            raise NotFoundError(not_begun(one.id, one.name, one.state, one.reason))
        return self.job


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPage(Answer):
    """Events of a job, oldest first."""

    masked: ClassVar[bool] = True

    events: tuple[EventRecord, ...]
    next: str | None


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
    found = []
    for job in all_billed(store, jobs, alive):
        far = _progress(Progress.read(told[job.id])) if job.id in told else None
        one = gathered(ListedJob, job, alive=job.id in alive, has_runner=job.id in runners, progress=far)
        found.append(one)
    return tuple(found)


def _progress(progress: Progress | None) -> ProgressDocument | None:
    return None if progress is None else gathered(ProgressDocument, progress)


@call("get", "jobs", tag="jobs", summary="The latest jobs")
def list_jobs(
    at: Local,
    state: Annotated[list[JobState] | None, Field(max_length=10)] = None,
    name: Annotated[str | None, Field(max_length=200, description="A pattern such as `digits*`.")] = None,
    progress: Annotated[bool, Field(description="Whether progress is told; else it is null.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobsPage:
    """Jobs that the caller may see, newest first."""
    store = at.store
    with store.at_one_moment():
        found = store.jobs(limit + 1, states=state or (), name=name, user=at.only_of, after=job_place(cursor))
        jobs = listed(store, found[:limit], progress=progress)
    return JobsPage(store=store.name, jobs=jobs, next=next_jobs(found, limit))


def next_jobs(found: Sequence[JobRecord], limit: int) -> str | None:
    """The cursor of the page after the first `limit` jobs of those that were found; None if there are no others."""
    last = found[limit - 1] if len(found) > limit else None
    return None if last is None else encode(last.created_at.isoformat(), last.id)


def jobs_of(
    source: Source, limit: int, *, states: Sequence[JobState] = (), name: str | None = None
) -> tuple[ListedJob, ...]:
    """The latest jobs, newest first, with their progress, page by page."""
    found: list[ListedJob] = []
    cursor: str | None = None
    while len(found) < limit:
        most = limit - len(found) if isinstance(source, Local) else min(limit - len(found), PAGE_MAX)
        page = list_jobs(source, list(states) or None, name, True, most, cursor)
        found += page.jobs
        if (cursor := page.next) is None:
            break
    return tuple(found)


@call("get", "jobs/{job}", tag="jobs", summary="One job")
def show_job(at: Local, job: JobKey) -> JobAnswer:
    """A job with its progress, processes, operations and latest events; or its submission, while that waits."""
    store = at.store
    with store.at_one_moment():
        try:
            record = billed(store, at.find_job(job))
        except NotFoundError:
            waiting = at.find_submission(job)
            if waiting is None:
                raise
            return JobAnswer(
                store=store.name,
                job=None,
                progress=None,
                processes=(),
                operations=(),
                events=(),
                submission=submitted(waiting),
            )
        one = store.submission(record.id)
        return JobAnswer(
            store=store.name,
            job=gathered(
                JobDocument, record, alive=store.is_alive(record), has_runner=store.has_runner(record.id)
            ),
            progress=_progress(progress_of(store, record)),
            processes=store.processes(record.id),
            operations=tuple(map(OperationDocument.of, store.operations(record.id, limit=OPERATIONS_SHOWN))),
            events=store.events(record.id, limit=EVENTS_SHOWN, without=(PROGRESS, EPOCHS)),
            submission=None if one is None else submitted(one, record.state, record.cost_usd),
        )


def job_of(source: Source, key: str) -> JobRecord:
    """A job with its report.

    Raises:
        NotFoundError: There is none, or it has not begun.
        ConfigurationError: Several ids begin with `key`.
    """
    return source.find_job(key) if isinstance(source, Local) else show_job(source, key).begun


@call("get", "jobs/{job}/events", tag="jobs", summary="Events of a job")
def list_events(at: Local, job: JobKey, limit: Limit = 100, cursor: Cursor = None) -> EventsPage:
    """Events, oldest first."""
    with at.store.at_one_moment():
        record = at.find_job(job)
        found = at.store.events_after(record.id, limit + 1, number_place(cursor) or 0)
    events = tuple(found[:limit])
    return EventsPage(events=events, next=encode(events[-1].id) if len(found) > limit else None)


def events_of(source: Source, job_id: str, after: int = 0) -> Iterator[EventRecord]:
    """Events of a job as they come, until it has ended and no server will run it again.

    Args:
        after: Only events with a higher id.
    """
    if isinstance(source, Remote):
        yield from (read(row, EventRecord) for row in source.client.follow_events(job_id, after))
        return
    store = source.store
    while True:
        # the state is read first, so that the last events are read after the end
        over = not store.is_alive(store.job(job_id)) and not store.has_runner(job_id)
        for event in store.events(job_id, limit=10_000, after=after):
            after = event.id
            yield event
        if over:
            return
        time.sleep(POLL_S)


def end_dead(source: Source) -> None:
    """Record the end of jobs whose process is gone from here; a server sees its own."""
    if isinstance(source, Local):
        source.store.reap_dead_jobs()


def hosts_of(status: JobAnswer) -> dict[str, int]:
    """The hosts of a job's live workers, each with how many there are; empty for a job that does not run."""
    job = status.begun
    if job.ended or not job.alive:
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
