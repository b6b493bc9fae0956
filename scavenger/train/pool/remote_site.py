"""Nodes on other machines: tenants join their jobs over the network, and a move is a migration of buckets.

A tenant cannot be moved: its job is asked to `Vacate` it, has its other aggregators hold what it held while training
goes on (`scavenger.train.supervisor.bucket_moves`), leaves it, and asks for another, which the plan has elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

import zmq

from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.values import Gone, ProcessEvent
from scavenger.train.pool import protocol
from scavenger.train.pool.machines import Machines
from scavenger.train.pool.placement import Node, NodeUse, choose_node
from scavenger.train.pool.planning import TenantMove
from scavenger.train.pool.site import NO_ROOM, JobConnection, Site, Tenant
from scavenger.train.transport.messages.values import ProcessConfiguration

_AGAIN_S = 5.0
"""How often a job is asked again to leave a tenant, seconds."""
_WAITS_S = 20.0
"""How long a tenant for which there was no room counts as waiting: its job asks again every 5 s."""
_NO_ROOM_YET = "found no room yet: another node is on its way"

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Lodger(Tenant):
    intent: str = ""
    launch: int = 0
    movable: bool = True
    """Whether it can be asked to leave."""
    asked_at: float = 0.0
    """When its job was asked last to leave it, monotonic seconds; 0: it may stay."""
    reason: str = ""


class RemoteSite(Site[_Lodger]):
    """The nodes of one place on other machines.

    Args:
        machines: The machines that have joined, of all places.

    Attributes:
        growing: Whether a node is on its way.
        may_grow: Whether one is, or might be.
        leaving: Nodes whose machines have to go.
        paid_since: From when on a node's machine is paid for, seconds since the epoch, where not since it has joined.
    """

    def __init__(self, machines: Machines) -> None:
        super().__init__(())
        self._machines = machines
        self._lodgers: dict[str, _Lodger] = {}  # by intent
        self._used_usd: dict[str, float] = {}  # by node, also of those that are gone
        self._waiting: dict[tuple[str, str], tuple[float, bool]] = {}  # when asked for in vain, and if pinned
        self.growing = self.may_grow = False
        self.leaving: set[str] = set()
        self.paid_since: dict[str, float] = {}

    @property
    def tenants(self) -> Collection[_Lodger]:
        return self._lodgers.values()

    # ---- what jobs ask -------------------------------------------------------------------------------------

    def lodge(self, job: JobConnection, request: protocol.Lodge) -> protocol.Lodged:
        """Start a tenant, unless there is no room."""
        node = None if job.refused or request.intent in self._lodgers else self._node_for(job, request)
        if node is None:
            if not job.refused:
                self._waiting[job.key, request.name] = time.monotonic(), request.pinned
            return protocol.Lodged(
                request.intent, error=job.refused or (_NO_ROOM_YET if self.growing else NO_ROOM)
            )
        self._waiting.pop((job.key, request.name), None)
        config = ProcessConfiguration(
            role="tenant",
            name=request.intent,
            coordinator=request.endpoint,
            server_key=request.server_key,
            public_key=zmq.curve_public(request.secret.encode()).decode(),
            secret_key=request.secret,
            memory_fd=-1,
            threads=node.cpus,
            memory_bytes=node.tenant_bytes,
        )
        launch = self._machines.start(node.name, config)
        if not launch:
            return protocol.Lodged(request.intent, error=f"found that {node.name} does not answer")
        job.gone.pop(request.name, None)
        self._lodgers[request.intent] = _Lodger(
            job,
            request.name,
            node,
            datetime.now(UTC).timestamp(),
            pinned=request.pinned,
            movable=request.movable or not request.pinned,
            intent=request.intent,
            launch=launch,
        )
        log.info("starts %s of job %s on %s", request.name, job.id, node.name)
        return protocol.Lodged(request.intent, node.name)

    def _node_for(self, job: JobConnection, request: protocol.Lodge) -> Node | None:
        """The node of a new tenant, by the plan.

        A pinned one is in none: it goes where its job has another, or else would get the next one.
        """
        loads = self._loads()
        plan = self.plan.with_tenant(job.key, request.name, loads)
        if request.pinned:
            for own in self._of(job):
                if not own.pinned and own.node.name not in self.plan.drained:
                    return own.node
            if plan is not None:
                return plan.node_of(job.key, request.name)
            open_ = [node for name, node in self.plan.nodes.items() if name not in self.plan.drained]
            return None if self.may_grow else choose_node([NodeUse(n, loads[n.name], 0) for n in open_])
        if plan is None:
            return None
        self.adopt(plan)
        return plan.node_of(job.key, request.name)

    def left(self, job: JobConnection, intent: str) -> None:
        """End a tenant that its job has left."""
        lodger = self._lodgers.get(intent)
        if lodger is not None and lodger.job is job:
            self._machines.kill(lodger.node.name, lodger.launch)
            self._release(lodger)

    def leave(self, job: JobConnection) -> None:
        for lodger in self._of(job):
            self._machines.kill(lodger.node.name, lodger.launch)
            self._release(lodger)
        self.jobs.remove(job)
        self._waiting = {key: at for key, at in self._waiting.items() if key[0] != job.key}
        self.adopt(self.plan.without_job(job.key))

    def waiting(self, now: float) -> dict[str, int]:
        """Tenants for which there was no room, by job; 0 for one that needs none, but a node.

        Args:
            now: Monotonic seconds.
        """
        self._waiting = {key: found for key, found in self._waiting.items() if now - found[0] < _WAITS_S}
        counts: Counter[str] = Counter()
        for (job, _), (_, pinned) in self._waiting.items():
            counts[job] += not pinned
        return dict(counts)

    def bill(self, job: JobConnection) -> protocol.Bill:
        """What a job's tenants have used so far."""
        return protocol.Bill(self._use_of(job).cpu_s, job.usd)

    # ---- machines ------------------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        """Use a node whose machine has joined."""
        self._used_usd[node.name] = 0.0
        log.info("%s has joined: %d processors at %s", node.name, node.cpus, node.machine)
        self.adopt(self.plan.with_node(node))

    def lose(self, node: str, reason: str) -> None:
        """Go on without a node; its tenants' jobs ask for others."""
        log.log(logging.WARNING if self.is_used(node) else logging.INFO, "%s is gone: %s", node, reason)
        lost = self._on(node)
        self.adopt(self.plan.without_node(node))
        self.leaving.discard(node)
        self.paid_since.pop(node, None)
        self._machines.forget(node, reason)
        for lodger in lost:
            self._evict(lodger, f"was lost with its aggregator node {node}: {reason}")

    def must_leave(self, node: str, reason: str) -> None:
        """Have tenants leave a node whose machine will be taken, as soon as others have room."""
        if node not in self.plan.nodes or node in self.plan.drained:
            return
        drained = self.drain(protocol.DrainRequest(node))
        if node not in self.leaving or not drained.error:
            log.warning("%s: %s; %s", node, reason, drained.error or f"{drained.moved} tenants leave it")
        self.leaving.add(node)

    def take(self, launch: int, event: ProcessEvent) -> bool:
        """Handle what has happened to a process; returns whether it is a tenant of this place."""
        lodger = next((one for one in self._lodgers.values() if one.launch == launch), None)
        if lodger is None:
            return False
        match event:
            case m.Placed():
                lodger.pid = event.pid
            case m.Report():
                self._note(lodger, event)
                if event.status is not None:
                    self._evict(lodger, f"lost its place on {lodger.node.name}, which ended: {_cause(event)}")
            case Gone():
                self._evict(lodger, f"was lost with its aggregator node {lodger.node.name}: {event.reason}")
            case _:
                pass
        return True

    def ask_again(self, now: float) -> None:
        """Repeat what jobs were asked and have not done, and ask for pinned tenants of drained nodes.

        These leave when their jobs have written a checkpoint.
        """
        drained = self.plan.drained
        for lodger in [*self._lodgers.values()]:
            asked = bool(lodger.asked_at) or not (lodger.pinned and lodger.movable)
            if not asked and lodger.node.name in drained and drained != self.plan.nodes.keys():
                lodger.reason = f"leaves the drained aggregator node {lodger.node.name}"
                self._ask_to_leave(lodger, now)
            if lodger.asked_at and now - lodger.asked_at > _AGAIN_S:
                self._ask_to_leave(lodger, now)

    def _note(self, lodger: _Lodger, report: m.Report) -> None:
        for line in report.log.decode(errors="replace").splitlines():
            log.info("%s: %s", lodger.intent, line)
        use = lodger.use
        if report.status is None and report.cpu_s > use.cpu_s:
            usd = (report.cpu_s - use.cpu_s) * lodger.node.usd_per_cpu_s
            lodger.job.usd += usd
            if lodger.node.name in self._used_usd:
                self._used_usd[lodger.node.name] += usd
            use.waited_s = max(use.waited_s, report.waited_s)
            use.note(report.cpu_s, report.memory_bytes, time.monotonic())

    def _evict(self, lodger: _Lodger, reason: str) -> None:
        if lodger.intent in self._lodgers:
            self._release(lodger)
            self._send(lodger.job, protocol.Evicted(lodger.intent, reason))

    def _release(self, lodger: _Lodger) -> None:
        del self._lodgers[lodger.intent]
        lodger.job.ended_cpu_s += lodger.use.cpu_s
        if not lodger.pinned:
            lodger.job.gone[lodger.name] = time.monotonic()

    # ---- the plan ------------------------------------------------------------------------------------------

    _moves_later = True

    @property
    def _may_pack(self) -> bool:
        """See `Site`: not while a tenant is on its way."""
        return not any(lodger.asked_at and not lodger.pinned for lodger in self._lodgers.values())

    def _move(self, tenant: _Lodger, move: TenantMove) -> None:
        if not tenant.pinned:
            tenant.reason = f"leaves the aggregator node {tenant.node.name} for {move.node.name}"
            self._ask_to_leave(tenant, time.monotonic())

    def _ask_to_leave(self, lodger: _Lodger, now: float) -> None:
        lodger.asked_at = now
        self._send(lodger.job, protocol.Vacate(lodger.intent, lodger.reason))

    def _look_at(self, tenant: _Lodger, now: float) -> bool:
        return bool(tenant.pid)

    def is_used(self, node: str) -> bool:
        """Whether a node has a tenant, or is about to."""
        return bool(self._on(node) or self.plan.tenants_on(node))

    def only_sequences(self, node: str) -> bool:
        """Whether all that keeps a node are tenants that sequence steps and could do so on a node that is in use."""
        here = self._on(node)
        pinned = bool(here) and all(one.pinned and one.movable for one in here)
        return (
            pinned
            and node not in self.plan.drained
            and not self.plan.tenants_on(node)
            and bool(self.plan.in_use)
        )

    def used_usd(self, prefix: str) -> float:
        """What tenants have used of the nodes whose names begin so, US dollars."""
        return sum(usd for node, usd in self._used_usd.items() if node.startswith(prefix))

    def _idle_usd(self, node: Node) -> float:
        since = self.paid_since.get(node.name) or self._machines.since(node.name)
        hours = (datetime.now(UTC).timestamp() - since) / 3600.0
        return max(0.0, node.usd_per_hour * hours - self._used_usd[node.name])

    def _usd_of(self, job: JobConnection) -> float | None:
        return job.usd


def _cause(report: m.Report) -> str:
    return report.reason or f"status {report.status}"
