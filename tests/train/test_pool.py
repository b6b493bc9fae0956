"""Aggregators as tenants of a pool: processes of their jobs, held to their shares, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from engine_conformance import SLEEP, EngineConformance, Start, boot, command, exits, running
from pools import end_pool
from processes import alive
from waiting import eventually

from scavenger.train.engines.fork_server import Forked, Reap, decode_reply
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.pool import protocol
from scavenger.train.pool.connection import load_of, wait_for_load
from scavenger.train.pool.tenants import Tenants
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.values import ProcessConfiguration

pytestmark = pytest.mark.slow


class TenantsAlone(ProcessEngine):
    """An engine all of whose processes are tenants."""

    def launch(self, config: ProcessConfiguration, **options: object) -> int:
        return super().launch(msgspec.structs.replace(config, role="aggregator"), **options)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a pool, which is ended with the test."""
    yield tmp_path / "pool"
    end_pool(tmp_path / "pool")


@pytest.fixture
def start(tmp_path: Path, folder: Path) -> Iterator[Start]:
    fd = create_block()
    engines: list[TenantsAlone] = []

    def started(program: str) -> TenantsAlone:
        job = f"job-{len(engines)}"
        tenants = Tenants(folder, protocol.PoolJoin(protocol.PROTOCOL, job, "name"))
        engines.append(TenantsAlone(tmp_path / job, fd, command=command(program), tenants=tenants))
        engines[-1].launch(boot("w0"))
        return engines[-1]

    yield started
    for engine in engines:
        engine.kill_all()
        engine.close()
    os.close(fd)


_LEADER = """
import os, sys, time
from pathlib import Path
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.pool.protocol import PROTOCOL, PoolJoin
from scavenger.train.pool.tenants import Tenants
from scavenger.train.transport.messages.values import ProcessConfiguration
fd, folder = os.memfd_create("block"), Path(sys.argv[1])
command = (sys.executable, "-c", sys.argv[2])
engine = ProcessEngine(folder, fd, command=command, tenants=Tenants(folder / "pool", PoolJoin(PROTOCOL, "a", "b")))
engine.launch(ProcessConfiguration("aggregator", "w0", "", "", "", "", memory_fd=fd))
print("up", flush=True)
while True:
    engine.poll()
    time.sleep(0.02)
"""


class TestTenants(EngineConformance):
    ends_within_s = 5.0
    leader = _LEADER

    @pytest.fixture(autouse=True)
    def _ends_the_pool_of_the_leader(self, folder: Path) -> None:
        """The manager outlives the leader; its folder is that of the leader's logs."""


def test_a_tenant_has_its_jobs_block_its_nodes_processors_and_a_limit_on_its_memory(
    start: Start, folder: Path
) -> None:
    engine = start(
        "import os, resource; os.pwrite(100, b'mine', 1 << 20)\n"
        "print(sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_DATA)[0], flush=True)\n"
        "try: bytearray(8 << 30)\n"
        "except MemoryError: print('refused', flush=True)\n"
        "import time; time.sleep(600)"
    )
    assert eventually(
        lambda: engine.poll() == [] and "refused" in engine.log("w0").read_text(), within_s=60.0
    )

    load = load_of(folder)
    assert load is not None
    (node,), (tenant,) = load.nodes, load.tenants
    expected = f"{sorted(node.node.processors)} {load.tenant_memory_bytes}\nrefused\n"
    assert engine.log("w0").read_text() == expected
    assert (tenant.job_id, tenant.name, tenant.pid) == ("job-0", "w0", engine.pid("w0"))
    assert load.tenant_memory_bytes * node.node.tenants_max <= node.node.memory_bytes
    assert os.pread(engine._fd, 4, 1 << 20) == b"mine"
    block = os.stat(engine._fd)
    kept = [os.stat(f"/proc/{load.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{load.pid}/fd")]
    assert not any(os.path.samestat(block, one) for one in kept), "the block is freed when its job ends"


def test_when_the_manager_is_killed_its_tenants_end_and_run_again_under_another(
    start: Start, folder: Path
) -> None:
    one, other = start(SLEEP), start(SLEEP)
    before = [running(engine, "w0") for engine in (one, other)]
    load = load_of(folder)
    assert load is not None

    os.kill(load.pid, signal.SIGKILL)

    for engine, pid in zip((one, other), before, strict=True):
        (ended,) = exits(engine)
        assert "manager of the pool has ended" in ended.cause
        assert not alive(pid)
        engine.launch(boot("w0"))
    for engine in (one, other):
        assert alive(running(engine, "w0"))
    after = load_of(folder)
    assert after is not None
    assert len(after.tenants) == 2


def test_a_stopped_manager_is_continued(start: Start, folder: Path) -> None:
    engine = start(SLEEP)
    running(engine, "w0")
    manager = psutil.Process(wait_for_load(folder).pid)
    manager.suspend()
    engine.kill("w0")

    assert [ended.status for ended in exits(engine)] == [-9]


def test_a_job_killed_with_its_reaper_leaves_no_tenant(tmp_path: Path) -> None:
    deaf = "import sys, signal, time; sys.stdin.readline(); print('up', flush=True); time.sleep(600)"
    leader = subprocess.Popen(
        [sys.executable, "-c", _LEADER, str(tmp_path), deaf], stdout=subprocess.PIPE, text=True
    )
    try:
        assert eventually(lambda: (tmp_path / "w0.log").exists(), within_s=60.0)
        assert eventually(lambda: (tmp_path / "w0.log").read_text() == "up\n", within_s=60.0)
        load = load_of(tmp_path / "pool")
        assert load is not None
        (tenant,) = load.tenants
        leader.send_signal(signal.SIGSTOP)  # so that it starts no other reaper
        for child in psutil.Process(leader.pid).children():
            child.kill()
    finally:
        with leader:
            leader.kill()

    assert eventually(lambda: not alive(tenant.pid))

    assert eventually(lambda: wait_for_load(tmp_path / "pool").tenants == ())
    end_pool(tmp_path / "pool")


def test_a_pool_without_room_says_so(start: Start, folder: Path) -> None:
    engine = start(SLEEP)
    running(engine, "w0")
    free = wait_for_load(folder).free
    for index in range(free + 1):
        engine.launch(boot(f"more-{index}"))

    (ended,) = exits(engine)

    assert "no room" in ended.cause


def connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(60.0)
    connection.connect(str(folder / protocol.SOCKET))
    return connection


@pytest.mark.parametrize("packet", [b"no JSON", b"{}", b'{"type": "Ready", "threads": 1}', b"x" * 100_000])
def test_what_is_no_request_ends_the_connection_and_nothing_else(
    start: Start, folder: Path, packet: bytes
) -> None:
    engine = start(SLEEP)
    pid = running(engine, "w0")
    with connected(folder) as connection:
        connection.send(packet)
        assert connection.recv(100) == b""

    assert alive(pid)
    assert [tenant.pid for tenant in wait_for_load(folder).tenants] == [pid]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (protocol.PoolJoin(protocol.PROTOCOL + 1, "a", "b"), "another version"),
        (Reap(1), "did not join"),
    ],
)
def test_who_has_not_joined_gets_no_tenant(folder: Path, first: msgspec.Struct, reason: str) -> None:
    wait_for_load(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    with connected(folder) as connection:
        protocol.send_packet(connection, first)
        protocol.send_packet(connection, protocol.LaunchTenant(1, "w0", ("true",), {}), [nothing, nothing])
        reply = decode_reply(connection.recv(1000))
    os.close(nothing)

    assert isinstance(reply, Forked)
    assert reason in reply.error


def test_a_job_cannot_release_the_tenant_of_another(start: Start, folder: Path) -> None:
    pid = running(start(SLEEP), "w0")
    with connected(folder) as connection:
        protocol.send_packet(connection, protocol.PoolJoin(protocol.PROTOCOL, "a", "b"))
        protocol.send_packet(connection, Reap(pid))

    assert eventually(lambda: [tenant.pid for tenant in wait_for_load(folder).tenants] == [pid])
    assert alive(pid)


def test_a_second_manager_is_refused(folder: Path) -> None:
    load = wait_for_load(folder)
    second = [sys.executable, "-m", "scavenger.train.pool", str(folder), "60"]

    found = subprocess.run(second, capture_output=True, text=True, check=False)

    assert f"process {load.pid} serves the pool" in found.stderr
    assert wait_for_load(folder).pid == load.pid
