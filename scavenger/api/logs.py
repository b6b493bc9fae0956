"""The events of a job and the output of its processes, as `scavenger logs` shows them."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from scavenger.api.calls import Local, Source, call
from scavenger.api.forms import JobKey
from scavenger.api.operations import JobHead
from scavenger.api.paging import LogPosition, encode_logs, log_place
from scavenger.api.values import Answer, gathered
from scavenger.errors import ConfigurationError
from scavenger.masking import mask
from scavenger.store.records import EventRecord, JobRecord

READ_BYTES_MAX = 1 << 20
"""Bytes of a log that are read at once: more than the lines that are asked for."""
LINE_BYTES_MAX = 1 << 16
"""A longer line is shown in parts: a log without line ends must not fill the memory."""
LINES_MAX = 100_000
CURSOR_MAX = 30_000
"""Characters; a cursor has the places in the logs of all processes."""
_EVENTS_MAX = 10_000
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsAnswer(Answer):
    """What was read of the logs of a job at once.

    Attributes:
        job: As it was before the logs were read.
        folder: Where the processes write.
        logs: Lines by process.
        elsewhere: Begin of a sentence if the logs are on another machine; else empty.
        over: Whether nothing more will come: the job has ended, or its process is gone.
        next: Cursor of what comes after this.
    """

    masked: ClassVar[bool] = True

    job: JobHead
    folder: str
    events: tuple[EventRecord, ...]
    logs: dict[str, list[str]]
    elsewhere: str
    over: bool
    next: str


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


@call("get", "jobs/{job}/logs", tag="jobs", summary="Logs of a job")
def show_logs(
    at: Local,
    job: JobKey,
    process: Annotated[
        str | None, Field(max_length=100, description="Only of this process, such as `w0`.")
    ] = None,
    lines: Annotated[int, Field(ge=0, le=LINES_MAX, description="Most lines of each process.")] = 20,
    events: Annotated[bool, Field(description="Whether events of the job are told.")] = True,
    written: Annotated[bool, Field(description="Whether the output of processes is told.")] = True,
    follow: Annotated[
        bool, Field(description="Leave out a last line that is not finished: it comes with `next`.")
    ] = False,
    cursor: Annotated[
        str | None, Field(max_length=CURSOR_MAX, description="`next` of the answer before.")
    ] = None,
) -> LogsAnswer:
    """The latest events of the job and lines of its processes, with secrets masked; with a cursor, all since then."""
    store, record, place = at.store, at.find_job(job), log_place(cursor) or LogPosition()
    # the state is read first, so that the last lines are read after the end
    over = not store.is_alive(record) and not store.has_runner(record.id)
    elsewhere = "" if record.owner.is_same_machine(store.me()) else f"its logs are on {record.owner.host}; "
    folder, last_event = log_folder(record), place.event
    known = _logs(folder)
    if process is not None and process not in known:
        raise ConfigurationError(
            f"{elsewhere}job {record.name} ({record.id[:8]}) has no log of {process!r}; "
            f"it has {', '.join(sorted(known)) or 'none'} in {folder}"
        )
    found: tuple[EventRecord, ...] = ()
    if events and process is None:
        most = (
            _EVENTS_MAX if cursor is not None else max(lines, 1)
        )  # the newest is needed to continue after it
        found = store.events(record.id, limit=min(most, _EVENTS_MAX), after=last_event)
        last_event = found[-1].id if found else last_event
    tails = {
        name: LogTail(path, place.offsets.get(name, 0))
        for name, path in known.items()
        if written and process in (None, name)
    }
    if cursor is None:
        logs = {name: tail.last(lines, whole=not follow) for name, tail in tails.items()}
    else:
        logs = {name: tail.more(whole=over) for name, tail in tails.items()}
    offsets = {name: tail.position for name, tail in tails.items()}
    return LogsAnswer(
        job=gathered(JobHead, record),
        folder=str(folder),
        events=found if lines or cursor is not None else (),
        logs=logs,
        elsewhere=elsewhere,
        over=over,
        next=encode_logs(LogPosition(last_event, offsets)),
    )


def _logs(folder: Path) -> dict[str, Path]:
    """Logs by process. Only regular files count: reading a pipe would never end."""
    return {path.stem: path for path in sorted(folder.glob("*.log"), key=_natural) if path.is_file()}


def _natural(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


class LogReader:
    """Reads the logs of one job, answer after answer; the first one fixes the job, whose name another may take.

    Args:
        source: Where the job is on record.
        wanted: Which logs, as of `show_logs`.
    """

    def __init__(self, source: Source, job: str, **wanted: Any) -> None:
        self._source, self._job, self._wanted = source, job, wanted
        self._cursor: str | None = None

    def begin(self, lines: int, *, whole: bool) -> LogsAnswer:
        """The end of all logs: at most `lines` events, and lines of each process.

        Args:
            lines: How many.
            whole: Whether an unfinished last line counts.
        """
        return self._read(lines=lines, follow=not whole)

    def more(self) -> LogsAnswer:
        """What has come since; when the job is over, also a last line that was never finished."""
        return self._read(cursor=self._cursor)

    def _read(self, **options: Any) -> LogsAnswer:
        answer = show_logs(self._source, self._job, **self._wanted, **options)
        self._job, self._cursor = answer.job.id, answer.next
        return answer
