"""`logs`: the events of a job and the output of its processes, once or as they come."""

from __future__ import annotations

import re
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scavenger.errors import ConfigurationError
from scavenger.masking import mask
from scavenger_cli.ui import console
from scavenger_cli.ui.formatting import harmless, when

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import EventRecord, JobRecord

__all__ = ["LogTail", "Wanted", "log_folder", "show_logs"]

FOLLOW_S = 0.5
"""Between two polls: faster would not be noticed, and a poll costs a millisecond."""
READ_BYTES_MAX = 1 << 20
"""Bytes of a log that are read at once: more than the lines that are asked for."""
LINE_BYTES_MAX = 1 << 16
"""A longer line is shown in parts: a log without line ends must not fill the memory."""
_START_NOTES = re.compile(
    rb"oneDNN custom operations are on\.|WARNING: All log messages before absl::InitializeLog\(\) is called"
)
"""Lines that every TensorFlow process writes when it starts, whatever its log level; they are not shown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logs to show; `process` None: of all processes."""

    events: bool
    written: bool
    process: str | None


class LogTail:
    """Reads a log that may grow, be cut, or not exist yet. Lines come without line ends and control characters."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._partial = b""

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


def show_logs(
    key: str, wanted: Wanted, *, follow: bool, lines: int, store_url: str | None, as_json: bool
) -> int:
    """Print the last `lines` of each log; with `follow`, also new lines until the job has ended.

    Raises:
        ConfigurationError: There is no such job or process, or its logs are on another machine.
    """
    from scavenger.store import Store

    with Store.open(store_url) as store:
        job = store.job(key)
        shown = _Shown(store, job, wanted)
        if as_json:
            console.emit_json(console.plain(shown.document(lines)))
        elif shown.begin(lines, whole=not follow) and follow:
            shown.follow()
    return 0


class _Shown:
    """The logs of one job, and how much of them has been shown."""

    def __init__(self, store: Store, job: JobRecord, wanted: Wanted) -> None:
        self._store, self._job, self._wanted = store, job, wanted
        self._folder = log_folder(job)
        self._tails: dict[str, LogTail] = {}
        self._last_event = 0
        self._find()
        if wanted.process is not None and wanted.process not in self._tails:
            known = ", ".join(sorted(self._logs())) or "none"
            raise ConfigurationError(
                f"{self._elsewhere()}job {job.name} ({job.id[:8]}) has no log of {wanted.process!r}; "
                f"it has {known} in {self._folder}"
            )

    def document(self, lines: int) -> dict[str, Any]:
        """The end of all logs as one JSON document."""
        job, events = self._job, self._events(lines)
        return {
            "schema_version": console.SCHEMA_VERSION,
            "job": {"id": job.id, "name": job.name, "state": job.state},
            "folder": self._folder,
            "events": events,
            "logs": {name: tail.last(lines, whole=True) for name, tail in self._tails.items()},
        }

    def begin(self, lines: int, *, whole: bool) -> bool:
        """Print the end of each log; return False if the reader is gone.

        Args:
            lines: How many events, and lines of each log.
            whole: Whether an unfinished last line is printed.
        """
        printed = [_event_line(event) for event in self._events(lines)]
        for name, tail in self._tails.items():
            printed += [self._line(name, line) for line in tail.last(lines, whole=whole)]
        if self._wanted.written and not self._tails:
            console.note(f"{self._elsewhere()}no process has written a log: {self._folder}")
        return _print(printed)

    def follow(self) -> None:
        """Print new lines until the job has ended or the reader is gone."""
        while True:
            # the state is read first, so that the last lines are read after the end
            job = self._store.job(self._job.id)
            over = not self._store.is_alive(job)
            self._find()
            printed = [_event_line(event) for event in self._events(None)]
            for name, tail in self._tails.items():
                printed += [self._line(name, line) for line in tail.more(whole=over)]
            if not _print(printed):
                return
            if over:
                state = job.state.replace("_", " ") if job.ended else "dead: its process is gone"
                console.note(f"job {job.name} ({job.id[:8]}) is {state}")
                return
            time.sleep(FOLLOW_S)

    def _events(self, limit: int | None) -> tuple[EventRecord, ...]:
        """The newest events, or with None all since the last call."""
        if not self._wanted.events:
            return ()
        many = sys.maxsize if limit is None else max(limit, 1)  # the newest is needed to continue after it
        events = self._store.events(self._job.id, limit=min(many, 10_000), after=self._last_event)
        if events:
            self._last_event = events[-1].id
        return events if limit != 0 else ()

    def _logs(self) -> dict[str, Path]:
        """Logs by process. Only regular files count: reading a pipe would never end."""
        return {
            path.stem: path for path in sorted(self._folder.glob("*.log"), key=_natural) if path.is_file()
        }

    def _find(self) -> None:
        if not self._wanted.written:
            return
        for name, path in self._logs().items():
            if self._wanted.process in (None, name) and name not in self._tails:
                self._tails[name] = LogTail(path)

    def _line(self, name: str, line: str) -> str:
        return line if self._wanted.process is not None else f"{harmless(name)} | {line}"

    def _elsewhere(self) -> str:
        host = self._job.owner.host
        return "" if host == socket.gethostname() else f"its logs are on {host}; "


def _natural(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def _event_line(event: EventRecord) -> str:
    return f"{when(event.at)} {event.level:<7} {harmless(event.kind)}: {harmless(event.message)}"


def _print(lines: list[str]) -> bool:
    return not lines or console.write(sys.stdout, "".join(f"{line}\n" for line in lines))
