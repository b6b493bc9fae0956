"""Laws of opening a store: it is made once, private, migrated; what cannot be used is named in one line."""

from __future__ import annotations

import ast
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from scavenger import errors
from scavenger.errors import (
    ConfigurationError,
    NotSupportedError,
    ScavengerError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
    StoreTooNewError,
)
from scavenger.store import Store
from scavenger.store import migrate as migrate_module
from scavenger.store.database import Database, default_url, filesystem_of
from scavenger.store.schema import REVISION, VERSION_TABLE, Base

NOBODY = 65534


def dump(path: Path) -> list[str]:
    """The whole database as SQL."""
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def refusal(url: str, kind: type[ScavengerError], place: object) -> str:
    """Open a store that cannot be; the error's one line, which names the place."""
    with pytest.raises(kind) as caught:
        Store.open(url).close()
    assert type(caught.value) is kind
    line = str(caught.value)
    assert "\n" not in line
    assert str(place) in line
    return line


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
        assert modes == {"scavenger.db": 0o600, "scavenger.db-wal": 0o600, "scavenger.db-shm": 0o600}

    @pytest.mark.parametrize(
        "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x.db?uri=true", "no url", ""]
    )
    def test_what_names_no_file_is_refused(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SCAVENGER_STORE", "nor this")
        refusal(url, ConfigurationError, "sqlite:////path/to/file.db")

    def test_other_databases_are_refused_without_telling_the_password(self) -> None:
        line = refusal("mysql://user:secret@host/db", NotSupportedError, "mysql")
        assert "secret" not in line
        line = refusal("postgresql+psycopg://user:secret@127.0.0.1:1/db", StoreError, "127.0.0.1:1")
        assert "secret" not in line

    def test_a_network_file_system_is_recognised_by_the_nearest_mount(self) -> None:
        mounts = {"/": "ext4", "/home": "nfs4", "/home/me/local": "xfs"}

        assert filesystem_of(Path("/home/me/.local/share/s.db"), mounts) == "nfs4"
        assert filesystem_of(Path("/home/me/local/s.db"), mounts) == "xfs"
        assert filesystem_of(Path("/homely/s.db"), mounts) == "ext4"
        assert filesystem_of(Path("/homely/s.db"), {}) == ""


class TestMigrating:
    def test_migrating_from_empty_gives_what_the_tables_say(self, url: str) -> None:
        Store.open(url).close()
        engine = create_engine(url)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            assert compare_metadata(context, Base.metadata) == []
        engine.dispose()

    def test_constraints_too_are_those_that_the_tables_say(self, sqlite_url: str, tmp_path: Path) -> None:
        with Store.open(sqlite_url) as store:
            migrated = store.path
        engine = create_engine(f"sqlite:///{tmp_path}/created.db")
        Base.metadata.create_all(engine)
        engine.dispose()

        assert migrated is not None
        assert _definitions(migrated) == _definitions(tmp_path / "created.db")

    def test_the_newest_migration_is_the_one_that_the_code_needs(self) -> None:
        scripts = ScriptDirectory(str(migrate_module.migrations_path()))
        assert scripts.get_current_head() == REVISION

    def test_an_up_to_date_store_is_opened_without_alembic(self, sqlite_url: str) -> None:
        Store.open(sqlite_url).close()
        code = (
            "import sys; from scavenger.store import Store; Store.open(sys.argv[1]).close();"
            "print('alembic' in sys.modules, 'pydantic' in sys.modules)"
        )
        assert _python(code, sqlite_url) == "False False\n"

    def test_the_records_are_there_without_sqlalchemy(self) -> None:
        assert _python("import sys, scavenger.store.records; print('sqlalchemy' in sys.modules)") == "False\n"

    def test_of_many_who_open_an_empty_store_one_migrates_and_all_get_it(self, url: str) -> None:
        code = (
            "import sys; from scavenger.store import Store\n"
            "sys.stdin.readline()\n"
            "with Store.open(sys.argv[1]) as store: print(store.revision, len(store.jobs()))"
        )
        children = [_start(code, url) for _ in range(3)]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        assert [child.communicate(timeout=60) for child in children] == [(f"{REVISION} 0\n", "")] * 3

    def test_threads_too_may_open_an_empty_store_at_once(self, url: str) -> None:
        with ThreadPoolExecutor(4) as pool:
            for store in pool.map(lambda _: Store.open(url), range(4)):
                assert store.jobs() == ()
                store.close()

    def test_a_failed_migration_changes_nothing_and_can_be_repeated(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A broken migration follows the good one; it fails half-way, after it has made a table."""
        with Store.open(url) as store:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
        broken = tmp_path / "migrations"
        shutil.copytree(
            migrate_module.migrations_path(), broken, ignore=shutil.ignore_patterns("__pycache__")
        )
        (broken / "versions" / "0002_broken.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = '0002', {REVISION!r}\n"
            "def upgrade():\n"
            "    op.create_table('half', sa.Column('id', sa.Integer()))\n"
            "    op.execute('SELECT * FROM nowhere')\n"
        )
        with monkeypatch.context() as later:
            later.setattr(migrate_module, "migrations_path", lambda: broken)
            later.setattr(migrate_module, "REVISION", "0002")
            later.setattr("scavenger.store.store.REVISION", "0002")
            with pytest.raises(StoreError, match="nowhere"):
                Store.open(url)
            with pytest.raises(StoreError, match=f"has schema {REVISION}, this Scavenger needs 0002"):
                Store.open(url, migrate=False)

        with Store.open(url) as store:
            assert store.jobs() == (job,)
        engine = create_engine(url)
        with engine.connect() as connection, pytest.raises(Exception, match="half"):
            connection.execute(text("SELECT * FROM half"))
        engine.dispose()

    def test_rebuilding_a_table_of_a_full_store_loses_no_row(
        self, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SQLite changes a table by copying and dropping it, and a drop would cascade to events."""
        with Store.open(sqlite_url) as store:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            store.add_event(job.id, "note", "kept")
        longer = tmp_path / "migrations"
        shutil.copytree(
            migrate_module.migrations_path(), longer, ignore=shutil.ignore_patterns("__pycache__")
        )
        (longer / "versions" / "0002_longer.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = '0002', {REVISION!r}\n"
            "def upgrade():\n"
            "    with op.batch_alter_table('jobs', recreate='always') as table:\n"
            "        table.add_column(sa.Column('colour', sa.Text()))\n"
        )
        monkeypatch.setattr(migrate_module, "migrations_path", lambda: longer)
        monkeypatch.setattr(migrate_module, "REVISION", "0002")
        monkeypatch.setattr("scavenger.store.store.REVISION", "0002")

        with Store.open(sqlite_url) as store:
            assert [event.message for event in store.events(job.id)] == ["kept"]
            assert store.path is not None
            assert any("colour" in statement for statement in dump(store.path))

    def test_a_store_of_a_newer_scavenger_is_refused_and_left_alone(self, url: str) -> None:
        with Store.open(url) as store:
            name, path = store.name, store.path
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        engine.dispose()
        before = dump(path) if path else None

        line = refusal(url, StoreTooNewError, name)
        assert "9999" in line
        assert "upgrade Scavenger" in line
        if path:
            assert dump(path) == before

    def test_an_empty_database_is_not_migrated_unasked(self, url: str) -> None:
        with pytest.raises(StoreError, match="has schema none"):
            Store.open(url, migrate=False)


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

        assert "move it away" in refusal(f"sqlite:///{path}", StoreError, path)
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
        release = threading.Timer(0.2, holder.close)
        release.start()
        with database.writing(attempts=500) as session:
            assert release.finished.is_set()
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
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", small], capture_output=True, check=False
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


def _definitions(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name != ?", (VERSION_TABLE,)
    ).fetchall()
    connection.close()
    return {name: _sorted_words(sql) for name, sql in rows}


def _sorted_words(sql: str) -> str:
    """A definition with its columns and constraints in one order."""
    return "\n".join(sorted(line.strip().rstrip(",") for line in sql.splitlines()))


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


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _python(code: str, *arguments: str) -> str:
    output, complaint = _start(code, *arguments).communicate(timeout=60)
    assert not complaint
    return output
