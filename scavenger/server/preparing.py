"""Reads job files for submissions."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path

from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.platform import PreparedJob, prepare_job

__all__ = ["prepared"]

KEPT_S = 10.0
"""How long a prepared job is used again: prices may change, and a burst of submissions mostly names one file."""
KEPT_MAX = 64


def prepared(path: Path, changes: tuple[tuple[str, object], ...]) -> PreparedJob:
    """A job file, read and checked, with the prices of what it may run on.

    Raises:
        ConfigurationError, CloudError: As of the command; see `prepare_job`.
    """
    try:
        seen = os.stat(path)
    except OSError:  # told in the words of the command
        return prepare_job(override_job(load_job(path), dict(changes)), path)
    version = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
    return _prepared(path, changes, version, int(time.monotonic() / KEPT_S))


@lru_cache(maxsize=KEPT_MAX)
def _prepared(
    path: Path, changes: tuple[tuple[str, object], ...], version: tuple[int, int, int], period: int
) -> PreparedJob:
    return prepare_job(override_job(load_job(path), dict(changes)), path)
