"""The leader listens for VMs at two ports that may be chosen, and by an address that need not be its own."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
import zmq
from hearing import heard
from waiting import eventually

from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import Dealer, Router, is_own, new_keys

ELSEWHERE = "192.0.2.1"  # of a block that RFC 5737 keeps for documentation: nobody's


def free_ports() -> int:
    """The first of two."""
    while True:
        with socket.socket() as one, socket.socket() as two, contextlib.suppress(OSError, OverflowError):
            one.bind(("", 0))
            port: int = one.getsockname()[1]
            two.bind(("", port + 1))
            return port


@pytest.mark.parametrize("host", ["127.0.0.1", ELSEWHERE, "leader.example"])
def test_a_router_is_heard_at_the_port_that_was_chosen_whoever_s_the_address_is(
    context: zmq.Context[zmq.Socket[bytes]], host: str
) -> None:
    port, keys = free_ports(), new_keys()
    router = Router(context, keys, host, port=port)
    assert router.address == f"tcp://{host}:{port}"

    dealer = Dealer(context, "w0", f"tcp://127.0.0.1:{port}", keys[0], new_keys())
    dealer.send(m.Quit())

    assert heard(router) == [("w0", m.Quit(), None)]
    dealer.close()
    router.close()


def test_a_port_that_is_taken_is_named(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    port = free_ports()
    first = Router(context, new_keys(), port=port)

    with pytest.raises(
        ConfigurationError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"
    ):
        Router(context, new_keys(), port=port)
    first.close()


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), (ELSEWHERE, False), ("localhost", False)])
def test_an_address_is_this_machine_s_own_if_it_can_be_listened_at(host: str, own: bool) -> None:
    assert is_own(host) == own


def test_processes_are_to_use_the_port_after_that_which_vms_join_by_where_that_was_chosen(
    tmp_path: Path,
) -> None:
    port = free_ports()
    for chosen, expected in ((port, port + 1), (0, 0)):
        with contextlib.closing(AgentServer("127.0.0.1", tmp_path, port=chosen)) as hosts:
            engine = HostEngine(tmp_path / "logs", hosts)
            assert engine.leader_port == expected
            engine.close()


@pytest.mark.parametrize("host", ["127.0.0.1", ELSEWHERE])
def test_the_coordinator_finds_the_hub_also_where_vms_reach_it_by_another_machine_s_address(
    tmp_path: Path, host: str
) -> None:
    port = free_ports()
    with contextlib.closing(AgentServer(host, tmp_path, port=port)) as hosts:
        supervisor = Supervisor.open(
            JobSource("train:job", tmp_path, 1, threads=1),
            work_dir=tmp_path / "work",
            timeouts=Timeouts(60.0, 60.0),
            engine=lambda log_dir, _: HostEngine(log_dir, hosts),
        )
        try:
            supervisor.start(1)

            def leads() -> bool:
                supervisor.poll(0.02)
                return supervisor._registry["coordinator-1"].beat is not None

            assert eventually(leads, within_s=60.0)
        finally:
            supervisor.close(grace_s=1.0)
