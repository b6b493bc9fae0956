"""One run of `optimize` or `plan`, from the job file to the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from scavenger.control.jobs.begin import AttemptInputs, RunOptions, begin_job, open_journals
from scavenger.control.jobs.end import JobOutcome, ended_by, report_of
from scavenger.control.jobs.job_trace import traced
from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.jobs.relocation import forget_record
from scavenger.control.jobs.resumption import Resumption
from scavenger.control.jobs.running_job import JobAttempt
from scavenger.control.jobs.workflow import Confirm
from scavenger.control.search.model_library import check_models_exist
from scavenger.control.tracking.base import TrackedRun
from scavenger.control.tracking.tracking import Tracking, params_of, trackers_of
from scavenger.control.tracking.trainer_status import told_to_trainer
from scavenger.control.training.journal import Journals
from scavenger.control.training.recorder import Recorder, refuse_second_run
from scavenger.domain.report import JobState, Observer, RunReport
from scavenger.errors import CleanupError, Interrupted, ScavengerError
from scavenger.store import Store
from scavenger.store.record_file import RECORD_FILE

__all__ = ["Confirm", "JobRun"]

_LOOK_S = 0.2
"""How often a job that waits for its cloud looks whether it is to stop."""


class JobRun:
    """A job that can be run once.

    Args:
        prepared: The job, made by `prepare_job`.
        store: Database of jobs, measurements and models.
        observer: Receives the events of the run.
        run: False for `plan`, which ends with the choice.
        confirm: Asked before the chosen configuration is paid for; None to go ahead.
        resumed: Checkpoint, time, cost and progress of earlier attempts; None for a new job.
        audit: Whether to record which worker computed which samples, see `scavenger.control.training.audit`.
        job_id: Id under which the job was submitted; None for a job that was not. A job that is on record under this
            id, and has no checkpoint, starts again from its first step.
    """

    def __init__(
        self,
        prepared: PreparedJob,
        *,
        store: Store,
        observer: Observer,
        run: bool,
        confirm: Confirm | None,
        resumed: Resumption | None = None,
        audit: bool = False,
        job_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepared, self._store, self._observer = prepared, store, observer
        self._submitted = job_id
        self._options = RunOptions(run, confirm, resumed, audit, clock)
        self._running: JobAttempt | None = None
        self._tracking: Tracking | None = None
        self._recorder_in_use: Recorder | None = None
        self._stop_reason: str | None = None

    # ---- calls from other threads --------------------------------------------------------------------------

    def request_stop(self, reason: str, *, save: bool = True) -> None:
        """Ask the job to stop at the next step boundary; safe in signal handlers and other threads.

        Args:
            save: Whether its model is saved, if it has begun.
        """
        self._stop_reason = reason
        if self._running is not None:
            self._running.stop_as_asked(reason, save)

    def _stop_training(self, reason: str) -> None:
        self._stop_reason = reason
        if self._running is not None:
            self._running.parts.trainer.stop(reason)

    @property
    def processes(self) -> int:
        """Number of live processes of the job; safe in signal handlers."""
        return 0 if self._running is None else len(self._running.parts.supervisor.engine.running)

    @property
    def vms(self) -> int:
        """Number of VMs being paid for, as of the last check; safe in signal handlers."""
        return 0 if self._running is None else self._running.parts.resources.vms

    @property
    def job_id(self) -> str:
        """Id of the job; empty before it is on record; safe in signal handlers."""
        return "" if self._recorder_in_use is None else self._recorder_in_use.job_id

    def kill_now(self) -> None:
        """Kill every process of the job and record its end, before this process exits; safe in signal handlers."""
        if self._running is not None:
            self._running.parts.supervisor.engine.kill_all()
        if self._recorder_in_use is not None:
            self._recorder_in_use.record_kill("killed by a second interrupt")

    # ---- the run -------------------------------------------------------------------------------------------

    def run(self) -> RunReport:
        """Run the job to its end.

        Returns:
            The report. If the job failed after it had started, the report has `error` and `exit_code`.

        Raises:
            ScavengerError: If the job cannot be started.
        """
        with traced(self._observer, self._prepared.job.name) as (self._observer, trace):
            with told_to_trainer(self._observer) as (self._observer, tell_end):
                report = self._run()
                tell_end(report)
            if trace is not None:
                trace.end(report.job.id, report.job.state, report.error)
            return report

    def _run(self) -> RunReport:
        self._prepared = self._prepared.settled(self._store)
        place = self._prepared.place
        if self._prepared.job.trackers is not None and self._options.run:
            self._tracking = Tracking(trackers_of(self._prepared.job.trackers), self._observer)
            self._observer = self._tracking
        place.check()
        if place.rents and self._options.resumed is None:
            strategy, hardware = self._prepared.job.search.strategy, place.hardware
            check_models_exist(self._store, strategy, place.space, hardware=hardware)
        self._store.reap_dead_jobs()
        job_file, resumed = self._prepared.job_file, self._options.resumed is not None
        refuse_second_run(self._store, job_file, None, resumed=resumed)
        with self._recorder() as recorder:
            self._recorder_in_use = recorder
            refuse_second_run(self._store, job_file, recorder.record, resumed=resumed)
            if self._tracking is None:
                return self._recorded(recorder)
            return self._tracked(self._tracking, recorder)

    def _tracked(self, tracking: Tracking, recorder: Recorder) -> RunReport:
        job, resumed = self._prepared.job, self._options.resumed
        assert job.trackers is not None
        run = TrackedRun(
            recorder.job_id,
            job.name,
            job.trackers.experiment or job.name,
            job.trackers.group,
            self._prepared.folder,
            None if resumed is None else resumed.before.step,
            params_of(job),
        )
        tracking.begin(run)
        try:
            report = self._recorded(recorder)
            tracking.end(report)
            return report
        finally:
            tracking.stop()

    def _recorder(self) -> Recorder:
        prepared, resumed = self._prepared, self._options.resumed
        if resumed is not None:
            entry = self._store.resume_job(resumed.job_id, spec=resumed.spec, checkpoint=resumed.url)
        elif self._submitted is not None and self._store.has_job(self._submitted):
            entry = self._store.resume_job(self._submitted, again=True)
        else:
            job, job_file = prepared.job, prepared.job_file
            return Recorder.begin(self._store, job, job_file, self._observer, job_id=self._submitted)
        return Recorder(self._store, entry, self._observer, patience_s=prepared.job.limits.store)

    def _recorded(self, recorder: Recorder) -> RunReport:
        """Begin, run and end the job; returns its report after recording it."""
        job = self._prepared.job
        work_dir = (self._prepared.job_file.resolve().parent / job.output / recorder.job_id).resolve()
        journals: Journals | None = None
        started_at = self._options.clock()
        try:
            journals = open_journals(self._prepared, self._options, work_dir)
            recorder.copy_to(work_dir / RECORD_FILE)
            if self._options.resumed is not None and self._options.resumed.moved_from is not None:
                forget_record(self._options.resumed.moved_from)
            attempt = AttemptInputs(
                self._prepared,
                self._options,
                self._store,
                self._observer,
                recorder,
                journals,
                work_dir,
                started_at,
                self._pause,
            )
            ending = JobOutcome(self._driven(attempt))
        except (ScavengerError, Interrupted, OSError) as error:
            ending = ended_by(error, work_dir)
        except BaseException:
            self._end(save=False, in_haste=True)  # no process or VM may be left behind
            raise
        try:
            self._end(save=self._options.run and ending.state != "planned", in_haste=ending.in_haste)
        except CleanupError as left:
            ending = replace(ending, error=str(left), exit_code=left.exit_code)
        if self._running is not None and self._running.unsaved and not ending.error:
            # training finished, but the model file is missing; `resume` can write it
            ending = replace(
                ending, state="failed", error=self._running.unsaved, exit_code=self._running.unsaved_code
            )
        if ending.limit and recorder.record.checkpoint is not None:
            option = "--budget USD" if ending.limit == "budget" else "--deadline TIME"
            how = f"`scavenger resume {recorder.job_id[:8]} {option}` raises it and goes on"
            ending = replace(ending, error=f"{ending.error}; {how}")
        report = report_of(
            ending,
            job_name=job.name,
            recorder=recorder,
            journals=journals,
            running=self._running,
            run=self._options.run,
        )
        if journals is not None:
            report = replace(report, warnings=(*report.warnings, *journals.close()))
        return _finished(recorder, report)

    def _pause(self, seconds: float) -> None:
        """Wait before the job has begun.

        Raises:
            Interrupted: If the job is to stop.
        """
        until = self._options.clock() + seconds
        while self._stop_reason is None and (left_s := until - self._options.clock()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        if self._stop_reason is not None:
            raise Interrupted(self._stop_reason)

    def _driven(self, attempt: AttemptInputs) -> JobState:
        self._running = begin_job(attempt, stop=self._stop_training)
        if self._stop_reason is not None:
            self._running.parts.trainer.stop(self._stop_reason)
        return self._running.run()

    def _end(self, *, save: bool, in_haste: bool) -> None:
        """Save the model if requested, then end every process and VM.

        Raises:
            CleanupError: If a process or VM may be left running.
        """
        if self._running is None:
            return
        try:
            if save:
                self._running.save(in_haste=in_haste)
        finally:
            self._running.close(in_haste=in_haste)


def _finished(recorder: Recorder, report: RunReport) -> RunReport:
    """Record the report; if that fails, return it with the error, since the training itself is done."""
    try:
        recorder.finish(report)
    except ScavengerError as failure:
        return replace(
            report, error=report.error or str(failure), exit_code=report.exit_code or failure.exit_code
        )
    return report
