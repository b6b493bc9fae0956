"""Submission of jobs, and resumption of those that ended before their goal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from scavenger.api.preview import preview_answer, preview_of
from scavenger.api.submissions import SubmissionAnswer, SubmittedJob, submitted
from scavenger.api.values import document
from scavenger.control.jobs.aggregator_vms import settled
from scavenger.control.jobs.platform import PreparedJob
from scavenger.control.jobs.renewal import renewed
from scavenger.control.service.submitting import new_submission, resubmission
from scavenger.domain.overrides import UNCHANGED, Overrides, Renewal
from scavenger.domain.submission import GivenEnvironment
from scavenger.errors import ConfigurationError
from scavenger.server import schemas
from scavenger.server.access import Changer, find_job
from scavenger.server.context import ContextOf, answer
from scavenger.server.preparing import job_file_path, prepared
from scavenger.server.repeating import IdempotencyKey, OnceOf
from scavenger.server.routes.jobs import JobKey
from scavenger.store import Store
from scavenger.store.records import JobRecord

router = APIRouter(prefix="/v1", tags=["operations"])

_OVERRIDES = set(Overrides.__dataclass_fields__)


@router.post("/jobs", response_model=SubmissionAnswer, status_code=202, summary="Submit a job")
def submit(
    context: ContextOf,
    caller: Changer,
    request: schemas.SubmitRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Put a job into the queue, as `scavenger optimize JOB.yaml --detach` does."""
    job = _prepared(request)
    new = new_submission(
        job,
        user=caller.user.name,
        audit=request.audit,
        priority=request.priority,
        idempotency_key=idempotency_key,
        run=request.run,
        environment=_given_secrets(job.job.secrets, request.environment),
    )
    made = context.writer.call(lambda: context.store.submit(new, study_budget_usd=request.study_budget))
    return answer(document(SubmissionAnswer(submission=submitted(made))), 202)


def _given_secrets(secrets: Collection[str], given: Mapping[str, str]) -> GivenEnvironment | None:
    """What of a request its runner is to have beside the server's variables: other values are in the job itself."""
    kept = {name: value for name, value in given.items() if name in secrets}
    return GivenEnvironment(kept, whole=False) if kept else None


def _prepared(request: schemas.SubmitRequest | schemas.PreviewRequest) -> PreparedJob:
    overrides = Overrides(**request.model_dump(include=_OVERRIDES))
    return prepared(job_file_path(request.job_file), overrides, request.environment)


@router.post("/preview", response_model=schemas.PreviewAnswer, summary="What a job would do")
def preview(context: ContextOf, _: Changer, request: schemas.PreviewRequest) -> Response:
    """What a job file would search, profile, choose and run, as `scavenger optimize JOB.yaml --dry-run` shows it."""
    job = settled(_prepared(request), context.store)
    return answer(preview_answer(preview_of(job, run=request.run, yes=request.yes)))


@router.post("/jobs/{job}/resume", response_model=SubmissionAnswer, status_code=202, summary="Resume a job")
def resume(
    context: ContextOf, caller: Changer, once: OnceOf, job: JobKey, request: schemas.ResumeRequest
) -> Response:
    """Put a job that ended before its goal into the queue again, to go on from its last checkpoint.

    One that a limit ended is given a higher one, one that missed its target more epochs, and one whose disk was full
    another folder for its output.
    """

    def change() -> dict[str, Any]:
        found = find_job(context, caller, job)
        renewal = Renewal(request.budget, request.deadline, request.max_epochs, request.output)
        secrets = found.spec.get("secrets") or ()
        for name in request.environment:
            if name not in secrets:
                raise ConfigurationError(f"environment: {name} is no secret of the job; leave it out")
        made = resumed(
            context.store,
            found,
            audit=request.audit,
            renewal=renewal,
            study_budget_usd=request.study_budget,
            environment=_given_secrets(secrets, request.environment),
        )
        return document(SubmissionAnswer(submission=made))

    return once.answer(change)


def resumed(
    store: Store,
    job: JobRecord,
    *,
    audit: bool = False,
    renewal: Renewal = UNCHANGED,
    study_budget_usd: float | None = None,
    environment: GivenEnvironment | None = None,
) -> SubmittedJob:
    """Put a job into the queue again, with new limits and secrets where they are given.

    Raises:
        ConfigurationError, TransientError: It cannot be resumed, or is in the queue already.
        LimitReachedError: What it may cost is not left of its study's budget.
    """
    spec = renewed(job, renewal)
    store.check_resumable(job, spec=None if spec is None else spec.written())
    rents = bool(store.jobs_with_vms([job.id]))
    earlier = store.submission(job.id)
    new = resubmission(job, earlier, spec, rents=rents, audit=audit, environment=environment)
    return submitted(store.submit_again(job.id, new, study_budget_usd=study_budget_usd))
