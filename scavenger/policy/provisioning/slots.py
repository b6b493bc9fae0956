"""Plans the slots of a job: one for each VM that its processes need, and which VMs it releases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["AGGREGATORS", "AGGREGATORS_PER_VM", "AGGREGATOR_SLOT", "IDLE_S", "Slot", "SlotSeen", "plan_slots"]

AGGREGATOR_SLOT = 0
"""The slot of the aggregators' VM; workers have the others."""

AGGREGATORS = ""
"""Key of the aggregators' VM in mappings by VM type."""

AGGREGATORS_PER_VM = 64
"""Aggregators on one VM: all of a job's share one."""

IDLE_S = 10.0
"""How long an idle VM is kept: a crashed process is usually replaced within seconds."""

LAST_S = 3.0
"""Time before its announced end at which a VM is given up, so that its slot is not filled again."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot for one VM; its number is never reused.

    Attributes:
        vm: VM type.
        capacity: Capacity of its VM, workers.
    """

    number: int
    vm: str
    capacity: int = 1


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """A wanted slot, and the state of its VM.

    Attributes:
        joined: Whether the VM has connected.
        busy: Number of processes on it.
        idle_s: Time since it had any; 0 while it has some.
        ends_in_s: Time until the end that the cloud announced; None if it announced none.
        avoided: Whether too many processes have failed there.
    """

    slot: Slot
    joined: bool = False
    busy: int = 0
    idle_s: float = 0.0
    ends_in_s: float | None = None
    avoided: bool = False

    @property
    def stays(self) -> bool:
        """Whether new processes may be placed on its VM."""
        return self.ends_in_s is None and not self.avoided

    @property
    def left_s(self) -> float:
        """Time for which the processes on its VM may stay."""
        return math.inf if self.ends_in_s is None else self.ends_in_s


def plan_slots(
    seen: Sequence[SlotSeen], needs: Mapping[str, int], capacity: Mapping[str, int], first: int
) -> tuple[Slot, ...]:
    """Plan the slots that are wanted from now on.

    A VM that works is never given up for another. Of those that do not, the ones that are not there yet go first: they
    cost the least. A VM that is to end, or that is avoided, counts no more; its slot goes once nothing runs there.

    Args:
        seen: Slots that are wanted now.
        needs: Processes that run or wait for a VM, by VM type.
        capacity: Capacity of a VM of each type, processes.
        first: Lowest slot number that was never used.
    """
    wanted: list[Slot] = []
    for vm in dict.fromkeys((*(one.slot.vm for one in seen), *needs)):
        here = [one for one in seen if one.slot.vm == vm]
        ending = [one for one in here if not one.stays]
        wanted += [one.slot for one in ending if one.busy and one.left_s > LAST_S]
        staying = [one for one in here if one.stays]
        # the processes on VMs that end are needed there and nowhere else
        count = max(0, needs.get(vm, 0) - sum(one.busy for one in ending))
        room = capacity.get(vm, 1)
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
