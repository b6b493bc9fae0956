"""What processes on VMs write into a folder of the leader's is there completely or not at all, and lies nowhere else.

That it is a place for checkpoints like any other is held by `test_checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vm_line import LAUNCH, VM, FarLine, far_line
from waiting import eventually

from scavenger.errors import ConfigurationError
from scavenger.train.checkpoints import files as checkpoint_files
from scavenger.train.checkpoints import remote_folder as f
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.files import Files, open_files
from scavenger.train.engines.vm import messages as m

pytestmark = pytest.mark.slow

SIZES = st.sampled_from([0, 1, f.CHUNK_BYTES - 1, f.CHUNK_BYTES, f.CHUNK_BYTES + 1, 3 * f.CHUNK_BYTES + 7])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "leader" / "job"


@pytest.fixture
def far(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FarLine, str]]:
    with far_line(tmp_path / "agent", root, monkeypatch) as made:
        yield made


@pytest.fixture
def line(far: tuple[FarLine, str]) -> FarLine:
    return far[0]


@pytest.fixture
def files(far: tuple[FarLine, str]) -> Files:
    return open_files(far[1])


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Something that waits, under way, and what it will have raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(SIZES, max_size=4), at_once=st.integers(1, 2 * f.CHUNK_BYTES))
def test_whatever_is_written_comes_back_however_it_is_cut(
    files: Files, root: Path, parts: list[int], at_once: int
) -> None:
    data = [os.urandom(size) for size in parts]

    files.write("step-1", "part", (memoryview(part) for part in data))
    with files.reading("step-1", "part") as (file, size):
        buffer, got = bytearray(at_once), bytearray()
        while count := file.readinto(buffer):
            got += buffer[:count]

    assert got == b"".join(data) == (root / "step-1" / "part").read_bytes()
    assert size == len(got)
    assert list(everything(root)) == ["step-1/part"]


def test_a_file_is_read_from_any_of_its_bytes(files: Files) -> None:
    data, buffer = os.urandom(2 * f.CHUNK_BYTES), bytearray(2 * f.CHUNK_BYTES)
    files.write("step-1", "part", [memoryview(data)])
    for begin in (0, 7, f.CHUNK_BYTES, 2 * f.CHUNK_BYTES - 1, 2 * f.CHUNK_BYTES):
        got = bytearray()
        with files.reading("step-1", "part", begin) as (file, size):
            while count := file.readinto(buffer):
                got += buffer[:count]
        assert size == len(data)
        assert got == data[begin:]


def test_a_file_that_grows_while_it_is_read_is_seen_to_be_longer(files: Files, root: Path) -> None:
    files.write("step-1", "part", [memoryview(bytes(f.CHUNK_BYTES))])
    buffer = bytearray(2 * f.CHUNK_BYTES)
    with files.reading("step-1", "part") as (file, size):
        assert file.readinto(buffer) == size == f.CHUNK_BYTES
        with (root / "step-1" / "part").open("ab") as more:
            more.write(b"more")

        count = file.readinto(buffer)

    assert buffer[:count] == b"more"


@pytest.mark.parametrize("name", ["..", ".", "", "../other", "a/b", "/etc", ".hidden", "a\0b", "é"])
def test_no_name_leads_out_of_the_folder(files: Files, root: Path, name: str) -> None:
    files.write("step-1", "part", [memoryview(b"kept")])
    before = everything(root.parent)

    for act in (
        lambda: files.write(name, "part", [memoryview(b"bad")]),
        lambda: files.write("step-1", name, [memoryview(b"bad")]),
        lambda: files.remove(name, "part"),
        lambda: files.reading(name, "part").__enter__(),
        lambda: files.reading("step-1", name).__enter__(),
        lambda: files.verify(name, "part", size=4, sha256=""),
    ):
        with pytest.raises(PermissionError, match="is no name"):
            act()

    assert everything(root.parent) == before


def test_folders_that_are_not_shared_are_no_more_to_be_had_than_their_parents(
    root: Path, far: object
) -> None:
    (root.parent / "another").mkdir(parents=True)
    (root.parent / "another" / "step-1").mkdir()

    for place in (root.parent, root.parent / "another", f"{root}/../another", f"{root}/", "", "/"):
        with pytest.raises(PermissionError, match="does not share"):
            open_files(f"{f.SCHEME}{place}").folders()


@pytest.mark.parametrize("launch", [0, LAUNCH + 1])
def test_a_process_that_counts_as_lost_gets_nothing(
    line: FarLine, root: Path, launch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f.VARIABLE, f"{launch}@{line.relay.path}")

    with pytest.raises(PermissionError, match="as lost"):
        open_files(f"{f.SCHEME}{root}").write("step-1", "part", [memoryview(b"late")])

    assert not root.exists()


def test_of_a_writer_that_dies_half_way_nothing_is_left(line: FarLine, files: Files, root: Path) -> None:
    def half() -> Iterator[memoryview]:
        yield memoryview(bytes(3 * f.CHUNK_BYTES))
        assert eventually(lambda: bool(everything(root)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write("step-1", "part", half())

    assert eventually(lambda: not (root / "step-1").exists())


def test_what_a_lost_vm_was_writing_is_not_there_and_it_is_told_when_it_comes_back(
    line: FarLine, files: Files, root: Path
) -> None:
    def half() -> Iterator[memoryview]:
        yield memoryview(bytes(f.CHUNK_BYTES))
        assert eventually(lambda: bool(everything(root)))
        with line.lock:
            line.files.lose(VM)
        assert eventually(lambda: not (root / "step-1").exists())
        yield memoryview(bytes(2 * f.AHEAD * f.CHUNK_BYTES))

    with pytest.raises(OSError, match="broken this off"):
        files.write("step-1", "part", half())

    assert everything(root) == {}


def test_while_the_line_is_down_a_writer_waits_little_is_kept_and_then_it_goes_on(
    line: FarLine, files: Files, root: Path
) -> None:
    data = os.urandom(4 * f.AHEAD * f.CHUNK_BYTES)
    line.held.set()
    writer, raised = in_thread(lambda: files.write("step-1", "part", [memoryview(data)]))
    assert eventually(lambda: len(line.waiting) == f.AHEAD)
    other, _ = in_thread(files.folders)
    other.join(0.2)

    with line.lock:
        assert len(line.waiting) == f.AHEAD, "also where several ask"
    assert writer.is_alive()
    line.held.clear()
    writer.join()
    other.join()

    assert raised == []
    assert (root / "step-1" / "part").read_bytes() == data


def test_a_place_that_fails_says_so_in_the_words_of_a_local_one(root: Path, far: tuple[FarLine, str]) -> None:
    root.parent.mkdir()
    root.write_text("no folder")

    with pytest.raises(ConfigurationError) as there:
        CheckpointStore(far[1]).write_part(1, "a", "0", {})
    with pytest.raises(ConfigurationError) as here:
        CheckpointStore(str(root)).write_part(1, "a", "0", {})

    assert str(there.value) == f.SCHEME + str(here.value)


def test_a_full_disk_is_told_at_once_and_leaves_nothing(
    files: Files, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0

    def write(_: int, data: memoryview) -> None:
        nonlocal taken
        taken += len(data)
        if taken > 2 * f.CHUNK_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "_write_all", write)
    with pytest.raises(OSError, match="No space left") as full:
        files.write("step-1", "part", (memoryview(bytes(f.CHUNK_BYTES)) for _ in range(100)))

    assert full.value.errno == errno.ENOSPC
    assert taken < 20 * f.CHUNK_BYTES, "it was not told before all was sent"
    assert not (root / "step-1").exists()


def test_what_is_no_question_is_answered_or_ends_the_connection(line: FarLine, root: Path) -> None:
    def asked(body: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as way:
            with f.short_socket_path(line.relay.path) as path:
                way.connect(path)
            way.sendall(body)
            way.settimeout(5.0)
            got = b""
            while b"Failed" not in got and (more := way.recv(1000)):
                got += more
            return got

    assert asked(f.HEAD.pack(f.FRAME_BYTES_MAX + 1)) == b""
    assert b"Failed" in asked(f.HEAD.pack(1) + b"\xc1")
    odd = [f.WriteFile(LAUNCH, str(root), "step-1", "part"), f.More()]
    assert b"unexpected message while a file is written" in asked(
        b"".join(f.HEAD.pack(len(body)) + body for body in map(msgspec.msgpack.encode, odd))
    )
    done = msgspec.msgpack.encode(["EndOfData"])
    assert b"broken this off" in asked(f.HEAD.pack(len(done)) + done)


def test_an_agent_that_ends_is_noticed(far: tuple[FarLine, str], files: Files) -> None:
    line, _ = far
    line.held.set()
    asking, raised = in_thread(files.folders)
    assert eventually(lambda: bool(line.waiting))

    line.close()
    asking.join()

    assert "has ended the connection" in str(raised[0])


def test_only_a_process_on_a_vm_has_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f.VARIABLE, raising=False)

    with pytest.raises(ConfigurationError, match="only processes on VMs"):
        open_files("leader:///somewhere")


def test_who_asks_while_a_vm_asks_for_much_already_waits_for_its_turn(line: FarLine, files: Files) -> None:
    with contextlib.ExitStack() as stack:
        files.write("step-1", "part", [memoryview(b"x")])
        for _ in range(32):
            stack.enter_context(files.reading("step-1", "part"))
        asking, raised = in_thread(files.folders)
        asking.join(0.1)
        assert asking.is_alive()

    asking.join()
    assert raised == []


def test_answers_that_nobody_waits_for_are_dropped(line: FarLine) -> None:
    with line.lock:
        line.relay.answer(m.FileAnswer(99, b""))
        line.files.end(VM, 99)

        assert not line.waiting


def test_what_a_vm_writes_leaves_room_on_the_leader_s_disk(line: FarLine, files: Files, root: Path) -> None:
    free = [3 << 30]
    line.files._usage = lambda _: (100 << 30, 0, free[0])
    part = memoryview(bytes(f.CHUNK_BYTES))

    files.write("step-1", "part", iter([part]))
    free[0] = (1 << 30) + f.CHUNK_BYTES - 1
    with pytest.raises(OSError, match="nearly full") as refused:
        files.write("step-2", "part", iter([part]))

    assert refused.value.errno == errno.ENOSPC
    assert set(everything(root)) == {"step-1/part"}, "nothing incomplete is left"
    line.files._usage = lambda _: (1 << 30, 0, 1 << 29)
    files.write("step-2", "part", iter([part]))


def test_what_a_vm_writes_is_a_limited_number_of_files(line: FarLine, files: Files, root: Path) -> None:
    line.files._entries_max = 3
    for name in "abc":
        files.write("step-1", name, iter([]))

    with pytest.raises(OSError, match="too many files"):
        files.write("step-1", "d", iter([]))
    for step in (2, 3):
        files.write(f"step-{step}", "a", iter([]))
    with pytest.raises(OSError, match="too many files"):
        files.write("step-4", "a", iter([]))
    assert len(everything(root)) == 5
