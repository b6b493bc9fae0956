"""Base class of the store's parts: the database, the clock, and rows of fingerprints and jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.submission import OPEN_SUBMISSIONS
from scavenger.errors import NotFoundError
from scavenger.store.database import Database
from scavenger.store.documents import fingerprint_id
from scavenger.store.owner import this_process
from scavenger.store.records import Owner
from scavenger.store.schema import FingerprintRow, JobRow, SubmissionRow

FINGERPRINT_FIELDS = tuple(Fingerprint.__dataclass_fields__)

KEY_PREFIX_MIN = 4
"""Shortest accepted prefix of an id."""


class Part:
    """Base class of the parts of the store's interface."""

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def me(self) -> Owner:
        """The calling process, with the installation that this store is used from.

        Raises:
            ConfigurationError: That has no valid id.
            StoreError: Its file cannot be read or written.
        """
        return replace(this_process(), installation=self._database.installation)


def fingerprint_of(row: FingerprintRow) -> Fingerprint:
    """Convert a row to a fingerprint."""
    return Fingerprint(**{name: getattr(row, name) for name in FINGERPRINT_FIELDS})


def fingerprint_row(session: Session, fingerprint: Fingerprint) -> FingerprintRow:
    """The row of a fingerprint; created if it is missing, repaired if it was changed."""
    row = session.merge(FingerprintRow(id=fingerprint_id(fingerprint), **asdict(fingerprint)))
    session.flush()
    return row


def job_row(session: Session, job_id: str) -> JobRow:
    """The row of a job.

    Raises:
        NotFoundError: There is no such job.
    """
    row = session.get(JobRow, job_id)
    if row is None:
        raise NotFoundError(f"there is no job {job_id}; `scavenger status` lists the jobs")
    return row


def open_submissions() -> Select[str]:
    """A query of the ids of jobs that a server runs, or will run."""
    return select(SubmissionRow.id).where(SubmissionRow.state.in_(OPEN_SUBMISSIONS))
