"""Plans the VMs that a job wants next, and judges shortages of VMs: values in, a plan or a verdict out.

The plan follows from the processes that the job runs or that wait for a VM:

==================================================  ==========================================================
seen                                                plan
==================================================  ==========================================================
an aggregator runs or waits                         all aggregator VMs, each in a slot of its own
an aggregator VM has fallen silent                  a later generation of its slot: the VM is replaced
a worker runs or waits                              a place for it in a slot of its type of VM (`plan_slots`)
a worker on a VM that is ending or gone             no place: it ends with its VM
a worker's VM will be preempted, or is silent       its slot goes once nothing runs there; others take its work
a worker's VM is avoided                            its slot goes once nothing runs there; another VM is wanted
a worker's VM has had nothing to do for `IDLE_S`    its slot goes; at once if its worker was released
a VM is in no slot any more, or ends                nothing is placed there (`given_up`)
more slots than the job may have                    the last ones wait
==================================================  ==========================================================

The verdict on the reconciler's report about the plan is the first row that fits:

==================================================  ==========================================================
said                                                verdict
==================================================  ==========================================================
`budget`                                            the job ends: what is left pays for the end of its VMs
nothing that lasts (`sold_out` for `wait_max_s`)    none: the job waits, and trains with what it has
`boot`: VMs fail alike, workers wait, none runs     the job ends, whatever else is on its way
lasting, workers wait, some aggregators get no VM   the job ends
lasting, workers wait, none runs and no VM comes    the job ends
lasting, more workers wait than VMs are coming      the workers in excess are refused
==================================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from scavenger.domain.configuration import Offer
from scavenger.domain.cost import TrafficPrice
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmSlot
from scavenger.domain.vm import VmPackage
from scavenger.policy.provisioning.actions import AlarmKind
from scavenger.policy.provisioning.slots import (
    AGGREGATOR_SLOT,
    AGGREGATORS,
    Slot,
    SlotSeen,
    aggregator_index,
    aggregator_slot,
    is_for_aggregators,
    plan_slots,
)

SILENT_S = 45.0
"""Silence after which a VM is replaced, unless the network is in doubt: its work is already lost."""

_LASTING: tuple[AlarmKind, ...] = ("boot", "unaffordable", "credentials", "no_quota", "no_placement", "loop")
"""Shortages that do not end by waiting, in the order in which they are reported as the reason."""


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """What the VMs of one job are planned from.

    Attributes:
        spec: The job, its region, its limits and the launch parameters of its VMs; without slots.
        package: What a VM installs.
        options: Placement options of the workers' VMs by VM type, and of the aggregators' (`AGGREGATORS`), in the order
            to try.
        offers: Offers of the workers' VM types.
        threads: Processors of each VM type, including the aggregators'.
        aggregators_on: Number of aggregators on each aggregator VM, see `evenly`.
        wait_max_s: Longest wait for VMs while none of a type is to be had.
        before_usd: Known cost of the VMs of earlier attempts.
        traffic_price: Price of traffic between zones; None if unknown.
        leader_usd_per_hour: Price of the leader's VM with its extras; 0 if the job is led where that costs nothing.
        met_in: The zone where workers exchange gradients if no VM is rented for that; empty if it is not known.
    """

    spec: FleetSpec
    package: VmPackage
    options: Mapping[str, tuple[PlacementOption, ...]]
    offers: tuple[Offer, ...]
    threads: Mapping[str, int]
    aggregators_on: tuple[int, ...] = (1,)
    wait_max_s: float = 3600.0
    before_usd: float = 0.0
    traffic_price: TrafficPrice | None = None
    leader_usd_per_hour: float = 0.0
    met_in: str = ""

    @property
    def room(self) -> dict[str, int]:
        """Number of workers that one VM holds, by VM type."""
        return {offer.vm: offer.workers_per_vm for offer in self.offers}

    @property
    def aggregator_slots(self) -> tuple[int, ...]:
        """The slots of the aggregator VMs."""
        return tuple(aggregator_slot(index) for index in range(len(self.aggregators_on)))

    def processes_in(self, slot: int, vm: str) -> int:
        """Number of processes that the VM of a slot holds.

        Args:
            vm: The VM type of the slot.
        """
        index = aggregator_index(slot)
        if index is None:
            return self.room[vm]
        return self.aggregators_on[index] if index < len(self.aggregators_on) else 0


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """State of the agent on a VM.

    Attributes:
        joined: Whether it has connected and not ended.
        processes: Number of processes that run there.
        silent_s: Time since its last message.
        idle_s: Time since the last process there ended, infinite if that was released; 0 while one runs.
        is_ending: Whether the cloud has announced the VM's end.
        ends_in_s: Time until that end; None if the cloud gives none.
        is_avoided: Whether too many processes have failed there.
    """

    joined: bool
    processes: int = 0
    silent_s: float = 0.0
    idle_s: float = 0.0
    is_ending: bool = False
    ends_in_s: float | None = None
    is_avoided: bool = False


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """A job's VMs and processes at one time.

    Attributes:
        intents: Intents of all VMs that the job has requested.
        agents: Agents by the intent of their VM.
        workers: Number of workers that run or wait, by VM type.
        aggregators: Number of aggregators that run or wait.
        waiting: Number of workers that wait for a VM, by VM type.
        sold_out_s: How long VMs have been sold out without a break.
        in_doubt: Whether the network is in doubt, so that a VM's silence is no evidence of its failure.
    """

    intents: tuple[Intent, ...]
    agents: Mapping[str, AgentSeen]
    workers: Mapping[str, int]
    aggregators: int
    waiting: Mapping[str, int] = field(default_factory=dict)
    sold_out_s: float = 0.0
    in_doubt: bool = False

    def is_silent(self, intent_id: str) -> bool:
        """Whether a VM is silent while the network is sound."""
        agent = self.agents.get(intent_id)
        return agent is not None and agent.joined and agent.silent_s > SILENT_S and not self.in_doubt


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The VMs that a job wants.

    Attributes:
        slots: Slots of the workers' VMs.
        aggregators: Whether the aggregator VMs are wanted.
        generations: Lowest generation that an aggregator VM may have, by its slot; 0 if missing.
        first: Lowest slot number of a worker's VM that was never used.
        types: VM type of every slot so far, by its number.
    """

    slots: tuple[Slot, ...] = ()
    aggregators: bool = False
    generations: Mapping[int, int] = field(default_factory=dict)
    first: int = AGGREGATOR_SLOT + 1
    types: Mapping[int, str] = field(default_factory=lambda: {AGGREGATOR_SLOT: AGGREGATORS})


def first_plan(intents: tuple[Intent, ...], attempt: int) -> FleetPlan:
    """The initial plan of an attempt: it wants no VMs, and reuses none of an earlier attempt."""
    past = [intent for intent in intents if intent.attempt < attempt]
    workers = (intent.slot for intent in past if not is_for_aggregators(intent.slot))
    return FleetPlan(
        first=1 + max(workers, default=AGGREGATOR_SLOT),
        generations=_latest((one.slot, one.generation + 1) for one in past if is_for_aggregators(one.slot)),
    )


def _latest(generations: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The highest generation of each slot."""
    found: dict[int, int] = {}
    for slot, generation in generations:
        found[slot] = max(generation, found.get(slot, 0))
    return found


def plan_fleet(inputs: FleetInputs, before: FleetPlan, seen: FleetSeen) -> FleetPlan:
    """Plan the VMs that are wanted from now on; see the first table of the module."""
    needs = _needs(inputs, before, seen)
    aggregators = needs.pop(AGGREGATORS) > 0
    replaced = [
        (intent.slot, intent.generation + 1)
        for intent in seen.intents
        if is_for_aggregators(intent.slot) and seen.is_silent(intent.id)
    ]
    slots = plan_slots(_slots_seen(before, seen), needs, inputs.room, before.first)
    slots = slots[: inputs.spec.vms_max - len(inputs.aggregators_on)]
    return replace(
        before,
        slots=slots,
        aggregators=aggregators,
        generations=_latest((*before.generations.items(), *replaced)),
        first=max((before.first, *(slot.number + 1 for slot in slots))),
        types={
            **before.types,
            **dict.fromkeys(inputs.aggregator_slots, AGGREGATORS),
            **{slot.number: slot.vm for slot in slots},
        },
    )


def slots_of(inputs: FleetInputs, plan: FleetPlan, *, one_first: bool = False) -> tuple[VmSlot, ...]:
    """Convert a plan to the slots that the store keeps; aggregators come first, since workers need them.

    Args:
        one_first: Whether the first one alone is to be rented yet.
    """
    found = _all_slots(inputs, plan)
    return found[:1] if one_first else found


def given_up(inputs: FleetInputs, plan: FleetPlan, intents: Iterable[Intent]) -> frozenset[str]:
    """Intents of the VMs that end, or that the plan wants no more: what is started there would be lost with them."""
    wanted = {slot.number: slot.generation for slot in _all_slots(inputs, plan)}
    return frozenset(
        one.id
        for one in intents
        if one.state not in ("PLAN", "UP") or one.generation < wanted.get(one.slot, one.generation + 1)
    )


def _all_slots(inputs: FleetInputs, plan: FleetPlan) -> tuple[VmSlot, ...]:
    workers = tuple(VmSlot(slot.number, options=inputs.options[slot.vm]) for slot in plan.slots)
    if not plan.aggregators:
        return workers
    aggregators = (
        VmSlot(slot, plan.generations.get(slot, 0), inputs.options[AGGREGATORS])
        for slot in inputs.aggregator_slots
    )
    return (*aggregators, *workers)


def _needs(inputs: FleetInputs, plan: FleetPlan, seen: FleetSeen) -> dict[str, int]:
    """Number of processes that run on, or wait for, a VM that stays, by VM type."""
    needs = {
        **dict.fromkeys((offer.vm for offer in inputs.offers), 0),
        **seen.workers,
        AGGREGATORS: seen.aggregators,
    }
    for intent in seen.intents:
        if intent.state in ("DELETING", "GONE") and intent.id in seen.agents and intent.slot in plan.types:
            needs[plan.types[intent.slot]] -= seen.agents[intent.id].processes
    return needs


def _slots_seen(plan: FleetPlan, seen: FleetSeen) -> list[SlotSeen]:
    latest = {intent.slot: intent for intent in seen.intents if intent.state in ("PLAN", "UP")}
    found = []
    for slot in plan.slots:
        intent = latest.get(slot.number)
        agent = None if intent is None else seen.agents.get(intent.id)
        if intent is None or agent is None or not agent.joined:
            found.append(SlotSeen(slot))
            continue
        ends_in_s = agent.ends_in_s if agent.is_ending else None
        if agent.is_ending and ends_in_s is None and not agent.processes:
            ends_in_s = 0.0  # at risk, so that nothing is placed there any more
        if seen.is_silent(intent.id):
            ends_in_s = 0.0
        found.append(SlotSeen(slot, True, agent.processes, agent.idle_s, ends_in_s, agent.is_avoided))
    return found


# ---- shortages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shortage:
    """The job has to end for lack of VMs.

    Attributes:
        kind: The reconciler's kind of alarm.
        reason: The reconciler's message.
    """

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The job continues without workers whose VMs cannot be launched.

    Attributes:
        workers: Number of these workers, by VM type.
        reason: The reconciler's message.
    """

    workers: Mapping[str, int]
    reason: str


def read_shortage(
    inputs: FleetInputs, plan: FleetPlan, seen: FleetSeen, said: Mapping[str, str]
) -> Shortage | Refusal | None:
    """Judge what the state of a job's slots means for the job; see the second table of the module.

    Args:
        said: The reconciler's messages on the job's slots, by kind of alarm.
    """
    if "budget" in said:
        return Shortage("budget", said["budget"])
    lasting = (*_LASTING, "sold_out") if seen.sold_out_s >= inputs.wait_max_s else _LASTING
    kind = next((kind for kind in lasting if kind in said), None)
    waiting = {offer.vm: seen.waiting.get(offer.vm, 0) for offer in inputs.offers}
    if kind is None or not any(waiting.values()):
        return None
    room, working = _room_coming(inputs, plan, seen)
    idle_without_aggregators = _needs(inputs, plan, seen)[AGGREGATORS] > room[AGGREGATORS]
    if (
        idle_without_aggregators
        or (kind == "boot" and not working)
        or not (working or any(room[vm] for vm in waiting))
    ):
        return Shortage(kind, said[kind])
    excess = {vm: count - room[vm] for vm, count in waiting.items() if count > room[vm]}
    return Refusal(excess, said[kind]) if excess else None


def _room_coming(inputs: FleetInputs, plan: FleetPlan, seen: FleetSeen) -> tuple[dict[str, int], int]:
    """Capacity in processes of the live and booting VMs, by type; and the number of running workers."""
    room, working = dict.fromkeys((AGGREGATORS, *(offer.vm for offer in inputs.offers)), 0), 0
    for intent in seen.intents:
        if intent.state not in ("PLAN", "UP") or intent.slot not in plan.types:
            continue
        vm, agent = plan.types[intent.slot], seen.agents.get(intent.id)
        busy = 0 if agent is None else agent.processes
        if vm == AGGREGATORS:
            room[vm] += inputs.processes_in(intent.slot, vm)
            continue
        working += busy
        if agent is None or not (agent.is_ending or agent.is_avoided):
            room[vm] += inputs.room[vm] - busy
    return room, working
