"""Workers on nodes of a Ray cluster on which Ray starts agents: here, several raylets on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_conformance import SLEEP, boot, command, exits, running, text
from test_ray_engine import _nothing_is_left_behind, cluster, ray_folder  # noqa: F401 - fixtures
from waiting import eventually

from scavenger.train.engines.ray.engine import RayHome
from scavenger.train.engines.ray.pods import RayNodes
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine

pytestmark = pytest.mark.slow


class Addresses:
    """Of pods that are there."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.closed = False

    def find(self, intents: frozenset[str]) -> Mapping[str, str]:
        return {intent: self.known[intent] for intent in intents & self.known.keys()}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def agents(cluster: Any, tmp_path: Path) -> Iterator[AgentServer]:  # noqa: F811
    home = RayHome()
    (tmp_path / "job").mkdir()
    found = AgentServer(home.address, tmp_path / "job")
    found.start()
    yield found
    found.close()
    home.close()


def made(
    agents: AgentServer, folder: Path, addresses: Addresses, *, agent: Sequence[str] | None = None
) -> HostEngine:
    nodes = RayNodes(addresses, agent=agent)
    return HostEngine(folder / "logs", agents, source=nodes, command=command(SLEEP))


@pytest.mark.long
def test_a_worker_waits_until_its_node_has_joined_ray_and_aggregators_stay_with_the_leader(
    agents: AgentServer, tmp_path: Path
) -> None:
    addresses = Addresses()
    with contextlib.closing(made(agents, tmp_path, addresses)) as engine:
        agents.expect("node-1", role="worker", vm="2cpu-4gib", threads=2)
        engine.launch(boot("w0"), vm="2cpu-4gib")
        engine.launch(msgspec.structs.replace(boot("aggregator-0"), role="aggregator"))
        assert running(engine, "aggregator-0")
        assert engine.needs().aggregators == 0, "no node is asked for it"
        addresses.known["node-1"] = "192.0.2.77"  # a pod that Ray does not know yet
        assert not eventually(lambda: bool(engine.poll() or engine.pid("w0")), within_s=1.5)

        addresses.known["node-1"] = agents.address

        assert running(engine, "w0")
        (node,) = [vm for vm in agents.vms() if vm.spec.intent == "node-1"]
        assert (node.joined, node.processes) == (True, ("w0",))
        assert eventually(lambda: text(engine) == "up\n")
        engine.kill("w0")
        assert [ended.name for ended in exits(engine)] == ["w0"]
        assert engine.reachable("file:///somewhere") == "file:///somewhere"
    assert addresses.closed


@pytest.mark.long
def test_where_no_agent_can_be_run_workers_are_refused_with_the_reason(
    agents: AgentServer, tmp_path: Path
) -> None:
    addresses, program = Addresses(), "import sys; sys.exit('there is no Scavenger here')"
    with contextlib.closing(made(agents, tmp_path, addresses, agent=command(program))) as engine:
        agents.expect("node-1", role="worker", vm="2cpu-4gib", threads=2)
        addresses.known["node-1"] = agents.address
        engine.launch(boot("w0"), vm="2cpu-4gib")

        (ended,) = exits(engine)

        assert ended.refused
        assert "there is no Scavenger here" in ended.cause
        assert "image of the Ray cluster" in ended.cause
