"""The records that the store returns: plain values, never rows of the database.

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

LIVE_STATES: tuple[JobState, ...] = ("starting", "profiling", "running", "paused")
"""States of a job that has not ended; every other state is final, until the job is resumed."""

RESUMABLE_STATES: tuple[JobState, ...] = ("failed", "stopped", "interrupted")
"""Final states of a job that has not reached its goal, so that it can be resumed."""

EventLevel = Literal["info", "warning", "error"]
Origin = Literal["local", "imported"]
ProcessRole = Literal["coordinator", "worker", "aggregator"]
ProcessState = Literal["starting", "ready", "training", "leaving", "lost", "failed", "gone"]
"""States of a process, as in `scavenger.domain.report.WorkerChanged`."""
Verdict = Literal["done", "refused", "failed"]
OperationState = Literal["pending", "running", Verdict]
OPEN_STATES: tuple[OperationState, ...] = ("pending", "running")
"""States of an operation that has not ended; a job has at most one such operation."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a job, and the account that it runs under.

    Attributes:
        host: Name of the machine on which `pid` is valid.
        started_at_s: Start of the process, seconds since the epoch, to detect a pid that was reused.
        user: Name of the account; empty if it was not recorded.
        uid: Number of the account on its machine; None if it was not recorded.
        birth: Which process it is of those that have its pid at some time or place, as `births.Birth` writes it;
            empty if it was not recorded.
        installation: The installation that it belongs to, which keeps its id when its host is renamed; empty if it was
            not recorded.
    """

    pid: int
    host: str
    started_at_s: float
    user: str = ""
    uid: int | None = None
    birth: str = ""
    installation: str = ""

    @property
    def account(self) -> str:
        """The account for the user, as `ann@host`; `?@host` if it was not recorded."""
        return f"{self.user or '?'}@{self.host}"

    def is_same_account(self, other: Owner) -> bool:
        """Whether both run under the same account of the same machine; False if it was not recorded."""
        if self.uid is None or (self.user, self.uid) != (other.user, other.uid):
            return False
        return self.is_same_machine(other)

    def is_same_machine(self, other: Owner) -> bool:
        """Whether both are of the same installation or, where it was not recorded, of hosts with the same name."""
        if self.installation and other.installation:
            return self.installation == other.installation
        return self.host == other.host


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One run of `optimize` or `plan`.

    Attributes:
        id: UUID, text.
        phase: As in `scavenger.domain.report.PhaseChanged`; empty before the first.
        detail: Description of the phase, for the user.
        spec: The validated job file, as JSON.
        job_file: Absolute path of the job file.
        heartbeat_at: Time of the owner's last heartbeat.
        started_at: Start of training or profiling; None before.
        ended_at: None while `state` is one of `LIVE_STATES`, and only then.
        step: Last applied step; None before the first.
        cost_usd: Cost so far; None if none was recorded.
        fingerprint: None until the model was built.
        chosen: The configuration that the search chose; None before, or if none is feasible.
        report: The report as a document; None before the end, and in listings (`Store.jobs`), for its size.
        error: One line; empty unless the job failed.
        exit_code: Exit code of the command; None if its process died.
        checkpoint: Path or URL of the checkpoint to resume from; None before the first.
        attempts: Number of attempts: 1, and 1 more for each time that it was resumed.
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
    """Fields of a job that may be changed; see `JobRecord`."""

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
    """Fields of a job that may be changed while it runs."""

    state: JobState


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The last known state of a process of a job.

    Attributes:
        process: Name within the job, such as `w2`.
        host: Name of the machine that it runs on; None if unknown.
        detail: Explanation for the user: why it was lost or failed.
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
    """New state of a process; see `Progress.set_process`."""

    role: Required[ProcessRole]
    state: Required[ProcessState]
    pid: int | None
    host: str | None
    detail: str | None
    step: int | None
    view: int | None


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event of a job.

    Attributes:
        id: Grows with time.
        data: Machine-readable details, names ending with units, such as `{"worker": "w1", "stall_s": 0.004}`.
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
    """An operation that was requested of a running job.

    Attributes:
        id: Grows with time.
        requested_by: The requester, for the user.
        state: `pending` until the job takes it, `running` until it is answered; then `done`, `refused` (nothing
            was changed) or `failed`.
        message: The answer, one line; empty before.
        started_at: When the job took it; None if it has not.
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
        """Whether the operation was answered."""
        return self.state not in OPEN_STATES


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A fitted model, which the next job of its kind can reuse.

    Attributes:
        id: SHA-256, hex, of the canonical JSON of the model's content, independent of where it was fitted.
        schema_version: Version of the form of `model`.
        measurements: Number of measurements it was fitted to.
        runs: Number of finished runs it was fitted to.
        job_id: The job that fitted it; None for imported ones.
        intact: Whether the content still has the digest `id`; look-ups skip models that do not. A model that cannot
            be read at all is empty.
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
