"""Determines how a job ended and builds its report."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scavenger.control.jobs.upkeep import Upkeep
from scavenger.control.jobs.workflow import JobWorkflow
from scavenger.control.search.outcome import NOTHING_SEARCHED, actual_of, search_outcome
from scavenger.control.training.journal import Journals
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice
from scavenger.domain.report import Actual, JobState, ReportedJob, RunReport, TrainingResult
from scavenger.errors import Interrupted, LimitReachedError, ScavengerError, StoreError, TrainingCodeError
from scavenger.frames import Frame, located, placed
from scavenger.train.supervisor.face import JobSupervisor


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        error: One line; empty unless the job failed.
        in_haste: A limit is near, so shutdown may use only the time reserved for it.
        limit: The limit of the job that ended it; empty if none did.
        traceback: As of `TrainingResult`.
    """

    state: JobState
    error: str = ""
    exit_code: int = 0
    in_haste: bool = False
    limit: Literal["", "budget", "deadline"] = ""
    traceback: tuple[Frame, ...] = ()


def ended_by(
    error: ScavengerError | Interrupted | OSError,
    work_dir: Path,
    code_dir: Path,
    supervisor: JobSupervisor | None,
) -> JobOutcome:
    """Translate the error that ended a job into its ending; a disk ends it like the store, which cannot be used either.

    Args:
        work_dir: The job's folder, used in the message of a file system error that names no file.
        code_dir: The folder of its job file, to which places in its code are relative.
        supervisor: Of its processes; None if there were none.
    """
    if isinstance(error, OSError):
        return JobOutcome(
            "failed", f"{error.strerror or error}: {error.filename or work_dir}", StoreError.exit_code
        )
    if isinstance(error, Interrupted):
        return JobOutcome("interrupted", str(error), error.exit_code)
    if isinstance(error, LimitReachedError):
        return JobOutcome("stopped", str(error), error.exit_code, in_haste=True, limit=error.limit)
    frames: tuple[Frame, ...] = ()
    if isinstance(error, TrainingCodeError):
        frames = error.frames or (() if supervisor is None else supervisor.frames)
    return JobOutcome(
        "failed", placed(str(error), code_dir), error.exit_code, traceback=located(frames, code_dir)
    )


def report_of(
    ending: JobOutcome,
    *,
    job_name: str,
    recorder: Recorder,
    journals: Journals | None,
    warnings: Sequence[str],
    workflow: JobWorkflow | None,
    upkeep: Upkeep | None,
    run: bool,
) -> RunReport:
    """Build the report of a job whose processes have ended.

    Args:
        warnings: About what the job ran on.
        workflow, upkeep: Those of the job; None if it failed before they were built.
        run: False for `plan`.
    """
    report = RunReport(
        job=ReportedJob(recorder.job_id, job_name, ending.state),
        search=NOTHING_SEARCHED,
        measurements_path=None if journals is None else str(journals.measurements.path),
        warnings=(*warnings, *recorder.warnings),
        error=ending.error,
        exit_code=ending.exit_code,
        result=TrainingResult(traceback=ending.traceback),
    )
    if workflow is None or upkeep is None:
        return report
    trainer, state = workflow.trainer, workflow.state
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
            actual=_actual(trainer, state.chosen, upkeep.ending_at_s) if run else None,
            metric=trainer.goal.outcome(trainer.history.epochs),
            steps=trainer.step,
            model_path=None if upkeep.model_path is None else str(upkeep.model_path),
            quarantined=trainer.supervisor.quarantined,
            forecasts=tuple(workflow.outlook.forecasts),
            traceback=ending.traceback,
        ),
        warnings=(*warnings, *trainer.warnings, *recorder.warnings),
    )


def _actual(trainer: Trainer, chosen: Configuration | None, ending_at_s: float | None) -> Actual | None:
    if (manifest := trainer.supervisor.manifest) is None:
        return None
    end_s = 0.0 if ending_at_s is None else trainer.elapsed_s - ending_at_s
    return actual_of(trainer, manifest.dataset_size, chosen, end_s=end_s)
