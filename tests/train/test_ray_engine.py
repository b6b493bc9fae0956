"""Processes on the hosts of a Ray cluster: here, several raylets on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from engine_conformance import (
    DAEMON,
    PATIENCE_S,
    SLEEP,
    EngineConformance,
    Start,
    boot,
    command,
    exits,
    running,
    said,
    text,
)
from processes import alive, ours
from waiting import eventually

from scavenger.errors import NotSupportedError
from scavenger.train.engines import reaper
from scavenger.train.engines.base import Engine
from scavenger.train.engines.logs import LOG_BYTES_MAX
from scavenger.train.engines.ray.engine import RayEngine

_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "for-the-tests-of-this-machine-only",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",  # a third of what it is otherwise: a lost host is told of sooner
    "PYTHONPATH": os.pathsep.join(sys.path),
}
_STORE_BYTES = 80 << 20
_LINGERING = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Ray's own, which end a minute after a leader that was killed together with its `local` cluster."""


def _launched() -> set[int]:
    """Ids of the processes that engines started, and of their reapers; Ray's own come and go."""
    found = set()
    for pid in ours():
        try:
            process = psutil.Process(pid)
            if reaper.VARIABLE in process.environ() or reaper.__file__ in process.cmdline():
                found.add(pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """In place of this folder's own, which would take Ray's for ours."""
    before = _launched()
    yield
    assert eventually(lambda: not _launched() - before, within_s=60.0), "a process was left behind"


def _of_ray(folder: str) -> list[psutil.Process]:
    """What writes to a folder; Ray's processes overwrite the environment that they could be told by."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(
                file.path.startswith(folder) for file in process.open_files()
            ):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[str]:
    """Where Ray puts its files; at the end, nothing but what Ray is known to leave for a minute writes there."""
    folder = tempfile.mkdtemp(prefix="scav-ray-")  # a socket's path may have 107 characters only
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**_ENVIRONMENT, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        pytest.importorskip("ray")  # which reads them
        yield folder
    assert eventually(lambda: not {process.name() for process in _of_ray(folder)} - _LINGERING, within_s=60.0)
    for process in _of_ray(folder):
        process.kill()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cluster(ray_folder: str) -> Iterator[Any]:
    """A head without room for processes and two hosts with room for eight each."""
    import ray
    from ray.cluster_utils import Cluster

    host = {"object_store_memory": _STORE_BYTES}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **host})
    for _ in range(2):
        made.add_node(num_cpus=8, **host)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Start]:
    engines: list[Engine] = []

    def started(program: str) -> Engine:
        engines.append(RayEngine(tmp_path / "logs", command=command(program)))
        engines[-1].launch(boot("w0"))
        return engines[-1]

    yield started
    for engine in engines:
        engine.kill_all()
        engine.close()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("ray_folder")
class TestConformance(EngineConformance):
    ends_within_s = 10.0
    leader = """
import sys
from pathlib import Path
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.engines.ray.engine import RayEngine
engine = RayEngine(Path(sys.argv[1]), address="local", command=(sys.executable, "-c", sys.argv[2]))
engine.launch(ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=-1))
while not engine.pid("w0"): engine.poll()
print("up", flush=True)
while True: engine.poll()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_folder")
class TestRayEngine:
    def test_a_process_that_cannot_be_started_at_its_host_is_told_of(
        self, cluster: Any, tmp_path: Path
    ) -> None:
        with contextlib.closing(RayEngine(tmp_path, command=("/no/such/program",))) as engine:
            engine.launch(boot("w0"))

            (ended,) = exits(engine)

        assert ended.cause.startswith("could not be run on its host: ")
        assert "/no/such/program" in ended.cause

    def test_a_process_that_no_host_has_room_for_is_told_of(self, cluster: Any, tmp_path: Path) -> None:
        now_s = 0.0
        with contextlib.closing(RayEngine(tmp_path, command=command(SLEEP), clock=lambda: now_s)) as engine:
            engine.launch(msgspec.structs.replace(boot("w0"), threads=1000))
            engine.launch(boot("w1"), host="192.0.2.77")
            assert engine.poll() == []
            assert (engine.pid("w0"), engine.host("w0")) == (0, "")
            now_s = 61.0

            ended = exits(engine, 2)

            assert {told.name for told in ended} == {"w0", "w1"}
            assert {told.cause for told in ended} == {"found no host with capacity for it"}
            assert engine.running == ()

    @pytest.mark.long
    def test_a_host_that_is_avoided_gets_no_more_processes_unless_there_is_no_other(
        self, cluster: Any, tmp_path: Path
    ) -> None:
        there = "127.0.0.2"
        node = cluster.add_node(num_cpus=8, node_ip_address=there, object_store_memory=_STORE_BYTES)
        try:
            with contextlib.closing(RayEngine(tmp_path, command=command(SLEEP))) as engine:
                here = engine.leader_host
                assert set(engine.hosts) == {here, there}
                engine.avoid([here])
                for name in ("w0", "w1", "w2"):
                    engine.launch(boot(name))
                    running(engine, name)
                assert {engine.host(name) for name in engine.running} == {there}
                engine.avoid([here, there])
                engine.launch(boot("w3"))
                assert running(engine, "w3")
                engine.kill_all()
                exits(engine, 4)
        finally:
            cluster.remove_node(node)

    def test_the_training_code_does_not_get_the_key_of_the_cluster(self, start: Start) -> None:
        engine = start("import os; print([name for name in os.environ if 'TOKEN' in name])")
        exits(engine)

        assert text(engine) == "[]\n"

    def test_a_process_that_nobody_asks_for_ends(self, cluster: Any, tmp_path: Path) -> None:
        with contextlib.closing(RayEngine(tmp_path, command=command(SLEEP), lease_s=3.0)) as engine:
            engine.launch(boot("w0"))
            said(engine)
            pid = engine.pid("w0")
            assert not eventually(lambda: bool(engine.poll()), within_s=4.0), "it is asked for"

            assert eventually(lambda: not alive(pid))

            assert [ended.cause for ended in exits(engine)] == [
                f"was lost: Ray cannot reach it any more on {engine.host('w0')}"
            ]

    def test_a_host_does_not_keep_what_the_leader_has_of_an_endless_log(self, start: Start) -> None:
        engine = start("for _ in range(20 << 10): print('x' * 1023)\nprint('done', flush=True)\n" + SLEEP)

        def done() -> bool:
            engine.poll()
            with engine.log("w0").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 20))
                return log.read().endswith(b"done\nup\n")

        assert eventually(done, within_s=PATIENCE_S)
        kept = Path(f"/proc/{engine.pid('w0')}/fd/1")
        assert eventually(lambda: not engine.poll() and kept.stat().st_size <= LOG_BYTES_MAX)

    def test_a_signal_handler_of_the_leader_stays(self, tmp_path: Path) -> None:
        program = (
            "import pathlib, signal, sys\n"
            "from scavenger.train.engines.ray.engine import RayEngine\n"
            "mine = lambda *_: None\n"
            "signal.signal(signal.SIGTERM, mine)\n"
            "engine = RayEngine(pathlib.Path(sys.argv[1]), address='local')\n"
            "print(signal.getsignal(signal.SIGTERM) is mine)\n"
            "engine.close()"
        )

        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        )

        assert done.stdout == "True\n", "standard output is the command's own"


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_a_passing_fault(ray_folder: str, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from scavenger.errors import TransientError\n"
        "from scavenger.train.engines.ray.engine import RayEngine\n"
        "try: RayEngine(pathlib.Path(sys.argv[1]), address='127.0.0.1:1')\n"
        "except TransientError as error: print(error)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("no Ray cluster answers at '127.0.0.1:1'")


def test_without_ray_the_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))

    with pytest.raises(NotSupportedError, match=r"pip install 'scavenger-ml\[ray\]'"):
        RayEngine(tmp_path)


def _raylet_above(pid: int) -> psutil.Process:
    """The raylet whose host a process runs at."""
    return next(process for process in psutil.Process(pid).parents() if process.name() == "raylet")


@pytest.mark.slow
def test_a_killed_raylet_ends_its_processes_and_is_told_of(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = start(f"{DAEMON}\nprint('up', flush=True); time.sleep(600)")
    engine.launch(boot("w1"))
    daemon = int(said(engine))
    said(engine, "w1")
    raylet, other = (_raylet_above(engine.pid(name)) for name in ("w0", "w1"))
    assert raylet != other, "Ray did not spread them"

    raylet.send_signal(signal.SIGKILL)

    assert eventually(lambda: not alive(engine.pid("w0")))
    assert eventually(lambda: not alive(daemon)), "what the code started outlived its host"
    (ended,) = exits(engine)
    assert (ended.name, ended.status) == ("w0", -signal.SIGKILL)
    assert ended.cause == f"was lost: Ray cannot reach it any more on {engine.host('w0')}"
    assert engine.running == ("w1",)
    assert alive(engine.pid("w1"))
    assert capfd.readouterr().out == ""


_NETWORK = f"198.18.{os.getpid() % 254}."  # of the range that is set aside for tests of networks
_REMOTE_LEADER = """
import sys
from pathlib import Path
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.engines.ray.engine import RayEngine
engine = RayEngine(Path(sys.argv[1]), address=sys.argv[2], command=(sys.executable, "-c", sys.argv[3]))
for name, host in (("w0", sys.argv[4]), ("w1", sys.argv[5])):
    engine.launch(ProcessConfiguration("worker", name, "", "", "", "", memory_fd=-1), host=host)
while not all(engine.log(name).read_text() for name in engine.running): engine.poll()
print(*(word for name in ("w0", "w1") for word in (engine.host(name), engine.pid(name))), flush=True)
while not (ended := engine.poll()): pass
print(ended[0].name, ended[0].status, engine.running, flush=True)
engine.close()
print("closed", flush=True)
"""


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.fixture
def bridge() -> Iterator[list[str]]:
    """Network namespaces of two hosts, each with an address of its own, on one bridge with this machine."""
    tag = f"scav{os.getpid() % 100_000}"
    spaces: list[str] = []
    try:
        _run("ip", "link", "add", tag, "type", "bridge")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"may not make networks here: {error}")
    try:
        _run("ip", "addr", "add", f"{_NETWORK}1/24", "dev", tag)
        _run("ip", "link", "set", tag, "up")
        for number in (2, 3):
            space = f"{tag}n{number}"
            _run("ip", "netns", "add", space)
            spaces.append(space)
            _run("ip", "link", "add", f"{space}v", "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", f"{space}v", "master", tag, "up")
            _run("ip", "-n", space, "addr", "add", f"{_NETWORK}{number}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", device, "up")
        yield spaces
    finally:
        for space in spaces:
            _run("ip", "netns", "del", space)
        _run("ip", "link", "del", tag)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make networks")
@pytest.mark.long
def test_a_host_with_an_address_of_its_own_runs_processes_and_is_told_of_when_it_is_lost(
    ray_folder: str, bridge: list[str], tmp_path: Path
) -> None:
    with socket.create_server((f"{_NETWORK}1", 0)) as server:
        address = f"{_NETWORK}1:{server.getsockname()[1]}"
    ray = (str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats")
    store = f"--object-store-memory={_STORE_BYTES}"
    head = ("--head", f"--port={address.partition(':')[2]}", "--num-cpus=0", "--include-dashboard=false")
    # a host's files are its own: Ray keeps its address in one
    apart = ("sh", "-c", f'mount -t tmpfs none {ray_folder} && exec "$@"', "sh")
    with contextlib.ExitStack() as stack:

        def started(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        started(*ray, *head, f"--node-ip-address={_NETWORK}1", store)
        assert eventually(lambda: _listens(address), within_s=30.0)
        hosts = [
            started(
                *("ip", "netns", "exec", space, *apart, *ray, "--num-cpus=2", store),
                *(f"--address={address}", f"--node-ip-address={_NETWORK}{number}"),
            )
            for number, space in enumerate(bridge, start=2)
        ]
        program = f"import sys; sys.stdin.readline()\n{SLEEP}"
        addresses = (f"{_NETWORK}2", f"{_NETWORK}3")
        leader = started(sys.executable, "-c", _REMOTE_LEADER, str(tmp_path), address, program, *addresses)
        assert leader.stdout is not None
        words = leader.stdout.readline().split()
        lost, kept = int(words[1]), int(words[3])
        assert (words[0], words[2]) == addresses
        (raylet,) = (p for p in psutil.Process(hosts[0].pid).children(recursive=True) if p.name() == "raylet")
        assert raylet in psutil.Process(lost).parents()

        raylet.kill()

        assert eventually(lambda: not alive(lost))
        assert leader.stdout.readline() == "w0 -9 ('w1',)\n"
        assert leader.stdout.readline() == "closed\n"
        assert not alive(kept)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False
