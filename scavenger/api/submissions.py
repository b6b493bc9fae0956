"""Submitted jobs, as `scavenger jobs queue` and the server show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.domain.report import JobState
from scavenger.domain.submission import OPEN_SUBMISSIONS, SubmissionState
from scavenger.masking import mask_values

if TYPE_CHECKING:
    from scavenger.domain.submission import Submission
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


def submitted(
    submission: Submission, job_state: JobState | None = None, cost_usd: float | None = None
) -> SubmittedJob:
    """A submission, with what is known of its job."""
    one, job = submission, submission.job
    return SubmittedJob(
        one.id,
        one.number,
        one.state,
        one.reason,
        one.cancelling,
        one.starts,
        one.submitted_at,
        one.started_at,
        one.ended_at,
        job.name,
        job.job_file,
        job.user,
        job_state,
        cost_usd,
        job.host,
        one.installation,
    )


def submitted_jobs(store: Store, found: Sequence[Submission]) -> tuple[SubmittedJob, ...]:
    """Read what lists show of submissions."""
    states = store.states_of([one.id for one in found])
    return tuple(submitted(one, *states.get(one.id, (None, None))) for one in found)


def submission_document(submission: SubmittedJob) -> dict[str, Any]:
    """A submission as JSON values."""
    document: dict[str, Any] = mask_values(plain(submission))
    return document


def submission_answer(submission: SubmittedJob) -> dict[str, Any]:
    """One submission."""
    return {"schema_version": SCHEMA_VERSION, "submission": submission_document(submission)}


def submissions_document(submissions: Iterable[SubmittedJob]) -> dict[str, Any]:
    """A list of submissions."""
    return {
        "schema_version": SCHEMA_VERSION,
        "submissions": [submission_document(one) for one in submissions],
    }
