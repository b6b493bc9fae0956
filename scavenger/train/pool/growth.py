"""How many nodes a place of the pool rents: decisions about values, by `scavenger.scheduler`.

The scheduler starts nodes at once, a cloud takes minutes. So it is asked what it *would* do if it had nodes to start
(`missing_nodes`); the plan stays what it is until such a node has joined, and then moves jobs there by its own rules.

==================================================  ==========================================================
seen                                                decided
==================================================  ==========================================================
tenants wait, and all nodes have all of theirs      as many nodes as the scheduler starts for their jobs
a job's node is fuller than the rules allow, or it  the same for that job, once it has been so for `CRAMPED_S`
shares one with a job that it is kept apart from
a node has to go, and the others have no room       as many as the scheduler starts to empty it
nodes are on their way                              they count as empty nodes
`nodes_max` are rented                              none; the reason says so
a rented node has had no tenant for `idle_s`        it ends
all that it has had sequences steps, and can move   it is drained
a drained one has none                              it ends at once
==================================================  ==========================================================

That a node becomes empty, the plan decides: at the end of each period jobs are packed, and the least loaded node is
emptied onto others if they have room (`scavenger.scheduler.scaling`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from scavenger.scheduler.events import DrainNode, Event, JobArrived, StartNode
from scavenger.scheduler.pool import BucketLoad, JobLoad
from scavenger.scheduler.scaling import Decided, ScalingRules, SharedPool, decide
from scavenger.train.pool.placement import Node
from scavenger.train.pool.planning import UNMEASURED_S, PoolPlan, scheduled

CRAMPED_S = 30.0
"""For how long a job has to have too little room before a node is rented for it: packing may find some, every 10 s."""
_COMING = "coming "
_SPARE = 1_000_000


@dataclass(frozen=True, slots=True)
class RentalLimits:
    """What the pool may rent.

    Attributes:
        nodes_max: Nodes at a time.
        idle_s: How long a node without tenants is kept, seconds.
    """

    nodes_max: int
    idle_s: float

    def __post_init__(self) -> None:
        if self.nodes_max < 1 or not self.idle_s >= 0.0:
            raise ValueError(f"no node can be rented within {self}")


@dataclass(frozen=True, slots=True)
class RentedSeen:
    """A rented node.

    Attributes:
        coming: Whether its machine has not joined yet.
        drained: Whether it gets no tenants any more.
        idle_s: For how long it has had no tenant, or for how long nobody has waited for it to come; None: it has one.
        sequences: Whether it has tenants that sequence steps, and no others; they count as none if they can move.
    """

    name: str
    coming: bool = False
    drained: bool = False
    idle_s: float | None = None
    sequences: bool = False


@dataclass(frozen=True, slots=True)
class Growth:
    """What is to be done about rented nodes, and why; nothing if both are empty.

    Attributes:
        starts: Nodes to rent.
        ends: Names of those to give back.
        drains: Names of those that what sequences steps is to leave first.
    """

    starts: int = 0
    ends: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    reason: str = ""


def grow(missing: tuple[int, str], rented: Sequence[RentedSeen], limits: RentalLimits) -> Growth:
    """What is done about the nodes that are missing, and those that nobody needs.

    Args:
        missing: As of `missing_nodes`.
        rented: Those that were not told to end.
    """
    number, why = missing
    idle = [
        one
        for one in rented
        if one.idle_s is not None and (one.idle_s >= limits.idle_s or (one.drained and not one.coming))
    ]
    ends = tuple(one.name for one in idle if not one.sequences)
    drains = tuple(one.name for one in idle if one.sequences)
    starts = min(number, limits.nodes_max - (len(rented) - len(ends)))
    if starts > 0:
        return Growth(starts, ends, drains, why)
    if ends or drains:
        return Growth(0, ends, drains, f"no tenant for {limits.idle_s:g} s, or drained")
    if number:
        return Growth(reason=f"{why}, but {limits.nodes_max} rented nodes are the most (--nodes-max)")
    return Growth()


def missing_nodes(
    plan: PoolPlan,
    waiting: Mapping[str, int],
    offered: Node,
    *,
    coming: int = 0,
    cramped: Collection[str] = (),
    leaving: Collection[str] = (),
) -> tuple[int, str]:
    """How many nodes the scheduler would start, and for what.

    Args:
        plan: The nodes that have joined.
        waiting: By job, the tenants for which there was no room; 0: only one that needs a node and no room there.
        offered: What a new node would have; its name does not matter.
        coming: Nodes that are on their way.
        cramped: Jobs that have had too little room for a while, see `PoolPlan.cramped`.
        leaving: Nodes whose machines have to go.
    """
    pool = plan.shared.pool
    for index in range(coming):
        pool = pool.with_node(scheduled(msgspec.structs.replace(offered, name=f"{_COMING}{index}")))
    pool = replace(pool, types=(scheduled(offered).type,))
    state = SharedPool(pool, ScalingRules(spare_nodes=_SPARE))
    count, reasons = 0, []
    events: list[tuple[Event, str]] = [
        (JobArrived(_waiting_load(job, tenants, offered)), f"job {job} waits for a place")
        for job, tenants in waiting.items()
    ]
    events += [(DrainNode(node), f"{node} has to go") for node in leaving if node in pool.nodes]
    events += [
        (JobArrived(pool.jobs[job].load), f"job {job} has too little room")
        for job in cramped
        if job in pool.jobs
    ]
    for event, why in events:
        decided = _decided(state, event)
        started = sum(isinstance(action, StartNode) for action in decided.actions)
        if decided.state.waiting:  # it fits on no such node either
            continue
        state = decided.state
        if started:
            count += started
            reasons.append(why)
    return count, "; ".join(reasons)


def _decided(state: SharedPool, event: Event) -> Decided:
    if isinstance(event, JobArrived) and event.load.name in state.pool.jobs:
        # as if it was new: a job that is there would stay, whomever it is kept apart from
        state = replace(state, pool=state.pool.without_job(event.load.name))
    return decide(state, event)


def _waiting_load(job: str, tenants: int, offered: Node) -> JobLoad:
    """What is known of tenants that were not started: the memory that they may use."""
    buckets = (BucketLoad(0.0, offered.tenant_bytes),) * tenants or (BucketLoad(0.0),)
    return JobLoad(f"{job} waiting", UNMEASURED_S, buckets)
