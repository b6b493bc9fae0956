"""Which VMs one job wants next, and what a shortage of them means: values in, a plan or a verdict out.

What is wanted follows from the processes that the job has or cannot place yet:

==================================================  ==========================================================
seen                                                plan
==================================================  ==========================================================
an aggregator runs or waits                         one VM for all aggregators, in a slot of its own
the aggregators' VM has fallen silent               a later generation of its slot: the VM is replaced
a worker runs or waits                              a place for it in a slot of its type of VM (`plan_slots`)
a worker on a VM that is ending or gone             no place: it ends with its VM
a worker's VM was told of its end, or is silent     its slot goes once nothing runs there; others take its work
a worker's VM is avoided                            its slot goes once nothing runs there; another VM is wanted
a worker's VM has had nothing to do for `IDLE_S`    its slot goes
more slots than the job may have                    the last ones wait
==================================================  ==========================================================

What the reconciler says of the plan, the first that fits:

==================================================  ==========================================================
said                                                verdict
==================================================  ==========================================================
`budget`                                            the job ends: what is left pays for the end of its VMs
nothing that lasts (`sold_out` passes)              none: the job waits, and trains with what it has
lasting, workers wait, aggregators get no VM        the job ends
lasting, workers wait, none runs and no VM comes    the job ends
lasting, more workers wait than VMs are coming      the workers in excess are refused
==================================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scavenger.domain.configuration import Offer
from scavenger.domain.intent import Desired, Intent, Place, Wish
from scavenger.policy.provisioning.actions import AlarmKind
from scavenger.policy.provisioning.slots import (
    AGGREGATOR_SLOT,
    AGGREGATORS,
    AGGREGATORS_PER_VM,
    Slot,
    SlotSeen,
    plan_slots,
)

__all__ = [
    "SILENT_S",
    "AgentSeen",
    "FleetPlan",
    "FleetSeen",
    "FleetSpec",
    "Refusal",
    "Shortage",
    "first_plan",
    "plan_fleet",
    "read_shortage",
    "wishes_of",
]

SILENT_S = 45.0
"""A VM whose agent was not heard for so long is replaced, unless the network is in doubt: its work is lost already."""

_LASTING: tuple[AlarmKind, ...] = ("unaffordable", "credentials", "no_place", "loop")
"""Shortages that waiting does not end, in the order in which they are given as the reason."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """What the VMs of one job may be, and what they are for.

    Attributes:
        desired: The job, its region, its limits and how VMs start; without wishes.
        package: What a VM installs, see `cloud.boot.package_of`.
        places: Where and what the workers' VMs may be, by their type, in the order to try.
        aggregators: The same of the aggregators' VM.
        offers: The types of the workers' VMs.
        threads: Processors of each type, the aggregators' too.
        before_usd: What earlier attempts are known to have spent.
        disk_usd_per_hour: What the boot disk of a VM costs; 0 where it is not known.
    """

    desired: Desired
    package: str
    places: Mapping[str, tuple[Place, ...]]
    aggregators: tuple[Place, ...]
    offers: tuple[Offer, ...]
    threads: Mapping[str, int]
    before_usd: float = 0.0
    disk_usd_per_hour: float = 0.0

    @property
    def room(self) -> dict[str, int]:
        """How many processes one VM holds, by its type."""
        return {AGGREGATORS: AGGREGATORS_PER_VM} | {offer.vm: offer.workers_per_vm for offer in self.offers}

    def places_of(self, vm: str) -> tuple[Place, ...]:
        """Where and what a VM of a type may be."""
        return self.aggregators if vm == AGGREGATORS else self.places[vm]


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """What is known of the agent on a VM.

    Attributes:
        joined: It was heard, and has not ended.
        processes: How many processes run there.
        silent_s: For how long it was not heard.
        idle_s: For how long nothing has run there; 0 while something does.
        is_ending: The cloud has announced the VM's end.
        ends_in_s: Until that end; None where the cloud names no time.
        is_avoided: Too many processes have failed there.
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
    """A job's VMs and processes as of one look.

    Attributes:
        intents: Every VM that the job has asked for.
        agents: By the intent of their VM.
        workers: How many workers run or wait, by the type of their VM.
        aggregators: How many aggregators run or wait.
        waiting: How many of the workers wait for a VM, by its type.
        in_doubt: The network is, so that the silence of a VM says nothing of it.
    """

    intents: tuple[Intent, ...]
    agents: Mapping[str, AgentSeen]
    workers: Mapping[str, int]
    aggregators: int
    waiting: Mapping[str, int] = field(default_factory=dict)
    in_doubt: bool = False

    def is_silent(self, intent_id: str) -> bool:
        """Whether a VM has fallen silent by itself."""
        agent = self.agents.get(intent_id)
        return agent is not None and agent.joined and agent.silent_s > SILENT_S and not self.in_doubt


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a job wants.

    Attributes:
        slots: Of workers' VMs.
        aggregators: Whether a VM for aggregators is wanted.
        generation: The least generation that the aggregators' VM may be of.
        first: The lowest number that no slot has had.
        types: The type of VM of every slot that there was, by its number.
    """

    slots: tuple[Slot, ...] = ()
    aggregators: bool = False
    generation: int = 0
    first: int = AGGREGATOR_SLOT + 1
    types: Mapping[int, str] = field(default_factory=lambda: {AGGREGATOR_SLOT: AGGREGATORS})


def first_plan(intents: tuple[Intent, ...], attempt: int) -> FleetPlan:
    """The plan to begin an attempt with: nothing is wanted, and no VM of an earlier attempt serves this one."""
    past = [intent for intent in intents if intent.attempt < attempt]
    return FleetPlan(
        first=1 + max((intent.slot for intent in past), default=AGGREGATOR_SLOT),
        generation=1
        + max((intent.generation for intent in past if intent.slot == AGGREGATOR_SLOT), default=-1),
    )


def plan_fleet(spec: FleetSpec, before: FleetPlan, seen: FleetSeen) -> FleetPlan:
    """The VMs to want from now on; see the table of the module."""
    needs = _needs(spec, before, seen)
    aggregators = needs.pop(AGGREGATORS) > 0
    replaced = [
        intent.generation + 1
        for intent in seen.intents
        if intent.slot == AGGREGATOR_SLOT and seen.is_silent(intent.id)
    ]
    slots = plan_slots(_slots_seen(before, seen), needs, spec.room, before.first)
    slots = slots[: spec.desired.vms_max - 1]
    return replace(
        before,
        slots=slots,
        aggregators=aggregators,
        generation=max((before.generation, *replaced)),
        first=max((before.first, *(slot.number + 1 for slot in slots))),
        types={**before.types, **{slot.number: slot.vm for slot in slots}},
    )


def wishes_of(spec: FleetSpec, plan: FleetPlan) -> tuple[Wish, ...]:
    """A plan as the store keeps it; aggregators come first, since workers have nothing to do without them."""
    workers = tuple(Wish(slot.number, places=spec.places_of(slot.vm)) for slot in plan.slots)
    if not plan.aggregators:
        return workers
    return (Wish(AGGREGATOR_SLOT, plan.generation, spec.aggregators), *workers)


def _needs(spec: FleetSpec, plan: FleetPlan, seen: FleetSeen) -> dict[str, int]:
    """Processes that run on, or wait for, a VM that stays, by its type."""
    needs = {
        **dict.fromkeys((offer.vm for offer in spec.offers), 0),
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
    """The job has to end.

    Attributes:
        kind: What is short, as the reconciler calls it.
        reason: In its words.
    """

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The job goes on without workers that wait for VMs which will not come.

    Attributes:
        workers: How many, by the type of their VM.
        reason: In the reconciler's words.
    """

    workers: Mapping[str, int]
    reason: str


def read_shortage(
    spec: FleetSpec, plan: FleetPlan, seen: FleetSeen, said: Mapping[str, str]
) -> Shortage | Refusal | None:
    """What it means for the job how its wishes stand; see the second table of the module.

    Args:
        said: What the reconciler says of the job's wishes, by the kind of alarm.
    """
    if "budget" in said:
        return Shortage("budget", said["budget"])
    kind = next((kind for kind in _LASTING if kind in said), None)
    waiting = {offer.vm: seen.waiting.get(offer.vm, 0) for offer in spec.offers}
    if kind is None or not any(waiting.values()):
        return None
    room, working = _room_coming(spec, plan, seen)
    idle_without_aggregators = _needs(spec, plan, seen)[AGGREGATORS] > 0 and not room[AGGREGATORS]
    if idle_without_aggregators or not (working or any(room[vm] for vm in waiting)):
        return Shortage(kind, said[kind])
    excess = {vm: count - room[vm] for vm, count in waiting.items() if count > room[vm]}
    return Refusal(excess, said[kind]) if excess else None


def _room_coming(spec: FleetSpec, plan: FleetPlan, seen: FleetSeen) -> tuple[dict[str, int], int]:
    """Processes that living VMs have room for, by type, VMs that still boot included; and workers that run."""
    room, working = dict.fromkeys((AGGREGATORS, *(offer.vm for offer in spec.offers)), 0), 0
    for intent in seen.intents:
        if intent.state not in ("PLAN", "UP") or intent.slot not in plan.types:
            continue
        vm, agent = plan.types[intent.slot], seen.agents.get(intent.id)
        busy = 0 if agent is None else agent.processes
        if vm == AGGREGATORS:
            room[vm] += spec.room[vm]
            continue
        working += busy
        if agent is None or not (agent.is_ending or agent.is_avoided):
            room[vm] += spec.room[vm] - busy
    return room, working
