"""Failpoints: a fault happens at the requested point, time and process, and is logged."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scavenger.train
from scavenger.train.failpoints import POINTS, VARIABLE, FailpointError, fail_here, load_failpoints


@pytest.fixture(autouse=True)
def _disarmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.setenv(VARIABLE, "")
    load_failpoints("anybody")


def arm(monkeypatch: pytest.MonkeyPatch, faults: str, process: str = "w1") -> None:
    monkeypatch.setenv(VARIABLE, faults)
    load_failpoints(process)


def test_every_named_point_is_come_to_in_the_code_and_no_other() -> None:
    folder = Path(scavenger.train.__file__).parent
    found = [
        name
        for file in folder.rglob("*.py")
        for name in re.findall(r'fail_here\("([a-z._]+)"\)', file.read_text())
    ]

    assert sorted(set(found)) == sorted(POINTS)


@pytest.mark.parametrize("nth", [1, 3])
def test_a_fault_happens_once_at_the_nth_time(
    nth: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arm(monkeypatch, f"worker.computed:raise@{nth}")

    for _ in range(nth - 1):
        fail_here("worker.computed")
        fail_here("worker.pushed")
    assert capfd.readouterr().err == ""
    with pytest.raises(FailpointError, match=r"worker\.computed"):
        fail_here("worker.computed")
    assert capfd.readouterr().err == "failpoint worker.computed: raise\n"
    for _ in range(5):
        fail_here("worker.computed")


def test_a_fault_of_one_process_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = "worker.computed/w1:raise,worker.pushed/w2:raise@1"
    arm(monkeypatch, faults, "w2")

    fail_here("worker.computed")
    with pytest.raises(FailpointError):
        fail_here("worker.pushed")


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    load_failpoints("w1")

    for name in POINTS:
        fail_here(name)


@pytest.mark.parametrize(
    "fault", ["worker.computes:kill@1", "worker.computed:hurt@1", "worker.computed", "worker.computed:kill@x"]
)
def test_a_fault_that_could_never_happen_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        arm(monkeypatch, fault, "somebody else")


def test_a_process_kills_or_stops_itself_and_says_which() -> None:
    code = (
        "from scavenger.train.failpoints import *\n"
        "load_failpoints('w1'); fail_here('worker.leased'); fail_here('worker.leased'); print('went on')"
    )
    for action, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
        environment = {**os.environ, VARIABLE: f"worker.leased/w1:{action}@2"}
        with subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            if action == "stop":
                assert os.WIFSTOPPED(status)
                assert os.WSTOPSIG(status) == number
                process.kill()
            else:
                assert os.WTERMSIG(status) == number
                process.returncode = -number  # it has been collected here
            output, said = process.communicate()
        assert output == b""
        assert said == f"failpoint worker.leased: {action}\n".encode()
