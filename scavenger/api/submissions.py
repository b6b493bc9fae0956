"""Submitted jobs, as `scavenger jobs queue` and the server show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from scavenger.api.calls import Local, Source, call
from scavenger.api.deadlines import Deadline
from scavenger.api.forms import PAGE_MAX, Cursor, JobKey, Limit
from scavenger.api.paging import encode, number_place
from scavenger.api.values import Answer, gathered
from scavenger.domain.report import JobState
from scavenger.domain.submission import (
    OPEN_SUBMISSIONS,
    ServerRecord,
    Submission,
    SubmissionState,
    not_submitted,
)
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.store import Store


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A submission, without the specification of its job; see `scavenger.domain.submission.Submission`.

    Attributes:
        job_state: State of the job; None before its runner has put it on record.
        cost_usd: Cost of the job so far; None if none is recorded.
        host: Name of the machine that it was submitted on, and is run on.
        installation: Id of the installation whose servers run it; empty if it has none on record.
    """

    id: str
    number: int
    state: SubmissionState
    reason: str
    cancelling: bool
    starts: int
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    name: str
    job_file: str
    user: str
    job_state: JobState | None
    cost_usd: float | None
    host: str
    installation: str

    @property
    def is_open(self) -> bool:
        """Whether it still waits or runs."""
        return self.state in OPEN_SUBMISSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionAnswer(Answer):
    """A submission.

    Attributes:
        deadline: Whether that of a job of a pool is promised, where it was submitted by this call; else null.
    """

    masked: ClassVar[bool] = True

    submission: SubmittedJob
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionsPage(Answer):
    """Submitted jobs, newest first, with why they wait.

    Attributes:
        servers: Processes that run submitted jobs.
        next: Cursor of the next page; null on the last.
    """

    masked: ClassVar[bool] = True

    submissions: tuple[SubmittedJob, ...]
    servers: tuple[ServerRecord, ...]
    next: str | None


def submitted(
    submission: Submission, job_state: JobState | None = None, cost_usd: float | None = None
) -> SubmittedJob:
    """A submission, with what is known of its job."""
    starts = submission.starts.count
    return gathered(
        SubmittedJob, submission, submission.job, starts=starts, job_state=job_state, cost_usd=cost_usd
    )


def submitted_jobs(store: Store, found: Sequence[Submission]) -> tuple[SubmittedJob, ...]:
    """Read what lists show of submissions."""
    states = store.states_of([one.id for one in found])
    return tuple(submitted(one, *states.get(one.id, (None, None))) for one in found)


@call("get", "queue", tag="jobs", summary="Submitted jobs")
def list_submissions(
    at: Local,
    state: Annotated[list[SubmissionState] | None, Field(max_length=10)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> SubmissionsPage:
    """Submitted jobs, newest first, with why they wait."""
    before = number_place(cursor)
    found = at.store.submissions(limit + 1, states=state or (), user=at.only_of, before=before)
    shown = found[:limit]
    return SubmissionsPage(
        submissions=submitted_jobs(at.store, shown),
        servers=at.store.servers(),
        next=encode(shown[-1].number) if len(found) > limit else None,
    )


@call("get", "queue/{job}", tag="jobs", summary="A submitted job")
def show_submission(at: Local, job: JobKey) -> SubmissionAnswer:
    """The latest submission of a job, or of a name."""
    found = at.find_submission(job)
    if found is None:
        raise NotFoundError(f"there is no submitted job {job!r}; `scavenger jobs queue --all` lists them")
    return SubmissionAnswer(submission=submitted_jobs(at.store, [found])[0])


def submission_of(source: Source, key: str) -> SubmittedJob | None:
    """The latest submission of a key; None if there is none."""
    try:
        return show_submission(source, key).submission
    except NotFoundError:
        return None


def open_submissions_of(source: Source, user: str) -> Iterator[SubmittedJob]:
    """The submissions of a user that wait or run, newest first."""
    cursor: str | None = None
    while True:
        page = list_submissions(source, list(OPEN_SUBMISSIONS), PAGE_MAX, cursor)
        yield from (one for one in page.submissions if one.user == user)
        if (cursor := page.next) is None:
            return


@call(
    "delete",
    "queue/{job}",
    tag="operations",
    summary="Cancel a submitted job",
    role="changer",
    writes="store",
)
def cancel(at: Local, job: JobKey) -> SubmissionAnswer:
    """Withdraw a submitted job that waits; stop one that runs, as its runner would be by Ctrl-C in a command."""
    found = at.find_submission(job)
    if found is None:
        record = at.find_job(job)
        raise ConfigurationError(not_submitted(record.id, record.name))
    now = at.store.cancel(found.id, f"cancelled by {at.user}") or found
    return SubmissionAnswer(submission=submitted_jobs(at.store, [now])[0])
