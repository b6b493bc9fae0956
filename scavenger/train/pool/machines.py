"""The other machines of a pool: an agent on each joins the manager, and starts tenants on its order.

They join as rented VMs join the leader of a job (`scavenger.train.engines.vm`): by one outgoing connection, with a
one-time key, after which each has keys of its own. One machine is one node.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent import Ticket
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.values import AgentStatus, ProcessEvent
from scavenger.train.pool.placement import Node
from scavenger.train.transport.messages.values import ProcessConfiguration

LOST_S = 45.0
"""Silence of a machine after which its node is given up, unless all are silent."""
_PINNED_MAX = 64
"""Tenants of a machine that are in no plan: each sequences the steps of one job, and needs next to nothing."""
_MEMORY_PART = 0.9
"""Part of a machine's memory that its node has; the rest is for its system and the agents."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where machines join: an address of this machine that they can reach, and a port; 0: any."""

    address: str
    port: int = 0


def listen_at(text: str) -> Listen:
    """Read `ADDRESS` or `ADDRESS:PORT`.

    Raises:
        ConfigurationError: If it is neither.
    """
    address, colon, port = text.partition(":")
    if not address or (colon and not (port.isdecimal() and 0 < int(port) < 1 << 16)):
        raise ConfigurationError(
            f"{text} is no address of this machine, nor one with a port, as 192.0.2.1:7000"
        )
    return Listen(address, int(port) if colon else 0)


@dataclass(frozen=True, slots=True)
class ExpectedNode:
    """What is known of a node before its machine has joined; see `Node`."""

    name: str
    place: str
    usd_per_hour: float
    tenants_max: int


class Machines:
    """The machines that have joined a manager, or are expected to.

    Args:
        server: Serves their agents; `close` closes it.
        empty: A folder without files, which `close` removes.

    `open` makes one.
    """

    def __init__(self, server: AgentServer, empty: tempfile.TemporaryDirectory[str]) -> None:
        self._server, self._empty = server, empty
        self._wanted: dict[str, ExpectedNode] = {}  # by intent
        self._intents: dict[str, str] = {}  # by node, of those that are wanted
        self._joined_at: dict[str, float] = {}
        self._rented: set[str] = set()  # of the intents, those of machines whose cloud proves who they are
        self._count = 0

    @classmethod
    def open(cls, listen: Listen, *, package: bytes = b"", verified: bool = False) -> Machines:
        """Begin to listen.

        Args:
            listen: Where.
            package: What rented machines install; see `AgentServer`.
            verified: Whether a rented machine is admitted only when whoever rents it has verified what it is.

        Raises:
            ConfigurationError: If that address and port cannot be listened at.
        """
        empty = tempfile.TemporaryDirectory(prefix="scavenger-pool-")
        # as long as a machine may be silent, its tenants are their jobs' business, which they reach by themselves
        server = AgentServer(
            listen.address,
            Path(empty.name),
            port=listen.port,
            package=package,
            lost_s=LOST_S,
            verified=verified,
        )
        try:
            server.start()
        except ConfigurationError:
            empty.cleanup()
            raise
        return cls(server, empty)

    def close(self) -> None:
        """Have all agents end, with what they run."""
        self._server.close()
        self._empty.cleanup()

    @property
    def server(self) -> AgentServer:
        """Serves the agents."""
        return self._server

    @property
    def address(self) -> str:
        """Address of this machine for others."""
        return self._server.address

    @property
    def expected(self) -> tuple[str, ...]:
        """Names of the nodes whose machines have not joined yet."""
        return tuple(name for name, intent in self._intents.items() if intent not in self._joined_at)

    def ticket(self, wanted: ExpectedNode) -> str:
        """Expect a machine; returns the content of the file with which its agent joins, once.

        Raises:
            ValueError: If there is a node of this name.
        """
        self._count += 1
        intent = f"{wanted.name}-{self._count}"
        secret = self._expect(wanted, intent)
        ticket = Ticket(
            endpoint=self._server.endpoint,
            server_key=self._server.server_key,
            intent=intent,
            secret=secret,
            provider=wanted.place.partition("/")[0],
            renew="true",
            poweroff="true",
        )
        return msgspec.json.encode(ticket).decode()

    def expect_rented(self, wanted: ExpectedNode, intent: str) -> None:
        """Expect a machine that is being rented.

        Args:
            wanted: What is known of its node.
            intent: Id of the record of its VM, which has the key for it.

        Raises:
            ValueError: If there is a node of this name.
        """
        self._expect(wanted, intent)
        self._rented.add(intent)

    def _expect(self, wanted: ExpectedNode, intent: str) -> str:
        if wanted.name in self._intents:
            raise ValueError(f"the pool has a node {wanted.name}")
        self._wanted[intent], self._intents[wanted.name] = wanted, intent
        slots = wanted.tenants_max + _PINNED_MAX
        return self._server.expect(intent, role="aggregator", vm=wanted.name, threads=1, slots=slots)

    def admit(self) -> None:
        """Admit the agents of machines that were added by hand, of which nothing but their key is known."""
        for candidate in self._server.candidates():
            if candidate.intent in self._wanted and candidate.intent not in self._rented:
                self._server.accept(candidate)

    def intent_of(self, node: str) -> str:
        """The intent of the machine of a node, joined or expected; empty for none."""
        return self._intents.get(node, "")

    def forget(self, node: str, reason: str) -> None:
        """Expect a machine no more, or give one up: what runs there is lost, and its agent is not answered."""
        intent = self._intents.pop(node)
        del self._wanted[intent]
        self._joined_at.pop(intent, None)
        self._rented.discard(intent)
        self._server.gone(intent, reason)

    def start(self, node: str, config: ProcessConfiguration) -> int:
        """Start a tenant on a node's machine; returns the number that its events carry, 0 if it does not answer."""
        return self._server.launch(self._intents[node], config, {}, (), folder=False)

    def kill(self, node: str, launch: int) -> None:
        """End a tenant at once."""
        if (intent := self._intents.get(node)) is not None:
            self._server.send(intent, m.Kill(launch))

    def events(self) -> list[tuple[int, ProcessEvent]]:
        """What has happened to tenants since the last call, by their numbers."""
        for alarm in self._server.alarms():
            log.warning("%s", alarm)
        return self._server.take_events()

    def joined(self) -> Iterator[Node]:
        """Yield the nodes whose machines have joined since the last call."""
        for status in self._server.vms():
            wanted = self._wanted.get(status.spec.intent)
            if wanted is not None and status.joined and status.spec.intent not in self._joined_at:
                self._joined_at[status.spec.intent] = datetime.now(UTC).timestamp()
                yield Node(
                    wanted.name,
                    tuple(range(max(1, status.machine.cpus))),
                    max(1, int(status.machine.memory_bytes * _MEMORY_PART)),
                    wanted.tenants_max,
                    wanted.place,
                    status.address,
                    wanted.usd_per_hour,
                    status.machine.bytes_per_s,
                )

    def since(self, node: str) -> float:
        """When a node's machine has joined, seconds since the epoch."""
        return self._joined_at[self._intents[node]]

    def lost(self) -> Iterator[tuple[str, str]]:
        """Yield the nodes whose machines have ended or are silent, with the reason."""
        for name, status in self._statuses():
            if not status.joined:
                yield name, "the agent of its machine has ended"
            elif status.heard_s_ago > LOST_S and not self._server.in_doubt:
                yield name, f"its machine has been silent for {status.heard_s_ago:.0f} s"

    def leaving(self) -> Iterator[tuple[str, str]]:
        """Yield the nodes whose machines are about to be taken, with what their clouds say."""
        for name, status in self._statuses():
            if status.joined and status.preemption is not None:
                yield name, status.preemption.reason

    def _statuses(self) -> list[tuple[str, AgentStatus]]:
        return [
            (self._wanted[status.spec.intent].name, status)
            for status in self._server.vms()
            if status.spec.intent in self._joined_at
        ]
