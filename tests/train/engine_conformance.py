"""What every engine promises (`scavenger.train.engines.base`), as tests that each implementation inherits.

Processes are small programs: `start(program)` makes an engine whose processes run it, and launches `w0`. Every
program has `boot`, the line of its bootstrap.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from processes import alive
from waiting import eventually

from scavenger.train.engines import logs
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.transport.messages.values import ProcessConfiguration

Start = Callable[[str], Engine]

PATIENCE_S = 60.0
"""Long enough for the slowest engine; what is promised sooner is asserted where it is promised."""

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
DAEMON = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
"""
_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
_POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("goodbye", flush=True), sys.exit(0)))
print("up", flush=True)
time.sleep(600)
"""


def command(program: str) -> Sequence[str]:
    """What runs a program of these tests."""
    return (sys.executable, "-c", f"import sys; boot = sys.stdin.readline()\n{program}")


def boot(name: str) -> ProcessConfiguration:
    return ProcessConfiguration("worker", name, "tcp://nowhere", "", "", "", memory_fd=-1)


def exits(engine: Engine, count: int = 1) -> list[Exit]:
    """The next ends that the engine tells of."""
    found: list[Exit] = []

    def all_ended() -> bool:
        found.extend(engine.poll())
        return len(found) >= count

    assert eventually(all_ended, within_s=PATIENCE_S)
    return found


def text(engine: Engine, name: str = "w0") -> str:
    """A log as it is now."""
    engine.poll()
    return engine.log(name).read_text()


def said(engine: Engine, name: str = "w0") -> str:
    """The first word of a process, once it has said something."""
    assert eventually(lambda: text(engine, name).endswith("\n"), within_s=PATIENCE_S)
    return engine.log(name).read_text().split()[0]


def running(engine: Engine, name: str) -> int:
    """The id of a process, once it is placed."""

    def placed() -> bool:
        engine.poll()
        return engine.pid(name) > 0

    assert eventually(placed, within_s=PATIENCE_S)
    return engine.pid(name)


class EngineConformance:
    """Inherit as `Test...`, with a fixture `start` and a program `leader`."""

    leader: str
    """A Python program that leads: it launches `w0` of the command `[python, -c, argv[2]]`, with logs at
    `argv[1]`, prints a line once it is up, and polls on for ever."""

    ends_within_s: float
    """How soon all ends after the leader."""

    @pytest.mark.parametrize(
        ("program", "status", "cause"),
        [
            ("", 0, "ended with status 0"),
            ("sys.exit(3)", 3, "ended with status 3"),
            ("import os; os.kill(os.getpid(), 9)", -9, "was killed by SIGKILL"),
            ("import os; os.abort()", -6, "was killed by SIGABRT"),
        ],
    )
    def test_an_end_is_reported_once_with_its_cause(
        self, start: Start, program: str, status: int, cause: str
    ) -> None:
        engine = start(program)

        (ended,) = exits(engine)

        assert (ended.name, ended.status, ended.cause) == ("w0", status, cause)
        assert engine.poll() == []
        assert engine.running == ()

    def test_a_process_knows_its_bootstrap_its_variables_and_writes_to_its_log(self, start: Start) -> None:
        engine = start(
            "import os; print(boot, *map(os.environ.get, ('GREETING', 'VERSION')), len(os.environ.get('MY_KEY', '')), "
            "file=sys.stderr)"
        )
        exits(engine)
        of_the_job = {"env": {"VERSION": "v2"}, "secrets": {"MY_KEY": "tell-nobody"}}
        engine.launch(msgspec.structs.replace(boot("w1"), **of_the_job), env={"GREETING": "hello"})
        exits(engine)

        assert '"name":"w0"' in text(engine)
        assert "None None 0" in text(engine)
        assert '"name":"w1"' in text(engine, "w1")
        assert "hello v2 11" in text(engine, "w1")
        assert '"MY_KEY":"***"' in text(engine, "w1")
        assert "tell-nobody" not in text(engine, "w1")

    def test_a_process_is_somewhere(self, start: Start) -> None:
        engine = start(SLEEP)

        assert alive(running(engine, "w0"))
        assert engine.host("w0")
        assert engine.running == ("w0",)

    def test_who_ignores_the_polite_signal_is_killed(self, start: Start) -> None:
        engine = start(DEAF)
        assert said(engine) == "up"

        engine.stop(grace_s=0.1)

        assert engine.running == ()
        assert eventually(lambda: not alive(engine.pid("w0"))), (
            "where it is another's child, that one reaps it"
        )

    def test_who_heeds_the_polite_signal_has_its_last_words_kept(self, start: Start) -> None:
        engine = start(_POLITE)
        assert said(engine) == "up"

        engine.stop(grace_s=1.0)

        assert text(engine) == "up\ngoodbye\n"

    def test_an_end_that_was_asked_for_is_no_news(self, start: Start) -> None:
        engine = start(SLEEP)
        engine.launch(boot("w1"))
        said(engine)
        said(engine, "w1")

        engine.stop(["w0"], grace_s=0.1)
        engine.stop(["w0"], grace_s=0.1)

        assert engine.running == ("w1",)
        assert alive(engine.pid("w1"))
        assert engine.poll() == []

    def test_one_that_is_still_being_started_can_be_stopped(self, start: Start) -> None:
        engine = start(SLEEP)

        engine.stop(grace_s=0.1)

        assert engine.running == ()
        assert engine.poll() == []

    def test_what_a_process_started_ends_with_it_even_in_a_session_of_its_own(self, start: Start) -> None:
        engine = start(DAEMON)
        exits(engine)

        daemon = int(said(engine))

        assert eventually(lambda: not alive(daemon))

    def test_killing_a_process_kills_its_children(self, start: Start) -> None:
        engine = start(_CHILD)
        child = int(said(engine))
        assert alive(child)

        engine.kill("w0")
        engine.kill("w0")

        assert [ended.status for ended in exits(engine)] == [-9]
        assert eventually(lambda: not alive(child))
        engine.kill("w0")
        assert engine.poll() == []

    def test_killing_one_leaves_the_others(self, start: Start) -> None:
        engine = start(SLEEP)
        engine.launch(boot("w1"))
        said(engine)
        said(engine, "w1")

        engine.kill("w0")

        assert [ended.name for ended in exits(engine)] == ["w0"]
        assert engine.running == ("w1",)
        assert alive(engine.pid("w1"))

    def test_everything_can_be_killed_at_once_and_early(self, start: Start) -> None:
        engine = start(SLEEP)
        said(engine)
        engine.launch(boot("w1"))

        engine.kill_all()

        assert {(ended.name, ended.status) for ended in exits(engine, 2)} == {("w0", -9), ("w1", -9)}

    def test_a_suspended_process_is_seen_and_can_be_ended(self, start: Start) -> None:
        engine = start(SLEEP)
        said(engine)
        pid = engine.pid("w0")
        assert not engine.suspended("w0")

        def suspended() -> bool:
            assert engine.poll() == []
            return engine.suspended("w0")

        os.kill(pid, signal.SIGSTOP)
        assert eventually(suspended)
        os.kill(pid, signal.SIGCONT)
        assert eventually(lambda: not suspended())
        os.kill(pid, signal.SIGSTOP)
        assert eventually(suspended)
        engine.stop(grace_s=0.1)

        assert not alive(pid)
        assert not engine.suspended("w0")

    @pytest.mark.parametrize(
        ("program", "works"),
        [
            ("print('up', flush=True)\nwhile True: pass", True),
            ("import threading; print('up', flush=True); threading.Event().wait()", False),
        ],
        ids=["computes", "waits"],
    )
    def test_a_process_that_computes_is_told_from_one_that_waits(
        self, start: Start, program: str, works: bool
    ) -> None:
        engine = start(program)
        said(engine)
        idle = []

        def looked() -> bool:
            engine.poll()
            idle.append(engine.idle_s("w0"))
            time.sleep(0.2)
            return len(idle) >= 10

        eventually(looked, within_s=PATIENCE_S)

        assert (idle[-1] < 1.0) is works

    def test_a_process_does_not_work_once_it_is_stopped_or_has_ended(self, start: Start) -> None:
        engine = start("print('up', flush=True)\nwhile True: pass")
        said(engine)

        def works() -> bool:
            assert engine.poll() == []
            time.sleep(0.1)
            return engine.idle_s("w0") < 0.9

        assert eventually(works)
        os.kill(engine.pid("w0"), signal.SIGSTOP)
        assert eventually(lambda: not works(), within_s=2.5)
        os.kill(engine.pid("w0"), signal.SIGCONT)
        assert eventually(works)
        engine.kill("w0")
        exits(engine)

        assert engine.idle_s("w0") == math.inf

    def test_a_stack_is_shown_in_the_log(self, start: Start) -> None:
        engine = start(
            "import faulthandler, signal\n"
            "faulthandler.register(signal.SIGUSR1)\n"
            "def here_it_hangs():\n"
            "    import time; print('up', flush=True); time.sleep(600)\n"
            "here_it_hangs()"
        )
        said(engine)

        engine.show_stack("w0")

        assert eventually(lambda: "in here_it_hangs" in text(engine))

    def test_the_largest_memory_seen_is_remembered(self, start: Start) -> None:
        engine = start("import time\nx = bytearray(64 << 20); print('up', flush=True); time.sleep(600)")
        said(engine)

        def big() -> int:
            engine.poll()
            return engine.sample_memory().get("w0", 0)

        assert eventually(lambda: big() > 64 << 20)
        assert big() < 1 << 30
        engine.kill("w0")
        exits(engine)
        assert engine.sample_memory() == {}

    def test_an_endless_log_keeps_its_end_and_stays_small_while_it_is_written(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "LOG_BYTES_MAX", 10_000)
        engine = start("import itertools\nfor i in itertools.count(): print(i, flush=True)")

        def grown() -> bool:
            engine.poll()
            return engine.log("w0").stat().st_size > 50_000

        assert eventually(grown, within_s=PATIENCE_S)
        newest = int(engine.log("w0").read_text().splitlines()[-2])
        engine.cap_logs()
        assert engine.log("w0").stat().st_size < 50_000
        assert eventually(grown)
        engine.kill("w0")
        exits(engine)

        assert engine.log("w0").stat().st_size <= 10_000
        tail = [int(line) for line in engine.log("w0").read_text().splitlines()[1:-1]]
        assert tail[-1] > newest
        # what was written while the file was being shortened may be missing, but nothing is out of order
        assert tail == sorted(tail)

    def test_two_processes_with_one_name_are_refused_until_the_first_has_ended(self, start: Start) -> None:
        engine = start("print('again')")

        with pytest.raises(ValueError, match="runs already"):
            engine.launch(boot("w0"))
        exits(engine)
        engine.launch(boot("w0"))
        exits(engine)

        assert text(engine) == "again\nagain\n"

    def test_an_unknown_name_is_refused_everywhere(self, start: Start) -> None:
        engine = start(SLEEP)
        calls = (
            *(engine.pid, engine.host, engine.log, engine.suspended, engine.idle_s),
            *(engine.kill, engine.show_stack),
        )

        for call in calls:
            with pytest.raises(KeyError):
                call("w9")
        with pytest.raises(KeyError):
            engine.stop(["w9"])

    def test_a_closed_engine_has_ended_everything_and_starts_nothing(self, start: Start) -> None:
        engine = start(SLEEP)
        engine.launch(boot("w1"))
        said(engine)
        said(engine, "w1")

        engine.close()
        engine.close()

        assert engine.running == ()
        assert not alive(engine.pid("w0"))
        assert not alive(engine.pid("w1"))
        assert engine.poll() == []
        assert engine.log("w0").read_text() == "up\n"
        with pytest.raises(RuntimeError, match="closed"):
            engine.launch(boot("w2"))

    def test_a_leader_killed_on_the_spot_leaves_nothing_behind(self, tmp_path: Path) -> None:
        program = f"import sys; sys.stdin.readline()\n{DAEMON}\nimport os; print(os.getpid())\n{DEAF}"
        leader = subprocess.Popen(
            [sys.executable, "-c", self.leader, str(tmp_path), program], stdout=subprocess.PIPE, text=True
        )
        assert leader.stdout is not None
        with leader:
            assert leader.stdout.readline() == "up\n"
            log = tmp_path / "w0.log"
            assert eventually(lambda: log.read_text().endswith("up\n"), within_s=PATIENCE_S)
            daemon, process = (int(word) for word in log.read_text().split()[:2])
            assert alive(process)
            assert alive(daemon)

            leader.send_signal(signal.SIGKILL)

        assert eventually(lambda: not alive(process), within_s=self.ends_within_s)
        assert eventually(lambda: not alive(daemon), within_s=self.ends_within_s)
