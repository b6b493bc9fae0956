"""What the store hands out: plain values, never rows of the database.

Every time is an aware `datetime` in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict

from scavenger.domain.configuration import Configuration
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.report import Actual, JobState, Predicted

__all__ = [
    "LIVE_STATES",
    "EventLevel",
    "EventRecord",
    "JobProgress",
    "JobRecord",
    "JobUpdate",
    "ModelRecord",
    "Origin",
    "Owner",
    "ProcessRecord",
    "ProcessRole",
    "ProcessState",
]

LIVE_STATES: tuple[JobState, ...] = ("starting", "profiling", "running")
"""States of a job that has not ended; every other state is final."""

EventLevel = Literal["info", "warning", "error"]
Origin = Literal["local", "imported"]
ProcessRole = Literal["coordinator", "worker", "aggregator"]
ProcessState = Literal["starting", "ready", "training", "leaving", "lost", "failed", "gone"]
"""As in `scavenger.domain.report.WorkerChanged`."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that drives a job.

    Attributes:
        host: Name of the machine; a pid means nothing on another.
        started_at_s: When the process began, seconds since the epoch, so that a pid used again is told apart.
    """

    pid: int
    host: str
    started_at_s: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One run of `optimize` or `plan`.

    Attributes:
        id: UUID, text.
        phase: As in `scavenger.domain.report.PhaseChanged`; empty before the first.
        detail: What the phase is about, for a person.
        spec: The validated job file, as JSON.
        job_file: Absolute path of the job file.
        heartbeat_at: When the owner last said that it lives.
        started_at: When it began to train or to profile; None before.
        ended_at: None while `state` is one of `LIVE_STATES`, and only then.
        step: Last applied step; None before the first.
        cost_usd: Spent so far; None where nothing was recorded.
        fingerprint: None until the model was built.
        chosen: The configuration that the search chose; None before, or where none is feasible.
        report: The report as a document; None before the end, and in listings (`Store.jobs`), for its size.
        error: One line; empty unless the job failed.
        exit_code: What the command ended with; None where nobody was left to say so.
    """

    id: str
    name: str
    state: JobState
    phase: str
    detail: str
    spec: dict[str, Any]
    job_file: str
    owner: Owner
    heartbeat_at: datetime
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    step: int | None
    cost_usd: float | None
    fingerprint: Fingerprint | None
    chosen: Configuration | None
    predicted: Predicted | None
    actual: Actual | None
    report: dict[str, Any] | None = field(repr=False)
    error: str
    exit_code: int | None
    model_path: str | None
    measurements_path: str | None

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state not in LIVE_STATES


class JobProgress(TypedDict, total=False):
    """What may be changed of a job; see `JobRecord` for the meaning of each."""

    phase: str
    detail: str
    step: int
    cost_usd: float
    fingerprint: Fingerprint
    chosen: Configuration
    predicted: Predicted
    actual: Actual
    model_path: str
    measurements_path: str


class JobUpdate(JobProgress, total=False):
    """What may be changed of a job while it runs."""

    state: JobState


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process of a job, as last heard of.

    Attributes:
        process: Its name within the job, as `worker-2`.
        step: Last step that it took part in; None before the first.
        view: Number of the view that it last belonged to; None before the first.
    """

    job_id: str
    process: str
    role: ProcessRole
    pid: int | None
    state: ProcessState
    detail: str
    step: int | None
    view: int | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened to a job; `id` grows with time."""

    id: int
    job_id: str
    at: datetime
    level: EventLevel
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A fitted model, ready to serve the next job of its kind.

    Attributes:
        id: SHA-256, hex, of the canonical JSON of all that the model says: one content has one id, wherever
            it was fitted.
        schema_version: Of `model`.
        measurements: How many measurements it was fitted to.
        runs: How many finished runs it was fitted to.
        job_id: The job that fitted it; None for imported ones.
        intact: Whether the content still has the digest `id`; look-ups leave out those that have not. A model
            that cannot even be read is empty.
    """

    id: str
    fingerprint: Fingerprint
    model: dict[str, Any] = field(repr=False)
    schema_version: int
    measurements: int
    runs: int
    job_id: str | None
    origin: Origin
    created_at: datetime
    intact: bool
