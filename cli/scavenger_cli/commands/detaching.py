"""`--detach`: submit a job, to be run without the command, when its questions are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.api.deadlines import deadline_told
from scavenger.api.submissions import SubmissionAnswer, submitted
from scavenger.domain.pool import POOL
from scavenger.presentation.formatting import clean
from scavenger_cli.commands.driving import drive
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.control.jobs.prepared import PreparedJob
    from scavenger.domain.curve import Choice, TradeoffCurve
    from scavenger.domain.report import Observer, Predicted, RunReport
    from scavenger.store import Store
    from scavenger_cli.commands.driving import Confirm, Driver
    from scavenger_cli.options import Detach, Invocation

_STORED_ONLY = ("none", "universal")
"""Strategies that measure nothing, whose choice needs no plan to be repeated."""


def detach_job(prepared: PreparedJob, detach: Detach, invocation: Invocation, *, audit: bool) -> int:
    """Submit a job; before that, plan it in this terminal, show the table and ask, unless `--yes` was given.

    Returns:
        The exit code: 0 also if the answer was no.

    Raises:
        ScavengerError: The plan cannot start, or no server begins to serve.
    """
    from scavenger.control.job_file.load import override_job
    from scavenger.control.jobs.prepared import prepare_job
    from scavenger.control.service.submitting import hand_over, new_submission, own_environment

    if not invocation.yes and prepared.job.infra.provider != POOL:  # which plans with the slots that it gives
        code, agreed = _planned(prepared, invocation)
        if not agreed:
            return code
        if prepared.job.search.strategy not in _STORED_ONLY:
            # what the plan has measured is stored: the run uses that, and measures nothing twice
            job = override_job(prepared.job, {"search.strategy": "auto"})
            prepared = prepare_job(job, prepared.job_file)
    new = new_submission(prepared, audit=audit, priority=detach.priority, environment=own_environment())
    from scavenger.store import Store

    with Store.open(invocation.store_url) as store:
        handed = hand_over(store, new)
        made = SubmissionAnswer(submission=submitted(handed), deadline=deadline_told(store, handed))
    if not detach.follow:
        show_submission(made, as_json=invocation.as_json)
        return 0
    from scavenger_cli.commands.queue import logs

    return logs(made.submission.id, invocation.store_url)


def _planned(prepared: PreparedJob, invocation: Invocation) -> tuple[int, bool]:
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

    code = drive(begin, invocation, ask=True, reports=is_shown)
    return code, code == 0 and answers == [True]


def show_submission(made: SubmissionAnswer, *, as_json: bool) -> None:
    """Say that a job was submitted, whether it will be done in time, and how to look after it."""
    if as_json:
        console.emit_answer(made)
        return
    submission, key = made.submission, made.submission.id[:8]
    console.emit(
        Text(f"Job {clean(submission.name)} ({key}) is submitted, and goes on without this terminal."),
        *(() if made.deadline is None else (Text(f"  {made.deadline.words}"),)),
        Text(f"  scavenger status {key}       how far it is"),
        Text(f"  scavenger logs {key} -f      its events and output, as they come"),
        Text(f"  scavenger jobs cancel {key}  withdraws or stops it"),
    )
