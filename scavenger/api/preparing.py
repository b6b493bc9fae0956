"""Reads job files for submissions and previews."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.prepared import PreparedJob, prepare_job
from scavenger.control.jobs.variables import asked_variables
from scavenger.domain.overrides import Overrides
from scavenger.errors import ConfigurationError

NOTHING = Overrides()
NO_VARIABLES: Mapping[str, str] = {}
KEPT_S = 10.0
"""How long a prepared job is used again: prices may change, and a burst of submissions mostly names one file."""
KEPT_MAX = 64


def job_file_path(text: str) -> Path:
    """The path of a job file on this machine, as a client names it.

    Raises:
        ConfigurationError: It is not the absolute path of a YAML file.
    """
    path = Path(text.strip())
    if "\0" in text or not path.is_absolute() or path.suffix not in (".yaml", ".yml"):
        raise ConfigurationError(
            f"{text.strip()!r} is no job file: one is a .yaml file, by its absolute path on the server's machine"
        )
    return path


def prepared(
    path: Path, overrides: Overrides = NOTHING, given: Mapping[str, str] = NO_VARIABLES
) -> PreparedJob:
    """A job file, read and checked, with the prices of what it may run on.

    Args:
        path: The file.
        overrides: What replaces values of it.
        given: Variables that it names; others are the server's own.

    Raises:
        ConfigurationError, CloudError: As of the command; see `prepare_job`.
    """
    if given:
        job = override_job(load_job(path), overrides.changes())
        asked = asked_variables(job, given)
        for name in given:
            if name not in asked:
                raise ConfigurationError(f"environment: {path.name} does not name {name}; leave it out")
        return prepare_job(job, path, environ={**os.environ, **given})
    try:
        seen = os.stat(path)
    except OSError:  # told in the words of the command
        return prepare_job(override_job(load_job(path), overrides.changes()), path)
    version = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
    return _prepared(path, overrides, version, int(time.monotonic() / KEPT_S))


@lru_cache(maxsize=KEPT_MAX)
def _prepared(path: Path, overrides: Overrides, version: tuple[int, int, int], period: int) -> PreparedJob:
    return prepare_job(override_job(load_job(path), overrides.changes()), path)
