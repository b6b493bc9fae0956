"""The actions of provisioning, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scavenger.domain.intent import Ending, Intent
from scavenger.domain.vm import VmSeen


@dataclass(frozen=True, slots=True)
class Listing:
    """The cloud's listing of this installation's VMs.

    Attributes:
        began_s: Time of the request, by the caller's monotonic clock, in attended seconds (see `Memory`).
    """

    vms: tuple[VmSeen, ...]
    began_s: float


@dataclass(frozen=True, slots=True)
class Create:
    """Store this intent, then launch its VM."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeat the launch of a stored intent, with the same token."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Adopt:
    """Record that an intent's VM was seen, with its id."""

    intent: Intent
    vm: VmSeen


@dataclass(frozen=True, slots=True)
class PollVm:
    """Ask the cloud for this one VM: it is missing from the listing, which does not prove that it is gone."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Drain:
    """Record that an intent's VM is to end; it is terminated after that."""

    intent: Intent
    ending: Ending
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """End the VM of an intent that is `DELETING`."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class MarkGone:
    """Record that an intent has no VM (any more), on definite evidence.

    Attributes:
        vm: The VM as last seen, with the cloud's timestamps; None if none was seen.
        never: Whether there was no VM at all, so that nothing was paid for.
    """

    intent: Intent
    ending: Ending
    reason: str
    vm: VmSeen | None = None
    never: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """Terminate a VM of this installation that belongs to no live intent."""

    vm: VmSeen
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Record the VMs of this installation that a restored store does not know, in place of earlier ones."""

    vms: tuple[VmSeen, ...]


@dataclass(frozen=True, slots=True)
class ExtendLife:
    """Extend a VM's life; a VM that is not renewed ends itself."""

    intent: Intent


AlarmKind = Literal[
    "boot",
    "budget",
    "unaffordable",
    "loop",
    "no_placement",
    "no_quota",
    "sold_out",
    "quota",
    "refused",
    "spot_price",
    "credentials",
    "undeletable",
    "unknown_vm",
    "silence",
    "blind",
]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition that the user should know of; reported once for as long as it lasts.

    Attributes:
        kind: Of a job: `boot`: its VMs fail alike as they boot, which its fleet finds; `budget`: its VMs are ended
            now; `unaffordable`, `loop`, `no_placement`, `no_quota`, `credentials`: it gets no more; `sold_out`: for
            now it gets none. The others are of VMs, placement options and the cloud.
        about: The job's id, VM's id or placement option concerned; distinguishes alarms of one kind.
    """

    kind: AlarmKind
    about: str
    message: str


Action = (
    Create | Retry | Adopt | PollVm | Drain | Terminate | MarkGone | Sweep | Quarantine | ExtendLife | Alarm
)
