"""One run of `optimize` or `plan`, from the job file to the report: profile, fit, choose, move, train, store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scavenger.cloud.base import Cloud
from scavenger.control.goal import Goal
from scavenger.control.journal import Journal
from scavenger.control.knowledge import Knowledge, optimizer_id
from scavenger.control.recorder import Recorder
from scavenger.control.space import check_supported, check_training_module, fit_to_data, open_cloud, search_space
from scavenger.control.trainer import Limits, Trainer, measure
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement, Profile
from scavenger.domain.report import (
    Actual,
    ChoiceMade,
    JobState,
    Observer,
    PhaseChanged,
    Predicted,
    Profiled,
    RunReport,
    SearchOutcome,
)
from scavenger.errors import (
    CleanupError,
    ConfigurationError,
    Interrupted,
    LimitReachedError,
    NoFeasiblePlanError,
    ScavengerError,
    TransientError,
)
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseStability
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.search.plan import SearchPlan, plan_search
from scavenger.search.reuse import DRIFT_MAX, step_time_drift
from scavenger.store import Store
from scavenger.train.coordinator import Coordinator, JobSource, Timeouts

__all__ = ["Confirm", "JobRun"]

Confirm = Callable[[TradeoffCurve, Choice, Predicted], bool]

_SPARE_SLOTS = 16
"""Workers that may be started beyond the largest cluster, as replacements."""


@dataclass(slots=True)
class _Search:
    """What the search has found so far."""

    plan: SearchPlan
    measurements: list[Measurement]
    began_s: float
    began_usd: float
    model: JobModel | None = None
    curve: TradeoffCurve | None = None
    choice: Choice | Infeasible | None = None
    predicted: Predicted | None = None
    ended_s: float | None = None
    ended_usd: float | None = None
    progress: float = 0.0


class JobRun:
    """A job, ready to run once.

    Args:
        job: The validated job file.
        job_file: Where it lies; the training module is beside it.
        store: Where jobs, measurements and models are kept.
        observer: Is told what happens.
        run: False for `plan`, which ends with the choice.
        confirm: Asked before the chosen configuration is paid for; None to go ahead.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_supported(job)
        self._job, self._job_file, self._store = job, job_file, store
        self._run, self._confirm, self._clock = run, confirm, clock
        self._folder = check_training_module(job, job_file)
        self._cloud: Cloud = open_cloud(job)
        self._space = search_space(job, self._cloud)
        self._goal = Goal(job.goal)
        self._observer = observer
        self._trainer: Trainer | None = None
        self._coordinator: Coordinator | None = None
        self._search: _Search | None = None
        self._stop_reason: str | None = None

    # ---- from outside ---------------------------------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """End in order at the next step boundary; safe from signal handlers and other threads."""
        self._stop_reason = reason
        if self._trainer is not None:
            self._trainer.stop(reason)

    def kill_now(self) -> None:
        """SIGKILL to every process of the job; safe from signal handlers."""
        if self._coordinator is not None:
            self._coordinator.engine.kill_all()

    def run(self) -> RunReport:
        """Run the job to its end.

        Returns:
            The report, also of a job that failed once it had started; then with `error` and `exit_code`.

        Raises:
            ScavengerError: For what comes before the job has started.
        """
        self._refuse_second_run()
        with Recorder.begin(self._store, self._job, self._job_file, self._observer) as recorder:
            return self._recorded(recorder)

    def _refuse_second_run(self) -> None:
        self._store.reap_dead_jobs()
        for other in self._store.running_jobs(self._job_file):
            raise TransientError(
                f"{other.name} runs already as job {other.id[:8]} (process {other.owner.pid}); wait for it, or end it "
                f"with `kill -INT {other.owner.pid}`"
            )

    # ---- the whole of it ------------------------------------------------------------------------------------

    def _recorded(self, recorder: Recorder) -> RunReport:
        work_dir = (self._job_file.resolve().parent / self._job.output / recorder.job_id).resolve()
        started_at = self._clock()
        state: JobState = "failed"
        error, exit_code = "", 0
        model_path: Path | None = None
        journal: Journal | None = None
        try:
            journal = Journal(work_dir / "measurements.jsonl", job_id=recorder.job_id, job=self._job.name)
            self._start(recorder, journal, work_dir, started_at)
            state = self._drive(recorder)
        except Interrupted as stop:
            state, error, exit_code = "interrupted", str(stop), stop.exit_code
        except LimitReachedError as limit:
            state, error, exit_code = "stopped", str(limit), limit.exit_code
        except ScavengerError as failure:
            error, exit_code = str(failure), failure.exit_code
        except OSError as failure:
            error, exit_code = f"{failure.strerror or failure}: {failure.filename or work_dir}", 1
        if state != "planned":
            model_path = self._save(work_dir, state, recorder)
        try:
            if self._coordinator is not None:
                self._coordinator.close()
        except CleanupError as left:
            error, exit_code = str(left), left.exit_code
        report = self._report(recorder.job_id, state, error, exit_code, model_path, journal)
        if journal is not None:
            journal.close()
        recorder.finish(report)
        return report

    def _start(self, recorder: Recorder, journal: Journal, work_dir: Path, started_at: float) -> None:
        job, offer = self._job, self._space.offers[0]
        recorder.on_event(PhaseChanged("starting", f"{self._space.workers[0]} worker(s) on {job.infra}"))
        self._coordinator = Coordinator(
            JobSource(recorder.job_id, str(job.train), self._folder, job.seed, offer.cpus),
            slots=self._space.workers[-1] + _SPARE_SLOTS,
            work_dir=work_dir,
            timeouts=Timeouts(job.limits.start, job.limits.step),
            clock=self._clock,
        )
        recorder.watch(self._coordinator)
        self._trainer = Trainer(
            self._coordinator,
            goal=self._goal,
            offer=offer,
            limits=Limits(job.constraints.deadline, job.constraints.budget),
            journal=journal,
            observer=recorder,
            started_at=started_at,
            on_tick=lambda: recorder.tick(self._live),
            clock=self._clock,
        )
        if self._stop_reason is not None:
            self._trainer.stop(self._stop_reason)
        self._coordinator.start(self._space.workers[0])

    @property
    def _live(self) -> Trainer:
        assert self._trainer is not None
        return self._trainer

    def _drive(self, recorder: Recorder) -> JobState:
        trainer, coordinator = self._live, self._coordinator
        assert coordinator is not None
        trainer.until(lambda: coordinator.manifest is not None)
        assert coordinator.manifest is not None
        fitted = fit_to_data(self._space, coordinator.manifest.dataset_size)
        self._space = fitted.space
        for note in fitted.notes:
            trainer.note(note)
        self._goal.check(coordinator.manifest.metric_names)
        fingerprint = self._fingerprint()
        recorder.update(fingerprint=fingerprint)
        knowledge = Knowledge(self._store, fingerprint)

        plan = plan_search(
            self._space,
            self._job.search.strategy,
            has_same=knowledge.same is not None,
            has_any=knowledge.universal is not None,
            steps=self._job.profile.steps,
        )
        self._begin_search(plan)
        prior = knowledge.same if plan.strategy == "none" else None
        if plan.strategy == "universal":
            prior = knowledge.universal
        chosen = self._choose(knowledge, prior, recorder) if prior else self._profile_and_choose(knowledge, recorder)
        if chosen is None:
            return self._outcome_without_choice()
        self._go(chosen, recorder)
        if prior is not None and not trainer.finished:
            chosen = self._check_prior(prior, chosen, knowledge, recorder)
        recorder.on_event(PhaseChanged("running", f"to {self._goal_text()} at {chosen}"))
        trainer.until(lambda: False)
        self._learn_from_run(knowledge, recorder)
        if self._job.goal.target is not None and not trainer.reached:
            return "target_missed"
        return "succeeded"

    def _outcome_without_choice(self) -> JobState:
        search = self._search
        assert search is not None
        if isinstance(search.choice, Infeasible):
            raise NoFeasiblePlanError(search.choice.reason)
        if search.choice is None and self._live.finished:  # so small that it was done before the search was
            return "target_missed" if self._job.goal.target is not None and not self._live.reached else "succeeded"
        return "planned"

    # ---- search ---------------------------------------------------------------------------------------------

    def _begin_search(self, plan: SearchPlan) -> None:
        trainer = self._live
        self._search = _Search(plan, [], trainer.elapsed_s, trainer.cost_usd)

    def _profile_and_choose(self, knowledge: Knowledge, recorder: Recorder) -> Configuration | None:
        self._profile(recorder)
        return self._choose(knowledge, None, recorder)

    def _profile(self, recorder: Recorder) -> None:
        """Run the planned configurations in turn; what they compute is training all the same."""
        trainer, search = self._live, self._search
        assert search is not None
        plan = search.plan
        recorder.on_event(
            PhaseChanged("profiling", f"{len(plan.configurations)} configurations, {plan.reason}")
        )
        for index, configuration in enumerate(plan.configurations):
            stability = NoiseStability(steps_min=plan.steps_per_configuration)
            # samples go furthest in small batches, so that is where to wait
            trainer.move(configuration, "profiling", meanwhile=self._space.global_batch_sizes[0])
            begin = seen = trainer.step

            def enough(
                begin: int = begin, configuration: Configuration = configuration, cold: bool = index == 0
            ) -> bool:
                nonlocal stability, seen
                if self._profile_spent():
                    return True
                for record in trainer.steps[seen:] if cold else ():
                    stability = stability.update(record)
                seen = trainer.step
                window = trainer.window(configuration, begin)
                return len(window) >= plan.steps_per_configuration and (not cold or stability.ended)

            trainer.until(enough)
            window = trainer.window(configuration, begin)
            if window:
                measurement = measure(configuration, window, trainer.noise, trainer.worker_memory_bytes())
                search.measurements.append(measurement)
                recorder.measured(measurement)
                recorder.on_event(Profiled(measurement, index + 1, len(plan.configurations)))
            if trainer.finished:
                return
            if self._profile_spent():
                trainer.note(
                    f"profiling ended after {len(search.measurements)} of {len(plan.configurations)} configurations: "
                    "profile.max_time or profile.max_cost is used up"
                )
                return

    def _profile_spent(self) -> bool:
        trainer, search, limits = self._live, self._search, self._job.profile
        assert search is not None
        time_spent = trainer.elapsed_s - search.began_s
        usd_spent = trainer.cost_usd - search.began_usd
        return (limits.max_time is not None and time_spent >= limits.max_time) or (
            limits.max_cost is not None and usd_spent >= limits.max_cost
        )

    def _choose(self, knowledge: Knowledge, prior: JobModel | None, recorder: Recorder) -> Configuration | None:
        """Fit, predict, choose, ask; None where the run ends here."""
        trainer, search, job = self._live, self._search, self._job
        assert search is not None
        if trainer.finished:
            return None
        recorder.on_event(PhaseChanged("fitting", f"{len(search.measurements)} measured configurations"))
        search.model = self._fit(knowledge, prior)
        constraints = job.constraints
        progress = self._progress(search.model)
        search.curve = build_curve(
            search.model,
            self._space,
            deadline_s=constraints.deadline,
            budget_usd=constraints.budget,
            spent_time_s=trainer.elapsed_s,
            spent_usd=trainer.cost_usd,
        )
        search.choice = choose(
            search.curve,
            str(job.objective),
            deadline_s=constraints.deadline,
            budget_usd=constraints.budget,
            spent_time_s=trainer.elapsed_s,
            spent_usd=trainer.cost_usd,
        )
        search.ended_s, search.ended_usd, search.progress = trainer.elapsed_s, trainer.cost_usd, progress
        recorder.on_event(ChoiceMade(search.curve, search.choice))
        if search.measurements:
            knowledge.keep(search.model, recorder.job_id, measurements=len(search.measurements))
        if isinstance(search.choice, Infeasible):
            return None
        search.predicted = self._predict(search.choice, progress)
        recorder.update(chosen=search.choice.configuration, predicted=search.predicted)
        if not self._run:
            return None
        if self._confirm is not None and not self._confirm(search.curve, search.choice, search.predicted):
            return None
        return search.choice.configuration

    def _fit(self, knowledge: Knowledge, prior: JobModel | None) -> JobModel:
        trainer, search, goal = self._live, self._search, self._job.goal
        assert search is not None
        assert self._coordinator is not None
        assert self._coordinator.manifest is not None
        profile = Profile(
            measurements=tuple(search.measurements),
            dataset_size=self._coordinator.manifest.dataset_size,
            evaluation_s=trainer.evaluation_s(),
            setup_s=statistics.median(trainer.setup_s) if trainer.setup_s else 0.0,
            convergence=knowledge.convergence,
        )
        try:
            return JobModel.fit(
                profile,
                space=self._space,
                epochs_hint=goal.epochs_hint,
                max_epochs=goal.max_epochs,
                fixed_epochs=goal.target is None,
                prior=prior,
            )
        except ValueError as error:
            raise ConfigurationError(f"the models cannot be fitted: {error}") from None

    def _progress(self, model: JobModel) -> float:
        """Fraction of the way to the target, as the model sees the steps so far: samples over e(B) D."""
        by_batch = self._live.samples_by_batch
        if not by_batch:
            return 0.0
        epochs, _ = model.statistical.predict(np.array(list(by_batch), dtype=np.float64))
        done = sum(samples / need for samples, need in zip(by_batch.values(), epochs, strict=True))
        return min(1.0, float(done) / model.dataset_size)

    def _predict(self, choice: Choice, progress: float) -> Predicted:
        """The whole run, as seen from here: what is spent, getting there, and what is left of the way."""
        trainer, point = self._live, choice.point
        assert self._coordinator is not None
        price_s = trainer.offer.price_usd_per_hour / 3600.0
        alive = len(self._coordinator.membership.alive)
        joining = point.configuration.workers > alive
        setup_s = statistics.median(trainer.setup_s) if joining and trainer.setup_s else 0.0
        setup_usd = setup_s * price_s * point.configuration.workers
        left = 1.0 - progress
        now_s, now_usd = trainer.elapsed_s + setup_s, trainer.cost_usd + setup_usd

        def time_at(value: float) -> float:
            return now_s + left * value

        def cost_at(value: float) -> float:
            return now_usd + left * value

        return Predicted(
            time_s=time_at(point.time_s),
            time_interval_s=(time_at(point.time_interval_s[0]), time_at(point.time_interval_s[1])),
            cost_usd=cost_at(point.cost_usd),
            cost_interval_usd=(cost_at(point.cost_interval_usd[0]), cost_at(point.cost_interval_usd[1])),
            step_time_s=point.step_time_s,
            epochs=point.epochs,
        )

    # ---- run ------------------------------------------------------------------------------------------------

    def _go(self, chosen: Configuration, recorder: Recorder) -> None:
        trainer, search = self._live, self._search
        assert search is not None
        model = search.model
        assert model is not None
        trainer.progress = lambda: self._progress(model)
        reason = "chosen" if search.measurements else "known from earlier runs"
        trainer.move(chosen, reason, meanwhile=chosen.global_batch_size)

    def _check_prior(
        self, prior: JobModel, chosen: Configuration, knowledge: Knowledge, recorder: Recorder
    ) -> Configuration:
        """Hold a stored model against live steps; where it does not fit this machine, search after all."""
        trainer = self._live
        begin = trainer.step
        trainer.until(lambda: len(trainer.window(chosen, begin)) >= self._job.profile.steps)
        window = trainer.window(chosen, begin)
        if trainer.finished or not window:
            return chosen
        live = statistics.median(record.step_time_s for record in window)
        drift = step_time_drift(prior, chosen, trainer.offer, live)
        if drift <= DRIFT_MAX:
            return chosen
        trainer.note(
            f"the stored model does not fit this machine: a step takes {live * 1e3:.1f} ms, {drift:.0%} off what it "
            f"says; profiling after all"
        )
        plan = plan_search(
            self._space, "partial", has_same=False, has_any=False, steps=self._job.profile.steps
        )
        self._begin_search(replace(plan, reason="the stored model did not fit this machine"))
        again = self._profile_and_choose(knowledge, recorder)
        if again is None:
            return chosen
        self._go(again, recorder)
        return again

    def _learn_from_run(self, knowledge: Knowledge, recorder: Recorder) -> None:
        """What the run itself showed: epochs to the target, and the step time of the configuration that it ran on."""
        trainer, search = self._live, self._search
        assert search is not None
        if trainer.reached and self._goal.text:
            knowledge.converged(trainer.samples_by_batch, trainer.epochs[-1].epoch + 1, recorder.job_id)
        if search.model is not None and search.measurements:
            search.model = self._fit(knowledge, None)
            knowledge.keep(search.model, recorder.job_id, measurements=len(search.measurements))

    def _goal_text(self) -> str:
        goal = self._job.goal
        if goal.target is None:
            return f"{goal.max_epochs} epochs"
        return f"{self._goal.text} within {goal.max_epochs} epochs"

    def _fingerprint(self) -> Fingerprint:
        assert self._coordinator is not None
        manifest = self._coordinator.manifest
        assert manifest is not None
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

    # ---- end ------------------------------------------------------------------------------------------------

    def _save(self, work_dir: Path, state: JobState, recorder: Recorder) -> Path | None:
        """Write the model: the last weights, or the best ones where the target was missed or training failed."""
        trainer, coordinator = self._trainer, self._coordinator
        if trainer is None or coordinator is None or not trainer.steps:
            return None
        recorder.on_event(PhaseChanged("saving", str(work_dir / "model.keras")))
        best = state in ("target_missed", "failed") and trainer.best_epoch is not None
        try:
            coordinator.finish(work_dir / "model.keras", best=best)
        except (ScavengerError, OSError) as error:
            trainer.note(f"the model could not be saved: {error}")
            return None
        return work_dir / "model.keras"

    def _report(
        self,
        job_id: str,
        state: JobState,
        error: str,
        exit_code: int,
        model_path: Path | None,
        journal: Journal | None,
    ) -> RunReport:
        trainer, search = self._trainer, self._search
        outcome = SearchOutcome("none", "nothing was searched", (), 0.0, 0.0)
        if search is not None and trainer is not None:
            ended_s = search.ended_s if search.ended_s is not None else trainer.elapsed_s
            ended_usd = search.ended_usd if search.ended_usd is not None else trainer.cost_usd
            overhead_s = overhead_usd = None
            if isinstance(search.choice, Choice) and trainer.first_view_at_s is not None:
                began = max(search.began_s, trainer.first_view_at_s)
                overhead_s = ended_s - began - search.progress * search.choice.point.time_s
                overhead_usd = ended_usd - search.began_usd - search.progress * search.choice.point.cost_usd
            outcome = SearchOutcome(
                strategy=search.plan.strategy,
                reason=search.plan.reason,
                profiled=tuple(search.measurements),
                time_s=ended_s - search.began_s,
                cost_usd=ended_usd - search.began_usd,
                overhead_s=overhead_s,
                overhead_usd=overhead_usd,
            )
        actual = None
        if trainer is not None and self._run and trainer.steps:
            actual = self._actual(trainer)
        return RunReport(
            job_id=job_id,
            job_name=self._job.name,
            state=state,
            search=outcome,
            curve=None if search is None else search.curve,
            choice=None if search is None else search.choice,
            predicted=None if search is None else search.predicted,
            actual=actual,
            metric=None if trainer is None else self._goal.outcome(trainer.epochs),
            steps=0 if trainer is None else trainer.step,
            model_path=None if model_path is None else str(model_path),
            measurements_path=None if journal is None else str(journal.path),
            warnings=() if trainer is None else tuple(trainer.warnings),
            error=error,
            exit_code=exit_code,
        )

    def _actual(self, trainer: Trainer) -> Actual:
        assert self._coordinator is not None
        manifest = self._coordinator.manifest
        assert manifest is not None
        steps = trainer.steps
        if trainer.configuration is not None:
            steps = trainer.window(trainer.configuration, 0) or steps
        return Actual(
            time_s=trainer.elapsed_s,
            cost_usd=trainer.cost_usd,
            step_time_s=statistics.median(record.step_time_s for record in steps),
            epochs=sum(trainer.samples_by_batch.values()) / manifest.dataset_size,
        )
