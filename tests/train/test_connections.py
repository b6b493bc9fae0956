"""Idle connections of strangers: they cannot end a job, neither where it listens at a port nor on this machine."""

from __future__ import annotations

import contextlib
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.processes import Processes
from scavenger.train.transport import messages as m
from scavenger.train.transport.connections import raise_descriptor_limit
from scavenger.train.transport.sockets import (
    SOCKET_FOLDER_BYTES_MAX,
    Dealer,
    Router,
    address_towards,
    new_keys,
)

pytestmark = pytest.mark.slow

WITHIN_MS = 10_000
STRANGERS = 1500

_HUB = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
import zmq
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import Router
router = Router(zmq.Context(), (sys.argv[1].encode(), sys.argv[2].encode()))
print(router.address, flush=True)
while True:
    router.wait(1.0)
    for peer, message, _ in router.receive():
        while True:
            try:
                open("/dev/null").close()
                break
            except OSError:
                time.sleep(0.01)
        router.send(peer, m.Joined())
"""


def test_a_hub_that_strangers_connect_to_more_often_than_it_has_descriptors_serves_its_processes(
    context: Any,
) -> None:
    keys = new_keys()
    command = [sys.executable, "-c", _HUB, *(key.decode() for key in keys)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub,
        contextlib.ExitStack() as strangers,
    ):
        strangers.callback(hub.kill)
        assert hub.stdout is not None
        address = hub.stdout.readline().strip()
        early = Dealer(context, "w0", address, keys[0], new_keys())
        early.send(m.Join())
        assert early.socket.poll(WITHIN_MS)
        assert list(early.receive()) == [(m.Joined(), None)]
        raise_descriptor_limit()
        port = int(address.rpartition(":")[2])
        for _ in range(STRANGERS):
            with contextlib.suppress(TimeoutError):  # the hub accepts no more for a moment
                connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                strangers.enter_context(connection)

        late = Dealer(context, "w1", address, keys[0], new_keys())
        for dealer in (early, late):
            dealer.send(m.Join())
            assert dealer.socket.poll(WITHIN_MS), hub.poll()
            assert list(dealer.receive()) == [(m.Joined(), None)]
        assert psutil.Process(hub.pid).num_fds() < 256


def test_of_many_connections_the_oldest_without_a_message_are_closed(context: Any) -> None:
    keys = new_keys()
    router = Router(context, keys)
    dealers = [Dealer(context, f"w{i}", router.address, keys[0], new_keys()) for i in range(3)]
    for dealer in dealers:
        dealer.send(m.Join())
    joined: set[str] = set()
    while len(joined) < 3:
        assert router.socket.poll(WITHIN_MS)
        joined |= {name for name, _, _ in router.receive()}
    assert router._connections is not None
    router._connections._most = 2
    place = ("127.0.0.1", int(router.address.rpartition(":")[2]))
    with contextlib.ExitStack() as opened:
        strangers = [
            opened.enter_context(socket.create_connection(place, timeout=WITHIN_MS / 1000)) for _ in range(3)
        ]
        while strangers[0].recv(64):  # the greeting of the server, and then the end: the oldest is closed
            pass
    for index, dealer in enumerate(dealers):
        router.send(f"w{index}", m.Joined())
        assert dealer.socket.poll(WITHIN_MS)
    router.close()


def test_the_limit_on_open_files_is_raised_as_far_as_allowed() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))
from scavenger.train.transport.connections import raise_descriptor_limit
assert raise_descriptor_limit() == 300
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 300)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300


@pytest.mark.parametrize("long", [False, True])
def test_processes_of_one_machine_meet_in_a_private_folder_and_listen_at_no_port(
    tmp_path: Path, context: Any, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    temporary = tmp_path / ("x" * (SOCKET_FOLDER_BYTES_MAX if long else 1))
    temporary.mkdir()
    if long:
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = {child.pid for child in psutil.Process().children()}
    listening = _listening()  # as a plugin of pytest does
    processes = Processes.open(
        JobSource("train:job", tmp_path, 1, threads=1), ProcessEngine, log_dir=tmp_path
    )
    try:
        folder = Path(address_towards(processes.hub.address))
        assert processes.hub.address.startswith("ipc://")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        aggregator = Router(context, new_keys(), str(folder))
        assert Path(address_towards(aggregator.address)) == folder
        aggregator.close()
        assert _listening() == listening
        assert {child.pid for child in psutil.Process().children()} > before, "the reaper knows the folder"
    finally:
        processes.close()
    assert not folder.exists()
    assert not any(temporary.iterdir())


def _listening() -> set[int]:
    """The ports at which this process listens."""
    return {
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
