"""Engines one after the other that share a fork server: each is as one with its own, and the server is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import msgspec
import psutil
import pytest
from engine_conformance import SLEEP, EngineConformance, Start, boot, command, exits, running, said, text
from waiting import PATIENCE_S, eventually

from scavenger.train.engines.forking import FORK_TARGETS
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.warm import WarmServers
from scavenger.train.transport.messages.values import ProcessConfiguration

pytestmark = pytest.mark.slow

LEAVING = """
import atexit, sys, threading, time, weakref
class Held: pass
held = Held()
atexit.register(print, "registered")
weakref.finalize(held, print, "finalised")
threading.Thread(target=lambda: (time.sleep(0.2), print("its thread"))).start()
sys.stdout.write("unflushed ")
"""

LEADER = """
import os, sys, time
from pathlib import Path
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.warm import WarmServers
from scavenger.train.transport.messages.values import ProcessConfiguration
os.environ["FORKED_PROGRAM"] = sys.argv[2]
fd = os.memfd_create("block")
engine = ProcessEngine(Path(sys.argv[1]), fd, fork_targets={"worker": "forked_program:main"}, warm=WarmServers())
engine.launch(ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=fd))
while not engine.pid("w0"): engine.poll()
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def warm() -> Iterator[WarmServers]:
    servers = WarmServers()
    yield servers
    servers.close()


@pytest.fixture
def make(
    warm: WarmServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ProcessEngine]]:
    """Makes an engine whose processes run a program and inherit a block."""
    engines, blocks = [], []

    def made(
        program: str,
        *,
        block: bytes = b"block",
        env: Mapping[str, str] = MappingProxyType({}),
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> ProcessEngine:
        monkeypatch.setenv("FORKED_PROGRAM", command(program)[-1])
        blocks.append(os.memfd_create("block"))
        os.write(blocks[-1], block)
        folder = tmp_path / f"logs-{len(engines)}"
        engines.append(
            ProcessEngine(folder, blocks[-1], fork_targets={"worker": "forked_program:main"}, warm=warm)
        )
        engines[-1].launch(msgspec.structs.replace(boot("w0"), env=dict(env), secrets=dict(secrets)))
        return engines[-1]

    yield made
    for engine in engines:
        engine.close()
    for fd in blocks:
        os.close(fd)


def parent(engine: ProcessEngine) -> psutil.Process:
    found = psutil.Process(running(engine, "w0")).parent()
    assert found is not None
    return found


def test_engines_one_after_the_other_have_one_server_and_each_its_own_block(
    make: Callable[..., ProcessEngine], warm: WarmServers
) -> None:
    first = make(SLEEP)
    assert said(first) == "up"
    server = parent(first)
    first.kill("w0")
    exits(first)
    first.close()
    assert server.is_running()

    program = "import os; fd = {fd}; print(os.pread(fd, 9, 0).decode(), len(os.listdir('/proc/self/fd')))"
    second = make("pass", block=b"second")
    exits(second)
    os.environ["FORKED_PROGRAM"] = command(program.format(fd=second._fd))[-1]
    second.launch(boot("w1"))
    exits(second)
    assert text(second, "w1").split() == [
        "second",
        str(3 + 1 + 1),
    ]  # standard ones, the block, the folder listed
    assert not text(second)

    second.close()
    assert server.is_running()
    warm.close()
    assert eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, within_s=30)


def test_a_job_with_variables_of_its_own_has_a_server_that_was_begun_with_them(
    make: Callable[..., ProcessEngine],
) -> None:
    """Libraries read variables when the server imports them, and a job must not have those of the one before it."""
    shown = "import os; print(os.environ.get('DATA_VERSION')); import time; time.sleep(600)"
    servers = {}
    for version in ("1", "2", "1", ""):
        engine = make(shown, env={"DATA_VERSION": version} if version else {})
        assert said(engine) == (version or "None")
        assert parent(engine).environ().get("DATA_VERSION", "") == version
        assert servers.setdefault(version, parent(engine)) == parent(engine)
        engine.close()
    assert len(set(servers.values())) == 3


def test_what_has_begun_ahead_is_what_the_engine_forks_from(
    make: Callable[..., ProcessEngine], warm: WarmServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORK_TARGETS, "worker", "forked_program:main")  # type: ignore[attr-defined]
    monkeypatch.setenv("MY_KEY", "tell-nobody")
    before = {child.pid for child in psutil.Process().children()}
    warm.begin({"DATA_VERSION": "1"}, ["MY_KEY"])
    (begun,) = {child.pid for child in psutil.Process().children()} - before

    assert said(make(SLEEP, env={"DATA_VERSION": "2"})) == "up"
    engine = make(SLEEP, env={"DATA_VERSION": "1"})
    assert said(engine) == "up"
    assert parent(engine).pid == begun
    assert "MY_KEY" not in parent(engine).environ()


def test_what_has_begun_ahead_ends_with_its_program_before_it_has_imported_anything() -> None:
    begins = (
        "import os; from scavenger.train.engines.warm import WarmServers; warm = WarmServers();"
        "warm.begin({}, ()); os.write(1, str(warm._idle[0].process.pid).encode()); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", begins], stdout=subprocess.PIPE, check=False)
    assert eventually(lambda: not psutil.pid_exists(int(done.stdout)), within_s=PATIENCE_S)


def test_what_a_server_of_one_job_writes_is_in_the_job_s_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = {"worker": "no_module_of_tests:main"}
    monkeypatch.setitem(FORK_TARGETS, "worker", targets["worker"])  # type: ignore[attr-defined]
    with closing(WarmServers(lasting=False)) as warm:
        warm.begin({}, ())
        engine = ProcessEngine(tmp_path, -1, fork_targets=targets, warm=warm)
        engine.launch(boot("w0"))
        assert eventually(lambda: engine.poll() or engine.pid("w0"), within_s=PATIENCE_S)  # by the command
        engine.close()
    assert "no_module_of_tests" in (tmp_path / "fork-server.log").read_text()


def test_secrets_are_the_process_s_alone_and_never_written(
    make: Callable[..., ProcessEngine], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    program = (
        f"import os; open({str(seen)!r}, 'w').write(os.environ['MY_KEY']); print('key', os.environ['MY_KEY'])\n"
        "import time; time.sleep(600)"
    )
    engine = make(program, secrets={"MY_KEY": "tell-nobody"})
    assert said(engine) == "key"
    assert seen.read_text() == "tell-nobody"
    assert text(engine).split() == ["key", "***"]
    assert "MY_KEY" not in parent(engine).environ()
    server = parent(engine)
    engine.stand_by(1)  # of the next job, which must not have them
    engine.launch(boot("w1"))
    assert eventually(lambda: "MY_KEY" in text(engine, "w1"), within_s=30)  # a KeyError
    assert {one.pid for one in server.children()} <= {engine.pid("w0"), engine.pid("w1")}


def test_all_roles_are_forked_and_engines_at_once_have_servers_of_their_own(
    make: Callable[..., ProcessEngine],
) -> None:
    first, second = make(SLEEP), make(SLEEP)
    assert said(first) == said(second) == "up"
    assert parent(first) != parent(second)
    for role in ("aggregator", "coordinator"):
        first.launch(ProcessConfiguration(role, role, "", "", "", "", memory_fd=-1))
        assert said(first, role) == "up"
        assert psutil.Process(first.pid(role)).parent() == parent(first)


def test_a_forked_process_does_what_is_registered_for_its_end(make: Callable[..., ProcessEngine]) -> None:
    engine = make(LEAVING)
    (ended,) = exits(engine)
    assert ended.status == 0
    assert text(engine).split() == ["unflushed", "its", "thread", "finalised", "registered"]


def test_a_process_that_stands_by_is_taken_where_its_environment_is_asked_for_and_dismissed_elsewhere(
    make: Callable[..., ProcessEngine], warm: WarmServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    first = make(SLEEP)
    assert said(first) == "up"
    server = parent(first)
    first.stand_by(2)
    assert eventually(lambda: len(server.children()) == 3, within_s=30)
    waiting = {one.pid for one in server.children()} - {first.pid("w0")}
    first.launch(boot("w1"))
    assert said(first, "w1") == "up"
    assert first.pid("w1") in waiting
    (left,) = waiting - {first.pid("w1")}
    assert psutil.Process(left).is_running()

    monkeypatch.setenv("FORKED_PROGRAM", command("print('other')")[-1])
    first.launch(boot("w2"))
    exits(first)
    assert text(first, "w2").split() == ["other"]
    assert first.pid("w2") not in waiting  # another environment
    first.stand_by(1)  # as the last one began
    assert eventually(lambda: not psutil.pid_exists(left), within_s=30)
    (other,) = {one.pid for one in server.children()} - {first.pid("w0"), first.pid("w1")}
    psutil.Process(other).kill()  # as by the kernel, for want of memory: the next begins without
    assert eventually(lambda: not psutil.pid_exists(other), within_s=30)
    first.launch(boot("w3"))
    exits(first)
    assert text(first, "w3").split() == ["other"]
    warm.close()


def test_the_server_ends_with_its_program(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, str(tmp_path / "logs"), command(SLEEP)[-1]],
        stdout=subprocess.PIPE,
        text=True,
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == "up\n"
        below = psutil.Process(leader.pid).children(recursive=True)
        assert len(below) >= 3  # the reaper, the server, and the worker
        leader.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(below, timeout=60)[1] == []


@pytest.mark.long
class TestWarmProcesses(EngineConformance):
    ends_within_s = 5.0
    leader = LEADER

    @pytest.fixture
    def start(self, make: Callable[..., ProcessEngine]) -> Start:
        return make
