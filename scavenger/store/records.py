"""What the store hands out: plain values, never rows of the database.

Every time is an aware `datetime` in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Required, TypedDict

from scavenger.domain.configuration import Configuration
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.operation import Operation
from scavenger.domain.report import Actual, JobState, Predicted

__all__ = [
    "LIVE_STATES",
    "OPEN_STATES",
    "RESUMABLE_STATES",
    "EventLevel",
    "EventRecord",
    "JobProgress",
    "JobRecord",
    "JobUpdate",
    "ModelRecord",
    "OperationRecord",
    "OperationState",
    "Origin",
    "Owner",
    "ProcessRecord",
    "ProcessRole",
    "ProcessState",
    "ProcessUpdate",
    "Verdict",
]

LIVE_STATES: tuple[JobState, ...] = ("starting", "profiling", "running", "paused")
"""States of a job that has not ended; every other state is final, until the job is resumed."""

RESUMABLE_STATES: tuple[JobState, ...] = ("failed", "stopped", "interrupted")
"""States that ended a job before its goal: the others leave nothing to go on with."""

EventLevel = Literal["info", "warning", "error"]
Origin = Literal["local", "imported"]
ProcessRole = Literal["coordinator", "worker", "aggregator"]
ProcessState = Literal["starting", "ready", "training", "leaving", "lost", "failed", "gone"]
"""As in `scavenger.domain.report.WorkerChanged`."""
Verdict = Literal["done", "refused", "failed"]
OperationState = Literal["pending", "running", Verdict]
OPEN_STATES: tuple[OperationState, ...] = ("pending", "running")
"""States of an operation that has not ended; a job has at most one such operation."""


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
        checkpoint: Path or URL of what it can be resumed from; None before the first checkpoint.
        attempts: How often it was begun: 1, and 1 more for each time that it was resumed.
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
    checkpoint: str | None = None
    attempts: int = 1

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
    checkpoint: str


class JobUpdate(JobProgress, total=False):
    """What may be changed of a job while it runs."""

    state: JobState


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process of a job, as last heard of.

    Attributes:
        process: Its name within the job, as `w2`.
        host: Name of the machine that it runs on; None where that was not told.
        detail: What happened to it, for a person: why it was lost, or what it failed of.
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
    host: str | None = None


class ProcessUpdate(TypedDict, total=False):
    """What is known of a process; see `Progress.set_process`."""

    role: Required[ProcessRole]
    state: Required[ProcessState]
    pid: int | None
    host: str | None
    detail: str | None
    step: int | None
    view: int | None


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened to a job.

    Attributes:
        id: Grows with time.
        data: What a program needs of it, units last in the names, as `{"worker": "w1", "stall_s": 0.004}`.
    """

    id: int
    job_id: str
    at: datetime
    level: EventLevel
    kind: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """Something that a running job was asked to do.

    Attributes:
        id: Grows with time.
        requested_by: Who asked, for a person.
        state: `pending` until the job takes it, `running` until it is answered; then `done`, `refused` (nothing
            was changed) or `failed`.
        message: The answer, one line; empty before.
        started_at: When the job took it; None before, and where it never did.
    """

    id: int
    job_id: str
    operation: Operation
    requested_by: str
    state: OperationState
    message: str
    requested_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether it was answered."""
        return self.state not in OPEN_STATES


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
