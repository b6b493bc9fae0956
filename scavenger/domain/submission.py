"""The values of jobs that run without the command: what was submitted, who runs it, and which servers are there.

A **submission** is a job that was handed over to be run. It has the id that its job will have::

    queued ──a runner is started──> running ──the job has ended──> ended
      ├──withdrawn──> cancelled       │  ^  (its pool has other uses for its slots: it is queued again)
      │                               └──┘ its runner died: another one is started
      └──it cannot be started──> ended

A **runner** is the process that runs one job. It holds the lease `runner_lease(id)`: its fencing token grows with each
runner, and a runner whose lease was taken can write nothing more (`Store.fence`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from scavenger.domain.intent import Lease
from scavenger.domain.report import JobState

SubmissionState = Literal["queued", "running", "ended", "cancelled"]
OPEN_SUBMISSIONS: tuple[SubmissionState, ...] = ("queued", "running")
"""States of a submission that still needs a server."""

SERVER_LEASE = "server"
"""Name of the lease of the one server of a SQLite store."""


def runner_lease(job_id: str) -> str:
    """Name of the lease of a job's runner."""
    return f"runner/{job_id}"


def not_begun(job_id: str, name: str, state: str, reason: str) -> str:
    """Say of a submitted job that it is not on record yet."""
    why = f", {reason}" if reason else ""
    return f"job {name} ({job_id[:8]}) has not begun: it is {state}{why}; `scavenger jobs queue` shows it"


def not_submitted(job_id: str, name: str) -> str:
    """Say of a job that a command runs itself."""
    return f"job {name} ({job_id[:8]}) was not submitted; `scavenger stop {job_id[:8]}` stops it"


@dataclass(frozen=True, slots=True)
class GivenEnvironment:
    """Environment variables that a submission was given; they may be secrets.

    Attributes:
        variables: By name.
        whole: Whether they are all that the submitter has, beside which those of whoever submitted before do not count.
    """

    variables: Mapping[str, str] = field(repr=False)
    whole: bool


@dataclass(frozen=True, slots=True)
class NewSubmission:
    """A job to be run.

    Attributes:
        name: As in the job file; need not be unique.
        spec: The validated job file as JSON.
        job_file: Absolute path of the job file; its folder has the training module.
        user: Who submits it; budgets and limits per user count by this name.
        host, uid: The machine and the account under which it is run: where its folder is, and who trusts its code.
        rents: Whether running it rents VMs.
        reserved_usd: What it may cost, for budgets; None if it has no limit of its own.
        audit: Whether its runner records which worker computed which samples.
        priority: Higher ones begin first.
        idempotency_key: A second submission of the same user with this key is the first one; None for no such check.
        run: False: it ends with the choice, as `scavenger plan` does.
        study_workers: Most workers that all open jobs of this name and user have together in their pool, by the newest
            of them; None for no such limit.
        environment: What its runner is started with; None for the server's, or what its earlier submission had. The
            store gives it to `Store.environment_of` alone.
    """

    name: str
    spec: Mapping[str, Any] = field(repr=False)
    job_file: str
    user: str
    host: str
    uid: int
    rents: bool = False
    reserved_usd: float | None = None
    audit: bool = False
    priority: int = 0
    idempotency_key: str | None = None
    run: bool = True
    study_workers: int | None = None
    environment: GivenEnvironment | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RunnerStarts:
    """The starts of a submission's runners.

    Attributes:
        count: How many there were.
        fruitless: How many of the last in a row came to no further step, through no fault that passes.
        faults: How many of them could not begin for a fault that passes.
        step: The job's last step at the last one; None before its first step.
    """

    count: int = 0
    fruitless: int = 0
    faults: int = 0
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A submitted job on record.

    Attributes:
        id: Id of the job, a UUID; the job itself is on record (`Store.job`) once its runner has begun.
        number: Grows with each submission.
        job: What was submitted.
        reason: Why it waits, or how it ended, for the user; one line, may be empty.
        cancelling: Whether it is to be stopped: its runner looks for this.
        installation: That whose servers run it; empty if those of its host do.
        started_at: Start of its first runner, since it was paused last if it was; None before.
        ended_at: None while `state` is one of `OPEN_SUBMISSIONS`, and only then.
    """

    id: str
    number: int
    job: NewSubmission
    state: SubmissionState
    reason: str
    cancelling: bool
    starts: RunnerStarts
    installation: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def is_open(self) -> bool:
        """Whether it still waits or runs."""
        return self.state in OPEN_SUBMISSIONS


@dataclass(frozen=True, slots=True)
class RunnerSeen:
    """A submission in state `running`, with the lease of its runner and what is on record of its job.

    Attributes:
        lease: Its holder is the server that starts the runner, then the runner; None before the first.
        job_state: None before the runner has put the job on record.
        ended: Whether the job has ended since the submission began; a job that is resumed had ended before.
        step: Last step of the job; None before the first.
        cost_usd: Cost of the job so far.
        pausing: Whether its runner has said that it saves, so as to give its slots back.
    """

    submission: Submission
    lease: Lease | None
    job_state: JobState | None
    ended: bool
    step: int | None
    cost_usd: float
    pausing: bool = False


@dataclass(frozen=True, slots=True)
class Spending:
    """What the jobs of the store cost, US dollars by user: submitted ones, and those of commands, programs and studies.

    Attributes:
        spent: What was spent in the period, also on jobs that began before it, or whose records are deleted.
        reserved: What those that run may cost besides, where they have a limit.
        of_waiting: What jobs that wait have cost until now, in this period or before, by the ids of their submissions.
    """

    spent: Mapping[str, float]
    reserved: Mapping[str, float]
    of_waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredBudgets:
    """Budgets of a calendar month that hold for every server of a store; None for none.

    Attributes:
        budget_usd: Most that all jobs of the month may cost together.
        user_budget_usd: Most that the jobs of one user may cost.
    """

    budget_usd: float | None = None
    user_budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """A consistent reading of what servers of one machine and account have to do.

    Attributes:
        queued: Submissions that wait, in the order in which they were submitted.
        running: Those that have a runner, or had one that must be replaced.
        busy_files: Job files that live jobs on record use, with the ids of those jobs.
        spending: Of all jobs in the store.
    """

    queued: tuple[Submission, ...]
    running: tuple[RunnerSeen, ...]
    busy_files: Mapping[str, str]
    spending: Spending


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A process that starts and watches runners.

    Attributes:
        id: UUID, text.
        started_at_s: Start of the process, seconds since the epoch, to detect a pid that was reused.
        address: URL of its API; empty if it has none.
        background: Whether it was started for a detached job, and ends when nothing is left to do.
        heartbeat_at: Time of its last sign of life.
        birth: As of a job's owner; empty if it was not recorded.
        installation: That whose submissions it runs; empty if it was not recorded.
    """

    id: str
    host: str
    pid: int
    started_at_s: float
    user: str
    uid: int
    address: str
    version: str
    background: bool
    started_at: datetime
    heartbeat_at: datetime
    birth: str = ""
    installation: str = ""

    def serves(self, installation: str, host: str) -> bool:
        """Whether it runs submissions of an installation or, where it was not recorded, of a host."""
        return self.installation == installation if self.installation and installation else self.host == host
