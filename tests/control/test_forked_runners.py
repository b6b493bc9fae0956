"""Runners that are forked are as those that a command begins, and nothing hangs on what forks them."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import eventually

from scavenger.control.service import runners
from scavenger.control.service.runners import RunnerProcess, Runners

_PROGRAM = """
import json, os, sys, time
read = os.environ.get("READ_AT_IMPORT")

def main():
    held = os.path.exists(f"/proc/self/fd/{os.environ['HELD']}")
    seen = [sys.argv[1:], os.getcwd(), dict(os.environ), sys.stdin.read()]
    seen += [os.getsid(0) == os.getpid(), held, "" in sys.path]
    print(json.dumps(seen), flush=True)
    time.sleep(float(os.environ.get("LASTS", 0)))
    return 3

if __name__ == "__main__":
    sys.exit(main())
"""


class Place:
    """Where runners of a program are started, and what it says of itself."""

    def __init__(self, folder: Path, held: int) -> None:
        self.folder, self.runners, self.env = folder, Runners((held,)), {**os.environ, "HELD": str(held)}
        self.number = 0

    def start(self, **env: str) -> tuple[RunnerProcess, list[Any]]:
        self.number += 1
        log = self.folder / f"{self.number}.log"
        with open(log, "wb") as file:
            folder = self.folder / "job"
            process = self.runners.start(
                "some-id", 7, env={**self.env, **env}, folder=folder, log=file.fileno()
            )
        assert eventually(lambda: log.read_text().endswith("\n"), within_s=60)
        return process, json.loads(log.read_text())

    def forks(self, process: RunnerProcess) -> bool:
        """Whether it was forked: not begun by this process."""
        return psutil.Process(process.pid).ppid() != os.getpid()

    def prepare(self) -> None:
        """Have what forks begin, and import."""
        self.runners.prepare()
        server = self.runners._server
        assert server is not None
        assert eventually(lambda: (server.receive(), server.ready)[1], within_s=60)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    (tmp_path / "job").mkdir()
    (tmp_path / "runner_program.py").write_text(_PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(runners, "RUNNER", ("-P", "-m", "runner_program"))
    monkeypatch.setattr(runners, "_TARGET", "runner_program:main")
    held = os.memfd_create("held")
    made = Place(tmp_path, held)
    yield made
    made.runners.close()
    os.close(held)


def test_a_forked_runner_is_as_one_that_a_command_begins(place: Place) -> None:
    begun, by_command = place.start(GIVEN="a")
    assert not place.forks(begun)
    assert begun.wait(60) == 3
    place.runners.prepare()
    assert place.runners._server is None  # a server of a single job needs none
    place.start()
    place.prepare()

    forked, seen = place.start(GIVEN="a", LASTS="600")

    assert place.forks(forked)
    assert seen.pop(2) == by_command.pop(2) | {"LASTS": "600"}
    assert seen == by_command == [["some-id", "7"], str(place.folder / "job"), "", True, True, False]
    shown = psutil.Process(forked.pid).cmdline()
    assert [*shown[:-1], int(shown[-1])] == [sys.executable, "-P", "-m", "runner_program", "some-id", 7]
    place.runners.close()  # as its server ends
    assert forked.poll() is None
    forked.kill()
    assert forked.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("name", ["READ_AT_IMPORT", "LD_LIBRARY_PATH", "PYTHONUTF8"])
def test_a_runner_that_would_have_begun_in_another_way_is_begun_by_a_command(place: Place, name: str) -> None:
    place.runners._started = 2
    place.prepare()

    process, seen = place.start(**{name: "1"})

    assert not place.forks(process)
    assert seen[2][name] == "1"


def test_where_what_forks_is_dead_or_stopped_runners_begin_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "_BEGIN_S", 0.2)
    place.runners._started = 2
    for sign in (signal.SIGKILL, signal.SIGSTOP):
        place.prepare()
        first, _ = place.start(LASTS="600")
        assert place.forks(first)
        server = place.runners._server
        assert server is not None
        os.kill(server.process.pid, sign)
        if sign is signal.SIGKILL:
            server.process.wait()

        process, seen = place.start()

        assert seen[0] == ["some-id", "7"]
        assert not place.forks(process)
        assert first.poll() is None  # it lives on
        first.kill()
        first.wait(60)


def test_with_little_memory_free_nothing_is_kept_ready(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.runners._started = 2
    monkeypatch.setattr(runners, "_FREE_BYTES_MIN", 1 << 60)
    place.runners.prepare()
    assert place.runners._server is None
