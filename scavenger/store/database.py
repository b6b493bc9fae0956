"""The connection to the database: its URL, set-up, locking, and the translation of its errors.

SQLite runs in WAL mode, where readers never wait; a writer takes the write lock when its transaction begins
(`BEGIN IMMEDIATE`), because SQLite cannot wait for a lock that a transaction requests later. On PostgreSQL an
advisory lock also admits one writer at a time. No transaction outlives the call that needs it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import URL, Connection, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from scavenger.errors import (
    ConfigurationError,
    NotSupportedError,
    ScavengerError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from scavenger.private_files import make_private_folder, private_opener
from scavenger.store.documents import dump
from scavenger.store.installation import installation_in, user_folder

BUSY_TIMEOUT_S = 5.0
"""How long one attempt waits for the write lock; `?timeout=` in a SQLite URL overrides it."""

WRITE_ATTEMPTS = 2
"""Attempts of a write: SQLite serves waiting writers in no order, so one may starve during its first attempt."""

HURRIED_WAIT_S = 0.5
"""Total wait of a write within `Store.hurried`: well below the reserve that a budget or deadline keeps."""

ADVISORY_LOCK = 0x5CA7E26E2
"""Number of Scavenger's advisory lock in PostgreSQL."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "fuse.sshfs", "fuse.glusterfs"}
)
"""Network file systems. SQLite's WAL needs shared memory, which machines do not share: they would damage the file."""

BUSY_STATES = frozenset({"55P03", "40P01", "40001"})
"""PostgreSQL: lock not available, deadlock, serialization failure."""

UNAVAILABLE_STATES = ("08", "53", "57P", "58")
"""PostgreSQL: prefixes of the states of a lost connection, missing resources, a shutdown, a system error."""

UNAVAILABLE_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""SQLite: the disk is full or fails, or the file can no longer be opened."""

SILENT_S = 30
"""Seconds after which a PostgreSQL server that does not acknowledge data counts as gone."""

READ_ONLY_STATES = frozenset({"25006", "42501"})
"""PostgreSQL: read-only transaction, insufficient privilege."""

_RECOVERY = "`scavenger store recover FOLDER...`"

_DISK_FULL_STATE, _NO_TABLE_STATE = "53100", "42P01"
"""PostgreSQL: the disk is full; there is no such table."""


def default_url() -> str:
    """The default store: `SCAVENGER_STORE`, else a SQLite file in the user's data folder."""
    if url := os.environ.get("SCAVENGER_STORE"):
        return url
    path = user_folder() / "scavenger.db"
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def is_there(url: str | None) -> bool:
    """Whether a store's file exists; True for a database server, which is not asked.

    Raises:
        ConfigurationError: The URL cannot be read, or names no file.
    """
    parsed = _parse(url or default_url())
    return parsed.get_backend_name() != "sqlite" or _file_of(parsed).is_file()


def filesystem_of(path: Path, mounts: dict[str, str]) -> str:
    """The type of the file system of an absolute path, by `mounts` (folder: type); empty if unknown."""
    for folder in (path, *path.parents):
        if kind := mounts.get(str(folder)):
            return kind
    return ""


def is_busy(cause: BaseException | None) -> bool:
    """Whether a driver's error reports that another connection holds a lock."""
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its detail
    return (
        code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        or getattr(cause, "sqlstate", None) in BUSY_STATES
    )


class Database:
    """One database: its engine, its transactions, and the translation of its errors.

    Attributes:
        guard: Called in each transaction that writes, when it has the lock; what it raises ends the transaction.

    Raises:
        ConfigurationError: The URL cannot be read, or names no file.
        NotSupportedError: Neither SQLite nor PostgreSQL, no driver, or SQLite on a network file system.
        StoreReadOnlyError: The file or its folder cannot be written to.
        StoreError: The folder cannot be made.
    """

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.path: Path | None = None
        self._wait_s = BUSY_TIMEOUT_S
        self._haste = threading.local()
        self._of_thread = threading.local()
        self._file: tuple[int, int] | None = None
        self.guard: Callable[[Session], None] | None = None
        options: dict[str, Any] = {"json_serializer": dump}
        if self.url.get_backend_name() == "sqlite":
            with self.errors():
                self.path = _file_of(self.url)
                self.name = str(self.path)
                _prepare_file(self.path)
            self.url = self.url.set(database=self.name)
            if "timeout" not in self.url.query:
                options["connect_args"] = {"timeout": BUSY_TIMEOUT_S}
        else:
            options["pool_pre_ping"] = True
            options["connect_args"] = {
                "connect_timeout": int(BUSY_TIMEOUT_S),
                "options": f"-c lock_timeout={int(BUSY_TIMEOUT_S * 1000)}",
                "tcp_user_timeout": SILENT_S * 1000,
                "keepalives_idle": SILENT_S // 2,
            }
        try:
            with self.errors():
                self.engine = create_engine(self.url, **options)
        except ModuleNotFoundError as error:
            raise NotSupportedError(
                f"{self.name} needs {error.name}; install it with `pip install 'scavenger-ml[postgresql]'`"
            ) from None
        if self.path:
            event.listen(self.engine, "connect", _set_up_sqlite)
            with self.errors():
                self._wait_s = float(str(self.url.query.get("timeout", BUSY_TIMEOUT_S)))

    @cached_property
    def installation(self) -> str:
        """Id of the installation that uses it.

        Raises:
            ConfigurationError: It is not a valid one.
            StoreError: Its file cannot be read or written.
        """
        folder = self.own_folder
        with self.errors():
            return installation_in(folder, shared=_filesystem(folder) in NETWORK_FILESYSTEMS)

    @property
    def own_folder(self) -> Path:
        """The folder of what belongs to its installation, beside the database: its id and its key."""
        return user_folder() if self.path is None else self.path.parent

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within the block, what this thread writes is one transaction; a call that fails leaves nothing in it.

        On a slow disk, many small writes wait for it once.

        Raises:
            StoreBusyError: Another process held the lock for `WRITE_ATTEMPTS` times the busy timeout.
            StoreUnavailableError: The database is not available, or its file is gone.
        """
        with self.writing() as session:
            self._of_thread.session = session
            try:
                yield
            finally:
                self._of_thread.session = None

    @property
    def _joined(self) -> Session | None:
        """The session of this thread's `together`, if it is in one."""
        return getattr(self._of_thread, "session", None)

    @contextmanager
    def reading(self, *, snapshot: bool = False) -> Iterator[Session]:
        """A session to read with; on SQLite, and with `snapshot`, from one snapshot."""
        joined = self._joined or self._snapshot
        if joined is not None:
            with self.errors():
                yield joined
            return
        with self.errors(), Session(self.engine, expire_on_commit=False) as session:
            self._check_file()
            if self.path:
                session.execute(text("BEGIN"))
            elif snapshot:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Within the block, what this thread reads is of one snapshot, by one session; it is not to write meanwhile."""
        if self._joined is not None or self._snapshot is not None:
            yield
            return
        with self.reading(snapshot=True) as session:
            self._of_thread.snapshot = session
            try:
                yield
            finally:
                self._of_thread.snapshot = None

    @property
    def _snapshot(self) -> Session | None:
        """The session of this thread's `at_one_moment`, if it is in one."""
        return getattr(self._of_thread, "snapshot", None)

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Within the block, writes of this thread wait for the lock at most `HURRIED_WAIT_S` in all."""
        before, self._haste.on = self._hurried, True
        try:
            yield
        finally:
            self._haste.on = before

    @property
    def _hurried(self) -> bool:
        return bool(getattr(self._haste, "on", False))

    @contextmanager
    def writing(self, attempts: int = WRITE_ATTEMPTS) -> Iterator[Session]:
        """A session that holds the write lock; committed at the end, rolled back on any exception.

        Raises:
            StoreBusyError: Another process held the lock for `attempts` times the busy timeout.
            StoreUnavailableError: The database is not available, or its file is gone.
        """
        if (joined := self._joined) is not None:
            with self.errors(), joined.begin_nested():
                yield joined
            return
        with self.errors(), Session(self.engine, expire_on_commit=False) as session:
            self._check_file()
            self.lock(session, attempts)
            if self.guard is not None:
                self.guard(session)
            yield session
            session.commit()

    def _check_file(self) -> None:
        """Check for a file that was deleted or replaced: SQLite itself would continue with the deleted one.

        Raises:
            StoreUnavailableError: If the file is missing or was replaced.
        """
        if self.path is None:
            return
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self.engine.dispose()
            raise StoreUnavailableError(
                f"{self.name} was deleted while it was in use; put it back, or restore its jobs from their "
                f"folders: {_RECOVERY}"
            ) from None
        before, self._file = self._file, (found.st_dev, found.st_ino)
        if before not in (None, self._file):
            self.engine.dispose()  # the next call uses the file that is there now
            raise StoreUnavailableError(f"{self.name} was replaced by another file while it was in use")

    def lock(self, session: Session | Connection, attempts: int = WRITE_ATTEMPTS) -> None:
        """Begin a transaction with the write lock, waiting for others."""
        if self._hurried:
            attempts, wait_s = 1, min(self._wait_s, HURRIED_WAIT_S)
        else:
            wait_s = self._wait_s
        if self.path:
            patience, lock = f"PRAGMA busy_timeout = {wait_s * 1000:.0f}", "BEGIN IMMEDIATE"
        else:
            patience = f"SET LOCAL lock_timeout = {wait_s * 1000:.0f}"
            lock = f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"
        for attempt in range(1, attempts + 1):
            try:
                session.execute(text(patience))
                session.execute(text(lock))
                return
            except DBAPIError as error:
                session.rollback()
                if attempt == attempts or not is_busy(error.orig):
                    raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate every error of the database and its libraries into one of Scavenger's, in one line.

        Raises:
            StoreBusyError: The database is locked.
            StoreReadOnlyError: It is not writable.
            StoreUnavailableError: It is not available, full or damaged.
            StoreError: Any other error.
        """
        try:
            yield
        except ScavengerError:
            raise
        except (SQLAlchemyError, sqlite3.Error, OSError, OverflowError, ValueError) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> ScavengerError:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        elsewhere = "or name another store with SCAVENGER_STORE"
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        state = getattr(cause, "sqlstate", None)
        if is_busy(cause):
            return StoreBusyError(f"{self.name} is held by another process; try again when that has ended")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or state in READ_ONLY_STATES:
            return StoreReadOnlyError(f"{self.name} cannot be written to; make it writable, {elsewhere}")
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreReadOnlyError(f"{self.name}: {cause.strerror}; make its folder writable, {elsewhere}")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreUnavailableError(
                f"{self.name} is not a Scavenger store, or is damaged; move it away, {elsewhere}; "
                f"{_RECOVERY} restores jobs from their folders"
            )
        words = " ".join(str(cause).split())
        if state == _NO_TABLE_STATE or (self.path and "no such table" in words):
            return StoreUnavailableError(f"{self.name} was emptied or replaced: {words}; put it back")
        if code == sqlite3.SQLITE_FULL or state == _DISK_FULL_STATE:
            return StoreUnavailableError(
                f"{self.name} cannot grow, the disk is full; free some space, {elsewhere}"
            )
        if code in UNAVAILABLE_CODES:
            return StoreUnavailableError(
                f"{self.name} cannot be read or written: {words}; check its disk and free some space, {elsewhere}"
            )
        if isinstance(cause, OSError):
            return StoreError(f"{self.name}: {cause.strerror or cause}; check the path, {elsewhere}")
        lost = isinstance(error, OperationalError | InterfaceError) and state is None
        if not self.path and (lost or str(state or "").startswith(UNAVAILABLE_STATES)):
            return StoreUnavailableError(
                f"{self.name} cannot be reached: {words}; check the server and the URL, {elsewhere}"
            )
        return StoreError(f"{self.name}: {words}")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the text is not repeated, it may hold a password
        raise ConfigurationError(
            "the store is not a URL; write sqlite:////path/to/file.db or postgresql://user@host/database"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise NotSupportedError(
            f"a store cannot be kept in {backend}; use sqlite:////path or postgresql://host/database"
        )
    return parsed


def _file_of(url: URL) -> Path:
    database = url.database
    if not database or database == ":memory:" or database.startswith("file:"):
        raise ConfigurationError(f"the store {url} names no file; write sqlite:////path/to/file.db")
    path = Path(database).expanduser().absolute()
    if (kind := _filesystem(path)) in NETWORK_FILESYSTEMS:
        raise NotSupportedError(
            f"{path} is on a network file system ({kind}), where SQLite is not safe;"
            " name a local file or a postgresql:// URL with SCAVENGER_STORE"
        )
    return path


def _filesystem(path: Path) -> str:
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    return filesystem_of(path.resolve(), mounts)


def _prepare_file(path: Path) -> None:
    """Create the file with access for its owner only; SQLite gives its side files the same mode."""
    make_private_folder(path.parent)
    if path.is_dir():
        raise IsADirectoryError(0, "is a folder")
    if not path.exists():
        os.close(private_opener(str(path), os.O_CREAT | os.O_RDWR))
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            raise StoreReadOnlyError(
                f"{path} cannot be written to; run `chmod u+w {place}`,"
                " or name another store with SCAVENGER_STORE"
            )


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin where this module says so
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
