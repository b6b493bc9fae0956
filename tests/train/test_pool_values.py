"""What the pool decides and measures, as values: nodes, placement, use, and the way to share processors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_for

from scavenger.errors import ConfigurationError
from scavenger.train.pool import connection as connection_module
from scavenger.train.pool import protocol
from scavenger.train.pool.connection import PoolConnection
from scavenger.train.pool.placement import Node, NodeUse, choose_node, machine_nodes
from scavenger.train.pool.serving import PoolSize, pool_nodes
from scavenger.train.pool.shares import TenantGroup, find_shares, move_to
from scavenger.train.pool.use import TenantUse

GIB = 1 << 30


def use(name: str, load_cpus: float, tenants: int, *, cpus: int = 1, tenants_max: int = 4) -> NodeUse:
    return NodeUse(Node(name, tuple(range(cpus)), GIB, tenants_max), load_cpus, tenants)


@pytest.mark.parametrize(
    ("uses", "chosen"),
    [
        ([use("a", 0.5, 1), use("b", 0.2, 3)], "b"),
        ([use("a", 0.5, 1), use("b", 0.2, 4)], "a"),  # b is full
        ([use("a", 0.02, 2), use("b", 0.04, 1)], "b"),  # as idle as each other: the emptier one
        ([use("a", 0.6, 1, cpus=4), use("b", 0.5, 1)], "a"),  # of its own processors
        ([use("a", 0.0, 4)], None),
        ([], None),
    ],
)
def test_a_tenant_goes_to_the_least_loaded_node_that_takes_one(
    uses: list[NodeUse], chosen: str | None
) -> None:
    node = choose_node(uses)

    assert (None if node is None else node.name) == chosen


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 64))
def test_nodes_share_processors_only_if_there_are_too_few(count: int, nodes: int, cpus: int) -> None:
    if cpus > count:
        with pytest.raises(ValueError, match="processors"):
            machine_nodes(range(count), GIB, nodes=nodes, cpus=cpus, tenants_max=8)
        return
    made = machine_nodes(range(count), GIB, nodes=nodes, cpus=cpus, tenants_max=8)
    used = [processor for node in made for processor in node.processors]

    assert all(node.cpus == len(set(node.processors)) == cpus for node in made)
    assert len(set(used)) == min(count, nodes * cpus)
    assert max(used.count(processor) for processor in used) <= -(-nodes * cpus // count)


def test_a_pool_takes_half_of_this_machine_and_no_more_than_all_of_it() -> None:
    (node,) = pool_nodes(PoolSize())
    two = pool_nodes(PoolSize(nodes=2))

    assert node.cpus == max(1, len(os.sched_getaffinity(0)) // 2)
    assert sum(each.memory_bytes for each in two) <= node.memory_bytes
    with pytest.raises(ConfigurationError, match="more than this machine"):
        pool_nodes(PoolSize(nodes=2, memory_bytes=1 << 60))
    with pytest.raises(ConfigurationError, match="processors"):
        pool_nodes(PoolSize(cpus=10_000))


def test_the_load_is_that_of_the_last_seconds() -> None:
    found = TenantUse()
    found.note(100.0, 7, 0.0)
    assert found.load_cpus == 0.0  # what it used before is not what it uses now
    for second in range(1, 31):
        found.note(100.0 + min(second, 15), 7, float(second))

    assert found.load_cpus == pytest.approx(0.0, abs=1e-9)  # it has been idle for 15 s
    for second in range(31, 36):
        found.note(115.0 + 0.5 * (second - 30), 7, float(second))
    assert found.load_cpus == pytest.approx(0.25)


def test_the_use_of_a_process_is_measured() -> None:
    found, before = TenantUse(), time.process_time()
    found.sample(os.getpid(), 0.0)
    while time.process_time() < before + 0.2:
        pass
    found.sample(os.getpid(), 0.4)
    found.sample(2**22 + 1, 0.5)  # a process that does not exist adds nothing

    assert found.load_cpus == pytest.approx(0.5, abs=0.15)
    assert 1 << 20 < found.memory_bytes < 1 << 40


@pytest.mark.parametrize(
    ("membership", "autogroup", "way"),
    [
        ("1:cpu:/\n0::/\n", "1", "session"),
        ("1:cpu:/\n0::/\n", "0", "thread"),
        (
            "0::/user.slice/session-1.scope\n",
            "1",
            "thread",
        ),  # the kernel's autogroups are for the root group alone
        ("0::/\n", "1", "session"),
        ("1:cpu,cpuacct:/slice\n0::/\n", "1", "thread"),
    ],
)
def test_without_cgroups_sessions_share_if_the_kernel_counts_them(
    tmp_path: Path, membership: str, autogroup: str, way: str
) -> None:
    (tmp_path / "membership").write_text(membership)
    (tmp_path / "autogroup").write_text(autogroup)

    found = find_shares(tmp_path / "membership", tmp_path / "no cgroups", tmp_path / "autogroup")

    assert (found.way, found.parent) == (way, None)
    assert found.group("a").path is None


def test_a_folder_that_only_looks_like_a_cgroup_is_none(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("0::/\n")
    (tmp_path / "autogroup").write_text("0")

    assert find_shares(tmp_path / "membership", tmp_path, tmp_path / "autogroup").way == "thread"
    assert not list(tmp_path.glob("scavenger*"))


def test_where_cgroups_can_be_made_a_process_enters_its_own_and_only_a_living_maker_keeps_it() -> None:
    shares = find_shares()
    if shares.parent is None:
        pytest.skip("this user may make no cgroup that shares processors here")
    group = shares.group("test")
    assert group.path is not None
    program = "import sys; print(open('/proc/self/cgroup').read())"
    try:
        found = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=lambda: group.enter(os.sched_getaffinity(0), 1 << 40),
        )
        assert group.path.name in found.stdout
        shares.sweep()
        assert group.path.exists()
    finally:
        group.remove()

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = group.path.with_name(group.path.name.replace(str(os.getpid()), str(ended.pid)))
    left.mkdir()
    shares.sweep()
    assert not left.exists()


def test_a_tenants_limits_are_set_before_it_begins() -> None:
    processors = {max(os.sched_getaffinity(0))}
    program = (
        "import os, resource; print(os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_DATA)[1])"
    )

    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: TenantGroup(None).enter(processors, 1 << 33),
    )

    assert found.stdout == f"{processors} {1 << 33}\n"


def test_a_process_moves_with_its_threads_and_children() -> None:
    processors = sorted(os.sched_getaffinity(0))
    program = (
        "import subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            for wanted in ({processors[-1]}, {processors[0]}):
                move_to(process.pid, wanted)
                threads = [
                    int(name) for pid in (process.pid, child) for name in os.listdir(f"/proc/{pid}/task")
                ]
                assert len(threads) >= 3
                assert all(os.sched_getaffinity(thread) == wanted for thread in threads)
        finally:
            for pid in (child, process.pid):
                os.kill(pid, signal.SIGKILL)
    move_to(process.pid, processors)  # one that has ended


def test_the_time_that_a_process_waits_for_a_processor_is_measured() -> None:
    processors = sorted(os.sched_getaffinity(0))[-1:]
    program = "import os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", program, str(processors[0])]) for _ in range(2)]
    found = TenantUse()

    def waited() -> bool:
        found.sample(busy[0].pid, time.monotonic())
        return found.waited_s >= 0.1

    try:
        wait_for(waited)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_the_pool_of_a_user_has_one_place_unless_a_variable_names_another() -> None:
    assert protocol.pool_folder({}) == protocol.pool_folder({"XDG_RUNTIME_DIR": "/elsewhere"})
    assert protocol.pool_folder({"SCAVENGER_POOL": "/tmp/mine"}) == Path("/tmp/mine")


def test_a_folder_that_others_may_enter_is_no_place_for_a_pool(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)

    with pytest.raises(ConfigurationError, match="not a folder of this user alone"):
        protocol.private_folder(tmp_path / "open")
    with pytest.raises(ConfigurationError, match="No such file"):
        protocol.private_folder(tmp_path / "missing" / "pool")
    made = protocol.private_folder(tmp_path / "pool")
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def unserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PoolConnection, list[float]]]:
    """A connection where no manager begins to serve, and what its clock shows."""
    now = [0.0]
    monkeypatch.setattr(connection_module, "start_manager", lambda _: None)
    made = PoolConnection(tmp_path, protocol.PoolJoin(protocol.PROTOCOL, "id", "name"), clock=lambda: now[0])
    yield made, now
    made.close()


def test_a_tenant_for_which_no_manager_serves_fails_after_a_while(
    unserved: tuple[PoolConnection, list[float]],
) -> None:
    connection, now = unserved
    process = connection.launch("w0", ("true",), {}, 1, -1)
    now[0] = 29.0
    assert process.poll() is None
    now[0] = 31.0

    assert process.poll() == -9
    assert "no manager begins to serve" in process.error
    process.stdin.close()


def test_what_is_killed_before_a_manager_serves_has_ended(
    unserved: tuple[PoolConnection, list[float]],
) -> None:
    connection, _ = unserved
    process = connection.launch("w0", ("true",), {}, 1, -1)

    process.kill()

    assert process.poll() == -9
    process.stdin.close()
