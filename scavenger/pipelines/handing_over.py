"""What goes to a server that runs a job, and what comes back: the job's file, and its events."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.domain.epochs import EPOCHS, read_epochs
from scavenger.domain.report import Event, Noted
from scavenger.errors import ConfigurationError
from scavenger.pipelines.job import Job

if TYPE_CHECKING:
    from scavenger.store.records import EventRecord

__all__ = ["job_file_of", "told"]


def told(event: EventRecord) -> tuple[Event, ...]:
    """What an event on record tells an observer: evaluations as in the job's own process, and else its message."""
    if event.kind == EPOCHS:
        try:
            return read_epochs(event.data)
        except ValueError:  # of another version
            pass
    return (Noted("warning" if event.level != "info" else "info", event.message),)


@contextmanager
def job_file_of(job: Job) -> Iterator[Path]:
    """The job's file, written for as long as the block runs if the job is not of a file: a server reads it once.

    Raises:
        ConfigurationError: If it cannot be written.
    """
    if job.is_file:
        yield job.path
        return
    path = job.path.with_name(f"{job.path.stem}.{os.getpid()}-{threading.get_ident()}.yaml")
    try:
        path.write_text(job.to_yaml(), "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
