"""Processes of this machine are started, watched, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_conformance import (
    DAEMON,
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
from processes import alive
from waiting import eventually
from warm_servers import warm_address, warm_pid

from scavenger.train.engines import process as engine_module
from scavenger.train.engines import reaper
from scavenger.train.engines.base import Exit
from scavenger.train.engines.fork_server import _FORKABLE
from scavenger.train.engines.forking import kill_group
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.transport.block_file import create_block

pytestmark = pytest.mark.slow

_FEW = 256
"""Open files that a shell may allow a process, by `ulimit -n`."""


class TestProcessEngine(EngineConformance):
    ends_within_s = 5.0
    leader = """
import os, sys, time
from pathlib import Path
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.base import Exit
from scavenger.train.transport.messages.values import ProcessConfiguration
fd = os.memfd_create("block")
engine = ProcessEngine(Path(sys.argv[1]), fd, command=(sys.executable, "-c", sys.argv[2]))
engine.launch(ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=fd))
print("up", flush=True)
time.sleep(600)
"""

    @pytest.fixture
    def start(self, tmp_path: Path) -> Iterator[Start]:
        fd = create_block()
        engines: list[ProcessEngine] = []

        def started(program: str) -> ProcessEngine:
            engines.append(ProcessEngine(tmp_path / "logs", fd, command=command(program)))
            engines[-1].launch(boot("w0"))
            return engines[-1]

        yield started
        for engine in engines:
            engine.kill_all()
            engine.close()
        os.close(fd)

    def test_a_process_keeps_to_its_threads_from_the_first_import_on(self, start: Start) -> None:
        engine = start(
            "import numpy, os, threadpoolctl; print([pool['num_threads'] for pool in threadpoolctl.threadpool_info()],"
            " os.environ['TF_NUM_INTRAOP_THREADS'])"
        )

        exits(engine, 1)

        pools, threads = engine.log("w0").read_text().rsplit(maxsplit=1)
        assert set(json.loads(pools)) == {boot("w0").threads} == {int(threads)} == {1}

    def test_another_host_is_refused(self, start: Start) -> None:
        engine = start(SLEEP)

        with pytest.raises(ValueError, match="this machine only"):
            engine.launch(boot("w1"), host="10.0.0.2")
        engine.launch(boot("w1"), host=engine.host("w0"))

        assert engine.running == ("w0", "w1")

    def test_a_program_that_does_not_exist_is_an_error_and_no_process(self, tmp_path: Path) -> None:
        with contextlib.closing(ProcessEngine(tmp_path, -1, command=("/no/such/program",))) as engine:
            with pytest.raises(FileNotFoundError):
                engine.launch(boot("w0"))

            assert engine.running == ()


class TestForkedProcesses(EngineConformance):
    ends_within_s = 5.0
    leader = """
import os, sys, time
from pathlib import Path
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.transport.messages.values import ProcessConfiguration
os.environ["FORKED_PROGRAM"] = sys.argv[2]
fd = os.memfd_create("block")
engine = ProcessEngine(Path(sys.argv[1]), fd, fork_targets={"worker": "forked_program:main"})
engine.launch(ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=fd))
while not engine.pid("w0"): engine.poll()
print("up", flush=True)
time.sleep(600)
"""

    @pytest.fixture
    def start(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
        fd = create_block()
        engines: list[ProcessEngine] = []

        def started(program: str) -> ProcessEngine:
            monkeypatch.setenv("FORKED_PROGRAM", command(program)[-1])
            engines.append(
                ProcessEngine(tmp_path / "logs", fd, fork_targets={"worker": "forked_program:main"})
            )
            engines[-1].launch(boot("w0"))
            return engines[-1]

        yield started
        for engine in engines:
            engine.kill_all()
            engine.close()
        os.close(fd)

    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def test_few_descriptors_are_enough_to_take_those_that_it_is_given(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server limits itself, so that it does not matter how many this process has open by now."""
        monkeypatch.setenv("FORKED_DESCRIPTORS", str(_FEW))
        engine = start("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
        exits(engine, 1)

        assert engine.log("w0").read_text() == f"{_FEW}\n"

    def test_it_is_as_one_that_was_started(self, start: Start) -> None:
        engine = start(
            "import os\n"
            "shown = dict(v.split('=', 1) for v in open('/proc/self/environ').read().split(chr(0)) if '=' in v)\n"
            "print(os.getpid() == os.getpgrp() == os.getsid(0), len(os.listdir('/proc/self/fd')),"
            " shown['SCAVENGER_PROCESS'] == os.environ['SCAVENGER_PROCESS'], os.environ['SCAVENGER_PROCESS'][-3:],"
            " os.environ['OMP_NUM_THREADS'], open('/proc/self/comm').read())"
        )

        exits(engine)

        leads, descriptors, same, mark, threads, comm = text(engine).split()
        assert (leads, same, mark, threads, comm) == ("True", "True", ".w0", "1", "w0")
        assert (
            int(descriptors) == 3 + 1 + 1
        )  # the standard ones, the job's memory, and the folder that is listed

    def test_a_killed_server_ends_no_process_and_the_next_worker_has_another(self, start: Start) -> None:
        engine = start(SLEEP)
        assert said(engine) == "up"
        first = psutil.Process(running(engine, "w0")).parent()

        first.kill()
        engine.launch(boot("w1"))
        assert said(engine, "w1") == "up"

        assert psutil.Process(running(engine, "w1")).parent() not in (None, first)
        engine.kill("w0")
        assert [(ended.name, ended.status) for ended in exits(engine)] == [("w0", -9)]
        assert engine.running == ("w1",)

    def test_what_is_killed_as_it_is_forked_ends(self, start: Start) -> None:
        """The server is warm, so it forks in a moment: a process that has no group yet is killed, too."""
        engine = start(SLEEP)
        assert said(engine) == "up"
        for number in range(30):
            engine.launch(boot(f"x{number}"))
            engine.kill(f"x{number}")

            assert [(ended.name, ended.status) for ended in exits(engine)] == [(f"x{number}", -9)]

    def test_what_was_killed_before_it_was_forked_never_begins(self, start: Start) -> None:
        engine = start(SLEEP)
        assert said(engine) == "up"
        server = psutil.Process(running(engine, "w0")).parent()
        server.suspend()
        engine.launch(boot("w1"))
        engine.launch(boot("w2"))
        engine.kill("w1")
        server.kill()

        assert [(ended.name, ended.status) for ended in exits(engine)] == [("w1", -9)]
        assert said(engine, "w2") == "up"
        assert text(engine, "w1") == ""

    def test_an_engine_that_has_ended_all_leaves_nothing_that_its_reaper_looks_for(
        self, start: Start
    ) -> None:
        """It looks for a second, since what only begins has no marker yet; a job would end by so much later."""
        engine = start("import os; os.system('sleep 600 &')")
        exits(engine)
        engine.launch(boot("w1"))
        engine.close()

        assert not engine._reaper._groups

    def test_a_stopped_server_is_continued(self, start: Start) -> None:
        engine = start(SLEEP)
        assert said(engine) == "up"
        psutil.Process(running(engine, "w0")).parent().suspend()

        engine.launch(boot("w1"))

        assert said(engine, "w1") == "up"

    @pytest.mark.parametrize("fault", ["no_such_module", "forked_thread"])
    def test_a_server_that_cannot_fork_has_workers_started_one_by_one(
        self, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_module, "_COMMAND", command(SLEEP))
        with contextlib.closing(
            ProcessEngine(tmp_path, -1, fork_targets={"worker": f"{fault}:main"})
        ) as engine:
            engine.launch(boot("w0"))
            assert said(engine) == "up"
            assert psutil.Process(running(engine, "w0")).parent() == psutil.Process()
            engine.launch(boot("w1"))
            assert engine.pid("w1")


@pytest.mark.slow
@pytest.mark.parametrize("group", [0, -1])
def test_no_group_is_killed_that_is_the_callers_own_or_everybodys(group: int) -> None:
    with pytest.raises(ValueError, match=f"the number {group}"):
        kill_group(group)


def test_what_workers_import_leaves_them_forkable_and_no_device_initialised() -> None:
    """The warm process of these tests has imported it all; TensorFlow's devices would have threads of their own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(warm_address())
        asking.shutdown(socket.SHUT_WR)
        assert asking.recv(1) == b"", "it asks for nothing, and hears of it once all is imported"

    threads = [(task / "comm").read_text().strip() for task in Path(f"/proc/{warm_pid()}/task").iterdir()]
    assert len([name for name in threads if name not in _FORKABLE]) == 1


def test_logs_may_live_and_end_with_the_engine() -> None:
    with contextlib.closing(ProcessEngine(None, -1, command=command("print('hello')"))) as engine:
        engine.launch(boot("w0"))
        exits(engine)
        assert engine.log("w0").read_text() == "hello\n"

    assert not engine.log("w0").exists()


def test_a_killed_reaper_does_not_stop_the_engine_from_ending_everything(tmp_path: Path) -> None:
    with contextlib.closing(ProcessEngine(tmp_path, -1, command=command(DAEMON))) as engine:
        (reaping,) = _reapers(psutil.Process())
        reaping.kill()
        engine.launch(boot("w0"))
        exits(engine)

        assert eventually(lambda: not alive(int(engine.log("w0").read_text())))


def _reapers(process: psutil.Process) -> list[psutil.Process]:
    """The reapers that a process has; one that has just begun shows no command for a moment."""
    found: list[psutil.Process] = []

    def any_found() -> bool:
        for child in process.children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if reaper.__file__ in child.cmdline():
                    found.append(child)
        return bool(found)

    eventually(any_found)
    return found


_STUBBORN = """
import sys, time
sys.stdin.readline()
print("up", flush=True)
while True:
    time.sleep(1)
"""


def test_a_reaper_that_was_stopped_is_continued(tmp_path: Path) -> None:
    with contextlib.closing(ProcessEngine(tmp_path, -1, command=command(SLEEP))) as engine:
        (reaping,) = _reapers(psutil.Process())
        reaping.suspend()
        assert eventually(lambda: bool(reaping.status() == psutil.STATUS_STOPPED))

        def continued() -> bool:
            engine.poll()
            return bool(reaping.status() != psutil.STATUS_STOPPED)

        assert eventually(continued)


def test_a_reaper_that_dies_is_replaced_and_the_new_one_knows_of_all_that_run(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", _LEADER_THAT_POLLS, tmp_path, _STUBBORN], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    worker = int(started.stdout.readline())
    leader = psutil.Process(started.pid)
    (first,) = _reapers(leader)
    first.kill()
    assert eventually(lambda: any(one.pid != first.pid for one in _reapers(leader)))
    assert alive(worker)

    started.kill()
    started.wait()

    assert eventually(lambda: not alive(worker))


_LEADER_THAT_POLLS = """
import os, sys, time
from pathlib import Path
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.transport.messages.values import ProcessConfiguration
engine = ProcessEngine(Path(sys.argv[1]), -1, command=(sys.executable, "-c", sys.argv[2]))
print(engine.launch(ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=-1)), flush=True)
while True:
    engine.poll()
    time.sleep(0.02)
"""


def test_what_a_killed_leader_and_its_killed_reaper_left_is_swept_by_the_next_start_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    leaders = [
        subprocess.Popen(
            [sys.executable, "-c", _LEADER_THAT_POLLS, tmp_path, _STUBBORN],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    dead, living = leaders
    workers = [int(one.stdout.readline()) for one in leaders if one.stdout is not None]
    os.kill(workers[0], signal.SIGSTOP)  # it cannot end by itself
    os.kill(dead.pid, signal.SIGSTOP)  # nor start another reaper
    (reaping,) = _reapers(psutil.Process(dead.pid))
    reaping.kill()
    dead.kill()
    dead.wait()
    assert eventually(lambda: not alive(reaping.pid))
    (tmp_path / "tmp" / "scavenger-foreign").mkdir()
    assert len(list((tmp_path / "tmp").iterdir())) == 3

    with contextlib.closing(ProcessEngine(tmp_path, -1, command=command(SLEEP))):
        left = {path.name for path in (tmp_path / "tmp").iterdir()}
        assert len(left) == 3  # of the one that lives, of this one, and what is none of an engine's
        assert "scavenger-foreign" in left
        assert eventually(lambda: not alive(workers[0]))
        assert alive(workers[1])

    living.kill()
    living.wait()
    assert eventually(lambda: not alive(workers[1]))


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (0, "ended with status 0"),
        (-9, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),
        (-(2**40), f"was killed by signal {2**40}"),
    ],
)
def test_every_status_has_a_cause(status: int, cause: str) -> None:
    assert Exit("w0", status).cause == cause
