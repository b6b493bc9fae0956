"""VMs that no job uses, and those that the store does not know since it was restored from a backup."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from scavenger.api.leftovers import (
    left_document,
    quarantine_document,
    quarantine_of,
    sweep_document,
)
from scavenger.control.provisioning.clean_up import CleanUp
from scavenger.control.provisioning.providers import open_provider
from scavenger.control.sweep import end_leftovers, find_leftovers
from scavenger.domain.restore import Quarantine, QuarantinedVm
from scavenger.server import schemas
from scavenger.server.access import Admin, Overseer
from scavenger.server.context import Context, ContextOf, answer
from scavenger.server.repeating import OnceOf

router = APIRouter(prefix="/v1", tags=["VMs"])

END_S = 40.0
"""Longest wait within a request until VMs are gone, seconds: connections do not wait much longer."""


@router.get("/leftovers", response_model=schemas.SweepAnswer, summary="VMs that no job uses")
def list_leftovers(
    context: ContextOf,
    _: Admin,
    region: Annotated[list[schemas.Region] | None, Query(max_length=100)] = None,
) -> Response:
    """Ask the clouds for VMs of this installation that cost money and that no job uses, as `scavenger gc` does."""
    return answer(sweep_document(find_leftovers(context.store, region or ())))


@router.post("/leftovers/end", response_model=schemas.LeftAnswer, summary="End VMs that no job uses")
def end(context: ContextOf, _: Admin, request: schemas.EndRequest) -> Response:
    """End VMs, and remove what belongs to none any more; a VM that a job has come to use is left alone.

    The answer comes within a minute, and has a line for each that may be left: ask again until there is none.
    """
    left = end_leftovers(context.store, request.regions, request.vms, limit_s=END_S)
    return answer(left_document(left))


@router.get("/quarantine", response_model=schemas.QuarantineAnswer, summary="VMs in quarantine")
def list_quarantine(context: ContextOf, _: Overseer) -> Response:
    """VMs that the clouds list and the restored store does not know, as of the last look at the clouds."""
    return answer(quarantine_document(quarantine_of(context.store)))


@router.post("/quarantine/keep", response_model=schemas.QuarantineAnswer, summary="Keep a VM")
def keep(context: ContextOf, caller: Admin, once: OnceOf, request: schemas.QuarantinedRequest) -> Response:
    """Have a VM in quarantine stay: it is no leftover any more. Its end can be asked for later all the same."""

    def change() -> dict[str, Any]:
        kept = context.store.keep_quarantined(request.vm, caller.user.name)
        return quarantine_document(Quarantine(context.store.last_restore(), (kept,)))

    return once.answer(change, 200)


@router.post("/quarantine/end", response_model=schemas.LeftAnswer, summary="End a VM in quarantine")
def end_one(context: ContextOf, _: Admin, request: schemas.QuarantinedRequest) -> Response:
    """End a VM in quarantine, kept or not; answers as `leftovers/end` does."""
    return answer(left_document(end_quarantined(context, request.vm)))


def end_quarantined(context: Context, key: str, limit_s: float = END_S) -> tuple[str, ...]:
    """End a VM in quarantine; returns a line for each resource that may be left.

    Raises:
        NotFoundError: No such VM is in quarantine.
    """
    store = context.store
    vm: QuarantinedVm = context.writer.call(lambda: store.keep_quarantined(key, None))
    left = end_leftovers(store, [f"{vm.provider}/{vm.region}"], [key], limit_s=limit_s)
    CleanUp(store, open_provider(vm.provider, vm.region)).find()  # which are in quarantine now
    return left
