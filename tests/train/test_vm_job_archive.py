"""A job's folder comes to VMs as it is, without what does not belong there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.job_archive import Archive, unpack
from scavenger.train.engines.vm.job_folder import JobFolder
from scavenger.train.engines.vm.process_runner import ProcessRunner
from scavenger.train.transport.messages.values import ProcessConfiguration


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    for name in (
        "train.py",
        "data/x.npy",
        ".git/config",
        ".env",
        "__pycache__/train.pyc",
        "runs/1/log",
        "env/pyvenv.cfg",
        "env/bin/python",
        "out/model",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "empty").mkdir()
    return folder


def arrived(archive: Archive, place: Path) -> dict[str, str]:
    """What comes out at the other end: files and what they hold."""
    place.mkdir()
    packed = place.with_suffix(".tar")
    packed.write_bytes(archive.read(0, archive.bytes))
    unpack(packed, archive.sha256, place)
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_code_and_data_arrive_and_neither_secrets_nor_outputs(job: Path, tmp_path: Path) -> None:
    archive = Archive(job, leave_out=(job / "out",))

    assert arrived(archive, tmp_path / "there") == {"train.py": "train.py", "data/x.npy": "data/x.npy"}
    assert (tmp_path / "there" / "empty").is_dir()


def test_the_same_folder_is_the_same_archive_whenever_it_was_written(job: Path) -> None:
    before = Archive(job)
    os.utime(job / "train.py", (1, 1))

    assert Archive(job).sha256 == before.sha256
    (job / "train.py").write_text("changed")
    assert Archive(job).sha256 != before.sha256


def test_links_within_the_folder_arrive_and_those_that_leave_it_are_named(job: Path, tmp_path: Path) -> None:
    (job / "data" / "again.py").symlink_to(job / "train.py")
    (job / "passwords").symlink_to("/etc/passwd")
    (job / "nowhere").symlink_to("gone")
    archive = Archive(job, leave_out=(job / "out",))

    assert arrived(archive, tmp_path / "there")["data/again.py"] == "train.py"
    assert set(archive.left_out) == {"passwords", "nowhere"}


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(job: Path) -> None:
    (job / "data" / "images.bin").write_bytes(bytes(3 << 20))

    with pytest.raises(ConfigurationError, match=r"3 MiB are too much .* data/images.bin \(3 MiB\)"):
        Archive(job, bytes_max=1 << 20)


def test_an_archive_that_was_changed_on_its_way_is_not_unpacked(job: Path, tmp_path: Path) -> None:
    archive = Archive(job)
    packed = tmp_path / "job.tar"
    packed.write_bytes(archive.read(0, archive.bytes).replace(b"train.py", b"other.py"))
    (tmp_path / "there").mkdir()

    with pytest.raises(ValueError, match="did not arrive as it was sent"):
        unpack(packed, archive.sha256, tmp_path / "there")
    assert not list((tmp_path / "there").iterdir())


@pytest.fixture(params=["with filters", "without"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python's `tarfile`, and as it is in Python 3.11.0 to 3.11.3, which has no filters."""
    if request.param == "without":
        extract_all: Callable[..., None] = tarfile.TarFile.extractall

        def extractall(tar: tarfile.TarFile, path: str = ".", members: Any = None) -> None:
            with contextlib.suppress(AttributeError):
                tar.extraction_filter = staticmethod(lambda member, path: member)
            extract_all(tar, path, members)

        monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.parametrize(
    ("name", "link"), [("../out", ""), ("{folder}/out", ""), ("a", "../../out"), ("a", "{folder}/out")]
)
@pytest.mark.usefixtures("python")
def test_nothing_is_written_outside_of_the_folder(name: str, link: str, tmp_path: Path) -> None:
    packed, there = tmp_path / "job.tar", tmp_path / "a" / "there"
    there.mkdir(parents=True)
    with tarfile.open(packed, "w") as tar:
        info = tarfile.TarInfo(name.format(folder=tmp_path))
        if link:
            info.type, info.linkname = tarfile.SYMTYPE, link.format(folder=tmp_path)
        else:
            info.size = 1
        tar.addfile(info, None if link else io.BytesIO(b"x"))

    with contextlib.suppress(tarfile.TarError):
        unpack(packed, hashlib.sha256(packed.read_bytes()).hexdigest(), there)
    assert not (tmp_path / "a" / "out").exists()
    assert not (tmp_path / "out").exists()
    assert not (there / "a").is_symlink()


OLD = Path("/usr/bin/python3.11")
UNPACK = """
import sys
from pathlib import Path
from scavenger.train.engines.vm.job_archive import unpack
unpack(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
"""


@pytest.mark.skipif(not OLD.exists(), reason="there is no Python of the operating system's own")
def test_the_folder_arrives_under_the_systems_own_python(job: Path, tmp_path: Path) -> None:
    """Debian 12 has 3.11.2."""
    (job / "data" / "again.py").symlink_to(job / "train.py")
    archive = Archive(job)
    packed, there = tmp_path / "job.tar", tmp_path / "there"
    packed.write_bytes(archive.read(0, archive.bytes))
    there.mkdir()

    subprocess.run(
        [OLD, "-B", "-c", UNPACK, packed, archive.sha256, there],
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
    )

    assert (there / "data" / "again.py").read_text() == "train.py"


def test_what_this_process_has_open_is_left_out_and_not_even_read(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text("x = 1")
    database = sqlite3.connect(job / "jobs.db", isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("create table t (x)")
    database.execute("begin immediate")
    try:
        archive = Archive(job)
        with tarfile.open(fileobj=io.BytesIO(archive.read(0, archive.bytes))) as tar:
            assert tar.getnames() == ["train.py"]
        # another process must find the lock that this one still has
        asked = (
            "import sqlite3, sys\n"
            "try: sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('begin immediate')\n"
            "except sqlite3.OperationalError as error: print(error)"
        )
        said = subprocess.run(
            [sys.executable, "-c", asked, str(job / "jobs.db")], capture_output=True, text=True, check=True
        )
        assert "locked" in said.stdout
    finally:
        database.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT])
def test_a_host_whose_disk_is_full_ends_instead_of_refusing_one_process_after_the_other(
    tmp_path: Path, number: int
) -> None:
    class Failing(JobFolder):
        def _take(self, chunk: m.Chunk) -> Path | None:
            raise OSError(number, os.strerror(number))

    sent: list[Any] = []
    folder = Failing(tmp_path, ProcessRunner(sent.append), sent.append)
    boot = ProcessConfiguration("worker", "w0", "tcp://nowhere", "", "", "", memory_fd=-1)
    folder.start(m.Start(1, boot, {}, "sha", ()))
    full = number == errno.ENOSPC
    with pytest.raises(OSError, match="No space left") if full else contextlib.nullcontext():
        folder.receive(m.Chunk(0, 1, b"x"))

    assert os.strerror(number) in sent[-1].reason, "the worker's end has a reason in any case"
