"""Submission of jobs, and resumption of those that ended before their goal."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from scavenger.control.documents.submissions import submission_answer
from scavenger.control.service.submitting import new_submission, resubmission
from scavenger.domain.submission import NewSubmission
from scavenger.server import schemas
from scavenger.server.access import Changer, find_job
from scavenger.server.context import Context, ContextOf, answer
from scavenger.server.preparing import job_file_path, prepared
from scavenger.server.routes.jobs import JobKey

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["operations"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A repeated request with the same key gives the first submission.",
    ),
]


@router.post("/jobs", response_model=schemas.SubmissionAnswer, status_code=202, summary="Submit a job")
def submit(
    context: ContextOf,
    caller: Changer,
    request: schemas.SubmitRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Put a job into the queue, as `scavenger optimize JOB.yaml --detach` does."""
    path = job_file_path(request.job_file)
    given = {
        "objective": request.objective,
        "search.strategy": request.strategy,
        "constraints.budget": request.budget,
        "constraints.deadline": request.deadline,
    }
    job = prepared(path, tuple((key, value) for key, value in given.items() if value is not None))
    new = new_submission(
        job,
        user=caller.user.name,
        audit=request.audit,
        priority=request.priority,
        idempotency_key=idempotency_key,
    )
    return _submitted(context, new, None)


def _submitted(context: Context, new: NewSubmission, job_id: str | None) -> Response:
    def write() -> Response:
        store = context.store
        made = store.submit(new) if job_id is None else store.submit_again(job_id, new)
        return answer(submission_answer(made), 202)

    return context.writer.call(write)


@router.post(
    "/jobs/{job}/resume", response_model=schemas.SubmissionAnswer, status_code=202, summary="Resume a job"
)
def resume(context: ContextOf, caller: Changer, job: JobKey, request: schemas.ResumeRequest) -> Response:
    """Put a job that ended before its goal into the queue again, to go on from its last checkpoint."""
    store, record = context.store, find_job(context, caller, job)
    store.check_resumable(record)
    rents = bool(store.jobs_with_vms([record.id]))
    new = resubmission(record, store.submission(record.id), rents=rents, audit=request.audit)
    return _submitted(context, new, record.id)
