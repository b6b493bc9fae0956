"""Jobs: lists, one job, its plan, curve, costs, logs and events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from scavenger.api.costs import cost_document, cost_of
from scavenger.api.curves import curve_document, plan_document, report_with_curve
from scavenger.api.forms import PAGE_MAX
from scavenger.api.jobs import next_jobs
from scavenger.api.logs import JobLogs, Wanted, logs_document
from scavenger.api.paging import encode_logs, job_place, log_place
from scavenger.api.values import SCHEMA_VERSION
from scavenger.api.why import why_of
from scavenger.domain.submission import Submission
from scavenger.server import schemas
from scavenger.server.access import CallerOf, find_job, only_of
from scavenger.server.context import ContextOf, answer
from scavenger.store import Store

router = APIRouter(prefix="/v1", tags=["jobs"])

JobKey = Annotated[
    str,
    Path(
        min_length=1,
        max_length=200,
        description="The job's id, the beginning of its id, or its name (the latest).",
    ),
]
JobName = Annotated[str, Query(min_length=1, max_length=200)]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="Most entries of a page.")]
Size = Annotated[int, Query(ge=1, le=1 << 31)]
LINES_MAX = 100_000
LOG_CURSOR_MAX = 30_000
"""Characters; a cursor has the places in the logs of all processes."""


def find_submission(store: Store, user: str | None, key: str) -> Submission | None:
    """A submission that the user may see; None if there is none."""
    found = store.submission(key)
    return found if found is not None and user in (None, found.job.user) else None


@router.get("/jobs/{job}/plan", response_model=schemas.PlanAnswer, summary="What was predicted and chosen")
def show_plan(context: ContextOf, caller: CallerOf, job: JobKey) -> Response:
    """What was profiled, predicted and chosen, from the report of the job."""
    return answer(plan_document(report_with_curve(find_job(context, caller, job))))


@router.get("/jobs/{job}/curve", response_model=schemas.CurveAnswer, summary="The tradeoff curve")
def show_curve(context: ContextOf, caller: CallerOf, job: JobKey) -> Response:
    """Every configuration with its predicted time and cost; the choice; predicted and actual figures."""
    return answer(curve_document(report_with_curve(find_job(context, caller, job))))


@router.get(
    "/jobs/{job}/curve/why", response_model=schemas.WhyAnswer, summary="Where a prediction comes from"
)
def show_why(
    context: ContextOf, caller: CallerOf, job: JobKey, workers: Size, global_batch_size: Size
) -> Response:
    """The law, the parts and the measured points of a prediction, and what would narrow its interval most."""
    with context.store.at_one_moment():
        found = find_job(context, caller, job)
        return answer(why_of(context.store, found, workers, global_batch_size))


@router.get("/jobs/{job}/cost", response_model=schemas.CostAnswer, summary="What a job costs")
def show_cost(context: ContextOf, caller: CallerOf, job: JobKey) -> Response:
    """Predicted and actual cost, item by item and VM by VM."""
    with context.store.at_one_moment():
        found = cost_of(context.store, find_job(context, caller, job), datetime.now(UTC))
    return answer({"schema_version": SCHEMA_VERSION, "job": cost_document(found)})


@router.get("/costs", response_model=schemas.CostsPage, summary="What the latest jobs cost")
def list_costs(context: ContextOf, caller: CallerOf, limit: Limit = 20, cursor: Cursor = None) -> Response:
    """Costs of the jobs that the caller may see, newest first."""
    store, now = context.store, datetime.now(UTC)
    found = store.jobs(limit + 1, user=only_of(caller), after=job_place(cursor))
    jobs, following = found[:limit], next_jobs(found, limit)
    rows = [
        cost_document(cost_of(store, store.job(job.id), now)) for job in jobs
    ]  # pages come without reports
    return answer({"schema_version": SCHEMA_VERSION, "jobs": rows, "next": following})


@router.get("/jobs/{job}/logs", response_model=schemas.LogsAnswer, summary="Logs of a job")
def show_logs(
    context: ContextOf,
    caller: CallerOf,
    job: JobKey,
    process: Annotated[
        str | None, Query(max_length=100, description="Only of this process, such as `w0`.")
    ] = None,
    lines: Annotated[int, Query(ge=0, le=LINES_MAX, description="Most lines of each process.")] = 20,
    events: Annotated[bool, Query(description="Whether events of the job are told.")] = True,
    written: Annotated[bool, Query(description="Whether the output of processes is told.")] = True,
    follow: Annotated[
        bool, Query(description="Leave out a last line that is not finished: it comes with `next`.")
    ] = False,
    cursor: Annotated[
        str | None, Query(max_length=LOG_CURSOR_MAX, description="`next` of the answer before.")
    ] = None,
) -> Response:
    """The latest events of the job and lines of its processes, with secrets masked; with a cursor, all since then."""
    record = find_job(context, caller, job)
    wanted = Wanted(events and process is None, written, process)
    logs = JobLogs(context.store, record, wanted, log_place(cursor))
    chunk = logs.begin(lines, whole=not follow) if cursor is None else logs.more()
    more = {"elsewhere": chunk.elsewhere, "over": chunk.over, "next": encode_logs(chunk.position)}
    return answer({**logs_document(chunk), **more})
