"""Nodes that the pool rents for itself: asked for when tenants wait, given back when nobody has used them for a while.

What is to be done, `growth` decides. Who rents, the pool does not know: a `NodeSource` does, which has a record of each
machine from before it is asked for until it is gone, and ends all of them when the manager ends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.pool import protocol
from scavenger.train.pool.growth import CRAMPED_S, RentalLimits, RentedSeen, grow, missing_nodes
from scavenger.train.pool.machines import ExpectedNode, Machines
from scavenger.train.pool.placement import Node
from scavenger.train.pool.remote_site import RemoteSite

LOOK_S = 1.0
"""How often rented machines are looked at, seconds."""
AGE_MAX_S = 13 * 86_400.0
"""Age at which a node is emptied and replaced: the cloud itself ends a machine after fourteen days."""
PREFIX = "rented-"
"""What names of rented nodes begin with; no others do."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """A machine that was asked for.

    Attributes:
        number: Of its node.
        intent: By which its agent joins.
        since: When it was launched, seconds since the epoch; when it was asked for, before that is known.
        ending: Why it ends or has ended; empty if it is wanted.
        wanted: Whether it ends because the pool does not want it any more.
    """

    number: int
    intent: str
    since: float
    ending: str = ""
    wanted: bool = True


class NodeSource(Protocol):
    """Rents machines for nodes of one place. Nothing is rented before `open`; no method raises but `open`.

    Attributes:
        offered: What a node has that is rented: its place, processors, memory, price and tenants.
        limits: How many there may be, and for how long without tenants.
        package: What a machine installs; see `AgentServer`.
        verified: Whether machines prove who they are; then `look` admits them, and nobody else.
    """

    offered: Node
    limits: RentalLimits
    package: bytes
    verified: bool

    def open(self, server: AgentServer) -> None:
        """Begin: what an earlier manager has left is ended.

        Args:
            server: Where agents join.
        """

    def look(self) -> tuple[RentedMachine, ...]:
        """What has been asked for since `open`, admitting agents that have proven who they are."""

    def want(self, numbers: Collection[int]) -> None:
        """Have a machine for each of these nodes, and for no others."""

    @property
    def spent_usd(self) -> float:
        """What all machines have cost, those that have ended among them."""

    @property
    def shortage(self) -> str:
        """Why a machine that is wanted cannot be had; empty if nothing is known."""

    def close(self) -> None:
        """End all machines, and wait until they are gone."""


class RentedNodes:
    """The rented nodes of one place.

    Args:
        source: Rents the machines.
        machines: Where their agents join.
    """

    def __init__(self, source: NodeSource, machines: Machines) -> None:
        self._source, self._machines = source, machines
        self._wanted: set[int] = set()
        self._last = 0
        self._seen: dict[int, RentedMachine] = {}  # the latest of each node
        self._idle_since: dict[str, float] = {}
        self._cramped_since: dict[str, float] = {}
        self._told = ""
        self._looked_at = float("-inf")

    @property
    def place(self) -> str:
        """The place of its nodes."""
        return self._source.offered.place

    def open(self) -> None:
        """Begin; see `NodeSource.open`."""
        self._source.open(self._machines.server)

    def close(self) -> None:
        self._source.close()

    def load(self, site: RemoteSite) -> protocol.RentalLoad:
        """What is rented, and what it costs."""
        offered = self._source.offered
        spent_usd = self._source.spent_usd
        return protocol.RentalLoad(
            place=offered.place,
            machine=offered.machine,
            usd_per_hour=offered.usd_per_hour,
            nodes_max=self._source.limits.nodes_max,
            idle_s=self._source.limits.idle_s,
            since={
                _name(number): self._seen[number].since for number in self._wanted if number in self._seen
            },
            free=(self._source.limits.nodes_max - self._joined(site)) * offered.tenants_max,
            spent_usd=spent_usd,
            idle_usd=max(0.0, spent_usd - site.used_usd(PREFIX)),
            shortage=self._source.shortage,
        )

    def _joined(self, site: RemoteSite) -> int:
        return sum(_name(number) in site.plan.nodes for number in self._wanted)

    # ---- about once a second -------------------------------------------------------------------------------

    def look(self, site: RemoteSite, now: float, wall: float) -> None:
        """See what has become of what was asked for, and ask for more or give some back.

        Args:
            site: The nodes of the place.
            now: Monotonic seconds.
            wall: Seconds since the epoch.
        """
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        for machine in self._source.look():
            self._note(machine, site)
        self._retire(site, wall)
        cramped = self._cramped(site, now)
        waiting = site.waiting(now)
        coming = [number for number in self._wanted if _name(number) not in site.plan.nodes]
        missing = missing_nodes(
            site.plan,
            waiting,
            self._source.offered,
            coming=len(coming),
            cramped=cramped,
            leaving=self._stuck(site),
        )
        growth = grow(missing, self._rented(site, now, needed=bool(waiting or cramped)), self._source.limits)
        site.growing = bool(coming) or growth.starts > 0
        site.may_grow = site.growing or len(self._wanted) < self._source.limits.nodes_max
        if growth.reason != self._told:
            self._told = growth.reason
            if growth.reason and not (growth.starts or growth.ends):
                log.warning("%s", growth.reason)
        for name in growth.ends:
            self._end(name, site, growth.reason)
        for name in growth.drains:
            site.drain(protocol.DrainRequest(name))
        for _ in range(growth.starts):
            self._last += 1
            self._wanted.add(self._last)
            site.note_change(f"{_name(self._last)} asked for", growth.reason)
        if growth.starts or growth.ends:
            self._source.want(self._wanted)

    def _note(self, machine: RentedMachine, site: RemoteSite) -> None:
        """Expect the agent of a machine that is on its way; go on without one that ends by itself."""
        name, known = _name(machine.number), self._seen.get(machine.number)
        if machine.number not in self._wanted or (machine.ending and not machine.wanted):
            return
        if not machine.ending:
            if known is None or known.intent != machine.intent:
                self._drop(name, site, "another machine takes its place")
                offered = self._source.offered
                wanted = ExpectedNode(name, offered.place, offered.usd_per_hour, offered.tenants_max)
                self._machines.expect_rented(wanted, machine.intent)
            self._seen[machine.number] = machine
            site.paid_since[name] = machine.since
        elif known is not None and known.intent == machine.intent and not known.ending:
            self._seen[machine.number] = machine
            if name in site.plan.nodes:  # one that never joined is replaced as long as somebody waits
                self._wanted.discard(machine.number)
                self._source.want(self._wanted)
            self._drop(name, site, machine.ending)

    def _drop(self, name: str, site: RemoteSite, reason: str) -> None:
        if name in site.plan.nodes:
            site.lose(name, reason)
        elif self._machines.intent_of(name):
            self._machines.forget(name, reason)

    def _end(self, name: str, site: RemoteSite, reason: str) -> None:
        number = int(name.removeprefix(PREFIX))
        self._wanted.discard(number)
        self._idle_since.pop(name, None)
        if self._machines.intent_of(name):
            self._drop(name, site, f"is given back: {reason}")
        site.note_change(f"{name} given back", reason)

    def _retire(self, site: RemoteSite, wall: float) -> None:
        """Have old nodes emptied: their machines do not live for ever; and those that were lost, be forgotten."""
        for number in sorted(self._wanted):
            name, machine = _name(number), self._seen.get(number)
            if machine is None or machine.ending:
                continue
            if not self._machines.intent_of(name):  # its agent has ended or was silent for too long
                self._end(name, site, "its machine was lost")
                self._source.want(self._wanted)
            elif wall - machine.since > AGE_MAX_S:
                site.must_leave(name, f"it has run for {AGE_MAX_S / 86_400:.0f} days")

    def _stuck(self, site: RemoteSite) -> frozenset[str]:
        """Nodes that have to go, and were not drained, as the others have no room."""
        return frozenset(site.leaving - site.plan.drained) & site.plan.nodes.keys()

    def _rented(self, site: RemoteSite, now: float, *, needed: bool) -> list[RentedSeen]:
        seen = []
        for number in sorted(self._wanted):
            name = _name(number)
            coming = name not in site.plan.nodes
            sequences = not coming and site.only_sequences(name)
            used = needed if coming else site.is_used(name) and not sequences
            since = None if used else self._idle_since.setdefault(name, now)
            if used:
                self._idle_since.pop(name, None)
            idle_s = None if since is None else now - since
            seen.append(RentedSeen(name, coming, name in site.plan.drained, idle_s, sequences))
        return seen

    def _cramped(self, site: RemoteSite, now: float) -> tuple[str, ...]:
        here = site.plan.cramped
        self._cramped_since = {job: self._cramped_since.get(job, now) for job in here}
        return tuple(job for job in here if now - self._cramped_since[job] >= CRAMPED_S)


def _name(number: int) -> str:
    return f"{PREFIX}{number}"
