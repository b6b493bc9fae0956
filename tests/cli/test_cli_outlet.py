"""What a job says never holds it up, also where nobody reads it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from scavenger_cli.ui.observer import DRAIN_S, make_observer
from scavenger_cli.ui.outlet import TEXTS_WAITING_MAX, Outlet
from warm_commands import Command

from scavenger.domain.report import Noted

pytestmark = pytest.mark.slow


@pytest.fixture
def full_pipe() -> Iterator[tuple[TextIO, int]]:
    """A pipe that nobody reads yet, with no room left; its reading end as a number."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(65536))
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    with open(writer, "w", encoding="utf-8") as stream:
        yield stream, reader
    os.close(reader)


def read_all(reader: int, until: bytes) -> str:
    found = b""
    deadline = time.monotonic() + 20.0
    while until not in found:
        assert time.monotonic() < deadline
        found += os.read(reader, 65536)
    return found.replace(b"\0", b"").decode()


def test_a_display_that_nobody_reads_holds_nobody_up_and_tells_all_warnings_when_it_is_read(
    full_pipe: tuple[TextIO, int],
) -> None:
    stream, reader = full_pipe
    observer = make_observer(stream)
    began = time.monotonic()
    for number in range(500):
        observer.on_event(Noted("warning", f"n{number}"))
    observer.stop()
    took_s = time.monotonic() - began

    assert took_s < DRAIN_S + 2.0
    said = read_all(reader, b"n499\n")
    assert said.splitlines() == [f"warning: n{number}" for number in range(500)]


def test_of_progress_that_nobody_reads_only_the_newest_is_kept(full_pipe: tuple[TextIO, int]) -> None:
    stream, reader = full_pipe
    outlet = Outlet(stream)
    outlet.write("first\n")
    for number in range(100):
        outlet.write_progress(f"step {number}\n")
    for number in range(TEXTS_WAITING_MAX + 10):
        outlet.write(f"n{number}\n")
    assert len(outlet._queue) <= TEXTS_WAITING_MAX

    said = read_all(reader, f"n{TEXTS_WAITING_MAX + 9}\n".encode())

    assert said.count("step") <= 1
    assert outlet.drain(5.0)


def test_a_command_whose_standard_error_nobody_reads_ends(
    full_pipe: tuple[TextIO, int], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "scavenger_cli",
        "status",
        "none",
        "--store",
        f"sqlite:///{tmp_path}/s.db",
    ]
    ended = Command(command, stderr=full_pipe[0], stdout=subprocess.PIPE)

    assert ended.wait(60) == 2


@pytest.mark.parametrize(
    ("closed", "code"),
    [
        pytest.param("1>&-", 0, marks=pytest.mark.long),
        pytest.param("2>&-", 0, marks=pytest.mark.long),
        ("0<&- 1>&- 2>&-", 0),
        ("> /dev/full", 1),
    ],
)
def test_a_closed_or_full_output_is_no_fault_of_the_program(tmp_path: Path, closed: str, code: int) -> None:
    command = f"{sys.executable} -m scavenger_cli status --store sqlite:///{tmp_path}/s.db {closed}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == code
    assert "internal fault" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    if code:
        assert "the output cannot be written: No space left on device" in ended.stderr
