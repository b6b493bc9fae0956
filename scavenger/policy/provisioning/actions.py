"""What provisioning may do next, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scavenger.domain.intent import Ending, Intent
from scavenger.domain.vm import VmSeen

__all__ = [
    "Action",
    "Adopt",
    "Alarm",
    "AlarmKind",
    "Create",
    "Drain",
    "Listing",
    "Look",
    "MarkGone",
    "Renew",
    "Retry",
    "Sweep",
    "Terminate",
]


@dataclass(frozen=True, slots=True)
class Listing:
    """What the cloud showed of this installation's VMs.

    Attributes:
        began_s: When it was asked, by the caller's monotonic clock, in attended seconds (see `Memory`).
    """

    vms: tuple[VmSeen, ...]
    began_s: float


@dataclass(frozen=True, slots=True)
class Create:
    """Write this intent down, then launch it."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Retry:
    """Launch an intent that is there, with the same token."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write down that an intent's VM was seen, and which it is."""

    intent: Intent
    vm: VmSeen


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the cloud for this one VM: it is missing from the listing, which proves nothing."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Drain:
    """Write down that an intent's VM is to end; it is terminated after that."""

    intent: Intent
    ending: Ending
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """End the VM of an intent that is `DELETING`."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class MarkGone:
    """Write down that an intent has no VM (any more), on definite evidence.

    Attributes:
        vm: As it was last seen, with the cloud's own times; None where there was none to see.
        never: There was no VM at all, so nothing was paid for.
    """

    intent: Intent
    ending: Ending
    reason: str
    vm: VmSeen | None = None
    never: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """End a VM of ours that no living intent speaks for."""

    vm: VmSeen
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Let a VM live on: without, it ends itself."""

    intent: Intent


AlarmKind = Literal[
    "budget",
    "unaffordable",
    "loop",
    "no_place",
    "sold_out",
    "quota",
    "refused",
    "credentials",
    "undeletable",
    "unknown_vm",
    "silence",
    "blind",
]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a person should know; told once for as long as it holds.

    Attributes:
        kind: Of a job: `budget`: its VMs are ended now; `unaffordable`, `loop`, `no_place`, `credentials`: it gets no
            more; `sold_out`: for now it gets none. The others are of VMs, places and the cloud.
        about: A job's id, a VM's id or a place: what tells two alarms of one kind apart.
    """

    kind: AlarmKind
    about: str
    message: str


Action = Create | Retry | Adopt | Look | Drain | Terminate | MarkGone | Sweep | Renew | Alarm
