"""Logging set-up of every process: destination, level and format of its records.

A module logs to `logging.getLogger(__name__)`; a process calls `set_up` once, when it starts. The pure packages do
not log: they return the reasons of their decisions instead.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from scavenger.errors import ConfigurationError
from scavenger.masking import mask

LEVEL_VARIABLE = "SCAVENGER_LOG_LEVEL"
FORMAT_VARIABLE = "SCAVENGER_LOG_FORMAT"

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FORMATS = ("text", "json")
_OTHERS = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Form of the records of other libraries."""
_HELD_MAX = 200
"""Most lines of other libraries that are held for a log."""


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The user's choice of log level and format.

    Attributes:
        level: Lowest level that is written; empty for the default of the process.
        format: `text` or `json`.
    """

    level: str = ""
    format: str = "text"


def read_settings(environ: Mapping[str, str] = os.environ) -> LogChoice:
    """Read the settings from the environment.

    Raises:
        ConfigurationError: If it names an unknown level or format.
    """
    level = environ.get(LEVEL_VARIABLE, "").strip().upper()
    if level and level not in _LEVELS:
        raise ConfigurationError(f"{LEVEL_VARIABLE} must be one of {', '.join(_LEVELS)}, not {level!r}")
    chosen = environ.get(FORMAT_VARIABLE, "").strip().lower() or "text"
    if chosen not in _FORMATS:
        raise ConfigurationError(f"{FORMAT_VARIABLE} must be one of {', '.join(_FORMATS)}, not {chosen!r}")
    return LogChoice(level, chosen)


def set_up(
    process: str,
    settings: LogChoice,
    *,
    job_id: str = "",
    level: str = "INFO",
    stream: TextIO | None = None,
    hold_others: bool = False,
) -> None:
    """Write the records of Scavenger's modules to a stream; a later call replaces the set-up of an earlier one.

    Args:
        process: The name of this process in its job, or its role.
        settings: The user's choice.
        job_id: Id of the job that the process belongs to; empty if there is none, or none yet.
        level: Level if the user has not chosen one.
        stream: None for the standard error output.
        hold_others: Whether records and warnings of other libraries are held until `show_others` is called; else
            they are left as they are.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    kind = _JsonFormatter if settings.format == "json" else _TextFormatter
    handler.setFormatter(kind(process, job_id))
    logger = logging.getLogger("scavenger")
    logger.handlers = [handler]
    logger.setLevel(settings.level or level)
    logger.propagate = False  # the training code may have a root logger of its own
    root = logging.getLogger()
    for other in _others():
        root.removeHandler(other)
        logging.captureWarnings(False)
    if hold_others:
        root.addHandler(_Others())
        logging.captureWarnings(True)


def show_others(stream: TextIO) -> None:
    """Write the records of other libraries to a stream, if `set_up` had them held, from the first one on."""
    for handler in _others():
        handler.show(stream)


@contextmanager
def shown_by(show: Callable[[str], None]) -> Iterator[None]:
    """Have the records of Scavenger's modules shown by a function meanwhile, such as one of a display."""
    logger = logging.getLogger("scavenger")
    before = logger.handlers
    handler = _Shown(show)
    handler.setFormatter(before[0].formatter if before else _TextFormatter("scavenger", ""))
    logger.handlers = [handler]
    try:
        yield
    finally:
        logger.handlers = before


def _others() -> list[_Others]:
    return [one for one in logging.getLogger().handlers if isinstance(one, _Others)]


class _Shown(logging.Handler):
    """Hands records to a function."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(self.format(record))


class OfThread(logging.Filter):
    """On the handlers of a library that writes to the terminal: the records of this thread go to a file instead.

    A library that a program uses itself may log there as it likes; what Scavenger has it do is not the program's.

    Args:
        path: The file; it is created for the first record.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._thread = threading.current_thread()  # no number, which the next one may get
        self._file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace", delay=True)
        self._file.setFormatter(logging.Formatter(_OTHERS))

    def filter(self, record: logging.LogRecord) -> bool:
        if threading.current_thread() is not self._thread:
            return True
        with suppress(OSError):
            self._file.handle(record)
        return False


class _Others(logging.Handler):
    """Holds the last records of other libraries, until there is a stream for them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_OTHERS))
        self._held: deque[str] = deque(maxlen=_HELD_MAX)
        self._stream: TextIO | None = None

    def show(self, stream: TextIO) -> None:
        self.acquire()
        try:
            self._stream = stream
            while self._held:
                self._write(self._held.popleft())
        finally:
            self.release()

    def emit(self, record: logging.LogRecord) -> None:
        line = mask(self.format(record))
        if self._stream is None:
            self._held.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        assert self._stream is not None
        with suppress(OSError, ValueError):  # a full disk, or a closed stream
            self._stream.write(line + "\n")
            self._stream.flush()


def write_utf8() -> None:
    """Have this process's own output in UTF-8 whatever the locale is: it is a log, which is read as UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def set_job(job_id: str) -> None:
    """Add the job's id to all later records of this process, if `set_up` was called before the job had one."""
    for handler in logging.getLogger("scavenger").handlers:
        if isinstance(handler.formatter, _Formatter):
            handler.formatter.job_id = job_id


def of_job(logger: logging.Logger, job_id: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger for records about a job, in a process that has several; they have its id as records of its own do."""
    return logging.LoggerAdapter(logger, {"job": job_id})


class Repeated:
    """Logs a warning that comes again and again while something lasts: at once, when it changes, and every minute.

    Args:
        logger: Where to.
        clock: Monotonic seconds.
    """

    every_s = 60.0

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._last, self._at_s = "", 0.0

    def warn(self, text: str) -> None:
        """Log a warning, unless the same one was logged within the last minute."""
        now = self._clock()
        if text != self._last or now - self._at_s >= self.every_s:
            self._logger.warning("%s", text)
            self._last, self._at_s = text, now

    def over(self) -> None:
        """Note that it is over: the next warning is logged at once."""
        self._last = ""


class _Formatter(logging.Formatter):
    """Base of the formatters; holds the names of process and job, and masks secrets in messages and exceptions."""

    def __init__(self, process: str, job_id: str) -> None:
        super().__init__()
        self.process, self.job_id = process, job_id

    def _job(self, record: logging.LogRecord) -> str:
        return str(getattr(record, "job", "") or self.job_id)

    @staticmethod
    def _message(record: logging.LogRecord) -> str:
        return mask(record.getMessage())

    def _exception(self, record: logging.LogRecord) -> str:
        """Traceback of a record; empty if it has none."""
        return "" if record.exc_info is None else mask(self.formatException(record.exc_info))

    @staticmethod
    def _time(record: logging.LogRecord) -> str:
        """Time of a record, ISO 8601, UTC, with milliseconds."""
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(_Formatter):
    """Formats a record as one line of text: time, level, job, process, message."""

    def format(self, record: logging.LogRecord) -> str:
        job = self._job(record)
        who = f"{job} {self.process}" if job else self.process
        text = f"{self._time(record)} {record.levelname} {who}: {self._message(record)}"
        return f"{text}\n{exception}" if (exception := self._exception(record)) else text


class _JsonFormatter(_Formatter):
    """Formats a record as one JSON object per line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self._time(record),
            "level": record.levelname,
            "job": self._job(record),
            "process": self.process,
            "module": record.name,
            "message": self._message(record),
        }
        if exception := self._exception(record):
            fields["exception"] = exception
        return json.dumps(fields, ensure_ascii=False)
