"""A started job's way: search, choose, go there, and train to the goal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from scavenger.cloud.base import Cloud
from scavenger.control.jobs.outcome import progress_of, remaining_samples
from scavenger.control.jobs.resumption import Resumption
from scavenger.control.search.model_library import ModelLibrary, fingerprint_of
from scavenger.control.search.profile import Search, profile
from scavenger.control.search.replan import Replanning
from scavenger.control.search.select import (
    ask_while_training,
    decide,
    fit_model,
    still_fits,
    why_measure_no_more,
)
from scavenger.control.search.space import fit_to_data
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.policy_loop import Steering
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import ChoiceMade, JobState, PhaseChanged, Predicted
from scavenger.errors import ConfigurationError, NoFeasiblePlanError
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.policy import batch_rule, policy_for
from scavenger.search.plan import SearchPlan, plan_search
from scavenger.store import Store
from scavenger.train.transport.messages.values import Manifest

__all__ = ["Confirm", "JobWorkflow"]

Confirm = Callable[[TradeoffCurve, Choice, Predicted], bool]


class JobWorkflow:
    """Decides where a job trains, and brings it there and to its goal.

    Args:
        trainer: Started by the time of `run`.
        space: As the job file gives it; what the data does not allow is left out in time.
        cloud: That the workers run on.
        run: False where the choice is the end.
        confirm: Asked before the chosen configuration is paid for; None to go ahead.
        at_end: Called with the error that ends training while `confirm` is asked.
        resumed: What an earlier attempt has left; None for a new job.

    Attributes:
        search: None before it has begun.
        chosen: What the job was brought to, to train to its goal there; None before.
    """

    def __init__(
        self,
        trainer: Trainer,
        job: JobSpec,
        space: SearchSpace,
        *,
        store: Store,
        recorder: Recorder,
        cloud: Cloud,
        run: bool,
        confirm: Confirm | None,
        at_end: Callable[[BaseException], None],
        resumed: Resumption | None,
    ) -> None:
        self._trainer, self._job, self._space, self._goal = trainer, job, space, trainer.goal
        self._store, self._recorder, self._cloud = store, recorder, cloud
        self._run, self._confirm, self._at_end, self._resumed = run, confirm, at_end, resumed
        self._similar: JobModel | None = None
        self._replanning: Replanning | None = None
        self.search: Search | None = None
        self.chosen: Configuration | None = None

    def batch_at(self, workers: int) -> int:
        """The global batch size for a number of workers, by the job's batch rule."""
        elastic, now = self._job.elastic, self._trainer.configuration
        assert now is not None
        largest = elastic.batch_max or self._space.global_batch_sizes[-1]
        rule = batch_rule(elastic.batch, batch_max=largest)
        moved_to = None if self._replanning is None else self._replanning.reached
        return rule.global_batch_size(workers, moved_to or self.chosen or now)

    @property
    def _current(self) -> Search:
        assert self.search is not None
        return self.search

    @property
    def _manifest(self) -> Manifest:
        manifest = self._trainer.supervisor.manifest
        assert manifest is not None
        return manifest

    def run(self, operator: OperationHandler) -> JobState:
        """Train until the goal is reached or missed, or the choice is made where that is all; returns how it ended.

        Raises:
            NoFeasiblePlanError: If no configuration meets the constraints.
            ScavengerError: Whatever else ends the job.
        """
        trainer, job, recorder = self._trainer, self._job, self._recorder
        trainer.until(lambda: trainer.supervisor.manifest is not None)
        self._space, notes = fit_to_data(self._space, self._manifest.dataset_size)
        for note in notes:
            trainer.note(note)
        self._goal.check(self._manifest.metric_names)
        fingerprint = fingerprint_of(
            self._manifest, self._goal.text, vm=self._space.offers[0].vm, hardware=self._cloud.hardware()
        )
        recorder.update(fingerprint=fingerprint)
        knowledge = recorder.ask(
            lambda: ModelLibrary(self._store, fingerprint, write=recorder.keep), trainer.pump
        )
        if self._resumed is not None and self._resumed.chosen is not None:
            return self._go_on(self._resumed, self._resumed.chosen, knowledge, operator)
        same = knowledge.same
        universal = nearest = None
        if job.search.strategy == "universal":
            universal = recorder.ask(knowledge.universal, trainer.pump)
        if same is None and job.search.strategy == "none":
            nearest = recorder.ask(knowledge.nearest, trainer.pump)
        if nearest is not None:
            same, differing = nearest
            trainer.note(f"the stored model is of a job with another {differing}, else the same as this one")
        plan = plan_search(
            self._space,
            job.search.strategy,
            has_same=same is not None,
            has_any=universal is not None,
            steps=job.profile.steps,
            points=job.profile.points,
        )
        alike = recorder.ask(knowledge.similar, trainer.pump) if plan.strategy == "partial" else None
        if alike is not None:
            self._similar, differing = alike
            of = f"a job with another {differing}" if differing else "the same job"
            plan = replace(plan, reason=f"{plan.reason}; a stored model of {of} shortens the search")
        prior = {"none": same, "universal": universal}.get(plan.strategy)
        self.search = Search(plan, trainer.elapsed_s, trainer.cost_usd)
        chosen = self._look_for(prior, knowledge)
        if (
            prior is not None
            and chosen is not None
            and not still_fits(prior, chosen, trainer, steps=job.profile.steps)
        ):
            plan = plan_search(
                self._space,
                "partial",
                has_same=False,
                has_any=False,
                steps=job.profile.steps,
                points=job.profile.points,
            )
            plan = replace(plan, reason="the stored model did not fit this machine")
            self.search = Search(plan, trainer.elapsed_s, trainer.cost_usd)
            chosen = self._look_for(None, knowledge)
        if chosen is None:
            return self._end_without_choice(knowledge)
        self._train(chosen, operator, knowledge)
        return self._end_of_training(knowledge)

    def _go_on(
        self, before: Resumption, chosen: Configuration, knowledge: ModelLibrary, operator: OperationHandler
    ) -> JobState:
        """What an earlier attempt chose stands: go there, and to the goal."""
        trainer = self._trainer
        nothing = SearchPlan("none", "resumed at what was chosen before", (), 0)
        search = Search(nothing, trainer.elapsed_s, trainer.cost_usd, predicted=before.predicted)
        search.ended_s, search.ended_usd = search.began_s, search.began_usd
        self.search = search
        if (model := knowledge.same) is not None:
            search.model = model
            trainer.progress = lambda: progress_of(trainer, model)
        trainer.move(chosen, "resumed", meanwhile=chosen.global_batch_size)
        self._train(chosen, operator, knowledge)
        return self._end_of_training(knowledge)

    def _train(self, chosen: Configuration, operator: OperationHandler, knowledge: ModelLibrary) -> None:
        """Train to the goal at the choice, unless what is asked for or what policies see speaks for another."""
        trainer = self._trainer
        self.chosen = chosen
        self._recorder.on_event(PhaseChanged("running", f"to {self._goal.words} at {chosen}"))
        steering = Steering(
            trainer,
            policy=policy_for(self._job),
            reference=chosen,
            remaining_samples=lambda: remaining_samples(trainer, self._current.model),
            planned=self._replanned(knowledge),
        )
        steering.drive(operator)

    def _replanned(self, knowledge: ModelLibrary) -> Callable[[], Configuration | None]:
        """What the refitted models would run on, asked at each look; never anything where nothing was modelled."""
        model, measurements = self._current.model, self._current.measurements
        if model is None or self._job.elastic.policy != "model":
            return lambda: None
        # A model of these very measurements would count them twice.
        prior = None if measurements else model

        def fit(measured: Sequence[Measurement], noise: Sequence[NoiseReading] | None) -> JobModel:
            fitted = self._fit(prior, knowledge, measured, noise)
            self._current.model = fitted
            return fitted

        self._replanning = Replanning(
            self._trainer, self._job, self._space, model=model, fit=fit, measurements=measurements
        )
        return self._replanning.look

    def _look_for(self, prior: JobModel | None, knowledge: ModelLibrary) -> Configuration | None:
        """Search, unless a stored model will do; choose, and go there. None where the run ends here."""
        trainer = self._trainer
        if prior is None:
            profile(
                self._current,
                trainer,
                self._recorder,
                self._job.profile,
                self._space,
                enough=lambda: self._why_enough(knowledge),
                samples=self._expected_samples(knowledge),
            )
        chosen = None if trainer.finished else self._choose(prior, knowledge)
        if chosen is not None:
            model = self._current.model
            assert model is not None
            trainer.progress = lambda: progress_of(trainer, model)
            reason = "chosen" if prior is None else "known from earlier runs"
            trainer.move(chosen, reason, meanwhile=chosen.global_batch_size)
        return chosen

    def _end_without_choice(self, knowledge: ModelLibrary) -> JobState:
        choice = self._current.choice
        if isinstance(choice, Infeasible):
            raise NoFeasiblePlanError(choice.reason)
        if choice is not None:  # a plan, or the user said no
            return "planned"
        self._trainer.note(
            "training was done before the search was, so nothing was left to choose; search fewer workers, or "
            "lower profile.steps, for a shorter search"
        )
        state = self._end_of_training(knowledge)
        return state if self._run else "planned"

    def _end_of_training(self, knowledge: ModelLibrary) -> JobState:
        """Learn what the run itself showed: the epochs to the target."""
        trainer, search = self._trainer, self._current
        if trainer.reached and self._goal.text:
            knowledge.converged(
                trainer.course.samples_by_batch, trainer.course.epochs[-1].epoch + 1, self._recorder.job_id
            )
        if search.measurements:
            try:
                search.model = self._fit(None, knowledge)
                knowledge.keep(search.model, self._recorder.job_id, measurements=len(search.measurements))
            except ConfigurationError as error:
                trainer.note(f"nothing is kept of this run for later ones: {error}")
        missed = self._job.goal.target is not None and not trainer.reached
        return "target_missed" if missed else "succeeded"

    def _choose(self, prior: JobModel | None, knowledge: ModelLibrary) -> Configuration | None:
        """Fit, predict, choose, ask; None where the run ends here."""
        trainer, search = self._trainer, self._current
        count = len(search.measurements)
        evidence = f"{count} measured configurations" if count else "the stored model serves"
        if search.ended_because:
            evidence += f": {search.ended_because}"
        self._recorder.on_event(PhaseChanged("fitting", evidence))
        search.model = self._fit(prior, knowledge)
        decide(search, search.model, trainer, self._space, self._job)
        assert search.curve is not None
        assert search.choice is not None
        self._recorder.on_event(ChoiceMade(search.curve, search.choice))
        if search.measurements:
            knowledge.keep(search.model, self._recorder.job_id, measurements=len(search.measurements))
        if isinstance(search.choice, Infeasible) or search.predicted is None:
            return None
        self._recorder.update(chosen=search.choice.configuration, predicted=search.predicted)
        if not self._run:
            return None
        if self._confirm is not None:
            confirm, question = self._confirm, (search.curve, search.choice, search.predicted)
            self._recorder.muted = True
            try:
                agreed = ask_while_training(lambda: confirm(*question), trainer, at_end=self._at_end)
            finally:
                self._recorder.muted = False
            if not agreed:
                return None
        return search.choice.configuration

    def _fit(
        self,
        prior: JobModel | None,
        knowledge: ModelLibrary,
        measurements: Sequence[Measurement] | None = None,
        noise: Sequence[NoiseReading] | None = None,
    ) -> JobModel:
        return fit_model(
            self._current,
            self._trainer,
            self._space,
            self._job.goal,
            dataset_size=self._manifest.dataset_size,
            convergence=knowledge.convergence,
            prior=self._similar if prior is None else prior,
            measurements=measurements,
            noise=noise,
        )

    def _why_enough(self, knowledge: ModelLibrary) -> str:
        """Why no other configuration need be profiled; empty where one may pay."""
        search = self._current
        try:
            model = self._fit(None, knowledge)
        except ConfigurationError:
            return ""  # more measurements may help
        return why_measure_no_more(search, model, self._trainer, self._space, self._job)

    def _expected_samples(self, knowledge: ModelLibrary) -> float | None:
        """To the target, before the models are fitted; None where nothing is known."""
        goal = self._job.goal
        epochs = float(goal.max_epochs) if goal.target is None else goal.epochs_hint
        if goal.target is not None and knowledge.convergence:
            epochs = statistics.median(run.epochs for run in knowledge.convergence)
        return None if epochs is None else epochs * self._manifest.dataset_size
