"""How many VMs a job asks for, and which it gives back: one slot for each, by what its processes need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["AGGREGATORS", "AGGREGATORS_PER_VM", "AGGREGATOR_SLOT", "IDLE_S", "Slot", "SlotSeen", "plan_slots"]

AGGREGATOR_SLOT = 0
"""The slot of the aggregators' VM; workers have the others."""

AGGREGATORS = ""
"""Stands for the type of the aggregators' VM among the types of the workers' VMs."""

AGGREGATORS_PER_VM = 64
"""All aggregators of a job share one VM."""

IDLE_S = 10.0
"""A VM with nothing to do is kept so long: a process that crashed is followed by another within moments."""

LAST_S = 3.0
"""A VM whose end was announced is given up so long before it, lest another be started in its slot as well."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one VM, whose number is never given twice.

    Attributes:
        vm: Its type.
        places: Workers that its VM holds.
    """

    number: int
    vm: str
    places: int = 1


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """A slot that is wished for, and what is known of its VM.

    Attributes:
        joined: The VM has been heard of.
        busy: Processes on it.
        idle_s: For how long it has had none; 0 while it has some.
        ends_in_s: Until the VM ends, by the cloud's word; None where it did not say so.
        avoided: Too many processes have failed there.
    """

    slot: Slot
    joined: bool = False
    busy: int = 0
    idle_s: float = 0.0
    ends_in_s: float | None = None
    avoided: bool = False

    @property
    def stays(self) -> bool:
        """New processes may be placed there."""
        return self.ends_in_s is None and not self.avoided

    @property
    def left_s(self) -> float:
        """How long what runs there may stay."""
        return math.inf if self.ends_in_s is None else self.ends_in_s


def plan_slots(
    seen: Sequence[SlotSeen], needs: Mapping[str, int], places: Mapping[str, int], first: int
) -> tuple[Slot, ...]:
    """The slots to wish for from now on.

    A VM that works is never given up for another. Of those that do not, the ones that are not there yet go first: they
    cost the least. A VM that is to end, or that is avoided, counts no more; its slot goes once nothing runs there.

    Args:
        seen: Slots that are wished for by now.
        needs: Processes that are there or wait for a place, by type of VM.
        places: Processes that a VM of each type holds.
        first: The lowest number that no slot has had.
    """
    wanted: list[Slot] = []
    for vm in dict.fromkeys((*(one.slot.vm for one in seen), *needs)):
        here = [one for one in seen if one.slot.vm == vm]
        ending = [one for one in here if not one.stays]
        wanted += [one.slot for one in ending if one.busy and one.left_s > LAST_S]
        staying = [one for one in here if one.stays]
        # the processes on VMs that end are needed there and nowhere else
        count = max(0, needs.get(vm, 0) - sum(one.busy for one in ending))
        room = places.get(vm, 1)
        vms = -(-count // room)
        keeping = [one for one in staying if one.busy]
        others = sorted(
            (one for one in staying if not one.busy),
            key=lambda one: (not one.joined, one.idle_s, one.slot.number),
        )
        # those with work on them may hold fewer processes than they could
        missing = max(0, vms - len(keeping))
        fresh = [one for one in others[missing:] if one.joined and one.idle_s < IDLE_S]
        wanted += [one.slot for one in (*keeping, *others[:missing], *fresh)]
        for _ in range(missing - len(others)):
            wanted.append(Slot(first, vm, room))
            first += 1
    return tuple(sorted(wanted, key=lambda slot: slot.number))
