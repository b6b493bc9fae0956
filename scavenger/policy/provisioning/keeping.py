"""Which VMs a study keeps between its trials, which trial takes which, and which of them end: values in, ids out.

A VM that a trial leaves stays if it is sound. It then waits, without anything to do, for a slot of another trial:

==================================================  ==========================================================
seen of a VM that waits                             what becomes of it
==================================================  ==========================================================
a slot that it suits is vacant                      it fills the slot, aggregators' slots first; while it is
                                                    on its way from another trial, the slot waits for it
the cloud takes it back                             it ends
it fell silent, and another one is heard            it ends
all fell silent, as by the network of this side     they end once they would have ended themselves
it did not come within `ARRIVE_S`                   it ends
it has waited for `idle_s`                          it ends
a trial begins, alone, that it does not suit        it ends
==================================================  ==========================================================

It suits a slot of its VM type, zone, kind of price (spot or not), image, disk, settings and package, if the cloud lets
it live for as long as the trial may take, and if it is in the zone of the trial's aggregators, since traffic between
zones is paid for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scavenger.policy.provisioning.silence import SilenceLimits, is_none_heard
from scavenger.policy.provisioning.slots import is_for_aggregators

ARRIVE_S = 30.0
"""Time within which a VM has to have joined what keeps it; it takes a second."""
SILENT_S = 45.0
"""Silence after which a VM that waits has failed, unless all of them are silent."""
_SILENCE = SilenceLimits()
LASTS_S = 86_400.0
"""A VM lasts long enough for a trial without a deadline if the cloud lets it live for so long yet."""
_LATE_S = 600.0
"""By how much a VM may end before the limit that the trial would give to a new one, which has an hour to spare."""

Place = tuple[str, str, bool]
"""VM type, zone, and whether it is a spot VM; see `PlacementOption.key`."""


@dataclass(frozen=True, slots=True)
class KeptVm:
    """A VM that waits for a trial.

    Attributes:
        id: Of its intent.
        place: What it is, and where.
        made_of: What else has to be alike: image, disk, settings, package.
        left_s: Time until the cloud ends it.
        waited_s: Since it was left by a trial.
        joined: Whether it has joined what keeps it.
        silent_s: Time since its last message.
        is_ending: Whether the cloud has announced its end.
        left_by: The job that has left it.
    """

    id: str
    place: Place
    made_of: Hashable
    left_s: float
    waited_s: float = 0.0
    joined: bool = True
    silent_s: float = 0.0
    is_ending: bool = False
    left_by: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether a trial can have it."""
        return self.joined and not self.is_ending and self.silent_s < SILENT_S

    @property
    def is_coming(self) -> bool:
        """Whether a trial can have it soon."""
        return not (self.joined or self.is_ending) and self.waited_s < ARRIVE_S


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A slot of a trial without a VM.

    Attributes:
        places: Where its VM may be, in the order to try.
    """

    number: int
    places: tuple[Place, ...]

    def suits(self, place: Place) -> bool:
        """Whether a VM there is as good as the one that would be tried first: not dearer by being no spot VM."""
        return place in self.places and place[2] == self.places[0][2]


@dataclass(frozen=True, slots=True)
class TrialWants:
    """What a trial wants of its VMs.

    Attributes:
        made_of: As of `KeptVm`.
        lasts_s: How long the cloud would let a new one live.
        places: All that its VMs may be.
        zone: Of its aggregators' VMs; empty if it has none yet.
    """

    job_id: str
    made_of: Hashable
    lasts_s: float
    places: frozenset[Place]
    zone: str = ""

    def is_met_by(self, vm: KeptVm) -> bool:
        """Whether a VM is of a kind that the trial could have."""
        lasts = vm.left_s >= min(self.lasts_s - _LATE_S, LASTS_S)
        return lasts and vm.made_of == self.made_of and vm.place in self.places


def to_take(kept: Iterable[KeptVm], trial: TrialWants, slots: Sequence[OpenSlot]) -> dict[int, str]:
    """Which VM fills which slot, now or once it has come; each VM at most one. The ids by the slots' numbers."""
    able = [
        vm
        for vm in kept
        if (vm.is_sound or vm.is_coming) and vm.left_by != trial.job_id and trial.is_met_by(vm)
    ]
    zone, found = trial.zone, dict[int, str]()
    for slot in sorted(slots, key=lambda slot: (not is_for_aggregators(slot.number), slot.number)):
        suited = [vm for vm in able if slot.suits(vm.place) and zone in ("", vm.place[1])]
        if not suited:
            continue
        vm = min(suited, key=lambda vm: (slot.places.index(vm.place), not vm.joined, vm.waited_s, vm.id))
        able.remove(vm)
        found[slot.number] = vm.id
        if is_for_aggregators(slot.number):
            zone = vm.place[1]
    return found


def to_end(kept: Iterable[KeptVm], idle_s: float) -> dict[str, str]:
    """Which VMs end now: why, by their ids.

    Args:
        idle_s: How long a VM waits for a trial.
    """
    vms, found = tuple(kept), dict[str, str]()
    joined = {vm.id: vm.silent_s for vm in vms if vm.joined and not vm.is_ending}
    doubtful = [id for id, seconds in joined.items() if seconds >= _SILENCE.doubt_s]
    silent_s = _SILENCE.keep_s if is_none_heard(doubtful, joined) else SILENT_S
    for vm in vms:
        if vm.is_ending:
            found[vm.id] = "the cloud takes it back"
        elif not vm.joined and vm.waited_s >= min(ARRIVE_S, idle_s):
            found[vm.id] = "it did not come"
        elif vm.joined and vm.silent_s >= silent_s:
            found[vm.id] = "it fell silent"
        elif vm.waited_s >= idle_s:
            found[vm.id] = "no trial has taken it"
    return found


def unsuited(kept: Iterable[KeptVm], trial: TrialWants, others: int) -> frozenset[str]:
    """The VMs that wait in vain, as the only trial that runs wants others.

    Args:
        others: Number of other trials that run, which may want them.
    """
    return frozenset() if others else frozenset(vm.id for vm in kept if not trial.is_met_by(vm))


def idle_limit_usd(rates: Mapping[str, float], waited_s: Mapping[str, float], idle_s: float) -> float:
    """What VMs that wait may cost yet, until their idle time is over.

    Args:
        rates: US dollars per hour, by id.
        waited_s: By id.
        idle_s: As of `to_end`.
    """
    return sum(rate * max(0.0, idle_s - waited_s[id]) / 3600.0 for id, rate in rates.items())
