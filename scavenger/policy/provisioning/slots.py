"""Plans the slots of a job: one for each VM that its processes need, and which VMs it releases.

The number of a slot tells what its VM is for, so that every record of a VM does: 0 is the first aggregator VM, workers
count from 1, and further aggregator VMs from `FURTHER_AGGREGATORS`. Either may grow without meeting the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

AGGREGATOR_SLOT = 0
"""The slot of the first aggregator VM."""

FURTHER_AGGREGATORS = 1_000_000
"""The slots above are those of further aggregator VMs; those between are workers', more than a job ever rents."""

LEADER_SLOT = FURTHER_AGGREGATORS
"""The slot of a leader's VM, in the record of the command that has rented it; no other VM has it."""

AGGREGATORS = ""
"""Key of the aggregator VMs in mappings by VM type."""

IDLE_S = 10.0
"""How long a VM is kept whose process has crashed: it is usually replaced within seconds."""

LAST_S = 3.0
"""Time before its announced end at which a VM is given up, so that its slot is not filled again."""


def aggregator_slot(index: int) -> int:
    """The slot of an aggregator VM, the first of which has index 0."""
    return FURTHER_AGGREGATORS + index if index else AGGREGATOR_SLOT


def aggregator_index(slot: int) -> int | None:
    """Which aggregator VM has this slot, the inverse of `aggregator_slot`; None for a worker's."""
    if slot == AGGREGATOR_SLOT:
        return 0
    return slot - FURTHER_AGGREGATORS if slot > FURTHER_AGGREGATORS else None


def is_for_aggregators(slot: int) -> bool:
    """Whether the VM of a slot runs aggregators; else it runs workers."""
    return aggregator_index(slot) is not None


def evenly(processes: int, vms: int) -> tuple[int, ...]:
    """Number of processes on each VM if they differ by at most one; the first VMs have more."""
    return tuple(processes // vms + (index < processes % vms) for index in range(vms))


def on_further_hosts(hosts: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The workers that are not on the `count` hosts that have most of them; of equals, those that had some first stay.

    Args:
        hosts: Of each worker, in the order of launch; empty for one that waits for a host, which is left out.
    """
    there = Counter(host for host in hosts.values() if host)
    stay = {host for host, _ in there.most_common(count)}
    return tuple(name for name, host in hosts.items() if host and host not in stay)


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
