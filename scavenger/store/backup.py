"""Backups of a store: one file with every row, made while jobs and servers go on, for either database.

The file is JSON, one value a line, compressed by gzip [1]_, in UTF-8::

    {"format": "scavenger-backup", "version": 1, "revision": "0101", "made_at": "2026-...", "made_by": "0.1.0"}
    {"table": "jobs", "columns": ["id", "name", ...]}
    ["6f1c...", "digits", ...]                          a row of that table; further rows, further tables
    {"rows": {"jobs": 12, ...}, "sha256": "9a0b..."}    of the bytes of all lines before this one

Tables come in an order in which each refers to earlier ones only. Times are text of ISO 8601 in UTC, bytes are text of
base64, numbers that are not finite are the texts `nan`, `inf` and `-inf`, and JSON columns are JSON. What looks like a
secret in texts for users and in documents is masked, and keys by which VMs join a job are left out; tokens are on
record by their digests only.

References:
    .. [1] P. Deutsch, "GZIP file format specification version 4.3", RFC 1952.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError
from sqlalchemy import JSON, Column, DateTime, Float, LargeBinary, Table, select
from sqlalchemy.sql.type_api import TypeEngine

from scavenger.errors import ConfigurationError
from scavenger.masking import mask
from scavenger.private_files import private_opener
from scavenger.store.columns import Base
from scavenger.store.database import Database
from scavenger.store.schema import REVISION
from scavenger.version import __version__

FORMAT_VERSION = 1
_BATCH = 1_000
_FREE_TEXTS = frozenset({"detail", "error", "label", "message", "reason", "text"})
"""Columns of texts for users, by their names in any table."""
_SECRET_KEYS = {"desired": "boot_key"}
"""Keys of documents that are secrets themselves, by table."""

Kind = Literal["time", "bytes", "float", "json", "plain"]


class BackupHeader(BaseModel):
    """The first line of a backup.

    Attributes:
        revision: The migration that the rows are of.
        made_at: All rows are as of this moment.
        made_by: Version of Scavenger.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["scavenger-backup"]
    version: Literal[1]
    revision: str
    made_at: AwareDatetime
    made_by: str


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was written or checked.

    Attributes:
        rows: Number of rows by table.
        masked: Number of texts that looked like a secret, and are masked; 0 for one that was read.
    """

    header: BackupHeader
    rows: Mapping[str, int]
    masked: int = 0


# ---- values ------------------------------------------------------------------------------------------------


def column_kind(kind: TypeEngine[Any]) -> Kind:
    """How values of a column are written."""
    inner = getattr(kind, "impl", kind)
    for one, name in ((DateTime, "time"), (LargeBinary, "bytes"), (Float, "float"), (JSON, "json")):
        if isinstance(inner, one):
            return name  # type: ignore[return-value]
    return "plain"


def _encoder(kind: Kind) -> Callable[[Any], Any]:
    match kind:
        case "time":
            return lambda value: value.astimezone(UTC).isoformat()
        case "bytes":
            return lambda value: base64.b64encode(value).decode()
        case "float":
            return lambda value: value if abs(value) < float("inf") else str(value)
    return lambda value: value


def decoder(kind: Kind) -> Callable[[Any], Any]:
    """Makes a value of a column from what a backup has for it."""
    match kind:
        case "time":
            return datetime.fromisoformat
        case "bytes":
            return lambda value: base64.b64decode(value, validate=True)
        case "float":
            return float
    return lambda value: value


# ---- writing -----------------------------------------------------------------------------------------------


def write_backup(database: Database, path: Path) -> Backup:
    """Write every row of a store to a new file, with access for its owner only, as of one moment.

    Jobs and servers go on meanwhile.

    Raises:
        ConfigurationError: The file exists, or cannot be written.
        StoreError: The store cannot be read.
    """
    if path.exists():
        raise ConfigurationError(f"{path} exists; name a file that does not")
    partial = path.with_name(f".{path.name}.part")
    try:
        with suppress(FileNotFoundError):
            partial.unlink()  # of an attempt that was killed; a new file has the mode of a private one
        with open(partial, "xb", opener=private_opener) as raw:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as file:
                made = _Writing(file).all_of(database)
            raw.flush()
            os.fsync(raw.fileno())
        os.link(
            partial, path
        )  # unlike a rename, this replaces no file that another process has made meanwhile
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
    return made


class _Writing:
    """The lines of one backup."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._rows: Counter[str] = Counter()
        self._masked = 0

    def all_of(self, database: Database) -> Backup:
        header = BackupHeader(
            format="scavenger-backup",
            version=FORMAT_VERSION,
            revision=REVISION,
            made_at=datetime.now(UTC),
            made_by=__version__,
        )
        self._line(header.model_dump(mode="json"))
        with database.reading(snapshot=True) as session:
            connection = session.connection().execution_options(yield_per=_BATCH)
            for table in Base.metadata.sorted_tables:
                self._line({"table": table.name, "columns": [column.name for column in table.columns]})
                self._rows[table.name] = 0
                found = connection.execute(select(table).order_by(*table.primary_key.columns))
                for rows in found.partitions(_BATCH):
                    self._add(table, [list(row) for row in rows])
        total = self._sum.hexdigest()
        self._line({"rows": dict(self._rows), "sha256": total})
        return Backup(header, dict(self._rows), self._masked)

    def _line(self, value: Any) -> None:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        self._sum.update(line)
        self._file.write(line)

    def _add(self, table: Table, rows: list[list[Any]]) -> None:
        columns = list(table.columns)
        secret = _SECRET_KEYS.get(table.name)
        for number, column in enumerate(columns):
            kind = column_kind(column.type)
            if kind != "plain":
                encode = _encoder(kind)
                for row in rows:
                    if row[number] is not None:
                        row[number] = encode(row[number])
            if secret is not None and kind == "json":
                for row in rows:
                    row[number] = {**row[number], secret: ""}
            if kind == "json" or column.name in _FREE_TEXTS:
                self._mask(rows, column, number)
        for row in rows:
            self._line(row)
        self._rows[table.name] += len(rows)

    def _mask(self, rows: list[list[Any]], column: Column[Any], number: int) -> None:
        """Mask texts of a column; they are looked at together first, since hardly any has a secret."""
        texts = [text for row in rows for text in _texts(row[number])]
        together = "\n\0\n".join(texts)
        if not texts or mask(together) == together:
            return
        for row in rows:
            row[number] = self._masked_value(row[number])

    def _masked_value(self, value: Any) -> Any:
        if isinstance(value, str):
            masked = mask(value)
            self._masked += masked != value
            return masked
        if isinstance(value, dict):
            return {name: self._masked_value(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._masked_value(item) for item in value]
        return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


# ---- reading -----------------------------------------------------------------------------------------------


def check_backup(path: Path) -> Backup:
    """Read a backup to its end, and check its form, its sum and its counts.

    Raises:
        ConfigurationError: It is damaged or cut short, is of a later version, or is no backup.
    """
    rows: Counter[str] = Counter()
    total, last = hashlib.sha256(), b""
    table = ""
    with closing(_lines(path)) as lines:
        header = _header(path, next(lines, b""))
        total.update(header[1])
        for line in lines:
            if last:
                total.update(last)
                table = _count(last, table, rows, path)
            last = line
    end = _json(last, path)
    if not isinstance(end, dict) or end.get("sha256") != total.hexdigest() or end.get("rows") != dict(rows):
        raise ConfigurationError(f"{path} is damaged or cut short: its end does not fit its rows")
    return Backup(header[0], dict(rows))


def _header(path: Path, line: bytes) -> tuple[BackupHeader, bytes]:
    found = _json(line, path)
    if isinstance(found, dict) and found.get("format") == "scavenger-backup":
        version = found.get("version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ConfigurationError(
                f"{path} has version {version} of the format, this Scavenger knows {FORMAT_VERSION}; upgrade Scavenger"
            )
    try:
        return BackupHeader.model_validate_json(line), line
    except ValidationError:
        raise ConfigurationError(f"{path} is not a backup of a store") from None


def _count(line: bytes, table: str, rows: Counter[str], path: Path) -> str:
    """Count a row; returns the table that further rows are of."""
    if line.startswith(b"{"):
        table = str(_json(line, path).get("table"))
        rows[table] = 0
    else:
        rows[table] += 1
    return table


def read_rows(path: Path) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """The rows of a backup that was checked, in batches: table, names of columns, rows.

    Raises:
        ConfigurationError: It cannot be read any more.
    """
    table = ""
    columns: list[str] = []
    batch: list[list[Any]] = []
    with closing(_lines(path)) as lines:
        next(lines, None)
        for line in lines:
            value = _json(line, path)
            if isinstance(value, list):
                batch.append(value)
            if batch and (isinstance(value, dict) or len(batch) >= _BATCH):
                yield table, columns, batch
                batch = []
            if isinstance(value, dict) and "table" in value:
                table, columns = value["table"], value["columns"]


def _lines(path: Path) -> Generator[bytes, None, None]:
    try:
        with gzip.open(path, "rb") as file:
            yield from file
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (OSError, EOFError, zlib.error) as error:  # among them those of a file that is cut short
        raise ConfigurationError(f"{path} is damaged, or is not a backup: {error}") from error


def _json(line: bytes, path: Path) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is damaged, or is not a backup: {error}") from None
