"""A place of a pool with machines that only say what a test has them say, and jobs whose connections can be read."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.pool import protocol
from scavenger.train.pool.machines import ExpectedNode, Machines
from scavenger.train.pool.placement import Node
from scavenger.train.pool.remote_site import RemoteSite
from scavenger.train.pool.site import JobConnection
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import new_keys

SECRET = new_keys()[1].decode()


class Agents:
    """Notes what is ordered of the machines."""

    def __init__(self) -> None:
        self.started: list[tuple[str, ProcessConfiguration]] = []
        self.killed: list[int] = []
        self.forgotten: list[str] = []
        self.answers = True
        self.expected: dict[str, str] = {}  # intents of rented machines, by node

    @property
    def server(self) -> AgentServer:
        return cast(AgentServer, None)

    def expect_rented(self, wanted: ExpectedNode, intent: str) -> None:
        assert wanted.name not in self.expected
        self.expected[wanted.name] = intent

    def intent_of(self, node: str) -> str:
        return self.expected.get(node, "")

    def start(self, node: str, config: ProcessConfiguration) -> int:
        if not self.answers:
            return 0
        self.started.append((node, config))
        return len(self.started)

    def kill(self, node: str, launch: int) -> None:
        self.killed.append(launch)

    def forget(self, node: str, reason: str) -> None:
        self.forgotten.append(node)
        self.expected.pop(node, None)

    def since(self, node: str) -> float:
        return time.time() - 3600.0


class Pool:
    """A place with machines, and jobs whose connections can be read."""

    def __init__(self) -> None:
        self.agents = Agents()
        self.site = RemoteSite(cast(Machines, self.agents))
        self.ends: dict[str, socket.socket] = {}

    def job(self, name: str) -> JobConnection:
        ours, self.ends[name] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ends[name].setblocking(False)
        job = JobConnection(ours, f"{name}#1", id=name, name=name, refused="")
        self.site.jobs.append(job)
        return job

    def node(self, name: str, *, price: float = 0.0, tenants_max: int = 2) -> None:
        self.site.add(Node(name, (0, 1), 1 << 30, tenants_max, "local", "192.0.2.1", price))

    def lodge(
        self, job: JobConnection, number: int = 1, *, pinned: bool = False, movable: bool = False
    ) -> protocol.Lodged:
        name = "aggregator-0" if pinned else "aggregator-1"
        intent = f"{job.id}-{name}-{number}"
        return self.site.lodge(
            job,
            protocol.Lodge(
                name, "tcp://192.0.2.9:1", "k" * 40, intent, SECRET, pinned=pinned, movable=movable
            ),
        )

    def told(self, name: str) -> list[protocol.Notice]:
        found: list[protocol.Notice] = []
        while True:
            try:
                found.append(protocol.decode_notice(self.ends[name].recv(1 << 16)))
            except BlockingIOError:
                return found


@contextmanager
def scripted_pool() -> Iterator[Pool]:
    """A pool whose connections are closed afterwards."""
    made = Pool()
    yield made
    for job in [*made.site.jobs]:
        job.connection.close()
    for end in made.ends.values():
        end.close()
