"""An agent that is told to join another leader: nothing of the first one's stays, and its VM goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_for

from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent import Agent, Ticket
from scavenger.train.engines.vm.agent_server import AgentServer, one_time_keys


@pytest.fixture
def leaders(tmp_path: Path) -> Iterator[tuple[AgentServer, AgentServer]]:
    with contextlib.ExitStack() as stack:
        made = []
        for name in ("first", "second"):
            (folder := tmp_path / name).mkdir()
            (folder / "code.py").write_text(name)
            server = AgentServer("127.0.0.1", folder)
            server.start()
            stack.callback(server.close)
            made.append(server)
        yield made[0], made[1]


class Running:
    """An agent on a thread, as a VM has it."""

    def __init__(self, leader: AgentServer, folder: Path, name: str = "vm-1") -> None:
        secret = leader.expect(name, role="worker", vm="small", threads=1)
        self.ended = folder / "powered-off"
        self.folder = folder / "agent"
        self.folder.mkdir()
        self.keys: list[str] = []
        ticket = Ticket(leader.endpoint, leader.server_key, name, secret, "", "true", f"touch {self.ended}")
        self.agent = Agent(ticket, self.folder, show=lambda _: None, identify=self._identify, join_s=3.0)
        self._status: list[int] = []
        self.thread = threading.Thread(target=lambda: self._status.append(self.agent.run()), daemon=True)
        self.thread.start()

    def _identify(self, key: str) -> str:
        self.keys.append(key)
        return ""


def order(leader: AgentServer, name: str) -> m.Move:
    return m.Move(leader.endpoint, leader.server_key, name, one_time_keys(leader.boot_key, name)[1])


def joined(leader: AgentServer) -> list[str]:
    return [vm.spec.intent for vm in leader.vms() if vm.joined]


def test_an_agent_moves_there_and_back_with_new_keys_and_an_empty_folder(
    leaders: tuple[AgentServer, AgentServer], tmp_path: Path
) -> None:
    first, second = leaders
    running = Running(first, tmp_path)
    wait_for(lambda: joined(first))
    assert first.renew("vm-1", 900.0)
    before = set(running.folder.iterdir())

    second.expect("vm-1-1", role="worker", vm="small", threads=1)
    first.move("vm-1", order(second, "vm-1-1"))
    assert joined(first) == []
    assert first.free() == ()
    wait_for(lambda: joined(second))
    first.await_moves(5.0)
    assert first.vms() == ()
    assert not before & set(running.folder.iterdir())
    assert second.renew("vm-1-1", 900.0)

    first.expect("vm-2", role="worker", vm="small", threads=1)
    second.move("vm-1-1", order(first, "vm-2"))
    wait_for(lambda: joined(first) == ["vm-2"])
    assert len(set(running.keys)) == 3
    assert not running.ended.exists()
    first.close()
    running.thread.join(20.0)
    assert running.ended.exists()
    assert list(running.folder.iterdir()) == []


def test_the_first_leaders_farewell_does_not_reach_a_vm_that_has_moved(
    leaders: tuple[AgentServer, AgentServer], tmp_path: Path
) -> None:
    first, second = leaders
    running = Running(first, tmp_path)
    wait_for(lambda: joined(first))
    second.expect("vm-1-1", role="worker", vm="small", threads=1)

    first.move("vm-1", order(second, "vm-1-1"))
    first.await_moves(5.0)
    first.close()

    wait_for(lambda: joined(second))
    assert not running.ended.exists()


def test_a_vm_whose_next_leader_does_not_answer_ends(
    leaders: tuple[AgentServer, AgentServer], tmp_path: Path
) -> None:
    first, second = leaders
    running = Running(first, tmp_path)
    wait_for(lambda: joined(first))

    first.move("vm-1", order(second, "nobody-expects-it"))

    running.thread.join(20.0)
    assert running.ended.exists()
