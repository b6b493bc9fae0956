"""What a leader sends, which may be somebody else: archives that try to write elsewhere, ids and paths of others."""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from scavenger.cloud.boot.leader import FOLDER
from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.record import LeaderRecord, Leaders, job_id_of
from scavenger.control.leading.unpacking import unpack_outputs
from scavenger.control.leading.vm_seat import VmSeat
from scavenger.errors import ConfigurationError
from scavenger.store import Store
from scavenger.store.record_file import RECORD_FILE, RecordFile

Entries = list[tuple[str, bytes | str | None]]
"""Paths with content of a file, target of a link, or nothing for a folder."""


def packed(entries: Entries) -> IO[bytes]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
                continue
            info.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
            info.linkname = content or ""
            tar.addfile(info)
    file.seek(0)
    return file


def unpacked(entries: Entries, home: Path) -> Path:
    """The job's folder in the outputs of a home, after an archive has been unpacked into it."""
    with tarfile.open(fileobj=packed(entries), mode="r:") as tar:
        unpack_outputs(tar, "job", home / "out")
    return home / "out" / "job"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with what a stranger would like to replace; whatever is tried, it must be as it was."""
    (tmp_path / ".bashrc").write_text("mine")
    (tmp_path / "out").mkdir()
    return tmp_path


def assert_untouched(home: Path) -> None:
    assert sorted(path.name for path in home.iterdir()) == [".bashrc", "out"]
    assert (home / ".bashrc").read_text() == "mine"
    assert not (home / ".bashrc").is_symlink()
    top = os.path.realpath(home / "out" / "job")
    for folder, folders, files in os.walk(home / "out"):
        for name in (*folders, *files):
            assert os.path.commonpath([top, os.path.realpath(os.path.join(folder, name))]) == top


def test_links_are_fetched_and_lead_nowhere_else(home: Path) -> None:
    job = unpacked(
        [
            ("job/model", "checkpoints/command/state.pt"),
            ("job/folder", "checkpoints"),
            ("job/folder/below", b"not through a link"),
            ("job/checkpoints/command/state.pt", b"weights"),
            ("job/absolute", "/etc/passwd"),
            ("job/out", "../../elsewhere"),
            ("job/round", "checkpoints/../../elsewhere"),
            ("../job/escaped", b"x"),
            ("/job/escaped", b"x"),
        ],
        home,
    )

    found = {path.relative_to(job).as_posix() for path in job.rglob("*")}
    assert "checkpoints/command/state.pt" in found
    assert not found & {"absolute", "out", "round", "escaped"}
    assert (job / "model").read_bytes() == b"weights"
    assert (job / "folder" / "below").read_bytes() == b"not through a link"
    assert not (job / "checkpoints" / "below").exists()
    assert_untouched(home)


LADDER: Entries = [
    ("job/a/b/c/up", "../../../d"),  # of four folders, one is left
    ("job/d/x", b"here"),
    # as its path reads, four folders up is the job's; from `d`, where it would come to lie, it is the home's
    ("job/a/b/c/up/.bashrc", "../../../../.bashrc"),
    ("job/a/b/c/up/home", "../../../../d"),
]


def test_a_chain_of_links_replaces_nothing_outside(home: Path) -> None:
    job = unpacked(LADDER, home)

    assert sorted(path.name for path in (job / "d").iterdir()) == ["x"]
    assert_untouched(home)


@pytest.mark.parametrize(
    "first",
    [
        LADDER,
        [("job/down", "d"), ("job/d/x", b"here"), ("job/d/.bashrc", "../e"), ("job/e", b"there")],
        [("job/down/x", b"a folder first")],
    ],
)
def test_an_archive_writes_through_no_link_of_an_earlier_one(first: Entries, home: Path) -> None:
    job = unpacked(first, home)

    unpacked(
        [
            ("job/a/b/c/up/.bashrc", b"theirs"),
            ("job/down/.bashrc", b"theirs"),
            ("job/d/.bashrc", b"theirs"),
        ],
        home,
    )

    assert (job / "down" / ".bashrc").read_bytes() == b"theirs"
    assert not (job / "down").is_symlink()
    if (job / "e").exists():
        assert (job / "e").read_bytes() == b"there"
    assert_untouched(home)


def test_what_was_there_before_leads_nowhere(home: Path) -> None:
    """Links that no archive has made, such as one that an older version has left."""
    job = home / "out" / "job"
    job.mkdir()
    (job / "folder").symlink_to(home)
    (job / "file").symlink_to(home / ".bashrc")

    unpacked([("job/folder/.bashrc", b"theirs"), ("job/file", b"theirs")], home)

    assert (job / "folder" / ".bashrc").read_bytes() == b"theirs"
    assert_untouched(home)


def test_a_folder_in_the_way_of_a_file_is_said(home: Path) -> None:
    unpacked([("job/x/y", b"")], home)

    with pytest.raises(IsADirectoryError):
        unpacked([("job/x", b"")], home)


# What a leader says of its job


class Sending(VmSeat):
    """Of a leader that sends this archive."""

    sent: IO[bytes] = io.BytesIO()

    def fetch(self, job_id: str, file: IO[bytes]) -> None:
        file.write(self.sent.read())


def seat(home: Path, job_id: str) -> Sending:
    record = LeaderRecord(
        str(uuid.uuid4()),
        "digits",
        "/jobs/digits.yaml",
        "aws",
        "us-east-1",
        "",
        str(home / "out"),
        job_id=job_id,
    )
    return Sending(Leaders(home / "leaders"), record, inform=lambda line: None)


def document(job_id: str) -> Mapping[str, object]:
    return {"job": {"id": job_id, "state": "succeeded", "exit_code": 0, "error": ""}}


def test_a_leader_names_no_file_of_this_machine(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/jobs.db") as store:
        job_id = store.create_job("digits", spec={}, job_file="/jobs/digits.yaml").id
        store.finish_job(job_id, state="succeeded", report=None, exit_code=0)
        record = replace(
            store.job(job_id),
            model_path="/home/me/.ssh/id_ed25519",
            measurements_path=f"{FOLDER}/job/.scavenger/{job_id}/measurements.jsonl",
            checkpoint="s3://theirs/checkpoints/step-1",
        )
    RecordFile(tmp_path / RECORD_FILE, record)
    there = seat(tmp_path, job_id)
    there.sent = packed([(f"{job_id}/{RECORD_FILE}", (tmp_path / RECORD_FILE).read_bytes())])

    with Store.open(f"sqlite:///{tmp_path}/mine.db") as store:
        LeaderSession(there).outcome(document(job_id), store)
        found = store.job(job_id)

    assert found.model_path is None
    assert found.checkpoint is None
    assert found.measurements_path == str(tmp_path / "out" / job_id / "measurements.jsonl")


def test_a_leader_takes_no_other_jobs_place(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/mine.db") as store:
        other = store.create_job("mnist", spec={}, job_file="/jobs/mnist.yaml").id
        there = seat(tmp_path, other)
        there.sent = packed([(f"{other}/model.keras", b"theirs")])
        with pytest.raises(ConfigurationError, match="another job's id"):
            LeaderSession(there).outcome(document(other), store)
        there = seat(tmp_path, str(uuid.uuid4()))
        with pytest.raises(ConfigurationError, match="another job's id"):
            LeaderSession(there).outcome(document("../../elsewhere"), store)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("told", ["", "../../elsewhere", "digits", None, 7])
def test_an_id_is_no_path(told: object) -> None:
    with pytest.raises(ConfigurationError, match="no id"):
        job_id_of(told)
