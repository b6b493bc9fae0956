"""Which node each aggregator of each job is on: decisions about values, by `scavenger.scheduler`.

To the scheduler, a tenant of this machine's pool is a *bucket*: what is placed and moved as a whole. All nodes of the
machine are in its pool from the beginning, and a node is *in use* as long as it has a tenant. Of its rules,

- a cycle may be as long as ten of the longest steps: a process is not bound to a cycle, so no two jobs are kept apart
  because their step times are not multiples of each other;
- the memory of a bucket is what a tenant may use, so that as many tenants fit as a node may have;
- a job that fits nowhere does not get aggregators of its own, but shares the least loaded node (`choose_node`).

A job has no load until it was measured, and is measured best alone: until then the scheduler brings it together with no
other job, and it gets a node for itself if there is one. Then it is packed with others if that frees a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scavenger.scheduler import pool as scheduler
from scavenger.scheduler.events import DrainNode, Event, JobArrived, JobLeft, PeriodEnded, StepTimeMeasured
from scavenger.scheduler.pool import BucketLoad, JobLoad, Rules
from scavenger.scheduler.scaling import ScalingRules, SharedPool, decide
from scavenger.train.pool.measuring import MeasuredSteps, charged_step_time
from scavenger.train.pool.placement import Node, NodeUse, choose_node

RULES = Rules(loss_limit=0.1, cycle_max=10.0, fill_max=0.6)
"""See the module; fuller nodes cost their jobs more than the limit (docs/adr/0041-pool-by-the-scheduler.md)."""

_T = TypeVar("_T")

UNMEASURED_S = 1e-6
"""Step time of a job without a load: so short that it lengthens nobody's step by formula."""


@dataclass(frozen=True, slots=True)
class TenantMove:
    """A tenant of a job that has to go to another node."""

    job: str
    tenant: str
    node: Node


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The nodes and which tenant is where; every method returns another plan.

    Attributes:
        nodes: All nodes, by name.
        shared: The scheduler's view: nodes that may be used, jobs and their loads. No job waits in it.
        tenants: Names of each job's tenants, in the order of its buckets.
        measuring: Jobs without a load.
        reason: Why the last change was made.
    """

    nodes: Mapping[str, Node]
    shared: SharedPool
    tenants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measuring: frozenset[str] = frozenset()
    reason: str = ""

    @classmethod
    def of(cls, nodes: Sequence[Node], rules: Rules = RULES) -> PoolPlan:
        """A plan without tenants."""
        pool = scheduler.PoolState(rules=rules)
        for node in nodes:
            pool = pool.with_node(scheduled(node))
        named = {node.name: node for node in nodes}
        return cls(named, SharedPool(pool, ScalingRules(spare_nodes=len(named))))

    # ---- what is where -------------------------------------------------------------------------------------

    @property
    def drained(self) -> frozenset[str]:
        """Nodes that get no tenants."""
        return frozenset(self.nodes.keys() - self.shared.pool.nodes.keys())

    @property
    def in_use(self) -> frozenset[str]:
        """Nodes that have a tenant."""
        return frozenset(name for name, load in self.shared.pool.nodes.items() if load.tenants)

    def node_of(self, job: str, tenant: str) -> Node | None:
        """The node of a tenant; None if it has none."""
        if tenant not in self.tenants.get(job, ()):
            return None
        return self.nodes[self.shared.pool.jobs[job].nodes[self.tenants[job].index(tenant)]]

    def neighbours(self, job: str) -> frozenset[str]:
        """Jobs that share a node with a job."""
        return self.shared.pool.neighbours(job) if job in self.tenants else frozenset()

    def tenants_on(self, node: str) -> int:
        """Number of tenants on a node."""
        load = self.shared.pool.nodes.get(node)
        return 0 if load is None else sum(tenant.buckets for tenant in load.tenants.values())

    @property
    def free(self) -> int:
        """Tenants for which there is room."""
        return sum(self.nodes[name].tenants_max - self.tenants_on(name) for name in self.shared.pool.nodes)

    def planned(self, node: str) -> float:
        """Share of a node's processors that its jobs need, as far as they were measured."""
        load = self.shared.pool.nodes.get(node)
        return 0.0 if load is None else load.utilisation

    @property
    def cramped(self) -> tuple[str, ...]:
        """Jobs that were measured, and that have less room than the rules want, as no node has more."""
        pool = self.shared.pool
        full = {name for name, load in pool.nodes.items() if not load.within(pool.rules)}
        return tuple(
            job
            for job, placed in pool.jobs.items()
            if job not in self.measuring
            and not (
                full.isdisjoint(placed.nodes) and self._parted_from(job).isdisjoint(pool.neighbours(job))
            )
        )

    def _parted_from(self, job: str) -> frozenset[str]:
        return self.shared.pool.apart.get(job, frozenset())

    # ---- jobs ----------------------------------------------------------------------------------------------

    def with_tenant(self, job: str, tenant: str, load_cpus: Mapping[str, float]) -> PoolPlan | None:
        """With a new tenant, or one that is started again, which stays where it was; None if there is no room.

        Args:
            load_cpus: Processors that the tenants of each node use, as measured.
        """
        if tenant in self.tenants.get(job, ()):
            return self
        node = self._least_loaded(job, load_cpus)
        if node is None:
            return None
        bucket = BucketLoad(0.0, node.tenant_bytes)
        pool, names = self.shared.pool, self.tenants.get(job, ())
        if names:
            placed = pool.jobs[job]
            load, at = (
                replace(placed.load, buckets=(*placed.load.buckets, bucket)),
                (*placed.nodes, node.name),
            )
        else:
            load, at = JobLoad(job, UNMEASURED_S, (bucket,)), (node.name,)
        return replace(
            self,
            shared=replace(self.shared, pool=pool.with_job(load, at)),
            tenants={**self.tenants, job: (*names, tenant)},
            measuring=self.measuring if names else self.measuring | {job},
            reason=f"{tenant} of job {job} begins on {node.name}",
        )

    def measured(
        self, job: str, step_time_s: float, executions_s: Mapping[str, float], step_bytes: int = 0
    ) -> PoolPlan:
        """With a job's load; the job moves if it does not fit where it is, and then all are packed.

        Args:
            step_time_s: Of the job, alone if possible.
            executions_s: Processor seconds of each of its tenants in a step. A tenant with several threads counts as
                one processor at most.
            step_bytes: What goes through its tenants' networks in a step, all together.
        """
        placed = self.shared.pool.jobs[job]
        buckets = tuple(
            replace(
                bucket,
                execution_s=min(step_time_s, executions_s.get(name, bucket.execution_s)),
                traffic_bytes=step_bytes // len(self.tenants[job]),
            )
            for name, bucket in zip(self.tenants[job], placed.load.buckets, strict=True)
        )
        load = JobLoad(job, step_time_s, buckets)
        shared = replace(self.shared, pool=self.shared.pool.with_job(load, placed.nodes))
        known = replace(self, shared=shared, measuring=self.measuring - {job})
        return known._after(JobArrived(load))._after(PeriodEnded(), f"job {job} was measured")

    def after_steps(
        self, job: str, alone: MeasuredSteps | None, found: MeasuredSteps, step_bytes: int = 0
    ) -> tuple[PoolPlan, MeasuredSteps]:
        """With what follows from a measurement of a job on its present nodes.

        Args:
            alone: The measurement in its present configuration with which this one is compared; None before it.
            step_bytes: See `measured`.

        Returns:
            The plan, and the measurement with which later ones are to be compared: of steps alone, if there were any.
        """
        if alone is None:
            return self.measured(job, found.step_time_s, found.executions_s, step_bytes), found
        step_time_s = min(alone.step_time_s, found.step_time_s)
        if not self.neighbours(job):
            alone, step_time_s = found, found.step_time_s
        elif found.step_time_s < alone.step_time_s:
            alone = replace(alone, step_time_s=step_time_s)
        load = self.shared.pool.jobs[job].load
        known = dict(zip(self.tenants[job], (bucket.execution_s for bucket in load.buckets), strict=True))
        if found.needs_more_or_less(load.step_time_s, known):
            return self.measured(job, step_time_s, found.executions_s, step_bytes), alone
        return self._after(StepTimeMeasured(job, charged_step_time(alone, found))), alone

    def without_job(self, job: str) -> PoolPlan:
        """Without a job; the others are packed."""
        if job not in self.tenants:
            return self
        others = {name: tenants for name, tenants in self.tenants.items() if name != job}
        left = replace(self, tenants=others, measuring=self.measuring - {job})
        return left._after(JobLeft(job))._relieved()

    def without_tenant(self, job: str, tenant: str) -> PoolPlan:
        """Without a tenant that its job has given up."""
        names = self.tenants.get(job, ())
        if tenant not in names:
            return self
        if len(names) == 1:
            return self.without_job(job)
        placed, index = self.shared.pool.jobs[job], names.index(tenant)
        load = replace(placed.load, buckets=_without(placed.load.buckets, index))
        tenants = {**self.tenants, job: _without(names, index)}
        return replace(self, tenants=tenants)._placed(load, _without(placed.nodes, index))

    def period(self) -> PoolPlan:
        """At the end of a period: full nodes are relieved, then all jobs are packed."""
        return self._relieved()._after(PeriodEnded(), "all jobs are packed")

    # ---- nodes ---------------------------------------------------------------------------------------------

    def draining(self, node: str) -> PoolPlan:
        """With nothing on a node, which gets no tenants any more.

        Raises:
            KeyError: If the pool has no such node.
            ValueError: If its tenants fit on no other nodes; the message says how many have no place.
        """
        if node in self.drained:
            return self
        leaving, free = (
            self.tenants_on(node),
            self.free - self.nodes[node].tenants_max + self.tenants_on(node),
        )
        if leaving > free:
            raise ValueError(f"{node} has {leaving} aggregators, and the other nodes have room for {free}")
        return self._after(DrainNode(node))

    def with_node(self, node: Node) -> PoolPlan:
        """With another node, of a machine that has joined; jobs of nodes that are too full may go there."""
        nodes = {**self.nodes, node.name: node}
        pool, rules = self.shared.pool.with_node(scheduled(node)), ScalingRules(spare_nodes=len(nodes))
        return replace(
            self,
            nodes=nodes,
            shared=replace(self.shared, pool=pool, rules=rules),
            reason=f"{node.name} has joined",
        )._relieved()

    def without_node(self, node: str) -> PoolPlan:
        """Without a node that is gone, and without the places of its tenants, which their jobs ask for again.

        Raises:
            KeyError: If the pool has no such node.
        """
        pool, tenants = self.shared.pool, dict(self.tenants)
        for job, names in self.tenants.items():
            placed = pool.jobs[job]
            left = [index for index, at in enumerate(placed.nodes) if at != node]
            if len(left) == len(names):
                continue
            pool, tenants[job] = pool.without_job(job), tuple(names[index] for index in left)
            if left:
                load = replace(placed.load, buckets=tuple(placed.load.buckets[index] for index in left))
                pool = pool.with_job(load, tuple(placed.nodes[index] for index in left))
            else:
                del tenants[job]
        if node in pool.nodes:  # and not drained
            pool = pool.without_node(node)
        nodes = {name: other for name, other in self.nodes.items() if name != node}
        return replace(
            self,
            nodes=nodes,
            shared=replace(self.shared, pool=pool, rules=ScalingRules(spare_nodes=len(nodes))),
            tenants=tenants,
            measuring=self.measuring & tenants.keys(),
            reason=f"{node} is gone",
        )

    def opened(self, node: str) -> PoolPlan:
        """With a drained node in use again.

        Raises:
            KeyError: If the pool has no such node.
        """
        known = self.nodes[node]
        if node not in self.drained:
            return self
        pool = self.shared.pool.with_node(scheduled(known))
        opened = replace(
            self, shared=replace(self.shared, pool=pool), reason=f"{node} takes aggregators again"
        )
        return opened._relieved()

    # ---- how -----------------------------------------------------------------------------------------------

    def _after(self, event: Event, reason: str = "", *, unplaced: str = "") -> PoolPlan:
        """What the scheduler makes of an event, with jobs that it has no place for where there is any.

        Args:
            unplaced: A job that the scheduler is to see as one that is new.
        """
        pool = self.shared.pool.without_job(unplaced) if unplaced else self.shared.pool
        for job in self.measuring:
            pool = pool.keeping_apart(job, self.tenants.keys() - {job})
        decided = decide(replace(self.shared, pool=pool), event)
        kept = {
            job: others - self.measuring
            for job, others in decided.state.pool.apart.items()
            if job not in self.measuring
        }
        found = {job: others for job, others in kept.items() if others}
        shared = replace(decided.state, pool=replace(decided.state.pool, apart=found))
        return replace(self, shared=shared, reason=reason or decided.reason)._settled(self)

    def _settled(self, before: PoolPlan) -> PoolPlan:
        """Jobs that the scheduler has no place for stay where they were, or share the least loaded nodes."""
        plan = self
        for load in self.shared.waiting:
            if load.name not in self.tenants:
                continue
            at: list[str] = []
            for old in before.shared.pool.jobs[load.name].nodes:
                trial = plan if not at else plan._placed(replace(load, buckets=load.buckets[: len(at)]), at)
                stays = old not in self.drained and trial.tenants_on(old) < self.nodes[old].tenants_max
                node = self.nodes[old] if stays else trial._least_loaded(load.name, {})
                assert node is not None  # `draining` has counted the places
                at.append(node.name)
            plan = plan._placed(load, at)
        return replace(plan, shared=replace(plan.shared, waiting=()))

    def _placed(self, load: JobLoad, at: Sequence[str]) -> PoolPlan:
        return replace(self, shared=replace(self.shared, pool=self.shared.pool.with_job(load, tuple(at))))

    def _relieved(self) -> PoolPlan:
        """Jobs of nodes that are fuller than the rules allow go where there is room, and so do jobs kept apart."""
        plan = self
        for name in self.shared.pool.nodes:
            for job in self.shared.pool.nodes[name].tenants:
                if (
                    not plan.shared.pool.nodes[name].within(plan.shared.pool.rules)
                    and job not in plan.measuring
                ):
                    plan = plan._after(JobArrived(plan.shared.pool.jobs[job].load), f"{name} is too full")
        for job in plan.cramped:
            if not plan._parted_from(job).isdisjoint(plan.neighbours(job)):
                load = plan.shared.pool.jobs[job].load
                plan = plan._after(JobArrived(load), f"job {job} is kept apart", unplaced=job)
        return plan

    def _least_loaded(self, job: str, load_cpus: Mapping[str, float]) -> Node | None:
        """By measured load; not beside a job that is being measured, if there is another place."""
        uses = [
            NodeUse(
                self.nodes[name],
                load_cpus.get(name, load.utilisation * load.node.type.cores),
                self.tenants_on(name),
            )
            for name, load in self.shared.pool.nodes.items()
        ]
        measuring = self.measuring - {job}
        quiet = [use for use in uses if measuring.isdisjoint(self.shared.pool.nodes[use.node.name].tenants)]
        return choose_node(quiet) or choose_node(uses)


def moves(before: PoolPlan, after: PoolPlan) -> Iterator[TenantMove]:
    """The tenants that are on another node in the second plan."""
    for job, tenants in after.tenants.items():
        for tenant in tenants:
            was, now = before.node_of(job, tenant), after.node_of(job, tenant)
            if was is not None and now is not None and was != now:
                yield TenantMove(job, tenant, now)


def touched(before: PoolPlan, after: PoolPlan) -> frozenset[str]:
    """Jobs that have other neighbours in the second plan: what was being measured of them no longer holds."""
    return frozenset(
        job
        for job in after.tenants
        if before.neighbours(job) != after.neighbours(job)
        or any(move.job == job for move in moves(before, after))
    )


def _without(items: tuple[_T, ...], index: int) -> tuple[_T, ...]:
    return (*items[:index], *items[index + 1 :])


def scheduled(node: Node) -> scheduler.AggregatorNode:
    """A node to the scheduler; tenants of the manager's own machine need no network."""
    carried = float(node.bytes_per_s or "inf")
    type_ = scheduler.NodeType("processors", float(node.cpus), node.memory_bytes, carried)
    return scheduler.AggregatorNode(node.name, type_)
