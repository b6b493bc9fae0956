"""`--detach`: submit a job, to be run without the command, when its questions are answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.errors import TransientError
from scavenger.presentation.formatting import clean
from scavenger_cli.commands.driving import drive
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.control.jobs.platform import PreparedJob
    from scavenger.domain.curve import Choice, TradeoffCurve
    from scavenger.domain.report import Observer, Predicted, RunReport
    from scavenger.domain.submission import NewSubmission, Submission
    from scavenger.store import Store
    from scavenger.store.records import JobRecord
    from scavenger_cli.commands.driving import Confirm, Driver

__all__ = ["Detach", "Questions", "detach_job", "submit_again"]

_STORED_ONLY = ("none", "universal")
"""Strategies that measure nothing, whose choice needs no plan to be repeated."""


@dataclass(frozen=True, slots=True)
class Detach:
    """How a job is submitted.

    Attributes:
        priority: Higher ones begin first.
        follow: Whether to show its log until it has ended.
    """

    priority: int = 0
    follow: bool = False


@dataclass(frozen=True, slots=True)
class Questions:
    """Where and how questions are asked, and the answer is given; see `drive`."""

    store_url: str | None
    as_json: bool
    verbose: bool
    quiet: bool


def detach_job(prepared: PreparedJob, detach: Detach, options: Questions, *, ask: bool, audit: bool) -> int:
    """Submit a job; before that, plan it in this terminal, show the table and ask, unless `ask` is false.

    Returns:
        The exit code: 0 also if the answer was no.

    Raises:
        ScavengerError: The plan cannot start, or no server begins to serve.
    """
    from scavenger.control.job_file.load import override_job
    from scavenger.control.jobs.platform import prepare_job
    from scavenger.control.service.submitting import new_submission

    if ask:
        code, agreed = _planned(prepared, options)
        if not agreed:
            return code
        if prepared.job.search.strategy not in _STORED_ONLY:
            # what the plan has measured is stored: the run uses that, and measures nothing twice
            job = override_job(prepared.job, {"search.strategy": "auto"})
            prepared = prepare_job(job, prepared.job_file)
    new = new_submission(prepared, audit=audit, priority=detach.priority)
    submission = _submit(new, options.store_url)
    if not detach.follow:
        _show(submission, as_json=options.as_json)
        return 0
    from scavenger_cli.commands.queue import follow_logs

    return follow_logs(submission.id, store_url=options.store_url)


def _planned(prepared: PreparedJob, options: Questions) -> tuple[int, bool]:
    """Plan the job and ask; returns the exit code of the plan, and whether the job is to be run."""
    from scavenger.control.jobs.job_run import JobRun

    answers: list[bool] = []

    def begin(store: Store, observer: Observer, confirm: Confirm | None) -> Driver:
        assert confirm is not None

        def asked(curve: TradeoffCurve, choice: Choice, predicted: Predicted) -> bool:
            answers.append(confirm(curve, choice, predicted))
            return False  # the plan ends here

        return JobRun(prepared, store=store, observer=observer, run=True, confirm=asked)

    def is_shown(report: RunReport) -> bool:
        return not (answers and report.job.state == "planned")

    code = drive(
        begin,
        ask=True,
        store_url=options.store_url,
        as_json=options.as_json,
        verbose=options.verbose,
        quiet=options.quiet,
        reports=is_shown,
    )
    return code, code == 0 and answers == [True]


def submit_again(job: JobRecord, *, store_url: str | None, audit: bool, as_json: bool) -> int:
    """Submit a job that has ended, to be resumed from its checkpoint.

    Raises:
        ConfigurationError: It is in the queue already.
        ScavengerError: No server begins to serve.
    """
    from scavenger.control.jobs.platform import prepare_job
    from scavenger.control.service.submitting import resubmission
    from scavenger.domain.job import JobSpec
    from scavenger.store import Store

    rents = prepare_job(JobSpec.model_validate(job.spec), Path(job.job_file)).platform.rents
    with Store.open(store_url) as store:
        earlier = store.submission(job.id)
    new = resubmission(job, earlier, rents=rents, audit=audit)
    _show(_submit(new, store_url, again=job.id), as_json=as_json)
    return 0


def _submit(new: NewSubmission, store_url: str | None, *, again: str | None = None) -> Submission:
    """Submit a job, and see to it that a server is there.

    Raises:
        ScavengerError: If it cannot be submitted, or no server begins to serve.
    """
    from scavenger.control.service.submitting import ensure_server
    from scavenger.store import Store

    with Store.open(store_url) as store:
        submission = store.submit(new) if again is None else store.submit_again(again, new)
        try:
            ensure_server(store)
        except OSError as error:
            raise TransientError(f"the job is submitted, but no server can be started: {error}") from error
        return submission


def _show(submission: Submission, *, as_json: bool) -> None:
    if as_json:
        from scavenger.control.documents.submissions import submission_answer

        console.emit_json(submission_answer(submission))
        return
    key = submission.id[:8]
    console.emit(
        Text(f"Job {clean(submission.job.name)} ({key}) is submitted, and goes on without this terminal."),
        Text(f"  scavenger status {key}       how far it is"),
        Text(f"  scavenger logs {key} -f      its events and output, as they come"),
        Text(f"  scavenger jobs cancel {key}  withdraws or stops it"),
    )
