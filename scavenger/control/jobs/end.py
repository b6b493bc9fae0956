"""Determines how a job ended and builds its report."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scavenger.control.jobs.running_job import JobAttempt
from scavenger.control.search.outcome import NOTHING_SEARCHED, actual_of, search_outcome
from scavenger.control.training.journal import Journals
from scavenger.control.training.recorder import Recorder
from scavenger.domain.curve import Choice
from scavenger.domain.report import Actual, JobState, ReportedJob, RunReport, TrainingResult
from scavenger.errors import Interrupted, LimitReachedError, ScavengerError, StoreError


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        error: One line; empty unless the job failed.
        in_haste: A limit is near, so shutdown may use only the time reserved for it.
        limit: The limit of the job that ended it; empty if none did.
    """

    state: JobState
    error: str = ""
    exit_code: int = 0
    in_haste: bool = False
    limit: Literal["", "budget", "deadline"] = ""


def ended_by(error: ScavengerError | Interrupted | OSError, work_dir: Path) -> JobOutcome:
    """Translate the error that ended a job into its ending; a disk ends it like the store, which cannot be used either.

    Args:
        work_dir: The job's folder, used in the message of a file system error that names no file.
    """
    if isinstance(error, OSError):
        return JobOutcome(
            "failed", f"{error.strerror or error}: {error.filename or work_dir}", StoreError.exit_code
        )
    if isinstance(error, Interrupted):
        return JobOutcome("interrupted", str(error), error.exit_code)
    if isinstance(error, LimitReachedError):
        return JobOutcome("stopped", str(error), error.exit_code, in_haste=True, limit=error.limit)
    return JobOutcome("failed", str(error), error.exit_code)


def report_of(
    ending: JobOutcome,
    *,
    job_name: str,
    recorder: Recorder,
    journals: Journals | None,
    running: JobAttempt | None,
    run: bool,
) -> RunReport:
    """Build the report of a job whose processes have ended.

    Args:
        running: The job; None if it failed before its parts were built.
        run: False for `plan`.
    """
    report = RunReport(
        job=ReportedJob(recorder.job_id, job_name, ending.state),
        search=NOTHING_SEARCHED,
        measurements_path=None if journals is None else str(journals.measurements.path),
        warnings=tuple(recorder.warnings),
        error=ending.error,
        exit_code=ending.exit_code,
    )
    return report if running is None else _with_run(report, running, run=run)


def _with_run(report: RunReport, running: JobAttempt, *, run: bool) -> RunReport:
    """Add the results of the run to the report."""
    trainer, state = running.parts.trainer, running.parts.workflow.state
    with contextlib.suppress(OSError):  # the report warns about a full disk
        trainer.journal.end(trainer.elapsed_s)
    decision = state.decision
    choice = None if decision is None else decision.choice
    if state.search is not None:
        chosen = choice if isinstance(choice, Choice) else None
        progress = 0.0 if decision is None else decision.progress
        report = replace(report, search=search_outcome(state.search, chosen, progress, trainer))
    return replace(
        report,
        curve=None if decision is None else decision.curve,
        choice=choice,
        predicted=state.predicted,
        estimate=None if decision is None else decision.estimate,
        result=TrainingResult(
            actual=_actual(running) if run else None,
            metric=trainer.goal.outcome(trainer.history.epochs),
            steps=trainer.step,
            model_path=None if running.model_path is None else str(running.model_path),
            quarantined=running.parts.supervisor.quarantined,
        ),
        warnings=(*running.warnings, *trainer.warnings, *report.warnings),
        forecasts=tuple(running.parts.workflow.outlook.forecasts),
    )


def _actual(running: JobAttempt) -> Actual | None:
    manifest = running.parts.supervisor.manifest
    if manifest is None:
        return None
    trainer = running.parts.trainer
    return actual_of(
        trainer,
        manifest.dataset_size,
        running.parts.workflow.state.chosen,
        end_s=0.0 if running.ending_at_s is None else trainer.elapsed_s - running.ending_at_s,
    )
