"""Laws of migrating: all or nothing, one at a time, and to exactly the tables that the code declares."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from store_values import MODEL, dump, refusal, run_python, start_python

from scavenger.errors import StoreError, StoreTooNewError, StoreTooOldError
from scavenger.store import Store
from scavenger.store import migrate as migrate_module
from scavenger.store.columns import Base
from scavenger.store.database import Database
from scavenger.store.schema import REVISION, VERSION_TABLE


class TestMigrating:
    @pytest.mark.parametrize("way", ["created", "migrated"])
    def test_an_empty_database_gets_what_the_tables_say(self, url: str, way: str) -> None:
        if way == "migrated":
            _migrated(url)
        Store.open(url).close()
        engine = create_engine(url)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
            assert compare_metadata(context, Base.metadata) == []
            assert context.get_current_revision() == REVISION
        engine.dispose()

    def test_constraints_too_are_those_that_the_tables_say(self, sqlite_url: str, tmp_path: Path) -> None:
        _migrated(sqlite_url)
        with Store.open(sqlite_url) as store:
            migrated = store.path
        Store.open(f"sqlite:///{tmp_path}/created.db").close()

        assert migrated is not None
        assert _definitions(migrated) == _definitions(tmp_path / "created.db")

    def test_the_newest_migration_is_the_one_that_the_code_needs(self) -> None:
        scripts = ScriptDirectory(str(migrate_module.migrations_path()))
        assert scripts.get_current_head() == REVISION

    @pytest.mark.slow
    def test_an_up_to_date_store_is_opened_without_alembic(self, sqlite_url: str) -> None:
        Store.open(sqlite_url).close()
        code = (
            "import sys; from scavenger.store import Store; Store.open(sys.argv[1]).close();"
            "print('alembic' in sys.modules, 'pydantic' in sys.modules)"
        )
        assert run_python(code, sqlite_url) == "False False\n"

    @pytest.mark.slow
    def test_the_records_are_there_without_sqlalchemy(self) -> None:
        assert (
            run_python("import sys, scavenger.store.records; print('sqlalchemy' in sys.modules)") == "False\n"
        )

    @pytest.mark.slow
    def test_of_many_who_open_an_empty_store_one_migrates_and_all_get_it(self, url: str) -> None:
        code = (
            "import sys; from scavenger.store import Store\n"
            "sys.stdin.readline()\n"
            "with Store.open(sys.argv[1]) as store: print(store.revision, len(store.jobs()))"
        )
        children = [start_python(code, url) for _ in range(3)]
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
        (broken / "versions" / "9998_broken.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = '9998', {REVISION!r}\n"
            "def upgrade():\n"
            "    op.create_table('half', sa.Column('id', sa.Integer()))\n"
            "    op.execute('SELECT * FROM nowhere')\n"
        )
        with monkeypatch.context() as later:
            later.setattr(migrate_module, "migrations_path", lambda: broken)
            later.setattr(migrate_module, "REVISION", "9998")
            later.setattr("scavenger.store.store.REVISION", "9998")
            with pytest.raises(StoreError, match="nowhere"):
                Store.open(url)
            with pytest.raises(StoreError, match=f"has schema {REVISION}, this Scavenger needs 9998"):
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
        (longer / "versions" / "9998_longer.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = '9998', {REVISION!r}\n"
            "def upgrade():\n"
            "    with op.batch_alter_table('jobs', recreate='always') as table:\n"
            "        table.add_column(sa.Column('colour', sa.Text()))\n"
        )
        monkeypatch.setattr(migrate_module, "migrations_path", lambda: longer)
        monkeypatch.setattr(migrate_module, "REVISION", "9998")
        monkeypatch.setattr("scavenger.store.store.REVISION", "9998")

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

    def test_a_store_of_before_the_first_release_says_how_its_models_are_kept(
        self, sqlite_url: str, tmp_path: Path
    ) -> None:
        path = Path(sqlite_url.removeprefix("sqlite:///"))
        path.parent.mkdir(parents=True)
        connection = sqlite3.connect(path)
        connection.executescript((Path(__file__).parent / "store_0018.sql").read_text())
        connection.close()
        before = dump(path)

        line = refusal(sqlite_url, StoreTooOldError, path)
        assert "schema 0018" in line
        assert "scavenger models export --out FILE` with the version that wrote it" in line
        assert "scavenger models import FILE`" in line
        assert StoreTooOldError.exit_code == 9
        assert dump(path) == before

    def test_models_that_an_earlier_version_exported_are_imported(self, sqlite_url: str) -> None:
        exported = json.loads((Path(__file__).parent / "models_0018.json").read_text())
        with Store.open(sqlite_url) as store:
            (model,) = store.import_models(exported)
            assert store.model(model.id).model == MODEL

    def test_a_process_of_the_version_before_goes_on_while_the_store_is_migrated(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newer = tmp_path / "migrations"
        shutil.copytree(migrate_module.migrations_path(), newer, ignore=shutil.ignore_patterns("__pycache__"))
        (newer / "versions" / "9998_newer.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = '9998', {REVISION!r}\n"
            "def upgrade():\n"
            "    with op.batch_alter_table('jobs') as table:\n"
            "        table.add_column(sa.Column('colour', sa.Text()))\n"
        )
        with Store.open(url) as before:
            job = before.create_job("digits", spec={}, job_file="job.yaml")
            with monkeypatch.context() as later:
                later.setattr(migrate_module, "migrations_path", lambda: newer)
                later.setattr(migrate_module, "REVISION", "9998")
                later.setattr("scavenger.store.store.REVISION", "9998")
                after = Store.open(url)
            with after:
                before.update_job(job.id, state="running", step=2)
                before.add_event(job.id, "note", "goes on")
                assert after.job(job.id).step == 2
                before.finish_job(job.id, state="succeeded", report=None, exit_code=0)
                assert after.job(job.id).state == "succeeded"
        refusal(url, StoreTooNewError, before.name)

    def test_an_empty_database_is_not_migrated_unasked(self, url: str) -> None:
        with pytest.raises(StoreError, match="has schema none"):
            Store.open(url, migrate=False)


def _migrated(url: str) -> None:
    """Give an empty database the tables by all migrations, one after the other."""
    database = Database(url)
    with migrate_module.migrating(database) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr("scavenger.store.schema.REVISION", "")  # what the code declares is not made at once
        migrate_module.migrate(connection, database, REVISION)
    database.close()


def _definitions(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: _sorted_words(sql) for name, sql in rows}


def _sorted_words(sql: str) -> str:
    """A definition with its columns and constraints in one order; an added column has no line of its own."""
    lines = re.split(r"\n|, (?=\w+ [A-Z]+(?:,|\s*$))", sql.replace('"', ""), flags=re.MULTILINE)
    return "\n".join(sorted(line.strip().rstrip(",") for line in lines))
