"""A process's end is attributed to a lack of memory only if the kernel counted it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from scavenger.train.engines.memory_kills import MemoryKills, find_counter

V1_KEYS = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2_KEYS = "low 0\nhigh 0\nmax 7\noom 3\noom_kill {}\n"


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("4:memory:/a/b\n1:cpu:/\n0::/\n", "memory/a/b/memory.oom_control"),
        ("4:cpu,memory:/elsewhere\n", "memory/memory.oom_control"),
        ("0::/a/b\n", "a/b/memory.events"),
        ("0::/elsewhere\n", "memory.events"),
    ],
)
def test_the_counter_is_that_of_the_processs_own_memory_cgroup(
    tmp_path: Path, membership: str, file: str
) -> None:
    mine = written(tmp_path / "self", membership)
    machine = written(tmp_path / "vmstat", "pgfault 3\noom_kill 4\n")
    assert find_counter(mine, tmp_path / "cgroup", machine) == machine
    counter = written(tmp_path / "cgroup" / file, (V1_KEYS if "control" in file else V2_KEYS).format(0))
    assert find_counter(mine, tmp_path / "cgroup", machine) == counter


def test_where_the_kernel_tells_of_no_kills_there_is_no_counter(tmp_path: Path) -> None:
    assert find_counter(tmp_path / "none", tmp_path / "none", tmp_path / "none") is None
    assert MemoryKills(None).among(["w0"], 0.0) == frozenset()


def test_a_kill_is_explained_by_a_counter_that_rose_a_moment_ago_and_only_once(tmp_path: Path) -> None:
    counter = written(tmp_path / "memory.events", V2_KEYS.format(2))
    kills = MemoryKills(counter)
    assert kills.among(["w0"], 0.0) == frozenset()
    counter.write_text(V2_KEYS.format(3))
    assert kills.among([], 1.0) == frozenset()  # the process takes a moment to end
    assert kills.among(["w1"], 3.0) == {"w1"}
    assert kills.among(["w2"], 3.1) == frozenset()
    counter.write_text(V2_KEYS.format(4))
    assert kills.among([], 4.0) == frozenset()
    assert kills.among(["w3"], 60.0) == frozenset()  # that was some other process


def test_of_more_dead_than_were_counted_none_is_named(tmp_path: Path) -> None:
    counter = written(tmp_path / "memory.events", V2_KEYS.format(0))
    kills = MemoryKills(counter)
    counter.write_text(V2_KEYS.format(1))
    assert kills.among(["w0", "w1"], 0.0) == frozenset()
    counter.write_text(V2_KEYS.format(2))
    assert kills.among(["w2", "w3"], 0.1) == {"w2", "w3"}


# ---- the kernel itself -------------------------------------------------------------------------------------

_LEADER = """
import os, signal, sys, time
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.engines.process import ProcessEngine
hog = "held = [bytearray(1 << 20) for _ in range(4096)]"
sleeper = "import time; time.sleep(600)"
for name, program in (("hog", hog), ("sleeper", sleeper)):
    engine = ProcessEngine(Path(sys.argv[2]), -1, command=(sys.executable, "-c", program))
    engine.launch(ProcessConfiguration("worker", name, "", "", "", "", memory_fd=-1))
    if name == "sleeper":
        os.kill(engine.pid(name), signal.SIGKILL)
    exits = []
    while not exits:
        exits = engine.poll()
        time.sleep(0.01)
    print(name, exits[0].cause, flush=True)
    engine.close()
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """Make a memory cgroup of 200 MB; skip the test if that is impossible."""
    mounted = Path("/sys/fs/cgroup/memory")
    parent, limit = (mounted, "memory.limit_in_bytes") if mounted.is_dir() else (mounted.parent, "memory.max")
    folder = parent / f"scavenger-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        try:
            (folder / limit).write_text(str(200 << 20))
            with contextlib.suppress(OSError):
                swap = "memory.memsw.limit_in_bytes" if mounted.is_dir() else "memory.swap.max"
                (folder / swap).write_text(str(200 << 20) if mounted.is_dir() else "0")
        except OSError as error:
            pytest.skip(f"no memory cgroup can be limited here: {error}")
        yield folder
    finally:
        assert eventually(lambda: not (folder / "cgroup.procs").read_text())
        os.rmdir(folder)


def test_a_process_that_the_memory_killer_took_is_told_from_one_that_somebody_killed(
    small_cgroup: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEADER, str(small_cgroup), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "hog was killed by SIGKILL: out of memory",
        "sleeper was killed by SIGKILL",
    ]
