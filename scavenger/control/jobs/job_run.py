"""One run of `optimize` or `plan`: from the job file to the report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scavenger.cloud.base import Cloud
from scavenger.cloud.local import LocalCloud
from scavenger.control.jobs.outcome import NOTHING_SEARCHED, actual_of, search_outcome
from scavenger.control.jobs.resumption import Resumption, checkpoint_url
from scavenger.control.jobs.wiring import supervisor_of, trainer_of
from scavenger.control.jobs.workflow import Confirm, JobWorkflow
from scavenger.control.provisioning.cloud_resources import CloudResources, address_of
from scavenger.control.provisioning.fleet import Fleet
from scavenger.control.search.space import (
    check_keras_backend,
    check_supported,
    check_training_module,
    search_space,
)
from scavenger.control.training.audit import AUDIT_FILE
from scavenger.control.training.goal import Goal
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import CLOSE_S
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.recorder import Recorder, refuse_second_run
from scavenger.control.training.trainer import Trainer
from scavenger.domain.cost import CostTerms
from scavenger.domain.job import JobSpec
from scavenger.domain.report import JobState, Noted, Observer, PhaseChanged, RunReport
from scavenger.errors import CleanupError, Interrupted, LimitReachedError, ScavengerError
from scavenger.store import Store
from scavenger.train.names import partial_model
from scavenger.train.supervisor.supervisor import Supervisor

__all__ = ["Confirm", "JobRun"]

_MODEL_FILE = "model.keras"
DRAIN_MARGIN = 2.0
"""What is set aside for saving on VMs, of the time that it takes at the speed of a slow disk: it goes over a line."""


class JobRun:
    """A job, ready to run once.

    Args:
        job: The validated job file.
        job_file: Where it lies; the training module is beside it.
        store: Where jobs, measurements and models are kept.
        observer: Is told what happens.
        run: False for `plan`, which ends with the choice.
        confirm: Asked before the chosen configuration is paid for; None to go ahead.
        resumed: What an earlier attempt has left; None for a new job.
        audit: Whether to write down which worker computed which samples, see `scavenger.control.training.audit`.

    Raises:
        ConfigurationError: If the job file asks for what there is not.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        job_file: Path,
        store: Store,
        observer: Observer,
        run: bool,
        confirm: Confirm | None,
        resumed: Resumption | None = None,
        audit: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_supported(job)
        check_keras_backend(os.environ)
        self._job, self._job_file, self._store = job, job_file, store
        self._run, self._confirm, self._clock = run, confirm, clock
        self._resumed, self._audited = resumed, audit
        self._folder = check_training_module(job, job_file)
        self._renting: CloudResources | None = None
        self._cloud: Cloud
        if job.infra.provider == "local":
            self._cloud = LocalCloud()
            self._space = search_space(job, self._cloud)
        else:
            address_of(os.environ)
            self._renting = CloudResources(job)
            self._cloud, self._space = self._renting.cloud, self._renting.space
        self._goal = Goal(job.goal)
        self._observer = observer
        self._trainer: Trainer | None = None
        self._supervisor: Supervisor | None = None
        self._driver: JobWorkflow | None = None
        self._journal: Journal | None = None
        self._audit: Journal | None = None
        self._model_path: Path | None = None
        self._closed = False
        self._stop_reason: str | None = None
        self._save_wanted = True
        self._operator: OperationHandler | None = None
        self._fleet: Fleet | None = None
        self._lived_at = 0.0
        self._checkpoint_url = ""

    # ---- from outside --------------------------------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """End in order at the next step boundary; safe from signal handlers and other threads."""
        self._stop_reason = reason
        if self._trainer is not None:
            self._trainer.stop(reason)

    @property
    def processes(self) -> int:
        """How many processes of the job live; safe from signal handlers."""
        return 0 if self._supervisor is None else len(self._supervisor.engine.running)

    @property
    def vms(self) -> int:
        """How many VMs are paid for, as of the last look; safe from signal handlers."""
        return 0 if self._fleet is None else sum(one.state != "GONE" for one in self._fleet.vms)

    def kill_now(self) -> None:
        """SIGKILL to every process of the job; safe from signal handlers."""
        if self._supervisor is not None:
            self._supervisor.engine.kill_all()

    def run(self) -> RunReport:
        """Run the job to its end.

        Returns:
            The report, also of a job that failed once it had started; then with `error` and `exit_code`.

        Raises:
            ScavengerError: For what comes before the job has started.
        """
        self._store.reap_dead_jobs()
        resumed = self._resumed is not None
        refuse_second_run(self._store, self._job_file, None, resumed=resumed)
        with self._recorder() as recorder:
            refuse_second_run(self._store, self._job_file, recorder.record, resumed=resumed)
            return self._recorded(recorder)

    def _recorder(self) -> Recorder:
        if self._resumed is None:
            return Recorder.begin(self._store, self._job, self._job_file, self._observer)
        return Recorder(self._store, self._store.resume_job(self._resumed.job_id), self._observer)

    # ---- the whole of it -----------------------------------------------------------------------------------

    def _recorded(self, recorder: Recorder) -> RunReport:
        work_dir = (self._job_file.resolve().parent / self._job.output / recorder.job_id).resolve()
        started_at = self._clock()
        state: JobState = "failed"
        error, exit_code, in_haste = "", 0, False
        try:
            self._journal = self._opened(work_dir / "measurements.jsonl", recorder.job_id)
            if self._audited:
                self._audit = self._opened(work_dir / AUDIT_FILE, recorder.job_id)
            driver, operator = self._start(recorder, self._journal, work_dir, started_at)
            state = driver.run(operator)
        except Interrupted as stop:
            state, error, exit_code = "interrupted", str(stop), stop.exit_code
        except LimitReachedError as limit:
            state, error, exit_code, in_haste = "stopped", str(limit), limit.exit_code, True
        except ScavengerError as failure:
            error, exit_code = str(failure), failure.exit_code
        except OSError as failure:
            error, exit_code = f"{failure.strerror or failure}: {failure.filename or work_dir}", 1
        except BaseException:
            self._close(in_haste=True)  # whatever it was, nothing may be left behind
            raise
        try:
            try:
                if self._run and state != "planned":
                    self._save(recorder, in_haste=in_haste)
            finally:
                self._close(in_haste=in_haste)
        except CleanupError as left:
            error, exit_code = str(left), left.exit_code
        report = self._report(recorder, state, error, exit_code)
        try:
            recorder.finish(report)
        except ScavengerError as failure:  # the work is done and paid for all the same
            report = replace(
                report, error=report.error or str(failure), exit_code=report.exit_code or failure.exit_code
            )
        return report

    def _opened(self, path: Path, job_id: str) -> Journal:
        step = None if self._resumed is None else self._resumed.before.step
        return Journal(path, resumed_step=step, job_id=job_id, job=self._job.name, seed=self._job.seed)

    def _start(
        self, recorder: Recorder, journal: Journal, work_dir: Path, started_at: float
    ) -> tuple[JobWorkflow, OperationHandler]:
        job = self._job
        count = self._space.workers[0]
        workers = "1 worker" if count == 1 else f"{count} workers"
        recorder.on_event(PhaseChanged("starting", f"{workers} on {job.infra}"))
        resumed = self._resumed
        # of an attempt that was killed while it saved
        partial_model(work_dir / _MODEL_FILE).unlink(missing_ok=True)
        self._checkpoint_url = (
            checkpoint_url(job.checkpoint, self._folder, work_dir) if resumed is None else resumed.url
        )
        if self._renting is not None:
            self._fleet = self._rented(self._renting, recorder)
        self._supervisor = supervisor_of(
            job,
            self._space,
            folder=self._folder,
            work_dir=work_dir,
            checkpoints=self._checkpoint_url,
            resumed=resumed is not None,
            engine=None if self._fleet is None else self._fleet.engine,
            clock=self._clock,
        )
        self._trainer = trainer_of(
            self._supervisor,
            job,
            self._space,
            goal=self._goal,
            journal=journal,
            audit=self._audit,
            observer=recorder,
            started_at=started_at,
            on_tick=lambda: self._tick(recorder),
            resumed=resumed,
            meter=self._fleet,
            clock=self._clock,
        )
        self._trainer.terms = self._terms
        self._driver = JobWorkflow(
            self._trainer,
            job,
            self._space,
            store=self._store,
            recorder=recorder,
            cloud=self._cloud,
            run=self._run,
            confirm=self._confirm,
            at_end=lambda error: self._end_at_once(recorder, error),
            resumed=resumed,
        )
        self._operator = OperationHandler(
            self._store,
            recorder.job_id,
            keep=recorder.keep,
            workers=job.elastic_range,
            batch=self._driver.batch_at,
            stop=self._stop_as_asked,
            measured=recorder.measured,
        )
        if not self._run:
            self._operator.refusing = "it is a plan, which ends with the choice; it can only be stopped"
        if self._stop_reason is not None:
            self._trainer.stop(self._stop_reason)
        self._trainer.start(self._space.workers[0])
        recorder.watch(self._supervisor)
        self._supervisor.on_wait = lambda: self._live_on(recorder)
        return self._driver, self._operator

    def _rented(self, renting: CloudResources, recorder: Recorder) -> Fleet:
        """The fleet of a job that runs on a cloud's VMs."""

        def note(message: str) -> None:
            if self._trainer is not None:
                self._trainer.note(message)
            else:
                recorder.on_event(Noted("warning", message))

        self._space, left_out = renting.within_quotas()
        for told in (*renting.offered.notes, *left_out):
            recorder.on_event(Noted("info", told))
        return renting.fleet(
            self._store,
            recorder.record,
            folder=self._folder,
            outputs=self._folder / self._job.output,
            before_usd=0.0 if self._resumed is None else self._resumed.before.cost_usd,
            note=note,
            clock=self._clock,
        )

    def _terms(self) -> CostTerms | None:
        """What the job pays beside its workers, as far as that is known by now; None where it rents nothing."""
        if self._renting is None or self._fleet is None or self._trainer is None:
            return None
        return replace(self._renting.terms(self._trainer), reserve_s=self._fleet.reserve_s)

    def _tick(self, recorder: Recorder) -> None:
        trainer = self._trainer
        assert trainer is not None
        recorder.tick(trainer)
        if self._fleet is not None:
            if (needed_s := DRAIN_MARGIN * trainer.drain_s) > 1.2 * self._fleet.drain_s:
                self._fleet.drain_s = needed_s
            self._fleet.tick()
        self._tell_of_checkpoint(recorder)
        if self._operator is not None:
            self._operator.look()

    def _live_on(self, recorder: Recorder) -> None:
        """While the model is saved: VMs are heard of and renewed, and others see that the job lives."""
        now = self._clock()
        if self._trainer is None or now - self._lived_at < 1.0:
            return
        self._lived_at = now
        recorder.tick(self._trainer)
        if self._fleet is not None:
            with contextlib.suppress(ScavengerError):  # what ends the job has been decided
                self._fleet.tick()

    def _stop_as_asked(self, reason: str, save: bool) -> None:
        self._save_wanted = save
        self.request_stop(reason)

    # ---- end -----------------------------------------------------------------------------------------------

    def _end_at_once(self, recorder: Recorder, error: BaseException) -> None:
        """Save and end the processes; what cannot be ended is tried again, and told, at the job's end."""
        in_haste = isinstance(error, LimitReachedError)
        self._save(recorder, in_haste=in_haste)
        with contextlib.suppress(CleanupError):
            self._close(in_haste=in_haste)

    def _save(self, recorder: Recorder, *, in_haste: bool) -> None:
        """Write the model: the weights that the report's metric is of, or the last where there is no metric.

        Args:
            in_haste: A limit is near: take no longer than what is kept in reserve for it.
        """
        trainer, supervisor = self._trainer, self._supervisor
        if trainer is None or supervisor is None or not trainer.step or not self._save_wanted:
            return
        if self._model_path or self._closed:
            return
        path = trainer.journal.path.with_name(_MODEL_FILE)
        recorder.on_event(PhaseChanged("saving", str(path)))
        # where the target was reached, the last epoch is the best one
        best = trainer.course.best_epoch is not None and not trainer.reached
        try:
            within_s = trainer.drain_s - CLOSE_S if in_haste else trainer.left_s
            supervisor.finish(path, best=best, checkpoint=not trainer.finished, within_s=within_s)
            self._model_path = path
            trainer.take_last_steps()
            self._tell_of_checkpoint(recorder)
        except (ScavengerError, OSError) as error:
            trainer.note(f"the model could not be saved: {error}")

    def _tell_of_checkpoint(self, recorder: Recorder) -> None:
        """Once there is a checkpoint, the job can be resumed."""
        if self._trainer is not None and self._trainer.checkpoint_step and recorder.record.checkpoint is None:
            recorder.checkpointed(self._checkpoint_url)

    def _close(self, *, in_haste: bool) -> None:
        try:
            if self._supervisor is not None:
                self._closed = True
                self._supervisor.close(**({"grace_s": CLOSE_S / 2} if in_haste else {}))
        finally:
            if self._fleet is not None:
                if count := self.vms:
                    self._observer.on_event(PhaseChanged("ending", "1 VM" if count == 1 else f"{count} VMs"))
                self._fleet.close()

    def _report(self, recorder: Recorder, state: JobState, error: str, exit_code: int) -> RunReport:
        trainer, driver = self._trainer, self._driver
        if trainer is not None:
            with contextlib.suppress(OSError):  # of a full disk, the report tells
                trainer.journal.end(trainer.elapsed_s)
        search = None if driver is None else driver.search
        actual = None
        outcome = NOTHING_SEARCHED
        if trainer is not None and search is not None:
            outcome = search_outcome(search, trainer)
        if trainer is not None and driver is not None and trainer.course.samples and self._run:
            manifest = trainer.supervisor.manifest
            assert manifest is not None
            actual = actual_of(trainer, manifest.dataset_size, driver.chosen)
        warnings = [*(trainer.warnings if trainer else ()), *recorder.warnings]
        for journal in (self._journal, self._audit):
            if journal is not None:
                journal.close()
        return RunReport(
            job_id=recorder.job_id,
            job_name=self._job.name,
            state=state,
            search=outcome,
            curve=None if search is None else search.curve,
            choice=None if search is None else search.choice,
            predicted=None if search is None else search.predicted,
            estimate=None if search is None else search.estimate,
            actual=actual,
            metric=None if trainer is None else self._goal.outcome(trainer.course.epochs),
            steps=0 if trainer is None else trainer.step,
            model_path=None if self._model_path is None else str(self._model_path),
            measurements_path=None if self._journal is None else str(self._journal.path),
            warnings=tuple(warnings),
            error=error,
            exit_code=exit_code,
            quarantined=() if self._supervisor is None else self._supervisor.quarantined,
        )
