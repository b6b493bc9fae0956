"""Restores a backup into an empty store: all of it or nothing, and nothing of it acts by itself.

What the backup says of processes is outdated: leases are released, and their tokens raised above all that were given
before, so that no process of that time writes; jobs and submissions that ran are to be resumed by the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Connection, MetaData, Table, delete, func, select, text, true, update
from sqlalchemy.orm import Session

from scavenger.errors import ConfigurationError
from scavenger.store.backup import Backup, check_backup, column_kind, decoder, read_rows
from scavenger.store.columns import Base
from scavenger.store.database import Database
from scavenger.store.migrate import check_references, migrate, migrating, revision_within
from scavenger.store.operations import end_open_operation
from scavenger.store.owner import is_owner_alive, owner_of
from scavenger.store.progress import close_processes
from scavenger.store.records import LIVE_STATES
from scavenger.store.schema import REVISION, EventRow, JobRow, LeaseRow, RestoreRow, SubmissionRow
from scavenger.store.service_schema import NotificationRow, ServerRow, TokenRow

_TOKENS_PER_S = 1 << 20
"""Tokens after a restore begin at the time, in seconds, times this: more than any lease is ever taken in a second."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored.

    Attributes:
        backup: The file's header and counts.
        to_resume: Names and ids of jobs that ran when the backup was made, in the order of their creation.
    """

    backup: Backup
    to_resume: tuple[tuple[str, str], ...]


def restore_backup(
    database: Database, path: Path, clock: Callable[[], datetime], *, keep_tokens: bool
) -> Restored:
    """Restore a backup into an empty store, and migrate it to the tables of this version.

    Args:
        database: A new one, or one without rows.
        path: The file; it is checked to its end before anything is written.
        clock: Returns the aware time.
        keep_tokens: Whether tokens are valid again, also those that were revoked since the backup was made. Sessions of
            browsers end in any case.

    Raises:
        ConfigurationError: The store is not empty, or the file is damaged or no backup.
        StoreTooNewError: A newer Scavenger made the backup.
        StoreTooOldError: The backup was made before the first release.
        StoreBusyError: Another process holds the database.
        StoreError: The store cannot be used; nothing was written.
    """
    backup = check_backup(path)
    with migrating(database) as connection:
        _check_empty(connection, database, backup)
        migrate(connection, database, backup.header.revision)
        _insert(connection, database, backup, path)
        if not database.path:
            _set_sequences(connection, backup)
        migrate(connection, database, REVISION)
        check_references(connection, database)
        with Session(connection, expire_on_commit=False) as session:
            to_resume = _void(session, backup.header.made_at, clock())
            session.execute(
                delete(TokenRow).where(true() if not keep_tokens else TokenRow.is_session.is_(True))
            )
            _end_orphans(session)
            session.flush()
    return Restored(backup, to_resume)


def _check_empty(connection: Connection, database: Database, backup: Backup) -> None:
    found = revision_within(connection, database)
    if found is None:
        return
    for table in _tables(connection, backup):
        if (count := connection.scalar(select(func.count()).select_from(table))) != 0:
            raise ConfigurationError(
                f"{database.name} is not empty ({table.name}: {count}); a backup is restored into an empty store: "
                "name a new one with --store"
            )
    if found != backup.header.revision:
        raise ConfigurationError(
            f"{database.name} has the tables of schema {found}, and the backup is of {backup.header.revision}; name a "
            "store that has none yet with --store"
        )


def _tables(connection: Connection, backup: Backup) -> list[Table]:
    """The store's tables as they are in the database, those that others refer to first."""
    found = MetaData()
    # a PostgreSQL database may be shared with other programs
    found.reflect(connection, only=lambda name, _: name in backup.rows or name in Base.metadata.tables)
    return found.sorted_tables


def _insert(connection: Connection, database: Database, backup: Backup, path: Path) -> None:
    tables = {table.name: table for table in _tables(connection, backup)}
    for name, columns, rows in read_rows(path):
        table = tables.get(name)
        if table is None or set(columns) != set(table.columns.keys()):
            raise ConfigurationError(f"{path} is damaged: its table {name} is not of its schema")
        if any(len(row) != len(columns) for row in rows):
            raise ConfigurationError(f"{path} is damaged: a row of {name} has another number of values")
        connection.execute(table.insert(), _values(table, columns, rows, naive=database.path is not None))


def _values(table: Table, columns: list[str], rows: list[list[Any]], *, naive: bool) -> list[dict[str, Any]]:
    """Rows as their tables take them; `naive`: times without their zone, which SQLite does not have."""
    decoders = []
    for name in columns:
        kind = table.columns[name].type
        if isinstance(kind, JSON):
            kind.none_as_null = True
        decoders.append(_naive if naive and column_kind(kind) == "time" else decoder(column_kind(kind)))
    return [
        {
            name: None if value is None else decode(value)
            for name, decode, value in zip(columns, decoders, row, strict=True)
        }
        for row in rows
    ]


def _naive(value: str) -> datetime:
    return datetime.fromisoformat(value).astimezone(UTC).replace(tzinfo=None)


def _set_sequences(connection: Connection, backup: Backup) -> None:
    """Let PostgreSQL number further rows after those that came with their numbers."""
    for table in _tables(connection, backup):
        (*keys,) = table.primary_key.columns
        if len(keys) != 1 or keys[0].type.python_type is not int:
            continue
        name = connection.scalar(
            text("SELECT pg_get_serial_sequence(:table, :column)"),
            {"table": table.name, "column": keys[0].name},
        )
        last = connection.scalar(select(func.max(keys[0])))
        if name is not None and last is not None:
            connection.execute(text("SELECT setval(:name, :last)"), {"name": name, "last": last})


def _void(session: Session, backup_at: datetime, now: datetime) -> tuple[tuple[str, str], ...]:
    """End what the backup says of processes; returns names and ids of jobs that are to be resumed."""
    last = session.scalar(select(func.max(LeaseRow.token))) or 0
    floor = max(last + 1, int(now.timestamp()) * _TOKENS_PER_S)
    session.execute(update(LeaseRow).values(holder="", beats=0, token=floor))
    session.execute(delete(ServerRow))
    session.execute(update(SubmissionRow).values(installation=None))  # the store may be in another place now
    session.execute(update(JobRow).values(owner_installation=None))
    waiting = update(NotificationRow).where(NotificationRow.state == "waiting")
    session.execute(waiting.values(state="refused", error="the store was restored from a backup"))
    session.add(RestoreRow(at=now, backup_at=backup_at, token_floor=floor, looked_at=None))
    made = f"{backup_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    for row in session.scalars(select(SubmissionRow).where(SubmissionRow.state == "running")):
        row.state, row.ended_at = "ended", now
        row.reason = f"it ran when the store's backup of {made} was made, and is to be resumed"
    return tuple(_interrupted(session, made, now))


def _end_orphans(session: Session) -> None:
    """End the tokens that were made with one that is not there any more."""
    orphans = select(TokenRow.id).where(
        TokenRow.parent.is_not(None), TokenRow.parent.not_in(select(TokenRow.id))
    )
    while ids := session.scalars(orphans).all():
        session.execute(delete(TokenRow).where(TokenRow.id.in_(ids)))


def _interrupted(session: Session, made: str, now: datetime) -> Iterator[tuple[str, str]]:
    live = select(JobRow).where(JobRow.state.in_(LIVE_STATES)).order_by(JobRow.created_at, JobRow.id)
    for job in session.scalars(live).all():
        if is_owner_alive(owner_of(job), job.heartbeat_at, at=now):
            continue  # a command on this machine goes on, or notices by its lease that it cannot
        job.state, job.ended_at = "interrupted", now
        job.error = f"the store was restored from its backup of {made}, in which the job ran: resume it"
        end_open_operation(session, job.id, "interrupted", job.error, now)
        close_processes(session, job.id, "lost", at=now)
        session.add(EventRow(job_id=job.id, at=now, level="warning", kind="note", message=job.error))
        yield job.name, job.id
