"""The proof by interruption: a writer is killed, or a call of it fails, at every system call on files in turn."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import checkpoint_child as child
import pytest

from scavenger.train.checkpoints.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow

_CALLS = (
    *("openat", "open", "creat", "close", "read", "pread64", "write", "pwrite64", "lseek", "ftruncate"),
    *("fsync", "fdatasync", "rename", "renameat", "renameat2", "mkdir", "mkdirat"),
    *("unlink", "unlinkat", "rmdir", "fstat", "newfstatat", "statx", "getdents64"),
)
_FAULTS = ("signal=KILL", "error=ENOSPC", "error=EIO")
_OLDER, _BEFORE, _NEW, _NEXT = 1, 2, 3, 4
_SAMPLE = 48


@dataclass(frozen=True, slots=True)
class Point:
    """The `nth` call of one kind, counted from the start of the process, and what happens there."""

    call: str
    nth: int
    fault: str


def _strace(log: Path, calls: str, folder: Path, how: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The writer of `_NEW` under strace, always with the same environment, so that calls can be counted."""
    root = Path(child.__file__).parents[2]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(root),
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("SCAVENGER_TEST")},
    }
    command = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={calls}", *options]
    writer = [sys.executable, "-B", "-s", child.__file__, str(folder), str(_NEW), how]
    return subprocess.run([*command, *writer], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", autouse=True)
def _strace_works() -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    probe = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=fsync:error=EIO", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a strace that may trace and inject")


def _prepared(folder: Path, how: str) -> Path:
    """What the writer finds: two checkpoints and an unfinished attempt; in place, the one there can be."""
    if how == "in-place":
        child.write(CheckpointStore(str(folder)), _BEFORE, step=0, attempt="only")
        return folder
    store = CheckpointStore(str(folder), keep=2)
    for value in (_OLDER, _BEFORE):
        child.write(store, value, step=value, attempt=f"try{value}")
    store.write_part(_BEFORE, "unfinished", "a0", child.tensors(_BEFORE, "a0"))
    return folder


def _calls(tmp_path: Path, how: str) -> list[tuple[str, int]]:
    """Every call that the writer makes between its two marks, and the how manieth of its kind it is."""
    log = tmp_path / "calls.log"
    folder = _prepared(tmp_path / "counted", how)
    finished = _strace(log, ",".join(f"?{call}" for call in _CALLS), folder, how)
    assert finished.returncode == 0, finished.stderr
    seen: Counter[str] = Counter()
    calls, writing = [], False
    for line in log.read_text().splitlines():
        match = re.match(r"\d+ +(\w+)\(", line)
        if match is None:
            continue
        seen[match[1]] += 1
        if child.BEGIN in line or child.END in line:
            writing = child.BEGIN in line
        elif writing:
            calls.append((match[1], seen[match[1]]))
    return calls


def _points(tmp_path: Path, how: str) -> list[Point]:
    return [Point(call, nth, fault) for call, nth in _calls(tmp_path, how) for fault in _FAULTS]


def _interrupt(point: Point, tmp_path: Path, how: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run the writer into one fault, and see that the fault did happen."""
    log, folder = tmp_path / "one.log", tmp_path / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tmp_path / "prepared", folder)
    inject = f"inject={point.call}:{point.fault}:when={point.nth}"
    ended = _strace(log, point.call, folder, how, "-e", inject)
    if point.fault == "signal=KILL":
        assert ended.returncode in (-9, 137), f"{point}: not killed"
    else:
        assert "(INJECTED)" in log.read_text(), f"{point}: nothing was injected"
    return folder, ended


def _holds(point: Point, tmp_path: Path) -> None:
    folder, ended = _interrupt(point, tmp_path, "atomic")
    found = child.value_of(CheckpointStore(str(folder)).latest())
    assert found in (_BEFORE, _NEW), f"{point}: {found}"
    if ended.returncode == 0:
        assert found == _NEW, f"{point}: said to be committed, and is not there"
    if point.fault != "signal=KILL":
        assert ended.returncode in (0, 3), f"{point}: {ended.stderr}"
        assert len(ended.stderr.splitlines()) == (ended.returncode == 3), ended.stderr
        assert not list(folder.glob("*/*.tmp")), f"{point}: litter"
    store = CheckpointStore(str(folder), keep=2)  # and the job goes on from there
    store.discard_unfinished()
    child.write(store, _NEXT, step=_NEXT, attempt="again")
    assert child.value_of(store.latest()) == _NEXT
    assert sorted(len(list(kept.iterdir())) for kept in folder.iterdir()) == [3, 3], f"{point}: litter"


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_whatever_call_fails_or_kills_the_writer_a_whole_checkpoint_remains(tmp_path: Path) -> None:
    """At a sample of the calls, or at all of them (two minutes) where `SCAVENGER_EVERY_CALL` is set.

    Every kind of call with every fault is in the sample before any comes twice.
    """
    points = _points(tmp_path, "atomic")
    assert {"openat", "write", "fsync", "mkdir", "close", "read"} <= {point.call for point in points}
    assert len(points) > 300
    _prepared(tmp_path / "prepared", "atomic")
    random.Random(6).shuffle(points)
    seen: Counter[tuple[str, str]] = Counter()
    rank = {}
    for point in points:
        rank[point] = seen[point.call, point.fault]
        seen[point.call, point.fault] += 1
    points.sort(key=rank.__getitem__)
    for point in points if os.environ.get("SCAVENGER_EVERY_CALL") else points[:_SAMPLE]:
        _holds(point, tmp_path)


def test_nothing_is_renamed_or_removed_before_what_it_rests_on_is_on_the_device(tmp_path: Path) -> None:
    """A loss of power cannot be injected; the order of the calls that guard against it can be seen."""
    letters = {"write": "w", "fsync": "s", "rename": "r", "unlink": "u"}
    order = "".join(letters.get(call, "") for call, _ in _calls(tmp_path, "atomic"))
    # each file: its new folder's entry, its bytes, its name, its name's entry; last the old checkpoint goes
    assert re.fullmatch(r"(sw+srs){3}u+", order), order


def test_a_writer_in_place_fails_this_proof(tmp_path: Path) -> None:
    """So the injection bites: the design that it is meant to find, it finds."""
    points = [
        point
        for point in _points(tmp_path, "in-place")
        if point.fault == "signal=KILL" and point.call in ("write", "fsync")
    ]
    _prepared(tmp_path / "prepared", "in-place")
    lost = 0
    for point in points:
        folder, _ = _interrupt(point, tmp_path, "in-place")
        lost += child.value_of(CheckpointStore(str(folder)).latest()) not in (_BEFORE, _NEW)
    assert lost >= len(points) - 2
