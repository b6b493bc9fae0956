"""The engine of a job whose aggregators are tenants on other machines, with a pool and agents that a test plays."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from scavenger.train.engines.base import PreemptionNotice
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine, Needs
from scavenger.train.engines.vm.values import AgentSpec, AgentStatus, Gone, JoiningAgent, ProcessEvent
from scavenger.train.pool import protocol
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.transport.messages.values import ProcessConfiguration


class Agents:
    """A server of agents that join when a test says so."""

    address, port, endpoint, server_key = "127.0.0.1", 0, "tcp://127.0.0.1:1", "k" * 40
    in_doubt = unheard = False

    def __init__(self) -> None:
        self.expected: dict[str, AgentSpec] = {}
        self.joined: set[str] = set()
        self.ended: dict[str, str] = {}
        self.launched: dict[int, tuple[str, str]] = {}  # intent and process
        self.sent: list[tuple[str, Any]] = []
        self.events: list[tuple[int, ProcessEvent]] = []
        self.waiting: list[JoiningAgent] = []
        self.accepted: list[JoiningAgent] = []

    def expect(self, intent: str, *, role: Any, vm: str, threads: int, slots: int = 1) -> str:
        self.expected[intent] = AgentSpec(intent, vm, role, threads, slots)
        return "s" * 40

    def gone(self, intent: str, reason: str) -> None:
        self.ended[intent] = reason
        self.joined.discard(intent)
        del self.expected[intent]
        for launch, (at, _) in [*self.launched.items()]:
            if at == intent:
                self.events.append((launch, Gone(reason)))
                del self.launched[launch]

    def vms(self) -> tuple[AgentStatus, ...]:
        return tuple(
            AgentStatus(
                spec,
                "192.0.2.1" if intent in self.joined else "",
                intent in self.joined,
                0.0,
                None,
                tuple(name for at, name in self.launched.values() if at == intent),
            )
            for intent, spec in self.expected.items()
        )

    def free(self, role: str) -> tuple[AgentStatus, ...]:
        return tuple(vm for vm in self.vms() if vm.joined and not vm.processes and vm.spec.role == role)

    def launch(self, intent: str, config: Any, *_: object, folder: bool) -> int:
        number = len(self.sent) + len(self.launched) + 1
        self.launched[number] = (intent, config.name)
        self.events.append((number, m.Placed(number, 4242)))
        return number

    def send(self, intent: str, message: Any) -> None:
        self.sent.append((intent, message))
        if isinstance(message, m.Kill):
            self.launched.pop(message.launch, None)
            self.events.append((message.launch, m.Report(message.launch, status=-9)))

    def take_events(self) -> list[tuple[int, ProcessEvent]]:
        events, self.events = self.events, []
        return events

    def candidates(self) -> list[JoiningAgent]:
        return self.waiting

    def accept(self, candidate: JoiningAgent) -> None:
        self.accepted.append(candidate)

    def give_up(self, intent: str, launch: int) -> None: ...

    def unattended(self) -> None: ...


class Pool:
    """The manager's end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / protocol.SOCKET))
        self._listener.listen()
        self._listener.setblocking(False)
        self._job: socket.socket | None = None

    def heard(self) -> list[protocol.Request]:
        found: list[protocol.Request] = []
        if self._job is None:
            try:
                self._job, _ = self._listener.accept()
            except BlockingIOError:
                return found
            self._job.setblocking(False)
        while True:
            try:
                packet = self._job.recv(1 << 16)
            except BlockingIOError:
                return found
            if not packet:
                return found
            found.append(protocol.decode_request(packet))

    def tell(self, notice: msgspec.Struct) -> None:
        assert self._job is not None
        self._job.send(msgspec.json.encode(notice))

    def close(self) -> None:
        self._listener.close()
        if self._job is not None:
            self._job.close()


class Job:
    """A job on VMs with two aggregators, of which the first sequences."""

    def __init__(self, tmp_path: Path) -> None:
        self.now, self.agents, self.pool = 100.0, Agents(), Pool(tmp_path / "pool")
        join = protocol.PoolJoin(protocol.PROTOCOL, "0123456789", "tiny", "aws/us-east-1")
        self.lodgings = Lodgings(tmp_path / "pool", join)
        agents = cast(AgentServer, self.agents)
        self.engine = HostEngine(tmp_path, agents, source=self.lodgings, clock=lambda: self.now)

    def launch(self, name: str) -> None:
        self.engine.launch(ProcessConfiguration("aggregator", name, "", "", "", "", memory_fd=-1))

    def lodged(self, name: str = "aggregator-1") -> str:
        """Start an aggregator, and have its tenant join; returns its intent."""
        self.launch(name)
        request = self.pool.heard()[-1]
        assert isinstance(request, protocol.Lodge)
        self.pool.tell(protocol.Lodged(request.intent, "one"))
        self.agents.joined.add(request.intent)
        self.engine.poll()
        assert self.engine.poll() == []
        assert self.engine.pid(name) == 4242
        return request.intent


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.agents.events.clear()
    made.engine._processes.clear()
    made.engine.close()
    made.pool.close()


def test_an_aggregator_runs_on_the_tenant_that_the_pool_has_started_for_it(job: Job) -> None:
    for name in ("aggregator-0", "aggregator-1"):
        job.launch(name)
    joined, *asked = job.pool.heard()
    assert isinstance(joined, protocol.PoolJoin)
    assert [(one.name, one.pinned, one.endpoint) for one in asked if isinstance(one, protocol.Lodge)] == [
        ("aggregator-0", True, "tcp://127.0.0.1:1"),
        ("aggregator-1", False, "tcp://127.0.0.1:1"),
    ]
    first, second = (one.intent for one in asked if isinstance(one, protocol.Lodge))

    job.agents.joined.add(second)
    job.engine.poll()

    assert [*job.agents.launched.values()] == [(second, "aggregator-1")], "never on another's tenant"
    assert job.engine.needs() == Needs({}, 0), "no VM is rented for them"
    own, other = JoiningAgent(first, "", ""), JoiningAgent("vm-of-the-fleet", "", "")
    job.agents.waiting = [own, other]
    job.engine.poll()
    assert job.agents.accepted == [own]


def test_a_tenant_that_is_to_be_left_is_left_when_it_holds_nothing_and_another_is_asked_for(job: Job) -> None:
    intent = job.lodged()
    job.engine.vacated("aggregator-1")
    assert job.agents.sent == [], "nobody has asked for that"

    job.pool.tell(protocol.Vacate(intent, "leaves one for two"))
    assert job.engine.poll() == []
    (notice,) = job.engine.preemption_notices()
    assert notice == PreemptionNotice("aggregator-1", 3600.0, "leaves one for two", alone=True)
    job.engine.vacated("aggregator-1")
    (ended,) = job.engine.poll()
    assert (ended.name, ended.cause) == ("aggregator-1", "has left one")
    assert job.pool.heard() == [protocol.ReleaseTenant(intent)]
    assert [*job.agents.ended] == [intent]

    assert job.lodged() != intent


def test_a_crashed_aggregator_begins_again_on_its_tenant(job: Job) -> None:
    intent = job.lodged()
    (launch,) = job.agents.launched
    del job.agents.launched[launch]
    job.agents.events.append((launch, m.Report(launch, status=-11)))
    assert len(job.engine.poll()) == 1

    job.launch("aggregator-1")

    assert job.pool.heard() == []
    assert [at for at, _ in job.agents.launched.values()] == [intent]


def test_an_aggregator_whose_tenant_is_lost_has_ended_and_gets_another(job: Job) -> None:
    intent = job.lodged()

    job.pool.tell(protocol.Evicted(intent, "was lost with its aggregator node one"))
    (ended,) = job.engine.poll()

    assert ended.reason == "was lost with its aggregator node one"
    assert job.pool.heard() == [protocol.ReleaseTenant(intent)]
    assert job.lodged() != intent


def test_without_room_the_job_says_so_once_and_asks_again_with_another_key(job: Job) -> None:
    job.launch("aggregator-1")
    seen = set()
    for _ in range(3):
        request = job.pool.heard()[-1]
        assert isinstance(request, protocol.Lodge)
        seen.add(request.intent)
        job.pool.tell(protocol.Lodged(request.intent, error="found no room"))
        job.engine.poll()
        job.now += 6.0
        job.engine.poll()
    assert len(seen) == 3
    (notice,) = job.engine.preemption_notices()
    assert (notice.in_s, notice.alone) == (None, True)
    assert "which found no room" in notice.reason

    job.now += 1000.0
    (ended,) = job.engine.poll()
    assert "no place in the pool of aggregators" in ended.reason


def test_the_cost_goes_on_from_what_a_manager_that_has_ended_had_told(job: Job) -> None:
    job.lodged()
    for cpu_s in (5.0, 8.0, 1.0, 2.0):  # the third is of another manager
        job.lodgings.report(1, [0.1], 0)
        job.pool.heard()
        job.pool.tell(protocol.Bill(cpu_s, cpu_s / 100.0))
        job.engine.poll()

    assert job.lodgings.used() == (pytest.approx(10.0), pytest.approx(0.1))
