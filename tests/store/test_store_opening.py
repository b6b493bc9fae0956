"""Laws of opening a store: it is private to its user; what cannot be used is named in one line."""

from __future__ import annotations

import ast
import os
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from store_values import refusal

from scavenger import errors
from scavenger.errors import (
    ConfigurationError,
    NotSupportedError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from scavenger.store import Store
from scavenger.store import migrate as migrate_module
from scavenger.store.database import Database, default_url, filesystem_of

NOBODY = 65534


class TestWhereItIs:
    def test_by_argument_else_by_environment_else_in_the_data_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SCAVENGER_STORE", f"sqlite:///{tmp_path}/named.db")
        with Store.open() as named, Store.open(f"sqlite:///{tmp_path}/given.db") as given:
            assert (named.path, given.path) == (tmp_path / "named.db", tmp_path / "given.db")
            assert named.name == str(named.path)

        monkeypatch.delenv("SCAVENGER_STORE")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
        assert default_url() == f"sqlite:///{tmp_path}/share/scavenger/scavenger.db"

    def test_its_folder_and_files_are_for_its_user_alone(self, sqlite_url: str, tmp_path: Path) -> None:
        with Store.open(sqlite_url) as store:
            store.create_job("digits", spec={}, job_file="job.yaml")
            folder = tmp_path / "data"
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
        assert modes == dict.fromkeys(
            ("scavenger.db", "scavenger.db-wal", "scavenger.db-shm", "installation"), 0o600
        )

    @pytest.mark.parametrize(
        "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x.db?uri=true", "no url", ""]
    )
    def test_what_names_no_file_is_refused(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SCAVENGER_STORE", "nor this")
        refusal(url, ConfigurationError, "sqlite:////path/to/file.db")

    def test_other_databases_are_refused_without_telling_the_password(self) -> None:
        line = refusal("mysql://user:secret@host/db", NotSupportedError, "mysql")
        assert "secret" not in line
        line = refusal(
            "postgresql+psycopg://user:secret@127.0.0.1:1/db", StoreUnavailableError, "127.0.0.1:1"
        )
        assert "secret" not in line

    def test_a_network_file_system_is_recognised_by_the_nearest_mount(self) -> None:
        mounts = {"/": "ext4", "/home": "nfs4", "/home/me/local": "xfs"}

        assert filesystem_of(Path("/home/me/.local/share/s.db"), mounts) == "nfs4"
        assert filesystem_of(Path("/home/me/local/s.db"), mounts) == "xfs"
        assert filesystem_of(Path("/homely/s.db"), mounts) == "ext4"
        assert filesystem_of(Path("/homely/s.db"), {}) == ""


class TestWhatCannotBeUsed:
    def test_a_database_of_another_program_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "music.db"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE songs (title TEXT)")
        connection.commit()
        connection.close()
        before = path.read_bytes()

        assert "songs" in refusal(f"sqlite:///{path}", StoreError, path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        "content", [b"not a database at all, only text\n" * 100, b"SQLite format 3\0" + b"\xff" * 4096]
    )
    def test_garbage_is_refused_and_left_alone(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "garbage.db"
        path.write_bytes(content)

        assert "move it away" in refusal(f"sqlite:///{path}", StoreUnavailableError, path)
        assert path.read_bytes() == content

    def test_damage_in_the_middle_is_an_error_of_the_store(self, sqlite_url: str) -> None:
        with Store.open(sqlite_url) as store:
            path = store.path
            for _ in range(50):
                store.create_job("digits", spec={"pad": "x" * 500}, job_file="job.yaml")
        assert path is not None
        content = bytearray(path.read_bytes())
        content[8192:] = b"\xa5" * (len(content) - 8192)
        path.write_bytes(content)

        with pytest.raises(StoreError, match="damaged") as caught, Store.open(sqlite_url) as store:
            store.jobs()
        assert str(path) in str(caught.value)

    def test_a_folder_where_the_file_should_be(self, tmp_path: Path) -> None:
        refusal(f"sqlite:///{tmp_path}", StoreError, tmp_path)

    def test_a_file_where_the_folder_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        refusal(f"sqlite:///{tmp_path}/file/s.db", StoreError, tmp_path / "file" / "s.db")

    def test_a_folder_that_nobody_may_write_to(self) -> None:
        refusal("sqlite:////sys/scavenger/s.db", StoreReadOnlyError, "/sys/scavenger/s.db")

    @pytest.mark.slow
    def test_a_read_only_file_and_a_read_only_folder(self, ordinary_folder: Path) -> None:
        url = f"sqlite:///{ordinary_folder}/s.db"
        Store.open(url).close()
        if os.getuid() == 0:
            os.chown(ordinary_folder / "s.db", NOBODY, NOBODY)

        (ordinary_folder / "s.db").chmod(0o400)
        kind, line = _as_ordinary_user(url)
        assert (kind, "chmod u+w" in line, f"{ordinary_folder}/s.db" in line) == (
            "StoreReadOnlyError",
            True,
            True,
        )

        (ordinary_folder / "s.db").chmod(0o600)
        ordinary_folder.chmod(0o500)
        kind, line = _as_ordinary_user(url)
        assert (kind, f"`chmod u+w {ordinary_folder}`" in line) == ("StoreReadOnlyError", True)

        ordinary_folder.chmod(0o700)
        assert _as_ordinary_user(url) == ("None", "None")

    def test_held_by_another_for_too_long(self, sqlite_url: str) -> None:
        """The short timeout is the URL's; the store is still read meanwhile, and written to afterwards."""
        with Store.open(f"{sqlite_url}?timeout=0.05") as store:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            assert store.path is not None
            holder = sqlite3.connect(store.path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreBusyError, match="held by another process") as caught:
                store.heartbeat(job.id)
            assert str(store.path) in str(caught.value)
            assert store.job(job.id) == job
            holder.execute("ROLLBACK")
            holder.close()
            store.update_job(job.id, detail="free again")

    def test_a_writer_that_starved_once_waits_again(self, sqlite_url: str) -> None:
        """The lock is let go after several timeouts, and long before the last attempt."""
        Store.open(sqlite_url).close()
        database = Database(f"{sqlite_url}?timeout=0.02")
        assert database.path is not None
        holder = sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        let_go = threading.Event()

        def let_it_go() -> None:
            let_go.set()  # before the writer can have the lock
            holder.close()

        release = threading.Timer(0.2, let_it_go)
        release.start()
        with database.writing(attempts=500) as session:
            assert let_go.is_set()
            assert session.scalar(text("SELECT count(*) FROM jobs")) == 0
        release.join()
        database.close()

    def test_an_empty_file_that_another_holds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(migrate_module, "WAL_PATIENCE_S", 0.1)
        holder = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        refusal(f"sqlite:///{tmp_path}/s.db?timeout=0.05", StoreBusyError, tmp_path / "s.db")
        holder.close()
        Store.open(f"sqlite:///{tmp_path}/s.db").close()

    @pytest.mark.root
    @pytest.mark.slow
    def test_a_full_disk_loses_nothing_that_was_there(
        self, full_disk: Callable[[], object], tmp_path: Path
    ) -> None:
        with Store.open(f"sqlite:///{tmp_path}/small/s.db") as store:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            full_disk()
            with pytest.raises(StoreError, match="the disk is full") as caught:
                store.finish_job(job.id, state="succeeded", report={"pad": "x" * 500_000}, exit_code=0)
            assert str(store.path) in str(caught.value)
            assert store.job(job.id) == job


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder that an ordinary user can reach, which pytest's own are not to others than their owner."""
    folder = Path(tempfile.mkdtemp(prefix="scavenger-"))
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    try:
        yield folder
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Callable[[], object]]:
    """A small file system at `tmp_path/small`, and what fills it."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=768k", "tmpfs", small], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")

    def fill() -> None:
        free = os.statvfs(small)
        (small / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def _as_ordinary_user(url: str) -> tuple[str, str]:
    """Open a store as somebody whom permissions bind: the error's type and text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            try:
                Store.open(url).close()
                outcome = ("None", "None")
            except Exception as error:  # noqa: BLE001 - the parent judges it
                outcome = (type(error).__name__, str(error))
            os.write(writer, repr(outcome).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    kind, line = ast.literal_eval(answer)
    assert kind == "None" or hasattr(errors, kind)
    return kind, line
