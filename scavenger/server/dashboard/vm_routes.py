"""The page of VMs: those that jobs rent, and those in quarantine, of which an admin decides."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from scavenger.api.leftovers import end_quarantined
from scavenger.domain.access import Caller
from scavenger.domain.restore import QuarantinedVm
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.server.access import Admin, CallerOf
from scavenger.server.context import Context, ContextOf
from scavenger.server.dashboard.answers import Form, PageRoute, page_answer, part_answer
from scavenger.server.dashboard.confirming import ending_of, keeping_of
from scavenger.server.dashboard.other_pages import VmsPage, vms_page

router = APIRouter(route_class=PageRoute, include_in_schema=False)

END_S = 5.0
"""Longest wait for the end of a VM, seconds: whoever looks at a page does not wait for a shutdown."""


@router.get("/vms")
def vms(context: ContextOf, caller: CallerOf) -> Response:
    """VMs that are not gone."""
    return page_answer("vms.html", caller.user.name, here="/vms", page=_vms(context, caller))


@router.get("/vms/live")
def vms_live(request: Request, context: ContextOf, caller: CallerOf) -> Response:
    """The live part of the page of VMs."""
    return part_answer(request, "vms_live.html", page=_vms(context, caller))


def _vms(context: Context, caller: Caller) -> VmsPage:
    store, user = context.store, context.local(caller).only_of
    by_job: dict[str, list[Any]] = {}
    for intent in store.intents(living=True):
        by_job.setdefault(intent.job_id, []).append(intent)
    found = []
    for job_id, intents in by_job.items():
        try:
            found.append((store.job(job_id, user=user), intents))
        except NotFoundError:  # another user's
            continue
    restore = store.last_restore() if caller.user.sees_all else None
    return vms_page(
        found,
        datetime.now(UTC),
        restore=restore,
        quarantined=() if restore is None else store.quarantined_vms(),
        decides=caller.user.role == "admin",
    )


@router.get("/vms/confirm")
def confirm(request: Request, context: ContextOf, caller: Admin) -> Response:
    """Ask before a VM in quarantine is ended, or kept."""
    asked = dict(request.query_params)
    vm = _quarantined(context, asked)
    question = ending_of(vm) if asked.get("what") == "end" else keeping_of(vm)
    return page_answer(
        "confirm.html",
        caller.user.name,
        action="/vms/operate",
        back="/vms",
        trail=(("/vms", "VMs"),),
        question=question,
    )


@router.post("/vms/operate")
def operate(context: ContextOf, caller: Admin, form: Form) -> Response:
    """Do what was confirmed, and go back to the page of VMs."""
    vm = _quarantined(context, form)
    if form.get("what") == "end":
        left = end_quarantined(context.local(caller), vm.key, END_S)
        if left and not any("its end was requested" in line for line in left):
            raise ConfigurationError("; ".join(left))
    else:
        context.writer.call(lambda: context.store.keep_quarantined(vm.key, caller.user.name))
    return RedirectResponse("/vms", status_code=303)


def _quarantined(context: Context, form: Mapping[str, str]) -> QuarantinedVm:
    """The VM that a form names.

    Raises:
        NotFoundError: It is not in quarantine.
        ConfigurationError: The form asks for nothing that can be decided.
    """
    if form.get("what") not in ("end", "keep"):
        raise ConfigurationError("nothing was asked for; go back to the VMs")
    for vm in context.store.quarantined_vms():
        if vm.key == form.get("vm"):
            return vm
    raise NotFoundError("this VM is not in quarantine any more; go back to the VMs")
