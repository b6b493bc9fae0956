"""What a run leaves behind for later: a line of JSON per step, epoch, view and measurement."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import msgspec

__all__ = ["Journal"]

SCHEMA_VERSION = 1


class Journal:
    """A file of JSON lines, each with its `kind`; written as things happen: a crash loses at most a second.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(self, path: Path, **header: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: IO[bytes] = path.open("wb")
        self._write("header", {"schema_version": SCHEMA_VERSION, **header})

    def add(self, kind: str, record: Any) -> None:
        """Append a dataclass."""
        self._write(kind, asdict(record))

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode({"kind": kind, **fields}) + b"\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
