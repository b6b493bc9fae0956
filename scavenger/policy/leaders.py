"""Where a job is led, what that costs, and who may reach a leader's VM: values in, decisions out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from scavenger.domain.configuration import Offer
from scavenger.domain.cost import VmExtras
from scavenger.domain.providers import capabilities_of
from scavenger.domain.vm import VmSeen

_OBJECT_STORE = "checkpoint.path: s3://..., or checkpoints in the settings of the cloud"

END_LATE_S = 900.0
"""How much later than by its tags a VM's timer may end it, which begins when the VM has booted."""


@dataclass(frozen=True, slots=True)
class LeaderChoice:
    """Where the process that leads a job runs, and why.

    Attributes:
        at: `here`, where the command runs; `vm`, on a VM of its own.
        reason: Completes the sentence "it runs there, since ...".
    """

    at: Literal["here", "vm"]
    reason: str


def choose_leader(
    asked: Literal["here", "vm"] | None, provider: str, *, address: str, address_variable: str
) -> LeaderChoice:
    """Choose where a job is led.

    VMs must reach the process that leads their job. Whether they reach this machine cannot be tried before there is
    one, so it is taken from the address that the user has set: none set means that nothing is known to lead here.

    Args:
        asked: `leader` of the job file.
        provider: Of the job's VMs; `local` for none.
        address: At which VMs reach this machine, as set by the user; empty for none.
        address_variable: What the user sets it with.
    """
    if asked is not None:
        return LeaderChoice(asked, "the job file says so")
    if not capabilities_of(provider).leads:
        return LeaderChoice("here", "this is the only place for jobs there")
    if address:
        return LeaderChoice("here", f"{address_variable} is set, so VMs reach this machine")
    return LeaderChoice("vm", f"{address_variable} is not set, so VMs may not reach this machine")


@dataclass(frozen=True, slots=True)
class LeaderPlan:
    """The VM that will lead a job.

    Attributes:
        reason: Why it is rented, see `LeaderChoice`.
        offer: Its type and price, on demand.
        extras: What it has beside its type.
    """

    reason: str
    offer: Offer
    extras: VmExtras

    @property
    def usd_per_hour(self) -> float:
        """Price of the VM with its extras."""
        return self.offer.price_usd_per_hour + self.extras.usd_per_hour

    def usd_afterwards(self, stays_s: float) -> float:
        """The most that the VM costs after the end of its job, if it stays for so many seconds."""
        return self.usd_per_hour * stays_s / 3600.0


@dataclass(frozen=True, slots=True)
class IngressChanges:
    """Rules to add and to remove, each in sorted order, so that exactly the wanted ones are left."""

    add: tuple[str, ...]
    remove: tuple[str, ...]


def ingress_changes(present: Collection[str], wanted: Iterable[str]) -> IngressChanges:
    """What turns the networks that are let in into those that shall be."""
    now, then = set(present), set(wanted)
    return IngressChanges(tuple(sorted(then - now)), tuple(sorted(now - then)))


def leader_state(vm: VmSeen, now: datetime) -> Literal["live", "overdue", "off"]:
    """What has become of a leader's VM that somebody else has rented.

    Args:
        vm: That is not gone.
        now: The time of day.

    Returns:
        `live`, or nobody knows better: it may lead a job. `overdue`: by its tags, it should have ended itself. `off`:
        it has, and its disk is paid for.
    """
    if vm.state == "stopping":
        return "off"
    if not vm.run_max_s or vm.launched_at is None:
        return "live"
    return "overdue" if (now - vm.launched_at).total_seconds() > vm.run_max_s + END_LATE_S else "live"


def what_is_lost(checkpoints: str, every_s: float) -> str:
    """Name what a job loses with its leader's VM.

    Args:
        checkpoints: Where they are written, as in the job file; empty for the leader's own disk.
        every_s: Time between two of them, seconds.
    """
    if "://" in checkpoints:
        return f"what was trained since the last checkpoint, at most {every_s / 60:g} min"
    return (
        "everything that was trained, as its checkpoints are on its own disk; name an object store "
        f"({_OBJECT_STORE}) to keep them"
    )


def where_checkpoints_are(checkpoints: str, pace: str, *, here: str) -> str:
    """Say where a job on a cloud keeps its training state, and what may be lost with which machine.

    Args:
        checkpoints: As in the job file; empty for the job's output folder.
        pace: How often one is written, as words.
        here: The folder of this machine where they are; empty if a VM leads the job.
    """
    if "://" in checkpoints:
        return f"{pace}, at {checkpoints}: no machine that is lost costs more than what was trained since the last one"
    if not here:
        return f"{pace}, on the leader's own disk: what was trained is lost with it, not with other VMs"
    return (
        f"{pace}, in {here} on this machine: what was trained is lost with its disk, not with VMs; an object store "
        f"({_OBJECT_STORE}) outlives both"
    )
