"""The nodes of one place with the tenants on them: what is the same whether they are on this machine or on others.

Which tenant is on which node, `planning` decides, by what the jobs report of their steps; how one gets there, a
subclass knows.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from scavenger.scheduler.cycles import speed_loss
from scavenger.train.pool import protocol
from scavenger.train.pool.measuring import JobMeter, MeasuredSteps, TenantUsage, charged_step_time
from scavenger.train.pool.placement import Node
from scavenger.train.pool.planning import PoolPlan, TenantMove, moves, touched
from scavenger.train.pool.use import TenantUse

PERIOD_S = 10.0
"""How often all jobs are packed again, seconds."""
GONE_S = 30.0
"""How long the place of a tenant that has ended is kept, seconds: its job starts it again, or has given it up."""
NO_ROOM = "found no room: every node of the pool has all its tenants"
_CHANGES_MAX = 10

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class JobConnection:
    """A connection: of a job once it has joined, before that of anyone.

    Attributes:
        key: Its name in the plan.
        refused: Why it gets no tenant.
        latest: What was measured of it last.
        ended_cpu_s: Processor time of its tenants that have ended.
        usd: What its tenants have cost at the prices of their nodes, US dollars.
        gone: When tenants were released that have not been started again, by name.
    """

    connection: socket.socket
    key: str
    id: str = ""
    name: str = ""
    refused: str = "did not join the pool"
    meter: JobMeter = field(default_factory=JobMeter)
    latest: MeasuredSteps | None = None
    ended_cpu_s: float = 0.0
    usd: float = 0.0
    gone: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Tenant:
    """A process on a node, of one job.

    Attributes:
        name: Its name within the job.
        since: When it was started, seconds since the epoch.
        pid: Its process id on its machine; 0 until that is known.
        pinned: Whether it stays where it is, and is in no plan.
    """

    job: JobConnection
    name: str
    node: Node
    since: float
    pid: int = 0
    pinned: bool = False
    use: TenantUse = field(default_factory=TenantUse)


T = TypeVar("T", bound=Tenant)


class Site(ABC, Generic[T]):
    """The nodes of one place.

    Args:
        nodes: Those that are there from the beginning.

    Attributes:
        plan: Which tenant is where.
        jobs: The jobs of this place.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.plan = PoolPlan.of(nodes)
        self.jobs: list[JobConnection] = []
        self._changes: deque[protocol.Change] = deque(maxlen=_CHANGES_MAX)
        self._packed_at = time.monotonic()

    @abstractmethod
    def leave(self, job: JobConnection) -> None:
        """End a job's tenants, and forget it."""

    @property
    @abstractmethod
    def tenants(self) -> Collection[T]:
        """All tenants, also those that have ended and are not released."""

    @abstractmethod
    def _move(self, tenant: T, move: TenantMove) -> None:
        """Have a tenant go to another node."""

    @abstractmethod
    def _look_at(self, tenant: T, now: float) -> bool:
        """Update what is known of a tenant's use; returns whether it runs."""

    _moves_later = False
    """Whether a move takes its time, since jobs have to carry it out."""

    @property
    def _may_pack(self) -> bool:
        """Whether jobs may be packed at the end of this period."""
        return True

    # ---- the plan ------------------------------------------------------------------------------------------

    def progress(self, job: JobConnection, request: protocol.StepsReport) -> None:
        """Add a job's steps; enough of them are a measurement, by which tenants may be moved."""
        now, used = time.monotonic(), {}
        for tenant in self._of(job):
            if not tenant.pinned and self._look_at(tenant, now):
                used[tenant.name] = TenantUsage(tenant.use.cpu_s, tenant.use.waited_s)
        found = job.meter.note(request.view, request.steps_s, used, now)
        if found is None or job.key not in self.plan.tenants:
            return
        plan, job.meter.alone = self.plan.after_steps(job.key, job.meter.alone, found, request.step_bytes)
        job.latest = found
        self.adopt(plan)

    def drain(self, request: protocol.DrainRequest) -> protocol.Drained:
        """Have all tenants leave a node of this place, or let it get some again."""
        try:
            plan = self.plan.opened(request.node) if request.undo else self.plan.draining(request.node)
        except ValueError as error:
            return protocol.Drained(0, str(error))
        return protocol.Drained(self.adopt(plan), later=self._moves_later)

    def pack(self) -> None:
        """Pack the jobs at the end of a period, without the places of tenants that do not come back."""
        now = time.monotonic()
        if now - self._packed_at < PERIOD_S:
            return
        self._packed_at = now
        plan = self.plan
        for job in self.jobs:
            for name in [name for name, at in job.gone.items() if now - at > GONE_S]:
                del job.gone[name]
                plan = plan.without_tenant(job.key, name)
        self.adopt(plan.period() if plan.tenants and self._may_pack else plan)

    def adopt(self, plan: PoolPlan) -> int:
        """Carry out a plan; returns how many tenants it moves."""
        before, self.plan = self.plan, plan
        moved = list(moves(before, plan))
        for move in moved:
            for tenant in [*self.tenants]:
                if (tenant.job.key, tenant.name) == (move.job, move.tenant):
                    self._move(tenant, move)
        changed = touched(before, plan)
        for job in self.jobs:
            if job.key in changed:
                job.meter.restart()
        if moved or before.in_use != plan.in_use:
            self.note_change(_described(before, plan, moved), plan.reason)
        return len(moved)

    def note_change(self, what: str, reason: str) -> None:
        """Add a change that is not the plan's."""
        self._changes.append(
            protocol.Change(datetime.now(UTC).timestamp(), what, reason, len(self.plan.in_use))
        )
        log.info("%s: %s", what, reason)

    @staticmethod
    def _send(job: JobConnection, message: msgspec.Struct) -> None:
        """Tell a job; the connection of one that takes nothing ends, which the manager sees next."""
        try:
            protocol.send_packet(job.connection, message)
        except OSError:
            with contextlib.suppress(OSError):
                job.connection.shutdown(socket.SHUT_RDWR)

    # ---- who uses what -------------------------------------------------------------------------------------

    def sample(self, now: float) -> None:
        """Look at all tenants."""
        for tenant in self.tenants:
            self._look_at(tenant, now)

    def _of(self, job: JobConnection) -> list[T]:
        return [tenant for tenant in self.tenants if tenant.job is job]

    def _on(self, node: str) -> list[T]:
        return [tenant for tenant in self.tenants if tenant.node.name == node]

    def _loads(self) -> dict[str, float]:
        """Processors that the tenants of each node use."""
        return {name: sum(tenant.use.load_cpus for tenant in self._on(name)) for name in self.plan.nodes}

    @property
    def changes(self) -> tuple[protocol.Change, ...]:
        """The latest changes of who is where, oldest first."""
        return tuple(self._changes)

    def node_loads(self) -> tuple[protocol.NodeUsage, ...]:
        """The nodes, and what their tenants use."""
        plan, loads = self.plan, self._loads()
        return tuple(
            protocol.NodeUsage(
                node,
                loads[name],
                sum(tenant.use.memory_bytes for tenant in self._on(name)),
                len(self._on(name)),
                plan.planned(name),
                name in plan.drained,
                sum(tenant.pinned for tenant in self._on(name)),
                self._idle_usd(node),
            )
            for name, node in plan.nodes.items()
        )

    def _idle_usd(self, node: Node) -> float:
        """What of a node's price was used by no tenant, US dollars."""
        return 0.0

    def tenant_loads(self) -> tuple[protocol.TenantLoad, ...]:
        """The tenants, and what they use."""
        return tuple(
            protocol.TenantLoad(
                job_id=tenant.job.id,
                job=tenant.job.name,
                name=tenant.name,
                node=tenant.node.name,
                pid=tenant.pid,
                since=tenant.since,
                cpu_s=tenant.use.cpu_s,
                load_cpus=tenant.use.load_cpus,
                memory_bytes=tenant.use.memory_bytes,
            )
            for tenant in self.tenants
        )

    def job_uses(self) -> tuple[protocol.JobUse, ...]:
        """The jobs, and what sharing costs each."""
        return tuple(self._use_of(job) for job in self.jobs)

    def _use_of(self, job: JobConnection) -> protocol.JobUse:
        cpu_s = job.ended_cpu_s + sum(tenant.use.cpu_s for tenant in self._of(job))
        usd = self._usd_of(job)
        alone, latest = job.meter.alone, job.latest
        if alone is None or latest is None:
            return protocol.JobUse(job.id, job.name, cpu_s, usd=usd)
        loss = speed_loss(charged_step_time(alone, latest), alone.step_time_s)
        return protocol.JobUse(job.id, job.name, cpu_s, alone.step_time_s, latest.step_time_s, loss, usd)

    def _usd_of(self, job: JobConnection) -> float | None:
        """What a job's tenants cost; None if they have no price of their own."""
        return None


def _described(before: PoolPlan, after: PoolPlan, moved: Sequence[TenantMove]) -> str:
    """What has changed, in words."""
    words = [f"{name} begun" for name in sorted(after.in_use - before.in_use)]
    targets = Counter(move.node.name for move in moved)
    words += [f"{count} moved to {name}" for name, count in sorted(targets.items())]
    words += [f"{name} ended" for name in sorted(before.in_use - after.in_use)]
    return ", ".join(words)
