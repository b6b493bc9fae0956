"""One run of `optimize` or `plan`: from the job file to the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from scavenger.cloud.base import Cloud
from scavenger.control.audit import AUDIT_FILE
from scavenger.control.deciding import ask_while_training, decide, fit_model, still_fits
from scavenger.control.goal import Goal
from scavenger.control.journal import Journal
from scavenger.control.knowledge import Knowledge, optimizer_id
from scavenger.control.operator import Operator
from scavenger.control.outcome import NOTHING_SEARCHED, actual_of, progress_of, search_outcome
from scavenger.control.profiling import Search, profile
from scavenger.control.recorder import Recorder
from scavenger.control.resumption import Resumption, checkpoint_url
from scavenger.control.space import (
    check_supported,
    check_training_module,
    fit_to_data,
    open_cloud,
    search_space,
)
from scavenger.control.steering import Steering
from scavenger.control.trainer import CLOSE_S, Before, Limits, Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.job import CheckpointSpec, JobSpec
from scavenger.domain.report import ChoiceMade, JobState, Observer, PhaseChanged, Predicted, RunReport
from scavenger.errors import (
    CleanupError,
    Interrupted,
    LimitReachedError,
    NoFeasiblePlanError,
    ScavengerError,
    TransientError,
)
from scavenger.models.job_model import JobModel
from scavenger.policy import batch_rule, learning_rate_scale, policy_for
from scavenger.search.plan import SearchPlan, plan_search
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.crew import Crew, JobSource, Timeouts
from scavenger.train.messages import CheckpointPlan, Manifest, Restore
from scavenger.train.ray_engine import engine_maker

__all__ = ["Confirm", "JobRun"]

Confirm = Callable[[TradeoffCurve, Choice, Predicted], bool]


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
        audit: Whether to write down which worker computed which samples, see `scavenger.control.audit`.

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
        self._job, self._job_file, self._store = job, job_file, store
        self._run, self._confirm, self._clock = run, confirm, clock
        self._resumed, self._audited = resumed, audit
        self._folder = check_training_module(job, job_file)
        self._cloud: Cloud = open_cloud(job)
        self._space = search_space(job, self._cloud)
        self._goal = Goal(job.goal)
        self._observer = observer
        self._trainer: Trainer | None = None
        self._crew: Crew | None = None
        self._search: Search | None = None
        self._journal: Journal | None = None
        self._audit: Journal | None = None
        self._model_path: Path | None = None
        self._closed = False
        self._stop_reason: str | None = None
        self._save_wanted = True
        self._operator: Operator | None = None
        self._chosen: Configuration | None = None
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
        return 0 if self._crew is None else len(self._crew.engine.running)

    def kill_now(self) -> None:
        """SIGKILL to every process of the job; safe from signal handlers."""
        if self._crew is not None:
            self._crew.engine.kill_all()

    def run(self) -> RunReport:
        """Run the job to its end.

        Returns:
            The report, also of a job that failed once it had started; then with `error` and `exit_code`.

        Raises:
            ScavengerError: For what comes before the job has started.
        """
        self._store.reap_dead_jobs()
        self._refuse_second_run(None)
        with self._recorder() as recorder:
            self._refuse_second_run(recorder.record)
            return self._recorded(recorder)

    def _recorder(self) -> Recorder:
        if self._resumed is None:
            return Recorder.begin(self._store, self._job, self._job_file, self._observer)
        return Recorder(self._store, self._store.resume_job(self._resumed.job_id), self._observer)

    def _refuse_second_run(self, mine: JobRecord | None) -> None:
        """Of two that were begun at the same moment, unseen by each other, the later gives way."""
        for other in self._store.running_jobs(self._job_file):
            # of a resumed one, its last beginning counts: that it was created first gives it no right
            if mine is None or (
                other.id != mine.id
                and (self._resumed is not None or (other.created_at, other.id) < (mine.created_at, mine.id))
            ):
                pid = other.owner.pid
                raise TransientError(
                    f"{other.name} runs already as job {other.id[:8]} (process {pid}); wait for it, or end "
                    f"it with `kill -INT {pid}`"
                )

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
            self._start(recorder, self._journal, work_dir, started_at)
            state = self._drive(recorder)
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

    def _start(self, recorder: Recorder, journal: Journal, work_dir: Path, started_at: float) -> None:
        job, offer = self._job, self._space.offers[0]
        count = self._space.workers[0]
        workers = "1 worker" if count == 1 else f"{count} workers"
        recorder.on_event(PhaseChanged("starting", f"{workers} on {job.infra}"))
        resumed = self._resumed
        plan = job.checkpoint or CheckpointSpec(path="./checkpoints")
        self._checkpoint_url = (
            checkpoint_url(job.checkpoint, self._folder, work_dir) if resumed is None else resumed.url
        )
        self._crew = Crew(
            JobSource(str(job.train), self._folder, job.seed, offer.cpus),
            work_dir=work_dir,
            timeouts=Timeouts(job.limits.start, job.limits.step),
            aggregators=job.elastic.aggregators,
            restore=None if resumed is None else Restore(resumed.url),
            checkpoint=CheckpointPlan(self._checkpoint_url, plan.every, plan.every_steps or 0),
            engine=engine_maker(job.engine),
            clock=self._clock,
        )
        reference = self._space.global_batch_sizes[0]
        self._trainer = Trainer(
            self._crew,
            goal=self._goal,
            offer=offer,
            limits=Limits(job.constraints.deadline, job.constraints.budget),
            journal=journal,
            observer=recorder,
            started_at=started_at,
            on_tick=lambda: self._tick(recorder),
            before=Before() if resumed is None else resumed.before,
            lr_scale=lambda batch, noise: (
                learning_rate_scale(job.elastic.lr_scaling, batch, reference, noise).factor
            ),
            replacements_max=job.elastic.failures.give_up,
            audit=self._audit,
            clock=self._clock,
        )
        self._operator = Operator(
            self._store,
            recorder.job_id,
            keep=recorder.keep,
            workers=job.elastic_range,
            batch=self._batch_at,
            stop=self._stop_as_asked,
            measured=recorder.measured,
        )
        if not self._run:
            self._operator.refusing = "it is a plan, which ends with the choice; it can only be stopped"
        if self._stop_reason is not None:
            self._trainer.stop(self._stop_reason)
        self._trainer.start(self._space.workers[0])
        recorder.watch(self._crew)

    def _tick(self, recorder: Recorder) -> None:
        trainer = self._live
        recorder.tick(trainer)
        if trainer.checkpoint_step and recorder.record.checkpoint is None:
            recorder.checkpointed(self._checkpoint_url)
        if self._operator is not None:
            self._operator.look()

    def _stop_as_asked(self, reason: str, save: bool) -> None:
        self._save_wanted = save
        self.request_stop(reason)

    def _batch_at(self, workers: int) -> int:
        """The global batch size for a number of workers, by the job's batch rule."""
        elastic, now = self._job.elastic, self._live.configuration
        assert now is not None
        largest = elastic.batch_max or self._space.global_batch_sizes[-1]
        rule = batch_rule(elastic.batch, batch_max=largest)
        return rule.global_batch_size(workers, self._chosen or now)

    @property
    def _live(self) -> Trainer:
        assert self._trainer is not None
        return self._trainer

    @property
    def _current(self) -> Search:
        assert self._search is not None
        return self._search

    @property
    def _manifest(self) -> Manifest:
        manifest = self._live.crew.manifest
        assert manifest is not None
        return manifest

    def _drive(self, recorder: Recorder) -> JobState:
        trainer, job = self._live, self._job
        trainer.until(lambda: trainer.crew.manifest is not None)
        self._space, notes = fit_to_data(self._space, self._manifest.dataset_size)
        for note in notes:
            trainer.note(note)
        self._goal.check(self._manifest.metric_names)
        fingerprint = self._fingerprint()
        recorder.update(fingerprint=fingerprint)
        knowledge = Knowledge(self._store, fingerprint, write=recorder.keep)
        if self._resumed is not None and self._resumed.chosen is not None:
            return self._go_on(self._resumed, self._resumed.chosen, knowledge, recorder)
        same = knowledge.same
        universal = knowledge.universal() if job.search.strategy == "universal" else None
        if same is None and job.search.strategy == "none" and (nearest := knowledge.nearest()) is not None:
            same, differing = nearest
            trainer.note(f"the stored model is of a job with another {differing}, else the same as this one")
        plan = plan_search(
            self._space,
            job.search.strategy,
            has_same=same is not None,
            has_any=universal is not None,
            steps=job.profile.steps,
        )
        prior = {"none": same, "universal": universal}.get(plan.strategy)
        self._search = Search(plan, trainer.elapsed_s, trainer.cost_usd)
        chosen = self._look_for(prior, knowledge, recorder)
        if (
            prior is not None
            and chosen is not None
            and not still_fits(prior, chosen, trainer, steps=job.profile.steps)
        ):
            plan = plan_search(self._space, "partial", has_same=False, has_any=False, steps=job.profile.steps)
            plan = replace(plan, reason="the stored model did not fit this machine")
            self._search = Search(plan, trainer.elapsed_s, trainer.cost_usd)
            chosen = self._look_for(None, knowledge, recorder)
        if chosen is None:
            return self._end_without_choice(knowledge, recorder)
        self._train(chosen, recorder)
        return self._end_of_training(knowledge, recorder)

    def _go_on(
        self, before: Resumption, chosen: Configuration, knowledge: Knowledge, recorder: Recorder
    ) -> JobState:
        """What an earlier attempt chose stands: go there, and to the goal."""
        trainer = self._live
        nothing = SearchPlan("none", "resumed at what was chosen before", (), 0)
        search = Search(nothing, trainer.elapsed_s, trainer.cost_usd, predicted=before.predicted)
        search.ended_s, search.ended_usd = search.began_s, search.began_usd
        self._search = search
        if (model := knowledge.same) is not None:
            search.model = model
            trainer.progress = lambda: progress_of(trainer, model)
        trainer.move(chosen, "resumed", meanwhile=chosen.global_batch_size)
        self._train(chosen, recorder)
        return self._end_of_training(knowledge, recorder)

    def _train(self, chosen: Configuration, recorder: Recorder) -> None:
        """Train to the goal at the choice, unless what is asked for or what policies see speaks for another."""
        trainer, operator = self._live, self._operator
        assert operator is not None
        self._chosen = chosen
        recorder.on_event(PhaseChanged("running", f"to {self._goal_text()} at {chosen}"))
        steering = Steering(
            trainer,
            policy=policy_for(self._job),
            reference=chosen,
            remaining_samples=self._remaining_samples,
        )
        operator.refusing = ""
        try:
            while not trainer.finished:
                trainer.until(lambda: operator.waiting or steering.due)
                if trainer.finished:
                    break
                operator.carry_out(trainer)
                steering.look()
        finally:
            operator.refusing = "training has ended"

    def _remaining_samples(self) -> float | None:
        """What the model expects to be left, at the batch size in effect."""
        trainer, model = self._live, None if self._search is None else self._search.model
        if model is None or trainer.configuration is None:
            return None
        batch = np.array([trainer.configuration.global_batch_size], dtype=np.float64)
        epochs, _ = model.statistical.predict(batch)
        return max(0.0, 1.0 - progress_of(trainer, model)) * float(epochs[0]) * model.dataset_size

    def _look_for(
        self, prior: JobModel | None, knowledge: Knowledge, recorder: Recorder
    ) -> Configuration | None:
        """Search, unless a stored model will do; choose, and go there. None where the run ends here."""
        trainer = self._live
        if prior is None:
            profile(
                self._current,
                trainer,
                recorder,
                self._job.profile,
                batch_min=self._space.global_batch_sizes[0],
            )
        chosen = None if trainer.finished else self._choose(prior, knowledge, recorder)
        if chosen is not None:
            model = self._current.model
            assert model is not None
            trainer.progress = lambda: progress_of(trainer, model)
            reason = "chosen" if prior is None else "known from earlier runs"
            trainer.move(chosen, reason, meanwhile=chosen.global_batch_size)
        return chosen

    def _end_without_choice(self, knowledge: Knowledge, recorder: Recorder) -> JobState:
        choice = self._current.choice
        if isinstance(choice, Infeasible):
            raise NoFeasiblePlanError(choice.reason)
        if choice is not None:  # a plan, or the user said no
            return "planned"
        self._live.note(
            "training was done before the search was, so nothing was left to choose; search fewer workers, or "
            "lower profile.steps, for a shorter search"
        )
        state = self._end_of_training(knowledge, recorder)
        return state if self._run else "planned"

    def _end_of_training(self, knowledge: Knowledge, recorder: Recorder) -> JobState:
        """Learn what the run itself showed: the epochs to the target."""
        trainer, search = self._live, self._current
        if trainer.reached and self._goal.text:
            knowledge.converged(trainer.samples_by_batch, trainer.epochs[-1].epoch + 1, recorder.job_id)
        if search.measurements:
            search.model = self._fit(None, knowledge)
            knowledge.keep(search.model, recorder.job_id, measurements=len(search.measurements))
        missed = self._job.goal.target is not None and not trainer.reached
        return "target_missed" if missed else "succeeded"

    # ---- search --------------------------------------------------------------------------------------------

    def _choose(
        self, prior: JobModel | None, knowledge: Knowledge, recorder: Recorder
    ) -> Configuration | None:
        """Fit, predict, choose, ask; None where the run ends here."""
        trainer, search = self._live, self._current
        count = len(search.measurements)
        evidence = f"{count} measured configurations" if count else "the stored model serves"
        recorder.on_event(PhaseChanged("fitting", evidence))
        search.model = self._fit(prior, knowledge)
        decide(search, search.model, trainer, self._space, self._job)
        assert search.curve is not None
        assert search.choice is not None
        recorder.on_event(ChoiceMade(search.curve, search.choice))
        if search.measurements:
            knowledge.keep(search.model, recorder.job_id, measurements=len(search.measurements))
        if isinstance(search.choice, Infeasible) or search.predicted is None:
            return None
        recorder.update(chosen=search.choice.configuration, predicted=search.predicted)
        if not self._run:
            return None
        if self._confirm is not None:
            confirm, question = self._confirm, (search.curve, search.choice, search.predicted)
            recorder.muted = True
            try:
                agreed = ask_while_training(
                    lambda: confirm(*question),
                    trainer,
                    at_end=lambda error: self._end_at_once(recorder, error),
                )
            finally:
                recorder.muted = False
            if not agreed:
                return None
        return search.choice.configuration

    def _fit(self, prior: JobModel | None, knowledge: Knowledge) -> JobModel:
        return fit_model(
            self._current,
            self._live,
            self._space,
            self._job.goal,
            dataset_size=self._manifest.dataset_size,
            convergence=knowledge.convergence,
            prior=prior,
        )

    def _goal_text(self) -> str:
        goal = self._job.goal
        if goal.target is None:
            return f"{goal.max_epochs} epochs"
        return f"{self._goal.text} within {goal.max_epochs} epochs"

    def _fingerprint(self) -> Fingerprint:
        manifest = self._manifest
        return Fingerprint(
            architecture=manifest.architecture,
            parameters=manifest.parameters,
            optimizer=optimizer_id(manifest.optimizer),
            dataset_size=manifest.dataset_size,
            sample_bytes=manifest.sample_bytes,
            goal=self._goal.text,
            vm=self._space.offers[0].vm,
            hardware=self._cloud.hardware(),
        )

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
        trainer, crew = self._trainer, self._crew
        if trainer is None or crew is None or not trainer.steps or not self._save_wanted:
            return
        if self._model_path or self._closed:
            return
        path = self._live.journal.path.with_name("model.keras")
        recorder.on_event(PhaseChanged("saving", str(path)))
        # where the target was reached, the last epoch is the best one
        best = trainer.best_epoch is not None and not trainer.reached
        try:
            crew.finish(path, best=best, within_s=trainer.drain_s - CLOSE_S if in_haste else None)
            self._model_path = path
            trainer.take_last_steps()
        except (ScavengerError, OSError) as error:
            trainer.note(f"the model could not be saved: {error}")

    def _close(self, *, in_haste: bool) -> None:
        if self._crew is not None:
            self._closed = True
            self._crew.close(**({"grace_s": CLOSE_S / 2} if in_haste else {}))

    def _report(self, recorder: Recorder, state: JobState, error: str, exit_code: int) -> RunReport:
        trainer, search = self._trainer, self._search
        actual = None
        outcome = NOTHING_SEARCHED
        if trainer is not None and search is not None:
            outcome = search_outcome(search, trainer)
        if trainer is not None and trainer.steps and self._run:
            actual = actual_of(trainer, self._manifest.dataset_size, self._chosen)
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
            actual=actual,
            metric=None if trainer is None else self._goal.outcome(trainer.epochs),
            steps=0 if trainer is None else trainer.step,
            model_path=None if self._model_path is None else str(self._model_path),
            measurements_path=None if self._journal is None else str(self._journal.path),
            warnings=tuple(warnings),
            error=error,
            exit_code=exit_code,
            quarantined=() if self._crew is None else self._crew.quarantined,
        )
