"""How far a job's VMs are on their way to it, which of them are late, and whether to wait for the first one.

Renting all VMs at once saves a boot time if they come, and wastes the money of all if the first thing that they need is
wrong: an address that they cannot reach, a package, an image. So as long as no VM has ever joined in this way, one VM
is rented first, and the others once it has joined or reported that it reaches the coordinator.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scavenger.domain.boot import BOOT_PHASES, BOOTING, INSTALLING, MARK, REACHED, BootPhase
from scavenger.domain.intent import Intent
from scavenger.domain.vm import VmState
from scavenger.policy.provisioning.slots import aggregator_index

ESTIMATE_S = 180.0
"""Usual time from the request of a VM to its agent's first message, until one was measured: an Ubuntu boots in about
40 s, and installing TensorFlow takes two minutes."""

SLOW = 2.5
"""Multiple of the usual time after which a VM is late; the user is to know before it is the threefold."""

GIVE_UP = 4.0
"""Multiple of the usual time after which a VM that has not joined is ended."""
_GIVE_UP_LEAST_S = 120.0

HISTORY = 9
"""Latest boots of which the median is the usual time."""

_NAMES_MAX = 6
"""VMs of one phase that are shown by name."""


@dataclass(frozen=True, slots=True)
class BootEvidence:
    """What the cloud shows of a VM that has not joined.

    Attributes:
        state: As the cloud lists it; empty if that is not known yet.
        reason: Why it ends, in the cloud's words; empty if it does not.
        console: The end of its console; empty if there is none.
    """

    state: VmState | str = ""
    reason: str = ""
    console: str = ""


@dataclass(frozen=True, slots=True)
class BootSeen:
    """A VM on its way to its job.

    Attributes:
        joined: Whether its agent has been admitted.
        age_s: Time since it was requested, or until it joined.
    """

    intent: Intent
    joined: bool
    age_s: float
    evidence: BootEvidence = BootEvidence()

    @property
    def name(self) -> str:
        """What the user knows it by; of several aggregator VMs, the first one is named as if it were the only one."""
        index = aggregator_index(self.intent.slot)
        if index is None:
            return f"VM {self.intent.slot}"
        return f"aggregators {index + 1}" if index else "aggregators"

    @property
    def title(self) -> str:
        """Its name as the subject of a sentence."""
        index = aggregator_index(self.intent.slot)
        if index is None:
            return self.name
        return f"aggregator VM {index + 1}" if index else "the aggregators' VM"


@dataclass(frozen=True, slots=True)
class UsualBoot:
    """The usual time from the request of a VM until it has joined.

    Attributes:
        measured: Number of VMs from which it was measured; 0: it is an estimate.
    """

    seconds: float = ESTIMATE_S
    measured: int = 0

    @property
    def slow_s(self) -> float:
        """Time after which a VM is late."""
        return SLOW * self.seconds

    def __str__(self) -> str:
        return in_words(self.seconds) if self.measured else f"about {in_words(self.seconds)}"


def in_words(seconds: float) -> str:
    """A time in seconds, minutes or hours, for messages."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def usual_boot(history: Iterable[Intent], *, provider: str, region: str, image: str) -> UsualBoot:
    """The median time of the latest VMs with this image in a region, or an estimate.

    Args:
        history: Intents of all jobs, oldest first.
        image: As in their launch template.
    """
    times = [
        (one.times.joined_at - one.times.created_at).total_seconds()
        for one in history
        if one.times.joined_at is not None and one.times.created_at is not None and one.times.taken_at is None
        if (one.provider, one.region, one.request.template.image) == (provider, region, image)
    ]
    latest = [seconds for seconds in times[-HISTORY:] if math.isfinite(seconds) and seconds > 0]
    return UsualBoot(statistics.median(latest), len(latest)) if latest else UsualBoot()


def register_limit_s(usual: UsualBoot, most_s: float) -> float:
    """Time after which a VM that has not joined is ended; at most `most_s`, which holds without measurements."""
    return min(most_s, max(_GIVE_UP_LEAST_S, GIVE_UP * usual.seconds)) if usual.measured else most_s


def phase_of(vm: BootSeen) -> BootPhase:
    """How far a VM is."""
    console = vm.evidence.console
    if vm.joined:
        return "joined"
    if f"{MARK}{INSTALLING}" in console:
        return "installing"
    if f"{MARK}{BOOTING}" in console or f"{MARK}{REACHED}" in console:
        return "booting"
    return "running" if vm.evidence.state == "running" else "asked"


def reaches(vms: Sequence[BootSeen]) -> bool:
    """Whether one of these VMs has joined or reported that it reaches the coordinator."""
    return any(vm.joined or f"{MARK}{REACHED}" in vm.evidence.console for vm in vms)


def progress_line(vms: Sequence[BootSeen], *, rest: int = 0) -> str:
    """How far VMs are, the furthest first, such as `aggregators joined (48 s), VM 1, 2 booting (30 s)`.

    Args:
        rest: VMs that are wanted and not requested yet.
    """
    parts = []
    several = any(aggregator_index(vm.intent.slot) for vm in vms)
    for phase in reversed(BOOT_PHASES):
        here = [vm for vm in vms if phase_of(vm) == phase]
        if not here:
            continue
        longest_s = max(vm.age_s for vm in here)
        parts.append(f"{_names(here, several=several)} {phase} ({in_words(longest_s)})")
    if rest:
        parts.append(f"{rest} more to follow")
    return ", ".join(parts)


def _names(vms: Sequence[BootSeen], *, several: bool) -> str:
    """The names of VMs; those of aggregators with their numbers if there are `several`."""
    if len(vms) > _NAMES_MAX:
        return f"{len(vms)} VMs"
    found = [(aggregator_index(vm.intent.slot), vm.intent.slot) for vm in vms]
    numbers = sorted(index + 1 for index, _ in found if index is not None)
    names = [f"aggregators {', '.join(map(str, numbers))}" if several else "aggregators"] if numbers else []
    slots = sorted(slot for index, slot in found if index is None)
    if slots:
        names.append(f"VM {', '.join(str(slot) for slot in slots)}")
    return " and ".join(names)
