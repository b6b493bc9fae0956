"""One run of `optimize` or `plan`, from the job file to the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scavenger import logs
from scavenger.control.jobs.end import JobOutcome, ended_by, report_of
from scavenger.control.jobs.job_trace import traced
from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.jobs.relocation import forget_record
from scavenger.control.jobs.resumption import Resumption, checkpoint_url
from scavenger.control.jobs.supervisor import open_supervisor
from scavenger.control.jobs.upkeep import Upkeep
from scavenger.control.jobs.workflow import Confirm, JobWorkflow
from scavenger.control.places.place import Allocation, JobContext
from scavenger.control.search.model_library import check_models_exist
from scavenger.control.tracking.base import TrackedRun
from scavenger.control.tracking.tracking import Tracking, params_of, trackers_of
from scavenger.control.tracking.trainer_status import told_to_trainer
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import AUDIT_FILE, Journal, Journals
from scavenger.control.training.limits import CLOSE_S, Limits
from scavenger.control.training.operations import OperationHandler, knock
from scavenger.control.training.recorder import Recorder, refuse_second_run
from scavenger.control.training.trainer import Trainer
from scavenger.domain.pool import POOL
from scavenger.domain.report import JobState, Noted, Observer, PhaseChanged, Predicted, RunReport
from scavenger.errors import (
    CleanupError,
    ConfigurationError,
    Interrupted,
    LimitReachedError,
    NotSupportedError,
    ScavengerError,
)
from scavenger.policy.batch import learning_rate_scale
from scavenger.presentation.formatting import plural
from scavenger.store import Store
from scavenger.store.record_file import RECORD_FILE
from scavenger.train.names import partial_model
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.transport.messages.values import RestorePoint

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
        audit: Whether to record which worker computed which samples, see `AUDIT_FILE`.
        job_id: Id under which the job was submitted; None for a job that was not. A job that is on record under this
            id, and has no checkpoint, starts again from its first step.
        approved: What was predicted of this run, and agreed to, before it; None if nothing was.
        seat: Its seat in a pool; None if it is in none, or has its pool as a whole.

    Attributes:
        paused: Whether it has ended, or is about to end, so as to wait in the queue of its pool.
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
        approved: Predicted | None = None,
        seat: PoolSeat | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepared, self._store, self._observer = prepared, store, observer
        self._trains, self._confirm, self._resumed = run, confirm, resumed
        self._audit, self._submitted, self._clock = audit, job_id, clock
        self._approved, self._seat, self.paused = approved, seat, False
        self._recorder_in_use: Recorder | None = None
        self._resources: Allocation | None = None
        self._workflow: JobWorkflow | None = None
        self._upkeep: Upkeep | None = None
        self._stop_reason: str | None = None
        self._save_wanted, self._closed = True, False

    # ---- calls from other threads --------------------------------------------------------------------------

    def request_stop(self, reason: str, *, save: bool = True) -> None:
        """Ask the job to stop at the next step boundary; safe in signal handlers and other threads.

        Args:
            save: Whether its model is saved, if it has begun.
        """
        self._save_wanted = save
        self._stop_reason = reason
        if self._workflow is not None:
            self._workflow.trainer.stop(reason)

    def request_pause(self, reason: str) -> None:
        """As `request_stop`; the job goes on when its pool has slots for it again."""
        if self._stop_reason is None:
            self.paused = True
            if self._seat is not None:
                self._seat.pausing()
        self.request_stop(reason)

    def knock(self) -> None:
        """Have it look for a requested operation at once, and not within a second."""
        if self._recorder_in_use is not None:
            with contextlib.suppress(OSError):
                knock(self._work_dir(self._recorder_in_use))

    @property
    def lost(self) -> bool:
        """Whether it has ended without a model, as no process was left that held it."""
        return self._upkeep is not None and self._upkeep.lost

    @property
    def supervisor(self) -> JobSupervisor | None:
        """Supervises the processes of the job; None before they are begun; safe in signal handlers."""
        return None if self._workflow is None else self._workflow.trainer.supervisor

    @property
    def processes(self) -> int:
        """Number of live processes of the job; safe in signal handlers."""
        return 0 if (supervisor := self.supervisor) is None else len(supervisor.engine.running)

    @property
    def vms(self) -> int:
        """Number of VMs being paid for, as of the last check; safe in signal handlers."""
        return 0 if self._resources is None else self._resources.vms

    @property
    def job_id(self) -> str:
        """Id of the job; empty before it is on record; safe in signal handlers."""
        return "" if self._recorder_in_use is None else self._recorder_in_use.job_id

    def kill_now(self) -> None:
        """Kill every process of the job and record its end, before this process exits; safe in signal handlers."""
        if (supervisor := self.supervisor) is not None:
            supervisor.engine.kill_all()
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
        place, tracking = self._prepared.place, None
        if self._prepared.job.trackers is not None and self._trains:
            tracking = Tracking(trackers_of(self._prepared.job.trackers), self._observer)
            self._observer = tracking
        seat = None if self._seat is None else self._seat.pool
        if place.job.infra.provider == POOL and seat != str(place.job.infra).replace("/", " "):
            raise ConfigurationError(
                f"infra: {place.job.infra}: the server of a pool runs its jobs: submit it with --detach",
                key="infra",
            )
        place.check()
        if place.rents and self._resumed is None:
            strategy, hardware = self._prepared.job.search.strategy, place.hardware
            check_models_exist(self._store, strategy, place.space, hardware=hardware)
        self._store.reap_dead_jobs()
        job_file, resumed = self._prepared.job_file, self._resumed is not None
        refuse_second_run(self._store, job_file, None, resumed=resumed)
        with self._recorder() as recorder:
            self._recorder_in_use = recorder
            refuse_second_run(self._store, job_file, recorder.record, resumed=resumed)
            return self._recorded(recorder) if tracking is None else self._tracked(tracking, recorder)

    def _tracked(self, tracking: Tracking, recorder: Recorder) -> RunReport:
        job, resumed = self._prepared.job, self._resumed
        assert job.trackers is not None
        run = TrackedRun(
            recorder.job_id,
            job.name,
            job.trackers.experiment or job.name,
            job.trackers.group,
            self._prepared.folder,
            None if resumed is None else resumed.before.step,
            params_of(job),
            self._work_dir(recorder) / "logs" / "trackers.log",
        )
        tracking.begin(run)
        try:
            report = self._recorded(recorder)
            tracking.end(report)
            return report
        finally:
            tracking.stop()

    def _recorder(self) -> Recorder:
        prepared, resumed = self._prepared, self._resumed
        if resumed is not None:
            entry = self._store.resume_job(resumed.job_id, spec=resumed.spec, checkpoint=resumed.url)
        elif self._submitted is not None and self._store.has_job(self._submitted):
            entry = self._store.resume_job(self._submitted, again=True)
        else:
            job, job_file = prepared.job, prepared.job_file
            return Recorder.begin(self._store, job, job_file, self._observer, job_id=self._submitted)
        return Recorder(self._store, entry, self._observer, patience_s=prepared.job.limits.store)

    def _work_dir(self, recorder: Recorder) -> Path:
        """The folder of what the job writes."""
        prepared = self._prepared
        return (prepared.job_file.resolve().parent / prepared.job.output / recorder.job_id).resolve()

    def _recorded(self, recorder: Recorder) -> RunReport:
        """Begin, run and end the job; returns its report after recording it."""
        job = self._prepared.job
        work_dir = self._work_dir(recorder)
        journals: Journals | None = None
        warnings: list[str] = []
        started_at = self._clock()
        try:
            journals = self._journals(work_dir)
            recorder.copy_to(work_dir / RECORD_FILE)
            if self._resumed is not None and self._resumed.moved_from is not None:
                forget_record(self._resumed.moved_from)
            ending = JobOutcome(self._driven(recorder, journals, work_dir, started_at, warnings))
        except (ScavengerError, Interrupted, OSError) as error:
            ending = ended_by(error, work_dir, self._prepared.folder, self.supervisor)
        except BaseException:
            self._end(save=False, in_haste=True)  # no process or VM may be left behind
            raise
        try:
            self._end(save=self._trains and ending.state != "planned", in_haste=ending.in_haste)
        except CleanupError as left:
            ending = replace(ending, error=str(left), exit_code=left.exit_code)
        upkeep = self._upkeep
        if upkeep is not None and upkeep.unsaved and not ending.error:
            # training finished, but the model file is missing; `resume` can write it
            goes_on = upkeep.lost and recorder.record.checkpoint is not None
            ending = replace(
                ending,
                state="interrupted" if goes_on else "failed",
                error=upkeep.unsaved,
                exit_code=upkeep.unsaved_code,
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
            warnings=warnings,
            workflow=self._workflow,
            upkeep=upkeep,
            run=self._trains,
        )
        if journals is not None:
            report = replace(report, warnings=(*report.warnings, *journals.close()))
        return _finished(recorder, report)

    def _journals(self, work_dir: Path) -> Journals:
        """Open the job's journals; a resumed job appends to the journals of the earlier attempt.

        Raises:
            OSError: If a journal cannot be written.
        """
        job, step = self._prepared.job, None if self._resumed is None else self._resumed.before.step
        if self._audit and job.run is not None:
            raise NotSupportedError(
                "--audit: a command reads its samples itself, so which were used is not known"
            )

        def opened(name: str) -> Journal:
            return Journal(
                work_dir / name, resumed_step=step, job_id=work_dir.name, job=job.name, seed=job.seed
            )

        return Journals(opened("measurements.jsonl"), opened(AUDIT_FILE) if self._audit else None)

    def _pause(self, seconds: float) -> None:
        """Wait before the job has begun.

        Raises:
            Interrupted: If the job is to stop.
        """
        until = self._clock() + seconds
        while self._stop_reason is None and (left_s := until - self._clock()) > 0:
            time.sleep(min(left_s, _LOOK_S))
        if self._stop_reason is not None:
            raise Interrupted(self._stop_reason)

    # ---- its parts -----------------------------------------------------------------------------------------

    def _driven(
        self, recorder: Recorder, journals: Journals, work_dir: Path, started_at: float, warnings: list[str]
    ) -> JobState:
        """Allocate what the job runs on, build its parts, start its processes and run it; returns how it ended.

        Args:
            warnings: Receives warnings about what it runs on.
        """
        count = self._prepared.place.space.workers[0]
        workers = plural(count, "worker")
        recorder.on_event(PhaseChanged("starting", f"{workers} on {self._prepared.job.infra}"))
        resources = self._resources = self._allocated(recorder, warnings)
        resumed, spec = self._resumed, self._prepared.job.checkpoint
        checkpoints = (
            checkpoint_url(spec, self._prepared.folder, work_dir) if resumed is None else resumed.url
        )
        logs.set_job(recorder.job_id)
        supervisor = open_supervisor(
            self._prepared,
            resources,
            work_dir=work_dir,
            checkpoints=checkpoints,
            restore=None if resumed is None else RestorePoint(resumed.url, resumed.folder),
            clock=self._clock,
        )
        # left by an attempt that was killed while it saved the model
        partial_model(work_dir / supervisor.model_file).unlink(missing_ok=True)

        def tick() -> None:
            upkeep.tick()
            operations.look()
            look()

        def look() -> None:
            if self._seat is not None:
                self._seat.look(workflow, operations, pausing=self.paused, vms=resources.worker_vms)

        trainer = self._trainer(supervisor, resources, recorder, journals, started_at, tick)
        upkeep = self._upkeep = Upkeep(
            trainer, recorder, journals, resources, checkpoints=checkpoints, clock=self._clock
        )
        workflow = self._workflow = self._searching(trainer, resources, recorder)
        operations = self._operations(recorder, workflow, work_dir, look)
        if self._stop_reason is not None:
            trainer.stop(self._stop_reason)
        trainer.start(resources.space.workers[0])
        recorder.watch(supervisor)
        supervisor.on_wait, supervisor.recorded = upkeep.live_on, upkeep.recorded
        return workflow.run(operations)

    def _allocated(self, recorder: Recorder, warnings: list[str]) -> Allocation:
        def warn(message: str) -> None:
            warnings.append(message)
            recorder.on_event(Noted("warning", message))

        return self._prepared.place.allocate(
            JobContext(
                self._store,
                recorder.record,
                self._prepared.folder,
                self._prepared.folder / self._prepared.job.output,
                inform=lambda message: recorder.on_event(Noted("info", message)),
                warn=warn,
                clock=self._clock,
                pause=self._pause,
            )
        )

    def _trainer(
        self,
        supervisor: JobSupervisor,
        resources: Allocation,
        recorder: Recorder,
        journals: Journals,
        started_at: float,
        on_tick: Callable[[], None],
    ) -> Trainer:
        job, space = self._prepared.job, resources.space
        if self._resumed is not None:
            before = self._resumed.before
        else:  # what a job that begins again has cost counts
            again = recorder.record.attempts > 1
            before = EarlierAttempts(cost_usd=self._store.spent_usd(recorder.job_id) if again else 0.0)
        return Trainer(
            supervisor,
            goal=Goal(job.goal),
            offers=space.offers,
            meter=resources.meter(supervisor),
            limits=Limits(job.constraints.deadline, job.constraints.budget),
            journal=journals.measurements,
            observer=recorder,
            started_at=started_at,
            on_tick=on_tick,
            before=before,
            progress=lambda: None if self._workflow is None else self._workflow.progress(),
            terms=resources.terms,
            aggregator_vms=resources.aggregator_vms,
            lr_scale=lambda batch, noise: learning_rate_scale(
                job.elastic.lr_scaling, batch, space.global_batch_sizes[0], noise
            ),
            give_up=job.elastic.failures.give_up,
            audit=journals.audit,
            clock=self._clock,
        )

    def _searching(self, trainer: Trainer, resources: Allocation, recorder: Recorder) -> JobWorkflow:
        return JobWorkflow(
            trainer,
            self._prepared.job,
            resources.space,
            store=self._store,
            recorder=recorder,
            hardware=self._prepared.place.hardware,
            folder=self._prepared.folder,
            run=self._trains,
            confirm=self._confirm,
            at_end=self._end_at_once,
            resumed=self._resumed,
            approved=self._approved,
        )

    def _operations(
        self, recorder: Recorder, workflow: JobWorkflow, work_dir: Path, answered: Callable[[], None]
    ) -> OperationHandler:
        job, seat = self._prepared.job, self._seat
        operations = OperationHandler(
            self._store,
            recorder.job_id,
            keep=recorder.keep,
            workers=job.elastic_range,
            batch=workflow.batch_at,
            stop=lambda reason, save: self.request_stop(reason, save=save),
            measured=recorder.measured,
            policy=job.elastic.policy,
            folder=work_dir,
            pool="" if seat is None else seat.pool,
            pause=self.request_pause,
            obeyed=0 if seat is None else seat.share.since,
            per_slot=1 if seat is None else seat.per_slot,
            answered=answered,
        )
        if not self._trains:
            operations.refusing = "this is a plan, which ends with the choice; it can only be stopped"
        return operations

    # ---- its end ------------------------------------------------------------------------------------------------

    def _end_at_once(self, error: BaseException) -> None:
        """Save the model and end the processes; a failed cleanup is retried and reported at the job's end."""
        with contextlib.suppress(CleanupError):
            self._end(save=True, in_haste=isinstance(error, LimitReachedError))

    def _end(self, *, save: bool, in_haste: bool) -> None:
        """Save the model if requested, then end every process and VM; may be called again after a failure.

        Raises:
            CleanupError: If a process or VM may be left running.
        """
        resources, supervisor = self._resources, self.supervisor
        try:
            if save and self._upkeep is not None and not self._closed:
                self._upkeep.save(in_haste=in_haste, wanted=self._save_wanted)
                if self.lost and self._seat is not None:
                    self._seat.pausing()  # on record before its end: it waits again, whoever is killed until then
        finally:
            self._closed = True
            try:
                if supervisor is not None:
                    supervisor.close(**({"grace_s": CLOSE_S / 2} if in_haste else {}))
            finally:
                if resources is not None:
                    if count := resources.vms:
                        self._observer.on_event(PhaseChanged("ending", plural(count, "VM")))
                    resources.close()


def _finished(recorder: Recorder, report: RunReport) -> RunReport:
    """Record the report; if that fails, return it with the error, since the training itself is done."""
    try:
        recorder.finish(report)
    except ScavengerError as failure:
        return replace(
            report, error=report.error or str(failure), exit_code=report.exit_code or failure.exit_code
        )
    return report
