"""Operations on running jobs, and the indicators that jobs report."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from scavenger.api.operations import OperationAnswer, migration, outcome, scaling
from scavenger.api.paging import encode, number_place
from scavenger.api.submissions import SubmissionAnswer, submitted
from scavenger.api.values import SCHEMA_VERSION, document, plain
from scavenger.domain.access import Caller
from scavenger.domain.operation import Operation, StopJob
from scavenger.server import schemas
from scavenger.server.access import CallerOf, Changer, find_job, only_of
from scavenger.server.context import Context, ContextOf, answer
from scavenger.server.repeating import OnceOf
from scavenger.server.routes.jobs import Cursor, JobKey, Limit, find_submission

router = APIRouter(prefix="/v1", tags=["operations"])


@router.post("/jobs/{job}/scale", response_model=OperationAnswer, status_code=202, summary="Change the size")
def scale(
    context: ContextOf, caller: Changer, once: OnceOf, job: JobKey, request: schemas.ScaleRequest
) -> Response:
    """Ask a running job to change its number of workers, or of the aggregators that hold its model.

    `operations/{id}` tells what became of it.
    """
    match request:
        case schemas.ScaleTo(workers=workers):
            operation = scaling(workers, None, ())
        case schemas.ScaleOut(add=add):
            operation = scaling(None, add, ())
        case schemas.ScaleIn(remove=remove):
            operation = scaling(None, None, tuple(remove))
        case schemas.ScaleAggregators(aggregators=aggregators):
            operation = scaling(aggregators=aggregators)
    return once.answer(lambda: _asked(context, caller, job, operation))


@router.post(
    "/jobs/{job}/migrate", response_model=OperationAnswer, status_code=202, summary="Replace workers"
)
def migrate(
    context: ContextOf, caller: Changer, once: OnceOf, job: JobKey, request: schemas.MigrateRequest
) -> Response:
    """Ask a running job to replace workers by new ones."""
    operation = migration(tuple(request.workers or ()))
    return once.answer(lambda: _asked(context, caller, job, operation))


@router.post(
    "/jobs/{job}/stop",
    response_model=OperationAnswer | SubmissionAnswer,
    status_code=202,
    summary="Stop a job",
)
def stop(
    context: ContextOf, caller: Changer, once: OnceOf, job: JobKey, request: schemas.StopRequest
) -> Response:
    """Ask a running job to stop; one that still waits in the queue is withdrawn from it."""

    def change() -> dict[str, Any]:
        waiting = find_submission(context.store, only_of(caller), job)
        if waiting is not None and waiting.state == "queued":
            cancelled = context.store.cancel(waiting.id, f"withdrawn by {caller.user.name}")
            if cancelled is not None and cancelled.state == "cancelled":
                return document(SubmissionAnswer(submission=submitted(cancelled)))
        return _asked(context, caller, job, StopJob(request.save, request.reason))

    return once.answer(change)


def _asked(context: Context, caller: Caller, key: str, operation: Operation) -> dict[str, Any]:
    job = find_job(context, caller, key)
    record = context.store.submit_operation(job.id, operation, f"{caller.user.name} (server)")
    return document(outcome(job, record))


@router.post(
    "/jobs/{job}/indicators",
    response_model=schemas.IndicatorsTaken,
    status_code=202,
    summary="Report indicators",
)
def add_indicators(
    context: ContextOf, caller: Changer, job: JobKey, request: schemas.IndicatorsRequest
) -> Response:
    """Take in what a job's training reports of its steps, in batches; a batch that was sent twice is refused."""
    record = find_job(context, caller, job)
    values = {
        name: [math.nan if value is None else value for value in column]
        for name, column in request.values.items()
    }
    count = len(request.steps) * len(values)
    on_record = context.writer.call(lambda: context.store.add_indicators(record.id, request.steps, values))
    context.metrics.count_indicators(count)
    return answer({"schema_version": SCHEMA_VERSION, "taken": count, "on_record": on_record}, 202)


@router.get("/jobs/{job}/indicators", response_model=schemas.IndicatorsPage, summary="Indicators of a job")
def list_indicators(
    context: ContextOf, caller: CallerOf, job: JobKey, limit: Limit = 10, cursor: Cursor = None
) -> Response:
    """Batches of indicators, oldest first."""
    record = find_job(context, caller, job)
    found = context.store.indicators(record.id, limit=limit + 1, after=number_place(cursor) or 0)
    shown = found[:limit]
    rows = [
        {"id": one.id, "at": one.at.isoformat(), "steps": list(one.steps), "values": plain(one.values)}
        for one in shown
    ]
    following = encode(shown[-1].id) if len(found) > limit else None
    return answer({"schema_version": SCHEMA_VERSION, "batches": rows, "next": following})
