"""The store: all state that outlives a command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from scavenger.errors import StoreError
from scavenger.store.access import AccessPart
from scavenger.store.counts import CountsPart
from scavenger.store.database import Database, default_url
from scavenger.store.idempotency_keys import IdempotencyKeysPart
from scavenger.store.indicators import IndicatorsPart
from scavenger.store.intents import IntentsPart
from scavenger.store.jobs import JobsPart
from scavenger.store.ledger import LedgerPart
from scavenger.store.migrate import revision_of, upgrade
from scavenger.store.models import ModelsPart
from scavenger.store.notifications import NotificationsPart
from scavenger.store.operations import OperationsPart
from scavenger.store.pools import PoolsPart
from scavenger.store.progress import ProgressPart
from scavenger.store.quarantine import QuarantinePart
from scavenger.store.schema import REVISION
from scavenger.store.submissions import SubmissionsPart

if TYPE_CHECKING:
    from scavenger.store.backup import Backup
    from scavenger.store.restore import Restored


def _now() -> datetime:
    return datetime.now(UTC)


class Store(
    JobsPart,
    ProgressPart,
    OperationsPart,
    ModelsPart,
    IntentsPart,
    SubmissionsPart,
    LedgerPart,
    AccessPart,
    IdempotencyKeysPart,
    IndicatorsPart,
    NotificationsPart,
    CountsPart,
    QuarantinePart,
    PoolsPart,
):
    """Jobs, their operations and measurements, submissions, models, finished runs and VMs, in one SQL database.

    Threads may share a store, and processes a database; a forked process must open its own. Every method call
    is one transaction, or a part of that of `together`.
    """

    @classmethod
    def open(
        cls, url: str | None = None, *, migrate: bool = True, clock: Callable[[], datetime] = _now
    ) -> Self:
        """Open the database, creating and migrating it as needed; close it with `close` or a `with` block.

        Args:
            url: `sqlite:////path/to/file.db` or `postgresql://user:password@host/database`; None for
                `SCAVENGER_STORE`, else a SQLite file in the user's data folder.
            migrate: Whether an empty or older database is migrated to this version's tables.
            clock: Returns the aware time for the records' timestamps.

        Raises:
            ConfigurationError: The URL cannot be read, or names no file.
            NotSupportedError: Neither SQLite nor PostgreSQL, no driver, or SQLite on a network file system.
            StoreBusyError: Another process holds the database.
            StoreReadOnlyError: The file or its folder cannot be written to.
            StoreTooNewError: A newer Scavenger wrote it.
            StoreTooOldError: It was written before the first release.
            StoreError: It is not a store, is damaged or unreachable, or a migration failed and changed nothing.
        """
        database = Database(url or default_url())
        try:
            found = revision_of(database)
            if found != REVISION:
                if not migrate:
                    raise StoreError(
                        f"{database.name} has schema {found or 'none'}, this Scavenger needs {REVISION};"
                        " open it once with migration"
                    )
                upgrade(database)
        except BaseException:
            database.close()
            raise
        return cls(database, clock)

    @staticmethod
    def restore(
        url: str | None, path: Path, *, keep_tokens: bool, clock: Callable[[], datetime] = _now
    ) -> Restored:
        """Restore a backup into the empty store of a URL; see `scavenger.store.restore.restore_backup`."""
        from scavenger.store.restore import restore_backup

        database = Database(url or default_url())
        try:
            with database.errors():
                return restore_backup(database, path, clock, keep_tokens=keep_tokens)
        finally:
            database.close()

    @property
    def name(self) -> str:
        """Location of the store, for the user: the path of the file, or the URL without its password."""
        return self._database.name

    @property
    def url(self) -> str:
        """The URL by which another process opens the store; it may hold a password."""
        return self._database.url.render_as_string(hide_password=False)

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return self._database.path

    @property
    def revision(self) -> str:
        """The revision of the schema, equal to that of this version."""
        return REVISION

    def hurried(self) -> AbstractContextManager[None]:
        """Within the block, writes wait only briefly for other writers, for callers that must not be delayed."""
        return self._database.hurried()

    def together(self) -> AbstractContextManager[None]:
        """Within the block, what this thread writes is one transaction, of which a call that fails leaves nothing."""
        return self._database.together()

    def at_one_moment(self) -> AbstractContextManager[None]:
        """Within the block, what this thread reads is of one moment; it is not to write meanwhile."""
        return self._database.at_one_moment()

    def backup(self, path: Path) -> Backup:
        """Write every row to a new file, as of one moment; see `scavenger.store.backup.write_backup`."""
        from scavenger.store.backup import write_backup

        return write_backup(self._database, path)

    def close(self) -> None:
        """Close every connection; the store cannot be used afterwards."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
