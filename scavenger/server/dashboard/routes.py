"""Answers browsers: the dashboard's pages, their live parts, and the forms on them.

Pages have the same users, cookies and checks as the API; what goes wrong is told as a page.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from scavenger.api.models import job_names
from scavenger.api.operations import withdraw
from scavenger.api.paging import encode, job_place
from scavenger.api.submissions import cancel
from scavenger.api.submitting import ResumeRequest, resume
from scavenger.domain.access import Caller
from scavenger.domain.report import JobState
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.policy.admission import budget_period
from scavenger.presentation.formatting import clean
from scavenger.server.access import CallerOf, Changer
from scavenger.server.context import Context, ContextOf
from scavenger.server.dashboard.answers import Form, PageRoute, json_answer, page_answer, part_answer
from scavenger.server.dashboard.budgets import BudgetsPage, budgets_page
from scavenger.server.dashboard.confirming import cancellation_of, confirmation_of, operation_of, renewal_of
from scavenger.server.dashboard.figures import errors_figure, job_figures
from scavenger.server.dashboard.gather import JournalReaders, lines_of, sight_of
from scavenger.server.dashboard.job_list import PAGE_SIZE, JobListPage, jobs_page, waiting_line
from scavenger.server.dashboard.job_page import JobSight, job_page, job_tables
from scavenger.server.dashboard.other_pages import models_page
from scavenger.server.dashboard.pages import asset
from scavenger.server.dashboard.plots import figures_document
from scavenger.server.problems import RefusedError

OPEN_PATHS = frozenset({"/static/{version}/{name}"})
"""Routes that need no token: the style sheet and the scripts, which tell nothing."""
MODELS_SHOWN = 200
COMPARED_MAX = 500
"""Latest jobs among which predictions are compared with what came."""
STATES = get_args(JobState)


router = APIRouter(route_class=PageRoute, include_in_schema=False)


# ---- jobs -------------------------------------------------------------------------------------------------------


@router.get("/")
def jobs(context: ContextOf, caller: CallerOf, state: str = "", name: str = "", cursor: str = "") -> Response:
    """The list of jobs."""
    page = _jobs_page(context, context.local(caller).only_of, state, name, cursor)
    live = "/live?" + urlencode({"state": state, "name": name, "cursor": cursor})
    may = _may(caller)
    return page_answer("jobs.html", caller.user.name, here="/", page=page, states=STATES, live=live, **may)


@router.get("/live")
def jobs_live(
    request: Request, context: ContextOf, caller: CallerOf, state: str = "", name: str = "", cursor: str = ""
) -> Response:
    """The live part of the list."""
    return part_answer(
        request,
        "jobs_live.html",
        page=_jobs_page(context, context.local(caller).only_of, state, name, cursor),
        **_may(caller),
    )


def _may(caller: Caller) -> dict[str, bool]:
    """What the tour of an empty list offers: only an admin has files written on the server's machine."""
    return {"may_write": caller.user.role == "admin", "may_submit": caller.user.changes_jobs}


def _jobs_page(context: Context, user: str | None, state: str, name: str, cursor: str) -> JobListPage:
    store, now = context.store, datetime.now(UTC)
    states = (state,) if state in STATES else ()
    found = store.jobs(
        PAGE_SIZE + 1, states=states, name=name or None, user=user, after=job_place(cursor or None)
    )
    shown = found[:PAGE_SIZE]
    older = ""
    if len(found) > PAGE_SIZE:
        place = encode(shown[-1].created_at.isoformat(), shown[-1].id)
        older = "/?" + urlencode({"state": state, "name": name, "cursor": place})
    waiting = []
    if not (state or name or cursor):
        on_record = {job.id for job in shown}
        waiting = [
            waiting_line(one, now)
            for one in store.submissions(PAGE_SIZE, states=("queued", "running"), user=user)
            if one.id not in on_record and (one.state == "queued" or one.starts.count <= 1)
        ]
    return jobs_page(
        lines_of(store, shown, now),
        waiting,
        more=bool(older),
        older=older,
        state=state,
        name=name,
        store=store.name,
        now=now,
    )


@router.get("/jobs/{job}")
def one_job(context: ContextOf, caller: CallerOf, job: str) -> Response:
    """One job, or its submission while that waits."""
    try:
        sight = _sight(context, context.local(caller).find_job(job).id)
    except NotFoundError:
        waiting = context.local(caller).find_submission(job)
        if waiting is None:
            raise
        line = waiting_line(waiting, datetime.now(UTC))
        may_withdraw = waiting.state == "queued" and caller.user.changes_jobs
        return page_answer("waiting.html", caller.user.name, waiting=line, may_withdraw=may_withdraw)
    page = job_page(sight, may_change=caller.user.changes_jobs)
    tables, figures = job_tables(sight), job_figures(sight)
    return page_answer("job.html", caller.user.name, page=page, tables=tables, figures=figures)


@router.get("/jobs/{job}/live")
def job_live(request: Request, context: ContextOf, caller: CallerOf, job: str) -> Response:
    """The live head of a job's page."""
    return part_answer(
        request, "job_live.html", page=job_page(_sight(context, context.local(caller).find_job(job).id))
    )


@router.get("/jobs/{job}/tables")
def live_tables(request: Request, context: ContextOf, caller: CallerOf, job: str) -> Response:
    """The live tables of a job's page."""
    return part_answer(
        request, "job_tables.html", tables=job_tables(_sight(context, context.local(caller).find_job(job).id))
    )


@router.get("/jobs/{job}/figures")
def figures(request: Request, context: ContextOf, caller: CallerOf, job: str) -> Response:
    """The pictures of a job, for the page's script."""
    return json_answer(
        request, figures_document(job_figures(_sight(context, context.local(caller).find_job(job).id)))
    )


@cache
def _journals() -> JournalReaders:
    return JournalReaders()


def _sight(context: Context, job_id: str) -> JobSight:
    return sight_of(context.store, context.store.job(job_id), _journals(), datetime.now(UTC))


@router.get("/jobs/{job}/confirm")
def confirm(request: Request, context: ContextOf, caller: Changer, job: str) -> Response:
    """Ask before something is done to a job."""
    asked = dict(request.query_params)
    if asked.get("what") == "cancel":
        waiting = context.local(caller).find_submission(job)
        if waiting is None or waiting.state != "queued":
            raise ConfigurationError("it waits no longer; go back to the job")
        job_id, name, question = waiting.id, waiting.job.name, cancellation_of(waiting.job.name)
    else:
        sight = _sight(context, context.local(caller).find_job(job).id)
        job_id, name, question = sight.job.id, sight.job.name, confirmation_of(sight, asked)
    return page_answer(
        "confirm.html",
        caller.user.name,
        action=f"/jobs/{job_id}/operate",
        back=f"/jobs/{job_id}",
        trail=(("/", "Jobs"), (f"/jobs/{job_id}", clean(name))),
        question=question,
    )


@router.post("/jobs/{job}/operate")
def operate(context: ContextOf, caller: Changer, job: str, form: Form) -> Response:
    """Do what was confirmed, and go back to the job's page, which tells what became of it."""
    if form.get("what") == "cancel":
        gone = context.writer.call(lambda: cancel(context.local(caller), job))
        return RedirectResponse(f"/jobs/{gone.submission.id}", status_code=303)
    found = context.local(caller).find_job(job)
    match form.get("what"):
        case "resume":
            asked = ResumeRequest(**asdict(renewal_of(form)))
            context.writer.call(lambda: resume(context.local(caller), found.id, asked))
        case "withdraw":
            number = form.get("operation", "")
            at, one = context.local(caller), int(number) if number.isdecimal() and len(number) < 19 else 0
            context.writer.call(lambda: withdraw(at, found.id, one))
        case _:
            operation, by = operation_of(form), f"{caller.user.name} (dashboard)"
            context.writer.call(lambda: context.store.submit_operation(found.id, operation, by))
    return RedirectResponse(f"/jobs/{found.id}", status_code=303)


# ---- models and budgets -----------------------------------------------------------------------------------------


@router.get("/models")
def models(context: ContextOf, caller: CallerOf) -> Response:
    """Fitted models with the errors of their predictions."""
    store, now = context.store, datetime.now(UTC)
    jobs = _compared(context, context.local(caller).only_of)
    found = store.models()
    shown = found[:MODELS_SHOWN]
    page = models_page(shown, job_names(store, shown), jobs, more=len(found) - len(shown), now=now)
    return page_answer("models.html", caller.user.name, here="/models", page=page, errors=errors_figure(jobs))


@router.get("/models/figures")
def models_figures(request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """The picture of the page of models, for its script."""
    return json_answer(
        request,
        figures_document({"errors": errors_figure(_compared(context, context.local(caller).only_of))}),
    )


def _compared(context: Context, user: str | None) -> Any:
    return context.store.jobs(COMPARED_MAX, states=("succeeded", "target_missed"), user=user)


@router.get("/budgets")
def budgets(context: ContextOf, caller: CallerOf) -> Response:
    """What users may spend this month, and what is used and set aside."""
    page = _budgets(context, caller)
    return page_answer("budgets.html", caller.user.name, here="/budgets", page=page)


@router.get("/budgets/live")
def budgets_live(request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """The live part of the page of budgets."""
    return part_answer(request, "budgets_live.html", page=_budgets(context, caller))


def _budgets(context: Context, caller: Caller) -> BudgetsPage:
    store, now = context.store, datetime.now(UTC)
    since = budget_period(now)
    names = [user.name for user in store.users()]
    return budgets_page(
        store.spending(since),
        context.queue_limits(),
        names,
        only=context.local(caller).only_of,
        since=since,
        now=now,
    )


@router.get("/static/{version}/{name}")
def static(version: str, name: str) -> Response:
    """A file that pages load; its path has its version, so browsers keep it."""
    found = asset(name)
    if found is None or found.version != version:
        raise RefusedError(404, "not_found", "there is no such file")
    headers = {"Content-Encoding": "gzip", "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(found.compressed, headers=headers, media_type=found.media_type)
