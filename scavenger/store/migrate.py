"""Migration of a database to the tables of this version: all or nothing, one process at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import column, table

from scavenger.errors import StoreError, StoreTooNewError, StoreTooOldError
from scavenger.store import schema
from scavenger.store.columns import Base
from scavenger.store.database import Database, is_busy
from scavenger.store.schema import REVISION, VERSION_TABLE

WAIT_ATTEMPTS = 12
"""Attempts to get the lock, since another process may be migrating: a minute at the default busy timeout."""

WAL_PATIENCE_S = 10.0
WAL_RETRY_S = 0.02

_one_at_a_time = threading.Lock()  # Alembic keeps the migration under way in module globals


def migrations_path() -> Path:
    """The folder of the migrations, inside the installed package or next to it in the repository.

    Raises:
        StoreError: The installation does not have them.
    """
    here = Path(__file__).parent
    for path in (here / "migrations", here.parents[1] / "migrations"):
        if (path / "env.py").is_file():
            return path
    raise StoreError(f"this installation lacks {here / 'migrations'}; install Scavenger again")


def revision_of(database: Database) -> str | None:
    """The revision of a store; None for an empty database.

    Raises:
        StoreError: Its tables belong to another program.
    """
    with database.reading() as session:
        return revision_within(session.connection(), database)


def revision_within(connection: Connection, database: Database) -> str | None:
    inspector = inspect(connection)
    if inspector.has_table(VERSION_TABLE):
        version = table(VERSION_TABLE, column("version_num"))
        return connection.execute(select(version.c.version_num)).scalar()
    # A PostgreSQL database may be shared with others; a SQLite file is one program's.
    foreign = set(inspector.get_table_names())
    if not database.path:
        foreign &= set(Base.metadata.tables)
    if foreign:
        raise StoreError(
            f"{database.name} holds tables of another program ({', '.join(sorted(foreign)[:3])});"
            " name another store with SCAVENGER_STORE"
        )
    return None


def upgrade(database: Database) -> None:
    """Migrate a store to `REVISION`; no effect if another process already did.

    Raises:
        StoreTooNewError: A newer Scavenger wrote it.
        StoreTooOldError: It was written before the first release.
        StoreBusyError: Another process holds it.
        StoreError: The migration failed; the store is as it was.
    """
    with migrating(database) as connection:
        migrate(connection, database, REVISION)


@contextmanager
def migrating(database: Database) -> Iterator[Connection]:
    """One transaction with the lock, in which tables can be changed; committed at the end of the block.

    Raises:
        StoreBusyError: Another process holds the database.
        StoreError: What was written does not fit together; nothing was changed.
    """
    with _one_at_a_time, database.errors():
        if database.path:
            _use_wal(database)
        with database.engine.connect() as connection:
            if database.path:
                # Rebuilding a table drops it for a moment, which must not cascade; within a transaction
                # SQLite would ignore this.
                connection.execute(text("PRAGMA foreign_keys = OFF"))
            try:
                database.lock(connection, WAIT_ATTEMPTS)
                yield connection
                connection.commit()
            finally:
                connection.invalidate()  # rolls back the uncommitted, and keeps the pragma out of the pool


def migrate(connection: Connection, database: Database, revision: str) -> None:
    """Migrate to a revision, within the transaction of `migrating`; no effect on a store that has it.

    An empty database gets the tables that the code declares at once, which a test holds equal to those that the
    migrations make: it takes a fifth of their time.

    Raises:
        StoreTooNewError: A newer Scavenger wrote the store, or knows the revision.
        StoreTooOldError: The store, or the revision, is of before the first release.
        StoreError: The migration failed.
    """
    found = revision_within(connection, database)
    if found == revision:
        return
    if found is None and revision == schema.REVISION:
        _create(connection)
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for wanted in (found, revision):
        if wanted is None or wanted in known:
            continue
        if wanted < min(known):
            raise StoreTooOldError(
                f"{database.name} has schema {wanted}, which is of before the first release; to keep "
                "its models, run `scavenger models export --out FILE` with the version that wrote it, and `scavenger "
                "models import FILE` with this one and another store in SCAVENGER_STORE"
            )
        raise StoreTooNewError(
            f"{database.name} was written by a newer Scavenger (schema {wanted}, this one knows {REVISION});"
            " upgrade Scavenger, or name another store with SCAVENGER_STORE"
        )
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise StoreError(f"{database.name} could not be migrated to schema {revision}: {error}") from error
    check_references(connection, database)


def _create(connection: Connection) -> None:
    """Make all tables, and that by which Alembic knows the revision of a database."""
    Base.metadata.create_all(connection, checkfirst=False)
    version = Table(
        VERSION_TABLE,
        MetaData(),
        Column("version_num", String(32), nullable=False),
        PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
    )
    version.create(connection, checkfirst=False)
    connection.execute(version.insert().values(version_num=schema.REVISION))


def check_references(connection: Connection, database: Database) -> None:
    """Check that rows have what they refer to, which SQLite does not do while tables are changed.

    Raises:
        StoreError: If one does not.
    """
    if database.path and connection.execute(text("PRAGMA foreign_key_check")).first():
        raise StoreError(
            f"{database.name} could not be migrated to schema {REVISION}: rows would lose what they refer to"
        )


def _use_wal(database: Database) -> None:
    """Switch to WAL, which the file then stays in; SQLite itself does not always wait here."""
    patience = time.monotonic() + WAL_PATIENCE_S
    while True:
        try:
            with database.engine.connect() as connection:
                connection.execute(text("PRAGMA journal_mode = WAL"))
            return
        except DBAPIError as error:
            if not is_busy(error.orig) or time.monotonic() > patience:
                raise
        time.sleep(WAL_RETRY_S)
