"""Processes are started, watched, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import alive, eventually

from scavenger.train import engine as engine_module
from scavenger.train.engine import Exit, ProcessEngine
from scavenger.train.memory import create_block
from scavenger.train.messages import Bootstrap

_SLEEP = "import time; time.sleep(600)"
_DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
_DAEMON = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
"""

Start = Callable[[str], ProcessEngine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """An engine with one process, `w0`, that runs the given program."""
    fd = create_block()
    engines: list[ProcessEngine] = []

    def started(program: str) -> ProcessEngine:
        command = (sys.executable, "-c", f"import sys; sys.stdin.readline()\n{program}")
        engine = ProcessEngine(tmp_path / "logs", fd, command=command)
        engines.append(engine)
        engine.launch(boot("w0"))
        return engine

    yield started
    for engine in engines:
        engine.kill_all()
        engine.close()
    os.close(fd)


def boot(name: str) -> Bootstrap:
    return Bootstrap("worker", name, "tcp://nowhere", "", "", "", memory_fd=0)


def exits(engine: ProcessEngine, count: int = 1) -> list[Exit]:
    found: list[Exit] = []

    def all_ended() -> bool:
        found.extend(engine.poll())
        return len(found) >= count

    assert eventually(all_ended)
    return found


def said(engine: ProcessEngine) -> str:
    """The first word of `w0`."""
    assert eventually(lambda: engine.log("w0").read_text().endswith("\n"))
    return engine.log("w0").read_text().split()[0]


@pytest.mark.parametrize(
    ("program", "status", "cause"),
    [
        ("", 0, "ended with status 0"),
        ("sys.exit(3)", 3, "ended with status 3"),
        ("import os; os.kill(os.getpid(), 9)", -9, "was killed by SIGKILL (out of memory?)"),
        ("import os; os.abort()", -6, "was killed by SIGABRT"),
    ],
)
def test_an_end_is_reported_once_with_its_cause(start: Start, program: str, status: int, cause: str) -> None:
    engine = start(program)

    (ended,) = exits(engine)

    assert (ended.name, ended.status, ended.cause) == ("w0", status, cause)
    assert engine.poll() == []
    assert engine.running == ()


def test_a_process_that_ignores_the_polite_signal_is_killed(start: Start) -> None:
    engine = start(_DEAF)
    assert said(engine) == "up"

    engine.stop(grace_s=0.1)

    assert engine.running == ()
    assert not alive(engine.pid("w0"))


def test_what_a_process_started_ends_with_it_even_in_a_session_of_its_own(start: Start) -> None:
    engine = start(_DAEMON)
    exits(engine)

    daemon = int(engine.log("w0").read_text())

    assert eventually(lambda: not alive(daemon))


def test_everything_can_be_killed_at_once(start: Start) -> None:
    engine = start(_SLEEP)
    engine.launch(boot("w1"))

    engine.kill_all()

    assert {(ended.name, ended.status) for ended in exits(engine, 2)} == {("w0", -9), ("w1", -9)}


def test_killing_one_leaves_the_others(start: Start) -> None:
    engine = start(_SLEEP)
    engine.launch(boot("w1"))

    engine.kill("w0")

    assert [ended.name for ended in exits(engine)] == ["w0"]
    assert engine.running == ("w1",)
    assert alive(engine.pid("w1"))


def test_closing_twice_is_closing_once(start: Start) -> None:
    engine = start(_SLEEP)
    engine.stop(grace_s=0.0)

    engine.close()
    engine.close()

    assert engine.running == ()


def test_an_endless_log_keeps_its_end_and_stays_small_while_it_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_LOG_BYTES_MAX", 10_000)
    engine = start("import itertools\nfor i in itertools.count(): print(i, flush=True)")
    log = engine.log("w0")
    assert eventually(lambda: log.stat().st_size > 50_000)
    newest = int(log.read_text().splitlines()[-2])

    engine.cap_logs()
    assert log.stat().st_size < 50_000
    assert eventually(lambda: log.stat().st_size > 50_000)
    engine.kill("w0")
    exits(engine)

    assert log.stat().st_size <= 10_000
    tail = [int(line) for line in log.read_text().splitlines()[1:-1]]
    assert tail[-1] > newest
    # what was written while the file was being shortened may be missing, but nothing is out of order
    assert tail == sorted(tail)


def test_the_largest_memory_seen_is_remembered(start: Start) -> None:
    engine = start("import time\nx = bytearray(64 << 20); print('up', flush=True); time.sleep(600)")
    assert said(engine) == "up"

    big = engine.sample_memory()["w0"]

    assert big > 64 << 20
    assert engine.sample_memory()["w0"] >= big
    engine.kill("w0")
    exits(engine)
    assert engine.sample_memory() == {}


_LEADER = """
import os, sys, time
from pathlib import Path
from scavenger.train.engine import ProcessEngine
from scavenger.train.messages import Bootstrap
fd = os.memfd_create("block")
engine = ProcessEngine(Path(sys.argv[1]), fd, command=(sys.executable, "-c", sys.argv[2]))
engine.launch(Bootstrap("worker", "w0", "", "", "", "", memory_fd=fd))
print(engine.pid("w0"), engine._reaper.pid, flush=True)
time.sleep(600)
"""


def test_a_leader_killed_on_the_spot_leaves_nothing_behind(tmp_path: Path) -> None:
    program = f"import sys; sys.stdin.readline()\n{_DAEMON}\n{_DEAF}"
    leader = subprocess.Popen(
        [sys.executable, "-c", _LEADER, str(tmp_path), program], stdout=subprocess.PIPE, text=True
    )
    assert leader.stdout is not None
    worker, reaper = (int(pid) for pid in leader.stdout.readline().split())
    log = tmp_path / "w0.log"
    assert eventually(lambda: log.read_text().endswith("up\n"))
    daemon = int(log.read_text().split()[0])
    assert alive(worker)
    assert alive(daemon)

    leader.send_signal(signal.SIGKILL)
    leader.wait()
    leader.stdout.close()

    assert eventually(lambda: not alive(worker))
    assert eventually(lambda: not alive(daemon))
    assert eventually(lambda: not alive(reaper))
