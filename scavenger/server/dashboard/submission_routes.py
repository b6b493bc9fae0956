"""Submits jobs from the browser: the form, the demo, the plan before it is confirmed, and the submission."""

from __future__ import annotations

import uuid
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from scavenger.api import submitting as api
from scavenger.api.preparing import job_file_path, prepared
from scavenger.api.preview import earlier_of
from scavenger.control.job_file.examples import JOB_FILE, Example, copy_example
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.server.access import Changer
from scavenger.server.context import ContextOf
from scavenger.server.dashboard.answers import Form, PageRoute, page_answer
from scavenger.server.dashboard.confirming import plan_facts
from scavenger.server.dashboard.job_files import preview_of, save_job_file
from scavenger.server.problems import RefusedError, problem_of

DEMO_FOLDER = "scavenger-demo"
"""In the home of the server's account; the same name as that of `scavenger demo`."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/submit")
def submit_page(caller: Changer) -> Response:
    """The form of a submission."""
    return _submit_page(caller.user.name, caller.user.role == "admin", {}, "")


def _submit_page(user: str, may_write: bool, form: dict[str, str], problem: str) -> Response:
    fields = {name: form.get(name, "") for name in ("path", "text")}
    status = 422 if problem else 200
    return page_answer(
        "submit.html", user, status, here="/submit", may_write=may_write, problem=problem, **fields
    )


@router.post("/submit")
def show_plan(context: ContextOf, caller: Changer, form: Form) -> Response:
    """What a job file would do, before it is confirmed; a fault in it is told beside its text."""
    may_write = caller.user.role == "admin"
    try:
        path, text = job_file_path(form.get("path", "")), form.get("text", "").replace("\r\n", "\n")
        if text.strip() and not may_write:
            raise ConfigurationError("only an admin saves job files; leave the text empty")
        job = preview_of(path, text) if text.strip() else prepared(path)
        job = job.settled(context.store)
    except ScavengerError as error:
        told = problem_of(error)
        fix = "" if told.fix in told.detail else f". To mend it: {told.fix}"
        return _submit_page(caller.user.name, may_write, form, f"{told.detail}{fix}")
    earlier = earlier_of(context.store, job, user=context.local(caller).only_of)
    total, *facts = plan_facts(job, earlier, path)
    return page_answer(
        "plan.html",
        caller.user.name,
        name=job.job.name,
        total=total.value,
        planned=earlier is not None,
        facts=facts,
        path=str(path),
        text=text,
        key=str(uuid.uuid4()),
    )


@router.post("/submit/demo")
def show_demo(context: ContextOf, caller: Changer) -> Response:
    """The plan of the example that `scavenger demo` trains, copied to this machine where it is not there yet."""
    if caller.user.role != "admin":
        raise RefusedError(403, "forbidden", "only an admin saves job files")
    folder = Path.home() / DEMO_FOLDER
    if not (folder / JOB_FILE).exists():
        copy_example(Example.DIGITS, folder)
    return show_plan(context, caller, {"path": str(folder / JOB_FILE)})


@router.post("/submit/confirm")
def submit(context: ContextOf, caller: Changer, form: Form) -> Response:
    """Put the job into the queue, or its plan alone; the same form sent twice submits once."""
    path, text = job_file_path(form.get("path", "")), form.get("text", "").replace("\r\n", "\n")
    if text.strip():
        if caller.user.role != "admin":
            raise RefusedError(403, "forbidden", "only an admin saves job files")
        save_job_file(path, text)
    at = context.local(caller, form.get("key") or str(uuid.uuid4()))
    run = form.get("run") != "no"
    made = api.submit(at, api.SubmitRequest(job_file=str(path), run=run)).submission
    return RedirectResponse(f"/jobs/{made.id}", status_code=303)
