"""The events of a job and the output of its processes, as `scavenger logs` shows them."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scavenger.api.values import SCHEMA_VERSION, plain
from scavenger.domain.report import JobState
from scavenger.errors import ConfigurationError
from scavenger.masking import mask, mask_values

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import EventRecord, JobRecord

READ_BYTES_MAX = 1 << 20
"""Bytes of a log that are read at once: more than the lines that are asked for."""
LINE_BYTES_MAX = 1 << 16
"""A longer line is shown in parts: a log without line ends must not fill the memory."""
_START_NOTES = re.compile(
    rb"oneDNN custom operations are on\.|WARNING: All log messages before absl::InitializeLog\(\) is called"
)
"""Lines that every TensorFlow process writes when it starts, whatever its log level; they are not shown."""


def harmless(line: str) -> str:
    """One line in which control characters are spelled out, as `\\x1b[2J`, and nothing is removed.

    For logs, where a reader may search for what `clean` would remove.
    """
    return "".join(
        c if c == "\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else ascii(c)[1:-1]
        for c in line
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logs to show; `process` None: of all processes."""

    events: bool
    written: bool
    process: str | None


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far the logs of a job were read.

    Attributes:
        event: Id of the last event; 0 before the first.
        offsets: Bytes by process, up to the end of a line.
    """

    event: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """What was read of the logs of a job at once.

    Attributes:
        state: State of the job before the logs were read.
        folder: Where the processes write.
        elsewhere: Begin of a message about logs that are on another machine than who reads them; else empty.
        logs: Lines by process.
        over: Whether nothing more will come: the job has ended, or its process is gone.
    """

    job_id: str
    name: str
    state: JobState
    folder: str
    elsewhere: str
    events: tuple[EventRecord, ...]
    logs: Mapping[str, list[str]]
    over: bool
    position: LogPosition


class LogReader(Protocol):
    """Reads the logs of one job, wherever they are."""

    def begin(self, lines: int, *, whole: bool) -> LogChunk:
        """The end of all logs: at most `lines` events, and lines of each process.

        Args:
            lines: How many.
            whole: Whether an unfinished last line counts.
        """

    def more(self) -> LogChunk:
        """What has come since; when the job is over, also a last line that was never finished."""


class LogTail:
    """Reads a log that may grow, be cut, or not exist yet. Lines come without line ends and control characters.

    Args:
        path: The file.
        offset: Bytes that were read before, as `position` told.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._partial = b""

    @property
    def position(self) -> int:
        """Bytes up to the end of the last line that was read."""
        return self._offset - len(self._partial)

    def last(self, lines: int, *, whole: bool) -> list[str]:
        """The last lines so far, with `whole` including an unfinished one; `more` returns what follows."""
        size = self._size()
        self._offset = max(0, size - READ_BYTES_MAX)
        skipped = self._offset > 0
        found = self._read(whole=whole)[1 if skipped else 0 :]  # the beginning of that one was not read
        return found[max(0, len(found) - lines) :]

    def more(self, *, whole: bool = False) -> list[str]:
        """Lines since the last call; an unfinished line only if it will never be finished (`whole`)."""
        if self._size() < self._offset:  # a log that grows too large is cut at its beginning
            self._offset, self._partial = self._size(), b""
            return ["(the log was cut: lines may be missing here)"]
        return self._read(whole=whole)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _read(self, *, whole: bool) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                read = file.read(-1 if whole else READ_BYTES_MAX)  # there is no next time to read the rest
        except OSError:
            read = b""
        self._offset += len(read)
        *done, self._partial = (self._partial + read).split(b"\n")
        if self._partial and (whole or len(self._partial) > LINE_BYTES_MAX):
            done.append(self._partial)
            self._partial = b""
        return [
            harmless(mask(line.decode("utf-8", "backslashreplace").rstrip("\r")))
            for line in done
            if not _START_NOTES.search(line)
        ]


def log_folder(job: JobRecord) -> Path:
    """The folder of the process logs, on the machine that runs the job."""
    from scavenger.domain.job import JobSpec

    output = job.spec.get("output") or JobSpec.model_fields["output"].default
    return Path(job.job_file).parent / str(output) / job.id / "logs"


class JobLogs:
    """The logs of one job of a store, and how much of them was read: a `LogReader`.

    Args:
        store: With the job.
        wanted: Which logs.
        position: What was read before; None: nothing.

    Raises:
        ConfigurationError: The wanted process has no log here.
    """

    def __init__(
        self, store: Store, job: JobRecord, wanted: Wanted, position: LogPosition | None = None
    ) -> None:
        self._store, self._job, self._wanted = store, job, wanted
        self._begun = position or LogPosition()
        self._last_event = self._begun.event
        self._folder = log_folder(job)
        self._tails: dict[str, LogTail] = {}
        self._find()
        if wanted.process is not None and wanted.process not in self._tails:
            known = ", ".join(sorted(self._logs())) or "none"
            raise ConfigurationError(
                f"{self._elsewhere()}job {job.name} ({job.id[:8]}) has no log of {wanted.process!r}; "
                f"it has {known} in {self._folder}"
            )

    def begin(self, lines: int, *, whole: bool) -> LogChunk:
        job, over = self._seen()
        events = self._events(lines)
        return self._chunk(
            job, over, events, {name: tail.last(lines, whole=whole) for name, tail in self._tails.items()}
        )

    def more(self) -> LogChunk:
        job, over = self._seen()
        self._find()
        events = self._events(None)
        return self._chunk(
            job, over, events, {name: tail.more(whole=over) for name, tail in self._tails.items()}
        )

    def _seen(self) -> tuple[JobRecord, bool]:
        """The job and whether it is over; read first, so that the last lines are read after the end."""
        job = self._store.job(self._job.id)
        return job, not self._store.is_alive(job) and not self._store.has_runner(job.id)

    def _chunk(
        self, job: JobRecord, over: bool, events: tuple[EventRecord, ...], logs: dict[str, list[str]]
    ) -> LogChunk:
        offsets = {name: tail.position for name, tail in self._tails.items()}
        return LogChunk(
            job.id,
            job.name,
            job.state,
            str(self._folder),
            self._elsewhere(),
            events,
            logs,
            over,
            LogPosition(self._last_event, offsets),
        )

    def _events(self, limit: int | None) -> tuple[EventRecord, ...]:
        """The newest events, or with None all since the last call."""
        if not self._wanted.events:
            return ()
        many = sys.maxsize if limit is None else max(limit, 1)  # the newest is needed to continue after it
        events = self._store.events(self._job.id, limit=min(many, 10_000), after=self._last_event)
        if events:
            self._last_event = events[-1].id
        return events if limit != 0 else ()

    def _find(self) -> None:
        """Add the logs of processes that have begun one since."""
        if not self._wanted.written:
            return
        for name, path in self._logs().items():
            if self._wanted.process in (None, name) and name not in self._tails:
                self._tails[name] = LogTail(path, self._begun.offsets.get(name, 0))

    def _elsewhere(self) -> str:
        owner = self._job.owner
        return "" if owner.is_same_machine(self._store.me()) else f"its logs are on {owner.host}; "

    def _logs(self) -> dict[str, Path]:
        """Logs by process. Only regular files count: reading a pipe would never end."""
        return {
            path.stem: path for path in sorted(self._folder.glob("*.log"), key=_natural) if path.is_file()
        }


def _natural(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def logs_document(chunk: LogChunk) -> dict[str, Any]:
    """What was read of the logs as JSON values."""
    found: dict[str, Any] = plain(
        {
            "schema_version": SCHEMA_VERSION,
            "job": {"id": chunk.job_id, "name": chunk.name, "state": chunk.state},
            "folder": chunk.folder,
            "events": mask_values(plain(chunk.events)),
            "logs": chunk.logs,
        }
    )
    return found
