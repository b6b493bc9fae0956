"""Job files that are submitted or only shown, and jobs that are to go on."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field, StrictBool

from scavenger.api.calls import Local, Source, call
from scavenger.api.deadlines import deadline_told
from scavenger.api.forms import WHOLE, JobKey
from scavenger.api.preview import PreviewAnswer, earlier_of, preview_of
from scavenger.api.submissions import SubmissionAnswer, SubmittedJob, submitted, submitted_jobs
from scavenger.api.values import gathered
from scavenger.domain.environment import NAME
from scavenger.domain.goal import EPOCHS_MAX
from scavenger.domain.overrides import UNCHANGED, ObjectiveName, Overrides, Renewal, Strategy
from scavenger.domain.submission import GivenEnvironment
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.control.jobs.prepared import PreparedJob
    from scavenger.store.records import JobRecord

# the bounds stand inside, where the document shows them
Epochs = Annotated[int, Field(strict=True, ge=1, le=EPOCHS_MAX), WHOLE]
Priority = Annotated[int, Field(strict=True, ge=-1000, le=1000), WHOLE]
BudgetText = Annotated[str | None, Field(max_length=40, description="US dollars, as `$20`.")]
DeadlineText = Annotated[str | None, Field(max_length=40, description="As `8h` or `90m`.")]
Variables = Annotated[
    dict[
        Annotated[str, Field(pattern=rf"^{NAME}$", max_length=200)], Annotated[str, Field(max_length=1 << 16)]
    ],
    Field(max_length=200, json_schema_extra={"additionalProperties": False}),
]
StudyBudget = Annotated[
    float | None,
    Field(
        strict=True,
        gt=0.0,
        allow_inf_nan=False,
        description="Budget of all jobs of this name and user, US dollars: the job gets at most what is left.",
    ),
]
StudyWorkers = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=1_000_000), WHOLE] | None,
    Field(
        description="Most workers that all jobs of this name and user have together, which must be in a pool."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job file on the server's machine, as `scavenger optimize JOB.yaml` takes it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    job_file: Annotated[
        str, Field(min_length=1, max_length=4096, description="Absolute path on the server's machine.")
    ]
    objective: ObjectiveName | None = None
    strategy: Strategy | None = None
    budget: BudgetText = None
    deadline: DeadlineText = None
    workers: Annotated[str | None, Field(max_length=200, description="As `4`, `1..4` or `1,2,4`.")] = None
    batch_size: Annotated[str | None, Field(max_length=200, description="As `32,64` or `32..256`.")] = None
    epochs_fixed: StrictBool | None = None
    target: Annotated[str | None, Field(max_length=200, description="As `val_accuracy=0.98`.")] = None
    pool: Annotated[
        str | None, Field(max_length=31, description="Of the server's pools; as `infra: pool/NAME`.")
    ] = None
    audit: StrictBool = False
    priority: Priority = 0
    run: Annotated[
        StrictBool, Field(description="False: as of `scavenger plan`, which ends with the choice.")
    ] = True
    environment: Annotated[
        Variables,
        Field(description="Values of variables that the job file names, in place of the server's own."),
    ] = field(default_factory=dict, repr=False)

    def prepared(self) -> PreparedJob:
        """The job file, read and checked, with what is given in place of its values."""
        from scavenger.api.preparing import job_file_path, prepared

        return prepared(job_file_path(self.job_file), gathered(Overrides, self), self.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(JobRequest):
    """A job file on the server's machine, as `scavenger optimize JOB.yaml --detach` takes it."""

    study_budget: StudyBudget = None
    study_workers: StudyWorkers = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRequest(JobRequest):
    """A job file on the server's machine, as `scavenger optimize JOB.yaml --dry-run` takes it."""

    yes: Annotated[StrictBool, Field(description="Whether every question would be answered with yes.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """In place of the job's own. Limits are those of all attempts together, and not below its own."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    audit: StrictBool = False
    budget: BudgetText = None
    deadline: DeadlineText = None
    max_epochs: Annotated[
        Epochs | None, Field(description="`goal.max_epochs`, for a missed target, say.")
    ] = None
    output: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=4000,
            description="Folder on the server's machine, absolute or relative to the job file, to which what the job "
            "has written goes, and where it goes on.",
        ),
    ] = None
    study_budget: StudyBudget = None
    study_workers: StudyWorkers = None
    environment: Annotated[
        Variables,
        Field(description="Values of the job's secrets, in place of those that it had and the server's own."),
    ] = field(default_factory=dict, repr=False)


@call(
    "post",
    "jobs",
    tag="operations",
    summary="Submit a job",
    role="changer",
    writes="keyed",
    status=202,
    body="*",
)
def submit(at: Local, request: SubmitRequest) -> SubmissionAnswer:
    """Put a job into the queue, as `scavenger optimize JOB.yaml --detach` does."""
    from scavenger.control.service.submitting import new_submission

    prepared = request.prepared()
    new = new_submission(
        prepared,
        user=at.user,
        audit=request.audit,
        priority=request.priority,
        idempotency_key=at.key,
        run=request.run,
        study_workers=request.study_workers,
        environment=_given_secrets(prepared.job.secrets, request.environment),
    )
    made = at.write(lambda: at.store.submit(new, study_budget_usd=request.study_budget))
    at.store.wake_servers()
    return SubmissionAnswer(submission=submitted(made), deadline=deadline_told(at.store, made))


@call("post", "preview", tag="operations", summary="What a job would do", role="changer", body="*")
def preview(at: Local, request: PreviewRequest) -> PreviewAnswer:
    """What a job file would search, profile, choose and run, as `scavenger optimize JOB.yaml --dry-run` shows it."""
    prepared = request.prepared().settled(at.store)
    earlier = earlier_of(at.store, prepared, user=at.only_of)
    return preview_of(prepared, run=request.run, yes=request.yes, earlier=earlier)


@call(
    "post",
    "jobs/{job}/resume",
    tag="operations",
    summary="Resume a job",
    role="changer",
    writes="once",
    status=202,
    body="*",
)
def resume(at: Local, job: JobKey, request: ResumeRequest) -> SubmissionAnswer:
    """Put a job that ended before its goal into the queue again, to go on from its last checkpoint.

    One that a limit ended is given a higher one, one that missed its target more epochs, and one whose disk was full
    another folder for its output.
    """
    from scavenger.control.jobs.prepared import prepare_job
    from scavenger.control.jobs.renewal import renewed
    from scavenger.control.service.submitting import hand_over, own_environment, resubmission
    from scavenger.domain.job import JobSpec

    store, found = at.store, at.find_job(job)
    secrets = found.spec.get("secrets") or ()
    for name in request.environment:
        if name not in secrets:
            raise ConfigurationError(f"environment: {name} is no secret of the job; leave it out")
    spec = renewed(found, gathered(Renewal, request))
    store.check_resumable(found, spec=None if spec is None else spec.written())
    again = partial(
        resubmission,
        found,
        store.submission(found.id),
        spec,
        audit=request.audit,
        study_workers=request.study_workers,
    )
    if at.caller is not None:  # within the server's writer, which reads no job file
        rents, given = bool(store.jobs_with_vms([found.id])), _given_secrets(secrets, request.environment)
        new = again(rents=rents, environment=given)
        made = store.submit_again(found.id, new, study_budget_usd=request.study_budget)
    else:
        whole = JobSpec.model_validate(found.spec) if spec is None else spec
        rents = prepare_job(whole, Path(found.job_file)).place.rents
        new = again(rents=rents, environment=own_environment())
        made = hand_over(store, new, again=found.id, study_budget_usd=request.study_budget)
    return SubmissionAnswer(submission=submitted_jobs(store, [made])[0])


def resumed(
    source: Source,
    job: JobRecord,
    renewal: Renewal = UNCHANGED,
    *,
    audit: bool = False,
    study_budget: float | None = None,
    study_workers: int | None = None,
) -> SubmittedJob:
    """Have a job go on, by a server with the values that its secrets have here; see `resume`.

    Raises:
        ConfigurationError, TransientError: It cannot be resumed, or is in the queue already.
        LimitReachedError: What it may cost is not left of its study's budget.
    """
    secrets = () if isinstance(source, Local) else job.spec.get("secrets") or ()
    given = {name: os.environ[name] for name in secrets if name in os.environ}
    request = ResumeRequest(
        **asdict(renewal),
        audit=audit,
        study_budget=study_budget,
        study_workers=study_workers,
        environment=given,
    )
    return resume(source, job.id, request).submission


def _given_secrets(secrets: Collection[str], given: Mapping[str, str]) -> GivenEnvironment | None:
    """What of a request its runner is to have beside the server's variables: other values are in the job itself."""
    kept = {name: value for name, value in given.items() if name in secrets}
    return GivenEnvironment(kept, whole=False) if kept else None
