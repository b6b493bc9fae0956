"""A record means one process: no other one is taken for it, and it is never taken for dead while it may live."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.control.provisioning.lease_holder import is_known_dead
from scavenger.control.service.place import sole_in
from scavenger.errors import TransientError
from scavenger.store.births import PLACE_VARIABLE, Birth, birth_of_this_process, fate_of
from scavenger.store.owner import HEARTBEAT_STALE, is_owner_alive, this_process

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACES = st.sampled_from(["4026531836", "4026532201", "4026532202"])
BIRTHS = st.builds(
    Birth,
    st.sampled_from(["", "machine", "folder"]),
    st.sampled_from(["boot-1", "boot-2"]),
    NAMESPACES,
    st.integers(0, 1 << 40),
)


def here() -> Birth:
    found = birth_of_this_process()
    assert found is not None
    return found


@given(BIRTHS)
def test_a_birth_is_read_as_it_was_written(birth: Birth) -> None:
    assert Birth.parse(str(birth)) == birth
    assert "/" not in str(birth)


@pytest.mark.parametrize("text", ["", "1700000000.25", "a.b.c", "a..c.1", "a.b.c.x", "a.b.c.d.1"])
def test_what_is_no_birth_is_none(text: str) -> None:
    assert Birth.parse(text) is None


@given(BIRTHS, BIRTHS, st.integers(1, 40))
def test_one_that_cannot_be_seen_is_dead_only_if_its_place_is_now_another_s(
    then: Birth, mine: Birth, pid: int
) -> None:
    if (then.boot, then.namespace) == (mine.boot, mine.namespace):
        return
    assert fate_of(pid, then, mine) == ("dead" if then.place and then.place == mine.place else "unseen")
    assert fate_of(pid, then, None) == "unseen"


def test_this_process_lives_and_no_other_of_its_pid_ever_did() -> None:
    me, birth = this_process(), here()
    assert Birth.parse(me.birth) == birth
    long_ago = NOW - timedelta(days=1)
    assert is_owner_alive(me, long_ago, at=NOW)
    assert is_owner_alive(replace(me, started_at_s=0.0), long_ago, at=NOW), "clocks are not asked"
    for ticks in (birth.ticks - 1, birth.ticks + 1):
        other = replace(me, birth=str(replace(birth, ticks=ticks)))
        assert not is_owner_alive(other, NOW, at=NOW), "even with a fresh heartbeat"


@pytest.mark.parametrize("place", ["", "another"])
@pytest.mark.parametrize("change", [{"namespace": "1"}, {"boot": "b"}, {"namespace": "1", "boot": "b"}])
def test_one_of_a_container_that_hides_it_lives_as_long_as_its_heartbeat(
    place: str, change: dict[str, str]
) -> None:
    hidden = replace(this_process(), birth=str(replace(here(), place=place, **change)))
    holder = f"{hidden.host}/{hidden.pid}/{hidden.birth}"

    assert is_owner_alive(hidden, NOW, at=NOW + HEARTBEAT_STALE / 2)
    assert not is_owner_alive(hidden, NOW, at=NOW + HEARTBEAT_STALE)
    assert not is_known_dead(holder)


@pytest.mark.slow
def test_a_process_that_has_ended_is_dead_at_once() -> None:
    code = "from scavenger.store.owner import this_process as me; print(me().pid, me().birth)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, birth = run.stdout.split()
    gone = replace(this_process(), pid=int(pid), birth=birth)

    assert not is_owner_alive(gone, NOW, at=NOW)


# ---- a folder that one container has at a time ------------------------------------------------------------------

_HOLDER = """
import sys
from pathlib import Path
from scavenger.control.service.place import sole_in
from scavenger.store.owner import this_process
with sole_in(Path(sys.argv[1])) as held:
    me = this_process()
    print(me.pid, me.birth, flush=True)
    sys.stdin.read()
"""


@contextmanager
def container(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, Birth]]:
    """A process that has the folder, in a process namespace of its own."""
    process = subprocess.Popen(
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-c", _HOLDER, str(folder)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        pid, birth = process.stdout.readline().split()
        found = Birth.parse(birth)
        assert found is not None
        yield process, int(pid), found
    finally:
        process.kill()
        process.communicate()


def _unavailable() -> str:
    if shutil.which("unshare") is None:
        return "needs unshare"
    tried = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    return "needs the right to make process namespaces" if tried.returncode else ""


@pytest.mark.skipif(bool(_unavailable()), reason=_unavailable() or "-")
@pytest.mark.slow
def test_who_has_the_folder_knows_that_all_who_had_it_are_dead(tmp_path: Path) -> None:
    with container(tmp_path) as (process, pid, first):
        assert first.namespace != here().namespace
        assert pid == 1
        assert fate_of(pid, first, here()) == "unseen"
        with pytest.raises(TransientError, match="has not ended yet"), sole_in(tmp_path, wait_s=0.3):
            raise AssertionError("it lives")
        process.kill()
        process.wait()
        began = time.monotonic()
        with sole_in(tmp_path) as held:
            assert len(held) == 1
            mine = here()
            assert mine.place == first.place != ""
            assert fate_of(pid, first, mine) == "dead"
        assert time.monotonic() - began < 20.0
    assert PLACE_VARIABLE not in os.environ


@pytest.mark.slow
def test_a_process_that_was_given_the_folder_holds_it_when_who_gave_it_has_let_go(tmp_path: Path) -> None:
    with sole_in(tmp_path) as held:
        runner = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=held)
        place = os.environ[PLACE_VARIABLE]
    try:
        with pytest.raises(TransientError), sole_in(tmp_path, wait_s=0.2):
            raise AssertionError("its runner lives")
    finally:
        runner.kill()
        runner.communicate()
    with sole_in(tmp_path):
        assert os.environ[PLACE_VARIABLE] == place, "the place is the folder's"


def test_a_folder_without_locks_is_nobody_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with sole_in(tmp_path) as held:
        assert held == ()
        assert PLACE_VARIABLE not in os.environ
