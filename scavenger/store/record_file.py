"""A copy of a job's record in the job's own folder, from which it can be restored if the store is lost."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scavenger.errors import ConfigurationError
from scavenger.private_files import private_opener
from scavenger.store.records import JobRecord

RECORD_FILE = "record.json"
"""File name of the copy in a job's output folder."""

_BYTES_MAX = 64 << 20
"""A longer file is not read; reports of the largest searches have some megabytes."""
_EVERY_S = 10.0
"""Time between two writes of a job whose step and cost alone have changed, seconds."""
_FREQUENT = frozenset({"step", "cost_usd"})


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    schema_version: Literal[1] = 1
    job: JobRecord


class RecordFile:
    """Keeps the copy of a job's record up to date; a file that cannot be written is left as it is.

    Args:
        path: The file; its folder must exist.
        record: The record as of now.
        clock: Monotonic clock, seconds.
    """

    def __init__(self, path: Path, record: JobRecord, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._record, self._clock = path, record, clock
        self._write()

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change fields of the record; see `scavenger.store.records.JobUpdate`."""
        self._record = replace(self._record, **_decodable(changes))
        if self._record.started_at is None and self._record.state != "starting":
            self._record = replace(self._record, started_at=datetime.now(UTC))
        if not _FREQUENT.issuperset(changes) or self._clock() - self._written_at >= _EVERY_S:
            self._write()

    def end(self, **fields: Any) -> None:
        """Change the fields with which a job ends, and set its time of end."""
        self._record = replace(self._record, ended_at=datetime.now(UTC), **_decodable(fields))
        self._write()

    def _write(self) -> None:
        self._written_at = self._clock()
        if not self._record.ended:
            self._record = replace(self._record, heartbeat_at=datetime.now(UTC))
        partial = self._path.with_name(f"{self._path.name}.part")
        # without room, or with what JSON cannot hold, the last complete copy stays
        with contextlib.suppress(OSError, ValueError):
            data = _Document(job=self._record).model_dump_json().encode()
            with open(partial, "wb", opener=private_opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)


def _decodable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Replace what JSON cannot hold in texts, such as undecodable bytes of a path, as the store does."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in fields.items()
    }


def read_record(folder: Path) -> JobRecord:
    """Read the copy of a job's record from the job's folder.

    Raises:
        ConfigurationError: If there is none, if it is damaged, or if it belongs to another folder or account.
    """
    path = folder / RECORD_FILE
    try:
        with path.open("rb") as file:
            owner, data = os.fstat(file.fileno()).st_uid, file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{folder} is not the folder of a job: {path.name}: {error.strerror or error}"
        ) from None
    if owner != os.getuid():
        # its training code would later be run as one's own
        raise ConfigurationError(f"{path} belongs to another user (uid {owner}), who can recover the job")
    try:
        record = _Document.model_validate_json(data[:_BYTES_MAX]).job
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{path} is damaged: {place}: {first['msg']}") from None
    if record.id != folder.resolve().name:
        raise ConfigurationError(
            f"{path} is the record of another job, {record.id}; its folder has that name"
        )
    if record.ended != (record.ended_at is not None):
        raise ConfigurationError(f"{path} is damaged: its state and its time of end contradict each other")
    return record
