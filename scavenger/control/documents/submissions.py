"""Submitted jobs, as the server shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scavenger.control.documents.plain import SCHEMA_VERSION, plain

if TYPE_CHECKING:
    from scavenger.domain.submission import Submission

__all__ = ["submission_answer", "submission_document", "submissions_document"]


def submission_document(submission: Submission) -> dict[str, Any]:
    """A submission as JSON values, without the specification of its job."""
    job = submission.job
    names = (
        "id",
        "number",
        "state",
        "reason",
        "cancelling",
        "starts",
        "submitted_at",
        "started_at",
        "ended_at",
    )
    own = {name: plain(getattr(submission, name)) for name in names}
    return {**own, "name": job.name, "job_file": job.job_file, "user": job.user}


def submission_answer(submission: Submission) -> dict[str, Any]:
    """One submission."""
    return {"schema_version": SCHEMA_VERSION, "submission": submission_document(submission)}


def submissions_document(submissions: Iterable[Submission]) -> dict[str, Any]:
    """A list of submissions."""
    return {
        "schema_version": SCHEMA_VERSION,
        "submissions": [submission_document(one) for one in submissions],
    }
