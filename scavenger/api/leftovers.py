"""VMs that no job uses, and those that the store does not know since it was restored from a backup."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from scavenger.api.calls import Local, Remote, call
from scavenger.api.forms import Region, VmKey
from scavenger.api.values import Answer, gathered
from scavenger.domain.restore import QuarantinedVm, Restore

if TYPE_CHECKING:
    from scavenger.control.provisioning.clean_up import Leftover

REQUEST_S = 40.0
"""Longest wait within a request until VMs are gone, seconds: connections do not wait much longer."""
LIMIT_S = 300.0
"""Longest wait until VMs are gone, seconds; an orderly shutdown takes a minute or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverVm:
    """A VM as the cloud lists it, with its tags; see `scavenger.domain.vm.VmSeen`."""

    instance_id: str
    vm: str
    zone: str
    spot: bool
    state: str
    owner: str
    token: str
    job_id: str
    slot: int
    generation: int
    address: str
    public_address: str
    launched_at: datetime | None
    ended_at: datetime | None
    reason: str
    run_max_s: int
    queued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverDocument:
    """A VM that is paid for but not used, with the reason.

    Attributes:
        quarantined: Unknown since the store was restored from a backup.
    """

    provider: str
    region: str
    vm: LeftoverVm
    reason: str
    quarantined: bool

    @property
    def key(self) -> str:
        """Names the VM among those of all clouds."""
        return f"{self.provider}/{self.region}/{self.vm.instance_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAnswer(Answer):
    """What a look at the clouds has found.

    Attributes:
        regions: Where VMs may be.
        checked: Those of them whose cloud has answered.
        left: A line for each place that could not be checked.
    """

    regions: tuple[str, ...]
    checked: tuple[str, ...]
    leftovers: tuple[LeftoverDocument, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftAnswer(Answer):
    """What may be left.

    Attributes:
        left: A line for each resource.
    """

    left: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedDocument:
    """A VM that a cloud lists, and the restored store does not know; see `scavenger.domain.restore.QuarantinedVm`.

    Attributes:
        kept_by: Who has decided that it stays; null: nobody has decided.
    """

    key: str
    provider: str
    region: str
    instance_id: str
    vm: str
    zone: str
    job_id: str
    launched_at: datetime | None
    kept_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineAnswer(Answer):
    """VMs in quarantine, as of the last look at their clouds.

    Attributes:
        restore: The last restore; null if there was none.
        awaits_look: Whether there may be VMs, since no cloud was asked after the restore.
    """

    restore: Restore | None
    vms: tuple[QuarantinedDocument, ...]
    awaits_look: bool = False


def _leftover(one: Leftover) -> LeftoverDocument:
    return gathered(LeftoverDocument, one, vm=gathered(LeftoverVm, one.vm, one.vm.tags))


@call("get", "leftovers", tag="VMs", summary="VMs that no job uses", role="admin")
def list_leftovers(
    at: Local, region: Annotated[list[Region] | None, Field(max_length=100)] = None
) -> SweepAnswer:
    """Ask the clouds for VMs of this installation that cost money and that no job uses, as `scavenger gc` does."""
    from scavenger.control.sweep import find_leftovers

    found = find_leftovers(at.store, region or ())
    return gathered(SweepAnswer, found, leftovers=tuple(map(_leftover, found.leftovers)))


@call("post", "leftovers/end", tag="VMs", summary="End VMs that no job uses", role="admin", body="EndRequest")
def end(
    at: Local,
    vms: Annotated[list[VmKey], Field(max_length=1000, description="As `gcp/us-central1/ID`.")],
    regions: Annotated[list[Region] | None, Field(max_length=100, description="Beside those in use.")] = None,
) -> LeftAnswer:
    """End VMs, and remove what belongs to none any more; a VM that a job has come to use is left alone.

    The answer comes within a minute, and has a line for each that may be left: ask again until there is none.
    """
    from scavenger.control.sweep import end_leftovers

    limit_s = None if at.caller is None else REQUEST_S
    return LeftAnswer(left=end_leftovers(at.store, regions or (), vms, limit_s=limit_s))


def end_all(source: Local | Remote, regions: Collection[str], keys: Collection[str]) -> tuple[str, ...]:
    """End VMs, and wait until they are gone; a server answers before, as connections do not wait so long.

    Returns:
        A line for each resource that may be left behind; empty if everything was removed.
    """
    until_s = time.monotonic() + LIMIT_S
    while True:
        left = end(source, list(keys), list(regions)).left
        if not left or isinstance(source, Local) or time.monotonic() > until_s:
            return left


@call("get", "quarantine", tag="VMs", summary="VMs in quarantine", role="overseer")
def list_quarantine(at: Local) -> QuarantineAnswer:
    """VMs that the clouds list and the restored store does not know, as of the last look at the clouds."""
    restore = at.store.last_restore()
    awaits_look = restore is not None and restore.looked_at is None and bool(at.store.vm_regions())
    vms = tuple(gathered(QuarantinedDocument, one) for one in at.store.quarantined_vms())
    return QuarantineAnswer(restore=restore, vms=vms, awaits_look=awaits_look)


@call(
    "post",
    "quarantine/keep",
    tag="VMs",
    summary="Keep a VM",
    role="admin",
    writes="once",
    body="QuarantinedRequest",
)
def keep(at: Local, vm: Annotated[VmKey, Field(description="`key` of the VM.")]) -> QuarantineAnswer:
    """Have a VM in quarantine stay: it is no leftover any more. Its end can be asked for later all the same."""
    kept = at.store.keep_quarantined(vm, at.user)
    return QuarantineAnswer(restore=at.store.last_restore(), vms=(gathered(QuarantinedDocument, kept),))


@call(
    "post",
    "quarantine/end",
    tag="VMs",
    summary="End a VM in quarantine",
    role="admin",
    body="QuarantinedRequest",
)
def end_one(at: Local, vm: Annotated[VmKey, Field(description="`key` of the VM.")]) -> LeftAnswer:
    """End a VM in quarantine, kept or not; answers as `leftovers/end` does."""
    return LeftAnswer(left=end_quarantined(at, vm))


def end_quarantined(at: Local, key: str, limit_s: float = REQUEST_S) -> tuple[str, ...]:
    """End a VM in quarantine; returns a line for each resource that may be left.

    Raises:
        NotFoundError: No such VM is in quarantine.
    """
    from scavenger.control.provisioning.clean_up import CleanUp
    from scavenger.control.provisioning.providers import open_provider
    from scavenger.control.sweep import end_leftovers

    vm: QuarantinedVm = at.write(lambda: at.store.keep_quarantined(key, None))
    left = end_leftovers(at.store, [f"{vm.provider}/{vm.region}"], [key], limit_s=limit_s)
    CleanUp(at.store, open_provider(vm.provider, vm.region)).find()  # which are in quarantine now
    return left
