"""Submits jobs from the browser: the form, the plan before it is confirmed, and the submission."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from scavenger.api import submitting as api
from scavenger.api.preparing import job_file_path, prepared
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.server.access import Changer
from scavenger.server.context import ContextOf
from scavenger.server.dashboard.answers import Form, PageRoute, page_answer
from scavenger.server.dashboard.confirming import plan_facts
from scavenger.server.dashboard.job_files import preview_of, save_job_file
from scavenger.server.problems import RefusedError

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
def show_plan(caller: Changer, form: Form) -> Response:
    """What a job file would do, before it is confirmed; a fault in it is told beside its text."""
    may_write = caller.user.role == "admin"
    try:
        path, text = job_file_path(form.get("path", "")), form.get("text", "").replace("\r\n", "\n")
        if text.strip() and not may_write:
            raise ConfigurationError("only an admin saves job files; leave the text empty")
        job = preview_of(path, text) if text.strip() else prepared(path)
    except ScavengerError as error:
        return _submit_page(caller.user.name, may_write, form, str(error))
    return page_answer(
        "plan.html",
        caller.user.name,
        name=job.job.name,
        facts=plan_facts(job, path),
        path=str(path),
        text=text,
        key=str(uuid.uuid4()),
    )


@router.post("/submit/confirm")
def submit(context: ContextOf, caller: Changer, form: Form) -> Response:
    """Put the job into the queue; the same form sent twice submits once."""
    path, text = job_file_path(form.get("path", "")), form.get("text", "").replace("\r\n", "\n")
    if text.strip():
        if caller.user.role != "admin":
            raise RefusedError(403, "forbidden", "only an admin saves job files")
        save_job_file(path, text)
    at = context.local(caller, form.get("key") or str(uuid.uuid4()))
    made = api.submit(at, api.SubmitRequest(job_file=str(path))).submission
    return RedirectResponse(f"/jobs/{made.id}", status_code=303)
