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
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from scavenger.errors import ConfigurationError
from scavenger.masking import mask

LEVEL_VARIABLE = "SCAVENGER_LOG_LEVEL"
FORMAT_VARIABLE = "SCAVENGER_LOG_FORMAT"

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FORMATS = ("text", "json")


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
) -> None:
    """Write the records of Scavenger's modules to a stream; a later call replaces the set-up of an earlier one.

    Records of other libraries are left as they are.

    Args:
        process: The name of this process in its job, or its role.
        settings: The user's choice.
        job_id: Id of the job that the process belongs to; empty if there is none, or none yet.
        level: Level if the user has not chosen one.
        stream: None for the standard error output.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    kind = _JsonFormatter if settings.format == "json" else _TextFormatter
    handler.setFormatter(kind(process, job_id))
    logger = logging.getLogger("scavenger")
    logger.handlers = [handler]
    logger.setLevel(settings.level or level)
    logger.propagate = False  # the training code may have a root logger of its own


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
