"""Where the buckets of a job go: all of them considered together.

AutoPS assigns bucket by bucket, so a job can be spread over many nodes, each of whose cycles then bounds it,
and a new node is started as soon as one bucket finds no room. `assign` looks at the whole job first:

1. one node in use that holds all of it: of these the one where least processor time stays free;
2. otherwise several nodes in use, those with most room first, and the rest where it fits best;
3. what is left goes to empty nodes, then to new ones, of the types that cost least for it.

It starts no more than the job would need on nodes of its own: step 3 alone is tried as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scavenger.scheduler.cycles import cyclic_step_time, speed_loss, steps_in_cycle
from scavenger.scheduler.pool import (
    AggregatorNode,
    BucketLoad,
    JobLoad,
    JobOnNode,
    NodeLoad,
    NodeType,
    NoRoom,
    Placement,
    PoolState,
    Rules,
)

_TOLERANCE = 1e-10
"""Below that of `NodeLoad.within`, so that what fits by the sums here fits by those there."""


def assign(pool: PoolState, load: JobLoad, *, avoid: Collection[str] = ()) -> Placement | NoRoom:
    """Assign all buckets of a new job.

    Args:
        pool: Without the job.
        avoid: Nodes that get none of its buckets.
    """
    return _spread(pool, load, {}, avoid)


def reassign(pool: PoolState, job: str, source: str, *, avoid: Collection[str] = ()) -> Placement | NoRoom:
    """Assign those buckets of a job elsewhere that one node holds; the others stay where they are.

    Args:
        source: The node that they leave.
        avoid: Other nodes that get none of them.
    """
    placed = pool.jobs[job]
    kept = {index: node for index, node in enumerate(placed.nodes) if node != source}
    return _spread(pool, placed.load, kept, {source, *avoid})


def _spread(
    pool: PoolState, load: JobLoad, kept: Mapping[int, str], avoid: Collection[str]
) -> Placement | NoRoom:
    used: list[Room] = []
    empty: list[Room] = []
    least = min(bucket.execution_s for index, bucket in enumerate(load.buckets) if index not in kept)
    for node in pool.open_to(load.name, avoid):
        free = node.node.type.cores * (pool.rules.fill_max * (1.0 + _TOLERANCE) - node.utilisation)
        if free * load.step_time_s < least:
            continue  # full: only a longer step of the others would make room
        if room := room_for(node, load, pool.rules):
            (used if node.tenants else empty).append(room)
    left = [bucket for index, bucket in enumerate(load.buckets) if index not in kept]
    if whole := _tightest(used, JobOnNode.of(load.step_time_s, left)):
        nodes = tuple(kept.get(index, whole.node) for index in range(len(load.buckets)))
        return Placement(pool.with_job(load, nodes), nodes)
    plans = [plan for rooms in (used, []) if (plan := _Plan(pool, load, kept).spread(rooms, empty))]
    if not plans:
        return NoRoom(f"job {load.name} does not fit on the nodes that the pool has or may start")
    return min(plans, key=_Plan.cost).placement()


@dataclass(frozen=True, slots=True)
class Room:
    """What of a job still fits on a node, by step of the job: processor seconds, bytes held and bytes moved."""

    node: str
    execution_s: float
    memory_bytes: float
    traffic_bytes: float

    def holds(self, need: BucketLoad | JobOnNode) -> bool:
        """Whether a bucket, or several together, fit."""
        return (
            need.execution_s <= self.execution_s
            and need.memory_bytes <= self.memory_bytes
            and need.traffic_bytes <= self.traffic_bytes
        )

    def without(self, need: BucketLoad | JobOnNode) -> Room:
        """What is left beside a bucket, or several together."""
        return Room(
            self.node,
            self.execution_s - need.execution_s,
            self.memory_bytes - need.memory_bytes,
            self.traffic_bytes - need.traffic_bytes,
        )


def room_for(node: NodeLoad, load: JobLoad, rules: Rules) -> Room | None:
    """The room that a node has for buckets of a job; None if a job would lose too much.

    It is in terms of the job's step: of the processor time that is free in the cycle which the node would
    have with the job, each of the job's steps in that cycle gets an equal part.
    """
    cycle_s = node.cycle_with(load.step_time_s, rules)
    others = node if cycle_s == node.cycle_s else NodeLoad(node.node, cycle_s, node.tenants)
    loss = speed_loss(cyclic_step_time(cycle_s, load.step_time_s), load.step_time_s)
    if not (rules.allows(loss) and rules.allows(others.worst_loss)):
        return None
    planned_s = rules.fill_max * cycle_s * (1.0 + _TOLERANCE)
    type_, steps = node.node.type, steps_in_cycle(cycle_s, load.step_time_s)
    return Room(
        node.node.name,
        (type_.cores * planned_s - others.busy_s) / steps,
        type_.memory_bytes - node.memory_bytes,
        (type_.bandwidth_bytes_per_s * planned_s - others.traffic_bytes_per_s * cycle_s) / steps,
    )


def _tightest(rooms: Iterable[Room], need: JobOnNode) -> Room | None:
    """Of the rooms that hold all of it the one with least processor time."""
    return min(
        (room for room in rooms if room.holds(need)),
        key=lambda room: (room.execution_s, room.node),
        default=None,
    )


class _Plan:
    """A job's buckets being spread over nodes: the largest first."""

    def __init__(self, pool: PoolState, load: JobLoad, kept: Mapping[int, str]) -> None:
        self._pool, self._load = pool, load
        self._places = dict(kept)
        left = (index for index in range(len(load.buckets)) if index not in kept)
        self._left = sorted(left, key=lambda index: (-load.buckets[index].execution_s, index))
        self._started: list[AggregatorNode] = []
        self._opened = 0

    def cost(self) -> tuple[float, int, int]:
        """Price of what is started, empty nodes that are taken, and nodes of the job."""
        price = sum(node.type.price_usd_per_hour for node in self._started)
        return price, len(self._started), self._opened + len(set(self._places.values()))

    def placement(self) -> Placement:
        """The whole job placed."""
        nodes = tuple(self._places[index] for index in range(len(self._load.buckets)))
        return Placement(self._pool.with_job(self._load, nodes), nodes, tuple(self._started))

    def spread(self, used: Sequence[Room], empty: Sequence[Room]) -> _Plan | None:
        """Place all buckets, or return None if they do not all fit."""
        self._fill(used)
        before = len(set(self._places.values()))
        self._fill(empty)
        self._opened = len(set(self._places.values())) - before
        while self._left:
            if (room := self._start()) is None:
                return None
            self._fill([room])
        return self

    def _fill(self, rooms: Sequence[Room]) -> None:
        """The rest to one of the rooms if one holds it, otherwise as much as fits to the largest, and again."""
        open_rooms = sorted(rooms, key=lambda room: (-room.execution_s, room.node))
        while self._left and open_rooms:
            whole = _tightest(open_rooms, self._rest())
            room = whole or open_rooms[0]
            open_rooms.remove(room)
            for index in _fitting(room, self._load.buckets, self._left):
                self._places[index] = room.node
            self._left = [index for index in self._left if index not in self._places]

    def _rest(self) -> JobOnNode:
        return JobOnNode.of(self._load.step_time_s, [self._load.buckets[index] for index in self._left])

    def _start(self) -> Room | None:
        """Start the node that costs least for what it takes of the rest; None if none takes a bucket."""
        rules = self._pool.rules
        if rules.nodes_max is not None and len(self._pool.nodes) >= rules.nodes_max:
            return None

        def price(type_: NodeType) -> tuple[float, float] | None:
            room = room_for(NodeLoad(AggregatorNode("", type_)), self._load, rules)
            taken = _fitting(room, self._load.buckets, self._left) if room else []
            if not taken:
                return None
            need = JobOnNode.of(self._load.step_time_s, [self._load.buckets[index] for index in taken])
            part = max(
                need.execution_s / max(self._rest().execution_s, 1e-300), len(taken) / len(self._left) * 1e-9
            )
            return type_.price_usd_per_hour / part, -part

        priced = [(cost, type_) for type_ in self._pool.types if (cost := price(type_)) is not None]
        if not priced:
            return None
        _, type_ = min(priced, key=lambda each: (each[0], each[1].name))
        self._pool, node = self._pool.started(type_)
        self._started.append(node)
        return room_for(self._pool.nodes[node.name], self._load, rules)


def _fitting(room: Room, buckets: Sequence[BucketLoad], order: Iterable[int]) -> list[int]:
    """Which of the buckets the room takes, tried one after the other."""
    taken = []
    for index in order:
        if room.holds(buckets[index]):
            room = room.without(buckets[index])
            taken.append(index)
    return taken
