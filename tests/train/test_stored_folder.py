"""A command's folder that is carried between machines: what is stored, fetched and refused, and what is whole."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from scavenger.train.checkpoints.files import LocalFiles
from scavenger.train.command import messages as cm
from scavenger.train.command.carrier import Carrier
from scavenger.train.command.checkpoints import CommandCheckpoint, CommandCheckpoints, Kept
from scavenger.train.command.stored_folder import StoredFile, StoredFolder, TornError, checked, size_of
from scavenger.train.command.whole import WholeStates, merged

NAMES = st.sampled_from(["a", "b", "state.pt", "deep/c", "deep/er/d", "of it"])
STATES = st.dictionaries(NAMES, st.binary(max_size=40), max_size=5)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, LocalFiles]:
    return tmp_path / "here", LocalFiles(str(tmp_path / "stored"))


def write(folder: Path, state: dict[str, bytes]) -> None:
    """Make the folder this, as a program would: other files are removed, and each is replaced as a whole."""
    for path in [path for path in folder.glob("**/*") if path.is_file()]:
        path.unlink()
    for name, data in state.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("new").write_bytes(data)
        path.with_name("new").replace(path)


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.glob("**/*")
        if path.is_file()
    }


@given(states=st.lists(STATES, min_size=1, max_size=4))
def test_any_state_comes_back_as_it_was_wherever_the_folder_was_before(
    states: list[dict[str, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        files = LocalFiles(str(root / "stored"))
        (root / "here").mkdir()
        here, there = StoredFolder(root / "here", files), StoredFolder(root / "there", files)
        listings = []
        for state in states:
            write(root / "here", state)
            listings.append(here.push())
            there.fetch(listings[-1])
            assert read(root / "there") == state
        for state, listing in zip(states, listings, strict=True):  # also back to an older one
            there.fetch(listing)
            assert read(root / "there") == state
            assert size_of(listing) == sum(map(len, state.values()))


def test_what_did_not_change_is_stored_once_and_keeps_its_time(places: tuple[Path, LocalFiles]) -> None:
    here, files = places
    folder = StoredFolder(here, files)
    write(here, {"large": b"x" * 1000, "small": b"1"})
    first = folder.push()
    (here / "small").write_bytes(b"22")
    second = folder.push()

    assert second["large"] == first["large"]
    assert second["small"] != first["small"]
    assert len(files.folders()) == 3
    other = StoredFolder(here.with_name("there"), files)
    other.fetch(second)
    assert (here.with_name("there") / "large").stat().st_mtime_ns == (here / "large").stat().st_mtime_ns
    assert other.push() == second
    assert len(files.folders()) == 3


def test_a_link_within_the_folder_stays_one(places: tuple[Path, LocalFiles]) -> None:
    here, files = places
    write(here, {"step-1/model": b"weights"})
    (here / "last").symlink_to(here / "step-1")
    (here / "again").symlink_to(here.with_name("elsewhere"))
    here.with_name("elsewhere").write_bytes(b"of another place")
    listing = StoredFolder(here, files).push()
    StoredFolder(here.with_name("there"), files).fetch(listing)

    there = here.with_name("there")
    assert os.readlink(there / "last") == "step-1"
    assert (there / "last" / "model").read_bytes() == b"weights"
    assert (there / "again").read_bytes() == b"of another place"


def test_what_is_changed_after_it_was_told_is_no_checkpoint(places: tuple[Path, LocalFiles]) -> None:
    here, files = places
    write(here, {"state": b"1"})
    told_ns = (here / "state").stat().st_mtime_ns
    folder = StoredFolder(here, files)
    os.utime(here / "state", ns=(told_ns + 1, told_ns + 1))
    with pytest.raises(TornError, match="state was changed after"):
        folder.push(until_ns=told_ns)
    assert folder.push()["state"].bytes == 1


def test_a_file_that_is_replaced_while_it_is_stored_is_stored_as_it_was(
    places: tuple[Path, LocalFiles],
) -> None:
    here, files = places
    write(here, {"state": b"old"})

    def replace() -> None:
        (here / "new").write_bytes(b"newer")
        (here / "new").replace(here / "state")

    listing = StoredFolder(here, files, replace).push()
    StoredFolder(here.with_name("there"), files).fetch(listing)
    assert read(here.with_name("there")) == {"state": b"old"}


def test_a_file_that_is_written_to_while_it_is_stored_is_refused(places: tuple[Path, LocalFiles]) -> None:
    here, files = places
    write(here, {"state": b"old"})
    os.utime(here / "state", ns=(1, 1))

    def overwrite() -> None:
        (here / "state").write_bytes(b"new")

    with pytest.raises(TornError, match="state was changed while"):
        StoredFolder(here, files, overwrite).push()
    assert files.folders() == []


def test_a_stored_file_that_was_damaged_is_not_taken(places: tuple[Path, LocalFiles]) -> None:
    here, files = places
    write(here, {"state": b"right"})
    listing = StoredFolder(here, files).push()
    Path(files.root, listing["state"].stored, "data").write_bytes(b"wrong")
    with pytest.raises(OSError, match="not what was stored"):
        StoredFolder(here.with_name("there"), files).fetch(listing)
    assert read(here.with_name("there")) == {}


@pytest.mark.parametrize(
    "files",
    [
        {"../out": StoredFile("a")},
        {"/etc/x": StoredFile("a")},
        {"": StoredFile("a")},
        {"a/../../x": StoredFile("a")},
        {"a": StoredFile("../x")},
        {"a": StoredFile()},
        {"a": StoredFile(link="../x")},
        {"a": StoredFile(link="/etc")},
        {"a/b": StoredFile(link="../../x")},
        {"a": StoredFile(link="b/../../x"), "b": StoredFile(link="c")},
        {"a": StoredFile(link="b"), "a/x": StoredFile("a")},
    ],
)
def test_a_list_that_leads_out_of_the_folder_is_refused(files: dict[str, StoredFile]) -> None:
    with pytest.raises(ValueError, match=r"leads out|no name|below a link"):
        checked(files)


# ---- which states are whole --------------------------------------------------------------------------------


def file(name: str) -> StoredFile:
    return StoredFile(name, "", 1)


def at(step: int) -> CommandCheckpoint:
    return CommandCheckpoint(step, 0, 0)


def test_a_state_counts_once_every_process_that_saves_has_stored_its_part() -> None:
    states = WholeStates(("w0", "w1"), {}, every_rank=True)
    states.told(at(10), 1.0)
    states.told(at(20), 2.0)
    assert states.stored("w0", 1, {"0": file("a1")}, at(25), last=False) is None
    assert states.stored("w1", 2, {"1": file("b2")}, at(25), last=False) is None  # it was faster
    whole = states.stored("w0", 2, {"0": file("a2")}, at(25), last=False)
    assert whole is not None
    assert (whole[0].step, whole[0].files, whole[1]) == (20, {"0": file("a2"), "1": file("b2")}, 2.0)

    alone = WholeStates(("w0", "w1"), {})
    alone.told(at(10), 1.0)
    assert alone.stored("w1", 0, {}, at(12), last=False) is None
    assert alone.stored("w0", 1, {"0": file("a")}, at(12), last=False) == (
        CommandCheckpoint(10, 0, 0, "", {"0": file("a")}),
        1.0,
    )


def test_what_all_have_left_counts_if_it_is_more_than_what_is_held() -> None:
    states = WholeStates(("w0", "w1"), {"old": file("o")})
    left = {"old": file("o"), "best": file("b")}
    states.stored("w0", 0, left, at(9), last=True)
    assert states.ended(at(9), {}) is None  # the other one's is missing
    states.stored("w1", 0, {"old": file("o")}, at(9), last=True)
    assert states.ended(at(9), left) is None
    found = states.ended(at(9), {"old": file("o")})
    assert found is not None
    assert (found.step, found.files) == (9, left)


LISTINGS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([file(n) for n in "123"]))


@given(begun=LISTINGS, folders=st.lists(LISTINGS, min_size=1, max_size=3))
def test_one_folder_of_many_has_what_each_wrote_and_nothing_that_one_removed(
    begun: dict[str, StoredFile], folders: list[dict[str, StoredFile]]
) -> None:
    found = merged(begun, folders)
    assert merged(begun, [folders[0]]) == folders[0]
    for path, one in found.items():
        writers = [folder[path] for folder in folders if path in folder and begun.get(path) != folder[path]]
        assert one == (writers[0] if writers else begun[path])
        assert writers or all(path in folder for folder in folders)
    for folder in folders:
        assert all(path in found for path, one in folder.items() if begun.get(path) != one)


# ---- the host's part ---------------------------------------------------------------------------------------


def test_a_host_stores_what_the_program_told_of_last_and_what_it_left(tmp_path: Path) -> None:
    sent: list[Any] = []
    folder = tmp_path / "here"
    carrier = Carrier(sent.append)
    order = cm.StartProgram(1, ("x",), {}, storage=str(tmp_path / "stored"), folder=str(folder))
    carrier.begin(order)
    assert eventually(carrier.ready)
    write(folder, {"state": b"1"})
    record = cm.Record("checkpoint", 0.0, step=1)
    time.sleep(0.02)
    carrier.told([record, record])
    assert eventually(lambda: carrier.look() or bool(stored(sent)))
    write(folder, {"state": b"1", "best": b"2"})
    carrier.end(store=True)
    assert eventually(carrier.look)
    carrier.close()

    assert not folder.exists()
    first, last = stored(sent)
    assert (first.number, first.last, sorted(first.files)) == (2, False, ["state"])
    assert (last.last, sorted(last.files), last.problem) == (True, ["best", "state"], "")


def stored(sent: list[Any]) -> list[cm.Stored]:
    return [message for message in sent if isinstance(message, cm.Stored)]


def test_records_name_the_files_and_unnamed_ones_are_removed(tmp_path: Path) -> None:
    checkpoints = CommandCheckpoints(str(tmp_path / "saved"), "cmd")
    storage = checkpoints.carry(None)
    files = LocalFiles(storage)
    folder = StoredFolder(tmp_path / "here", files)
    listings = []
    for step in range(1, 5):
        write(tmp_path / "here", {"state": str(step).encode()})
        listings.append(folder.push())
        checkpoints.seen(listings[-1])
        held = CommandCheckpoint(step, 0, 0, "state", listings[-1])
        assert checkpoints.record(Kept(held, step, 1, 8), now=datetime.now(UTC)) == 1
        checkpoints.tidy_up(listings[-1], set())
    assert set(files.folders()) == {listing["state"].stored for listing in listings[-2:]}

    again = CommandCheckpoints(str(tmp_path / "saved"), "cmd")
    kept = again.latest()
    assert kept is not None
    assert kept.checkpoint.files == listings[-1]
    folder.push()  # of an attempt that was killed before it was recorded
    write(tmp_path / "here", {"state": b"more"})
    folder.push()
    again.carry(kept.checkpoint.files)
    assert files.folders() == [listings[-1]["state"].stored]
    again.fetch(listings[-1], tmp_path)
    assert Path(again.folder, "state").read_bytes() == b"4"
