"""The pool of aggregator nodes that jobs share: its values.

A `JobLoad` is what a job needs of the pool: its step time alone and its buckets. An `Assignment` is the node
of each of its buckets. A `NodeLoad` is a node with its execution cycle and what each job has on it, and a
`PoolState` is all of them. Values are never changed: each method returns another pool, which shares with this one
what did not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from scavenger.scheduler.cycles import (
    cyclic_step_time,
    execution_cycle,
    speed_loss,
    steps_in_cycle,
    worst_loss,
)

Assignment = tuple[str, ...]
"""The name of the node of each bucket of a job, in the order of `JobLoad.buckets`."""

_TOLERANCE = 1e-9
"""Relative: sums of times and bytes that exceed a limit by less are within it."""


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of aggregator node that can be started.

    Attributes:
        cores: Processors that aggregate, at least one; need not be whole.
        memory_bytes: For the buckets' state and buffers.
        bandwidth_bytes_per_s: Of the network, in the direction that is used more.
        price_usd_per_hour: 0 for a node that is there anyway.

    Raises:
        ValueError: If one of them is negative, or if there is no core, memory or network.
    """

    name: str
    cores: float
    memory_bytes: int
    bandwidth_bytes_per_s: float
    price_usd_per_hour: float = 0.0

    def __post_init__(self) -> None:
        if not (self.cores > 0 and self.memory_bytes > 0 and self.bandwidth_bytes_per_s > 0):
            raise ValueError(f"node type {self.name} needs cores, memory and a network")
        if not self.price_usd_per_hour >= 0.0:
            raise ValueError(f"node type {self.name} costs {self.price_usd_per_hour} USD an hour")


@dataclass(frozen=True, slots=True)
class AggregatorNode:
    """An aggregator node: its name, by which assignments refer to it, and its type."""

    name: str
    type: NodeType


@dataclass(frozen=True, slots=True)
class BucketLoad:
    """What one bucket of a job's tensors needs of the node that holds it.

    Attributes:
        execution_s: Processor seconds in which its gradients are summed and its weights updated, each step.
        memory_bytes: Weights, optimizer state and buffers.
        traffic_bytes: Each step, in the direction that moves more.
    """

    execution_s: float
    memory_bytes: int = 0
    traffic_bytes: int = 0

    def __post_init__(self) -> None:
        if not (self.execution_s >= 0.0 and self.memory_bytes >= 0 and self.traffic_bytes >= 0):
            raise ValueError(f"a bucket cannot need {self}")


@dataclass(frozen=True, slots=True)
class JobLoad:
    """What a job needs of the pool, measured while it was alone.

    Attributes:
        step_time_s: Of the job alone, above 0.
        buckets: By number: bucket `i` of the job's layout is `buckets[i]`.

    Raises:
        ValueError: If a bucket takes longer than the step. One processor computes a bucket, so a step that
            was measured lasted at least as long.
    """

    name: str
    step_time_s: float
    buckets: tuple[BucketLoad, ...]

    def __post_init__(self) -> None:
        if not self.step_time_s > 0.0:
            raise ValueError(f"job {self.name} has a step of {self.step_time_s} s")
        if not self.buckets:
            raise ValueError(f"job {self.name} has no bucket")
        longest = max(bucket.execution_s for bucket in self.buckets)
        if longest > self.step_time_s * (1.0 + _TOLERANCE):
            raise ValueError(
                f"a bucket of job {self.name} takes {longest} s of a step of {self.step_time_s} s"
            )


@dataclass(frozen=True, slots=True)
class Rules:
    """What an assignment has to respect.

    Attributes:
        loss_limit: Share of its speed that sharing may cost a job, AutoPS's LossLimit.
        cycle_max: Longest execution cycle in longest step times of its jobs; 1 is AutoPS's rule.
        fill_max: Share of a node's processor time and bandwidth that may be planned.
        nodes_max: Most nodes of the pool, or None.
    """

    loss_limit: float = 0.1
    cycle_max: float = 1.0
    fill_max: float = 1.0
    nodes_max: int | None = None

    def __post_init__(self) -> None:
        if not (0.0 <= self.loss_limit < 1.0 and self.cycle_max >= 1.0 and 0.0 < self.fill_max <= 1.0):
            raise ValueError(f"no assignment can follow {self}")

    def allows(self, loss: float) -> bool:
        """Whether a job may lose this share of its speed."""
        return loss <= self.loss_limit + _TOLERANCE


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """What one job has on one node: its step time alone, and the sums over its buckets there."""

    step_time_s: float
    buckets: int
    execution_s: float
    memory_bytes: int
    traffic_bytes: int

    @classmethod
    def of(cls, step_time_s: float, buckets: Sequence[BucketLoad]) -> JobOnNode:
        """A job's tenancy with these buckets."""
        return cls(
            step_time_s,
            len(buckets),
            sum(bucket.execution_s for bucket in buckets),
            sum(bucket.memory_bytes for bucket in buckets),
            sum(bucket.traffic_bytes for bucket in buckets),
        )


@dataclass(frozen=True)
class NodeLoad:
    """A node, its execution cycle, and the jobs that have buckets on it.

    Attributes:
        cycle_s: `C_n`; 0 if no job has a bucket here.
        tenants: By the name of the job.
    """

    node: AggregatorNode
    cycle_s: float = 0.0
    tenants: Mapping[str, JobOnNode] = field(default_factory=dict)

    def steps(self, job: str) -> int:
        """Steps that the job makes here in a cycle."""
        return steps_in_cycle(self.cycle_s, self.tenants[job].step_time_s)

    def step_time_s(self, job: str) -> float:
        """`d_j`: the job's step time, as far as this node is concerned."""
        return cyclic_step_time(self.cycle_s, self.tenants[job].step_time_s)

    def loss(self, job: str) -> float:
        """Share of its speed that the job loses by the cycle of this node."""
        return speed_loss(self.step_time_s(job), self.tenants[job].step_time_s)

    @cached_property
    def worst_loss(self) -> float:
        """The greatest loss of its jobs; 0 without jobs."""
        return worst_loss(self.cycle_s, self._alone_s)

    @cached_property
    def busy_s(self) -> float:
        """`W_n`: processor seconds of all jobs' steps in a cycle."""
        return sum(
            steps_in_cycle(self.cycle_s, tenant.step_time_s) * tenant.execution_s
            for tenant in self.tenants.values()
        )

    @property
    def free_s(self) -> float:
        """`F_n`: processor seconds of a cycle that no job uses, over all cores; 0 without a cycle."""
        return self.node.type.cores * self.cycle_s - self.busy_s

    @cached_property
    def utilisation(self) -> float:
        """Share of the node's processor time that is used, 0 without jobs."""
        return self.busy_s / (self.node.type.cores * self.cycle_s) if self.cycle_s else 0.0

    @cached_property
    def memory_bytes(self) -> int:
        """Memory that is used."""
        return sum(tenant.memory_bytes for tenant in self.tenants.values())

    @cached_property
    def traffic_bytes_per_s(self) -> float:
        """Bandwidth that is used in the mean of a cycle."""
        moved = sum(
            steps_in_cycle(self.cycle_s, tenant.step_time_s) * tenant.traffic_bytes
            for tenant in self.tenants.values()
        )
        return moved / self.cycle_s if self.cycle_s else 0.0

    def within(self, rules: Rules) -> bool:
        """Whether losses, processor time, memory and bandwidth are within the rules."""
        type_, slack = self.node.type, 1.0 + _TOLERANCE
        return (
            rules.allows(self.worst_loss)
            and self.busy_s <= rules.fill_max * type_.cores * self.cycle_s * slack
            and self.memory_bytes <= type_.memory_bytes
            and self.traffic_bytes_per_s <= rules.fill_max * type_.bandwidth_bytes_per_s * slack
        )

    def cycle_with(self, alone_s: float, rules: Rules) -> float:
        """The cycle that serves a job with this step time too.

        It is kept as long as it serves everybody within the rules, so that the others keep their slots.
        Otherwise it is the best one.
        """
        if alone_s in self._alone_s:
            return self.cycle_s
        kept = speed_loss(cyclic_step_time(self.cycle_s, alone_s), alone_s) if self.cycle_s else 1.0
        if rules.allows(kept) and rules.allows(self.worst_loss):
            return self.cycle_s
        return execution_cycle(
            {*self._alone_s, alone_s}, cycle_max=rules.cycle_max, loss_limit=rules.loss_limit
        )

    def with_tenant(self, job: str, tenant: JobOnNode | None, rules: Rules) -> NodeLoad:
        """This node with the job's buckets there as in `tenant`, or without the job if that is None.

        Without the job the cycle is chosen anew, but it is kept where the new one would cost a job too much:
        by the rule of AutoPS, jobs can become slower because another one has left.
        """
        others = {name: other for name, other in self.tenants.items() if name != job}
        rest = self if job not in self.tenants else NodeLoad(self.node, self._cycle_of(others, rules), others)
        if tenant is None:
            return rest
        before = self.tenants.get(job)
        same = before is not None and before.step_time_s == tenant.step_time_s
        cycle_s = self.cycle_s if same else rest.cycle_with(tenant.step_time_s, rules)
        return NodeLoad(self.node, cycle_s, {**others, job: tenant})

    def _cycle_of(self, tenants: Mapping[str, JobOnNode], rules: Rules) -> float:
        alone = {tenant.step_time_s for tenant in tenants.values()}
        cycle_s = execution_cycle(alone, cycle_max=rules.cycle_max, loss_limit=rules.loss_limit)
        loss = worst_loss(cycle_s, alone)
        if not rules.allows(loss) and worst_loss(self.cycle_s, alone) < loss:
            return self.cycle_s
        return cycle_s

    @cached_property
    def _alone_s(self) -> frozenset[float]:
        """Step times of the jobs here, measured alone."""
        return frozenset(tenant.step_time_s for tenant in self.tenants.values())


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job of the pool, and the node of each of its buckets."""

    load: JobLoad
    nodes: Assignment

    def on(self, node: str) -> tuple[int, ...]:
        """Numbers of the job's buckets on a node."""
        return tuple(index for index, name in enumerate(self.nodes) if name == node)


@dataclass(frozen=True, slots=True)
class PoolState:
    """The nodes of the pool and the jobs on them.

    Attributes:
        types: Of nodes that can be started.
        nodes: By name, with their load.
        jobs: By name, with their assignment.
        apart: For a job, those with which it must not share a node.
        prefix, numbered: A node that is started is called by them, and no name is used twice.
    """

    types: tuple[NodeType, ...] = ()
    rules: Rules = Rules()
    nodes: Mapping[str, NodeLoad] = field(default_factory=dict)
    jobs: Mapping[str, PlacedJob] = field(default_factory=dict)
    apart: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prefix: str = "node-"
    numbered: int = 0

    def step_time_s(self, job: str) -> float:
        """`d_j`: predicted step time of the job, that of its slowest node."""
        return max(self.nodes[name].step_time_s(job) for name in set(self.jobs[job].nodes))

    def loss(self, job: str) -> float:
        """Predicted share of its speed that the job loses by sharing."""
        return speed_loss(self.step_time_s(job), self.jobs[job].load.step_time_s)

    @property
    def price_usd_per_hour(self) -> float:
        """Of all nodes, used or not."""
        return sum(load.node.type.price_usd_per_hour for load in self.nodes.values())

    def open_to(self, job: str, avoid: Collection[str] = ()) -> Iterator[NodeLoad]:
        """The nodes that may get buckets of a job: not those to avoid, nor those of jobs that it is kept apart from."""
        apart = self.apart.get(job, frozenset())
        for name, load in self.nodes.items():
            if name not in avoid and apart.isdisjoint(load.tenants):
                yield load

    def keeping_apart(self, job: str, others: Collection[str]) -> PoolState:
        """With a job that is from now on not put on a node with these others. Where they are now stays as it is."""
        apart = dict(self.apart)
        for other in others:
            apart[job] = apart.get(job, frozenset()) | {other}
            apart[other] = apart.get(other, frozenset()) | {job}
        return replace(self, apart=apart)

    def forgetting(self, job: str) -> PoolState:
        """Without what was found out about a job that has left."""
        apart = {name: others - {job} for name, others in self.apart.items() if name != job}
        return replace(self, apart={name: others for name, others in apart.items() if others})

    def neighbours(self, job: str) -> frozenset[str]:
        """The jobs that share a node with a job."""
        shared = (self.nodes[name].tenants for name in set(self.jobs[job].nodes))
        return frozenset().union(*shared) - {job}

    def with_node(self, node: AggregatorNode) -> PoolState:
        """With one more node, which is empty.

        Raises:
            ValueError: If there is a node of this name.
        """
        if node.name in self.nodes:
            raise ValueError(f"the pool has a node {node.name}")
        return replace(self, nodes={**self.nodes, node.name: NodeLoad(node)})

    def started(self, type_: NodeType) -> tuple[PoolState, AggregatorNode]:
        """With one more node of a type, and that node."""
        node = AggregatorNode(f"{self.prefix}{self.numbered}", type_)
        return replace(self.with_node(node), numbered=self.numbered + 1), node

    def without_node(self, name: str) -> PoolState:
        """Without a node.

        Raises:
            ValueError: If buckets are on it.
            KeyError: If it is not in the pool.
        """
        if self.nodes[name].tenants:
            raise ValueError(f"node {name} still holds buckets of {', '.join(self.nodes[name].tenants)}")
        return replace(self, nodes={other: load for other, load in self.nodes.items() if other != name})

    def with_job(self, load: JobLoad, nodes: Assignment) -> PoolState:
        """With a job at these nodes; one of this name that is there is moved, and measured again.

        Raises:
            ValueError: If there is not one node per bucket.
            KeyError: If a node is not in the pool.
        """
        if len(nodes) != len(load.buckets):
            raise ValueError(f"{len(load.buckets)} buckets of job {load.name} at {len(nodes)} nodes")
        before = self.jobs[load.name].nodes if load.name in self.jobs else ()
        here: dict[str, list[BucketLoad]] = {name: [] for name in (*before, *nodes)}
        for bucket, name in zip(load.buckets, nodes, strict=True):
            here[name].append(bucket)
        changed = dict(self.nodes)
        for name, buckets in here.items():
            tenant = JobOnNode.of(load.step_time_s, buckets) if buckets else None
            changed[name] = changed[name].with_tenant(load.name, tenant, self.rules)
        return replace(self, nodes=changed, jobs={**self.jobs, load.name: PlacedJob(load, nodes)})

    def without_job(self, job: str) -> PoolState:
        """Without a job. Nodes that become empty stay.

        Raises:
            KeyError: If it is not in the pool.
        """
        changed = dict(self.nodes)
        for name in set(self.jobs[job].nodes):
            changed[name] = changed[name].with_tenant(job, None, self.rules)
        others = {name: placed for name, placed in self.jobs.items() if name != job}
        return replace(self, nodes=changed, jobs=others)

    def moved(self, job: str, targets: Mapping[int, str]) -> PoolState:
        """With buckets of a job elsewhere.

        Args:
            targets: By the number of the bucket.
        """
        placed = self.jobs[job]
        nodes = tuple(targets.get(index, name) for index, name in enumerate(placed.nodes))
        return self.with_job(placed.load, nodes)


@dataclass(frozen=True, slots=True)
class Placement:
    """A job has its place.

    Attributes:
        pool: With the job, and with the nodes that are started for it.
        nodes: Of each bucket of the job.
        started: Nodes that have to be started first.
    """

    pool: PoolState
    nodes: Assignment
    started: tuple[AggregatorNode, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No node, not even a new one, can hold the job, or a new one is not allowed."""

    reason: str
