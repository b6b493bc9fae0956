"""The pool of aggregators that jobs share, as `scavenger aggregators` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

from scavenger.api.calls import Local, call
from scavenger.api.forms import WorkerName
from scavenger.api.values import Answer, gathered
from scavenger.cloud.local import LocalCloud
from scavenger.errors import ConfigurationError
from scavenger.train.pool import protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A node of the pool, and what its tenants use.

    Attributes:
        load_cpus: Processors that its tenants have used in the last seconds, on average.
        planned: Share of its processors that they need by their measured steps.
        used_bytes: Their private resident memory.
        machine: Address of its machine; null for the manager's own.
        place: Which jobs may use it, as their job files name it by `infra`; null for the manager's own machine.
        pinned: Of the tenants, those that stay until their jobs end.
        idle_usd: What of its price since it joined was used by no tenant.
    """

    name: str
    state: Literal["in_use", "empty", "draining", "drained"]
    processors: tuple[int, ...]
    memory_bytes: int
    tenants_max: int
    tenants: int
    load_cpus: float
    planned: float
    used_bytes: int
    machine: str | None
    place: str | None
    pinned: int
    usd_per_hour: float | None
    idle_usd: float | None

    @property
    def busy(self) -> float:
        """Part of its processors that its tenants use."""
        return self.load_cpus / len(self.processors)

    @property
    def room(self) -> int:
        """Tenants for which there is room."""
        drained = self.state in ("draining", "drained")
        return 0 if drained else self.tenants_max - self.tenants + self.pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRental:
    """The nodes that the pool rents.

    Attributes:
        vm: The type of their machines.
        usd_per_hour: Price of each.
        idle_s: For how long one without tenants is kept.
        since: By node that is there or on its way, when its machine was launched.
        free: Tenants for which nodes could be rented, or are on their way.
        cost_usd: What all machines have cost, those that have ended among them.
        idle_usd: What of that no job has used.
        shortage: Why a machine cannot be had; null if nothing is known.
    """

    place: str
    vm: str
    usd_per_hour: float
    nodes_max: int
    idle_s: float
    since: dict[str, datetime]
    free: int
    cost_usd: float
    idle_usd: float
    shortage: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolJob:
    """A job of the pool, and what sharing costs it.

    Attributes:
        alone_s: Its step time in its present configuration without the others; null before it was measured.
        step_s: Its step time as measured last; null before.
        loss: Share of its speed that it loses by its neighbours; null before it was measured.
        cpu_s: Processor time of all its tenants, also of those that have ended.
        cost_usd: At the prices of their nodes, or at that of this machine's processors.
    """

    id: str
    name: str
    alone_s: float | None
    step_s: float | None
    loss: float | None
    cpu_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobName:
    """A job."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTenant:
    """An aggregator on a node of the pool.

    Attributes:
        process: Its name within the job.
        since: When it was started.
        share: Part of its node's processors that it uses.
        memory_bytes: Its private resident memory; the job's block is not part of it.
    """

    job: JobName
    process: str
    pid: int
    node: str
    since: datetime
    share: float
    load_cpus: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """A change of who is where.

    Attributes:
        what: What was done, in words.
        in_use: Nodes that have been in use since.
    """

    at: datetime
    what: str
    reason: str
    in_use: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The pool of aggregators of one machine.

    Attributes:
        pid: Process id of its manager.
        since: When the manager was started.
        shares: How tenants of one node share its processors: `cgroup`, `session` or `thread`.
        tenant_memory_bytes: Private memory that one tenant may use.
        free: Tenants for which there is room on this machine.
        usd_per_cpu_hour: Price of a processor of this machine.
        address: Address at which other machines join; null if none can.
        expected: Names of nodes that have not joined yet.
        rental: The nodes that it rents; null if it rents none.
        changes: The latest changes, oldest first.
    """

    pid: int
    since: datetime
    shares: str
    tenant_memory_bytes: int
    free: int
    usd_per_cpu_hour: float
    price_source: str
    nodes: tuple[PoolNode, ...]
    address: str | None
    expected: tuple[str, ...]
    rental: PoolRental | None
    jobs: tuple[PoolJob, ...]
    tenants: tuple[PoolTenant, ...]
    changes: tuple[PoolChange, ...]

    @property
    def room(self) -> int:
        """Tenants for which there is room on this machine and all others."""
        rented = 0 if self.rental is None else self.rental.free
        return self.free + rented + sum(one.room for one in self.nodes if one.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer(Answer):
    """The pool of aggregators.

    Attributes:
        pool: Null if no pool is served on the machine that was asked.
    """

    pool: Pool | None


@call("get", "aggregators", tag="aggregators", summary="The pool of aggregators")
def show_pool(_: Local) -> PoolAnswer:
    """The pool of aggregators that jobs share on the server's machine, and what each of them uses."""
    from scavenger.train.pool.connection import load_of

    load = load_of(protocol.pool_folder())
    if load is None:
        return PoolAnswer(pool=None)
    usd_per_cpu_hour, source = LocalCloud().cpu_price()
    cpus = {one.node.name: one.node.cpus for one in load.nodes}
    own_usd = {one.id: one.cpu_s / 3600.0 * usd_per_cpu_hour for one in load.jobs}
    pool = gathered(
        Pool,
        load,
        since=_at(load.since),
        usd_per_cpu_hour=usd_per_cpu_hour,
        price_source=source,
        nodes=tuple(map(_node, load.nodes)),
        address=load.address or None,
        rental=None if load.rental is None else _rental(load.rental),
        jobs=tuple(
            gathered(PoolJob, one, cost_usd=own_usd[one.id] if one.usd is None else one.usd)
            for one in load.jobs
        ),
        tenants=tuple(
            gathered(
                PoolTenant,
                one,
                job=JobName(id=one.job_id, name=one.job),
                process=one.name,
                since=_at(one.since),
                share=one.load_cpus / cpus[one.node],
            )
            for one in load.tenants
        ),
        changes=tuple(gathered(PoolChange, one, at=_at(one.at)) for one in load.changes),
    )
    return PoolAnswer(pool=pool)


def _node(load: protocol.NodeUsage) -> PoolNode:
    node, elsewhere = load.node, bool(load.node.place)
    in_use = "drained" if load.drained else "in_use" if load.tenants else "empty"
    return gathered(
        PoolNode,
        load,
        node,
        state="draining" if load.drained and load.tenants > load.pinned else in_use,
        memory_bytes=node.memory_bytes,
        used_bytes=load.memory_bytes,
        machine=node.machine or None,
        place=node.place or None,
        usd_per_hour=node.usd_per_hour if elsewhere else None,
        idle_usd=load.idle_usd if elsewhere else None,
    )


def _rental(load: protocol.RentalLoad) -> PoolRental:
    since = {name: _at(since) for name, since in load.since.items()}
    told = {"vm": load.machine, "cost_usd": load.spent_usd, "shortage": load.shortage or None}
    return gathered(PoolRental, load, since=since, **told)


def _at(since: float) -> datetime:
    return datetime.fromtimestamp(since, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer(Answer):
    """What was done to a node.

    Attributes:
        moved: Aggregators that were moved, or are to leave.
        later: Whether they leave only when their jobs have moved what they hold.
    """

    node: str
    drained: bool
    moved: int
    later: bool


@call(
    "post", "aggregators/drain", tag="aggregators", summary="Drain a node", role="admin", body="DrainRequest"
)
def drain_node(
    _: Local,
    node: Annotated[WorkerName, Field(description="As `node-0`.")],
    undo: Annotated[bool, Field(description="Let the node have aggregators again.")] = False,
) -> DrainAnswer:
    """Move all aggregators off a node of the pool while their jobs train; it then gets none until `undo`."""
    from scavenger.train.pool.connection import drain

    found = drain(protocol.pool_folder(), node, undo=undo)
    if found is None:
        raise ConfigurationError("no pool is served on this machine")
    if found.error:
        raise ConfigurationError(found.error)
    return DrainAnswer(node=node, drained=not undo, moved=found.moved, later=found.later)
