"""A started job's way: search, choose, go there, and train to the goal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scavenger.cloud.base import Cloud
from scavenger.control.jobs.resumption import Resumption
from scavenger.control.search.model_library import ModelLibrary, fingerprint_of
from scavenger.control.search.outcome import progress_of, remaining_samples
from scavenger.control.search.profile import Search, Spent, profile
from scavenger.control.search.replan import Replanning
from scavenger.control.search.select import (
    Decision,
    ask_while_training,
    decide,
    fit_model,
    profile_of,
    still_fits,
    why_measure_no_more,
)
from scavenger.control.search.space import fit_to_data
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.policy_loop import PolicyLoop
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

__all__ = ["Confirm", "JobWorkflow", "Known", "WorkflowState"]

Confirm = Callable[[TradeoffCurve, Choice, Predicted], bool]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Known:
    """What a job's models may rest on beside its own measurements.

    Attributes:
        space: What the data allows of the space that the job file gives.
        dataset_size: Training samples of an epoch.
        library: Stored models and finished runs.
        similar: A stored model of a similar job, which shortens the search; None where there is none.
    """

    space: SearchSpace
    dataset_size: int
    library: ModelLibrary
    similar: JobModel | None = None


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """How far a job has come; what its report is made of, whatever ended it.

    Attributes:
        space: That is searched: as the job file gives it, and then without what the data does not allow.
        search: None before it has begun.
        decision: What was decided by the newest search; None before, and for a resumed job.
        predicted: Of the whole run; None before the choice.
        chosen: What the job was brought to, to train to its goal there; None before.
        moved_to: The newest configuration that refitted models brought it to; None before.
    """

    space: SearchSpace
    search: Search | None = None
    decision: Decision | None = None
    predicted: Predicted | None = None
    chosen: Configuration | None = None
    moved_to: Configuration | None = None


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
        state: Replaced by a new value whenever the job has come further.
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
        self._trainer, self._job = trainer, job
        self._store, self._recorder, self._cloud = store, recorder, cloud
        self._run, self._confirm, self._at_end, self._resumed = run, confirm, at_end, resumed
        self._left_out: list[str] = []  # warnings on stored models, from the thread that reads the store
        self.state = WorkflowState(space)

    def batch_at(self, workers: int) -> int:
        """The global batch size for a number of workers, by the job's batch rule."""
        elastic, now, state = self._job.elastic, self._trainer.configuration, self.state
        assert now is not None
        largest = elastic.batch_max or state.space.global_batch_sizes[-1]
        rule = batch_rule(elastic.batch, batch_max=largest)
        return rule.global_batch_size(workers, state.moved_to or state.chosen or now)

    # ---- the state -----------------------------------------------------------------------------------------

    def run(self, operations: OperationHandler) -> JobState:
        """Train until the goal is reached or missed, or the choice is made where that is all; returns how it ended.

        Raises:
            NoFeasiblePlanError: If no configuration meets the constraints.
            ScavengerError: Whatever else ends the job.
        """
        trainer = self._trainer
        known = self._learn()
        if self._resumed is not None and self._resumed.chosen is not None:
            return self._go_on(self._resumed, self._resumed.chosen, known, operations)
        plan, prior, known = self._plan(known)
        decision, chosen = self._look_for(plan, prior, known)
        steps = self._job.profile.steps
        if prior is not None and chosen is not None and not still_fits(prior, chosen, trainer, steps=steps):
            decision, chosen = self._look_for(self._plan_anew(known), None, known)
        if chosen is None:
            return self._end_without_choice(decision, known)
        assert decision is not None
        self._train(chosen, decision.model, known, operations)
        return self._end_of_training(known)

    def _go_on(
        self, before: Resumption, chosen: Configuration, known: Known, operations: OperationHandler
    ) -> JobState:
        """Follow the choice of an earlier attempt: go there, and to the goal."""
        trainer, model = self._trainer, known.library.same
        nothing = SearchPlan("none", "resumed at what was chosen before", (), 0)
        now = Spent.by_now(trainer)
        self.state = replace(self.state, search=Search(nothing, now, ended=now), predicted=before.predicted)
        if model is not None:
            trainer.progress = lambda: progress_of(trainer, model)
        trainer.move(chosen, "resumed", meanwhile=chosen.global_batch_size)
        self._train(chosen, model, known, operations)
        return self._end_of_training(known)

    # ---- its chapters --------------------------------------------------------------------------------------

    def _learn(self) -> Known:
        """Wait for what the training module says of itself, and read what the store knows of such jobs."""
        trainer, recorder = self._trainer, self._recorder
        trainer.until(lambda: trainer.supervisor.manifest is not None)
        manifest = trainer.supervisor.manifest
        assert manifest is not None
        space, notes = fit_to_data(self.state.space, manifest.dataset_size)
        self.state = replace(self.state, space=space)
        for note in notes:
            trainer.note(note)
        if self._job.batch_size_unproven:
            trainer.note(
                "the goal has no target, so nothing tells how good the model becomes at one batch size and at another: "
                f"the job runs at batch {self._job.reference_batch_size}, as after as many epochs a larger one often "
                "gives a worse model; name goal.metric and goal.target, or one search.batch_size, to have another"
            )
        trainer.goal.check(manifest.metric_names)
        fingerprint = fingerprint_of(
            manifest, trainer.goal.text, vm=space.offers[0].vm, hardware=self._cloud.hardware()
        )
        recorder.update(fingerprint=fingerprint)
        library = self._ask(
            lambda: ModelLibrary.read(
                self._store, fingerprint, write=recorder.keep, warn=self._left_out.append
            )
        )
        return Known(space, manifest.dataset_size, library)

    def _plan(self, known: Known) -> tuple[SearchPlan, JobModel | None, Known]:
        """What to profile; the stored model that serves instead, if one does; and what else is known then."""
        library, search = known.library, self._job.search
        same = library.same
        universal = self._ask(library.universal) if search.strategy == "universal" else None
        nearest = self._ask(library.nearest) if same is None and search.strategy == "none" else None
        if nearest is not None:
            same, differing = nearest
            self._trainer.note(
                f"the stored model is of a job with another {differing}, else the same as this one"
            )
        plan = plan_search(
            known.space,
            search.strategy,
            has_same=same is not None,
            has_any=universal is not None,
            steps=self._job.profile.steps,
            points=self._job.profile.points,
        )
        alike = self._ask(library.similar) if plan.strategy == "partial" else None
        if alike is not None:
            similar, differing = alike
            of = f"a job with another {differing}" if differing else "the same job"
            plan = replace(plan, reason=f"{plan.reason}; a stored model of {of} shortens the search")
            known = replace(known, similar=similar)
        return plan, {"none": same, "universal": universal}.get(plan.strategy), known

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The store's answer, given on another thread while training goes on."""
        answer = self._recorder.ask(question, self._trainer.pump)
        while self._left_out:
            self._trainer.note(self._left_out.pop(0))
        return answer

    def _plan_anew(self, known: Known) -> SearchPlan:
        """What to profile where the stored model turned out to be of another machine."""
        profile = self._job.profile
        plan = plan_search(
            known.space, "partial", has_same=False, has_any=False, steps=profile.steps, points=profile.points
        )
        return replace(plan, reason="the stored model did not fit this machine")

    def _look_for(
        self, plan: SearchPlan, prior: JobModel | None, known: Known
    ) -> tuple[Decision | None, Configuration | None]:
        """Search, unless a stored model will do; choose, and go there.

        Returns:
            What was decided, None where training was finished before; and where the job is now, None where the
            run ends here.
        """
        trainer = self._trainer
        search = begun = Search(plan, Spent.by_now(trainer))
        self.state = replace(self.state, search=begun, decision=None, predicted=None)
        if prior is None:
            for search in profile(
                begun,
                trainer,
                self._recorder,
                self._job.profile,
                known.space,
                enough=lambda so_far: self._why_enough(so_far, known),
                samples=self._expected_samples(known),
            ):
                self.state = replace(self.state, search=search)
        if trainer.finished:
            return None, None
        decision = self._decide(search, prior, known)
        self.state = replace(
            self.state,
            search=replace(search, ended=decision.at),
            decision=decision,
            predicted=decision.predicted,
        )
        if search.measurements:
            known.library.keep(decision.model, self._recorder.job_id, measurements=len(search.measurements))
        chosen = self._agreed(decision)
        if chosen is not None:
            trainer.progress = lambda: progress_of(trainer, decision.model)
            reason = "chosen" if prior is None else "known from earlier runs"
            trainer.move(chosen, reason, meanwhile=chosen.global_batch_size)
        return decision, chosen

    def _decide(self, search: Search, prior: JobModel | None, known: Known) -> Decision:
        """Fit, predict and choose."""
        count = len(search.measurements)
        evidence = (
            f"{count} measured configuration{'' if count == 1 else 's'}"
            if count
            else "the stored model serves"
        )
        if search.ended_because:
            evidence += f": {search.ended_because}"
        self._recorder.on_event(PhaseChanged("fitting", evidence))
        model = self._fit(search.measurements, known, prior=prior)
        decision = decide(model, self._trainer, known.space, self._job)
        self._recorder.on_event(ChoiceMade(decision.curve, decision.choice))
        return decision

    def _agreed(self, decision: Decision) -> Configuration | None:
        """The choice, if the job is to run and the user agrees; None where the run ends here."""
        choice, predicted = decision.choice, decision.predicted
        if isinstance(choice, Infeasible) or predicted is None:
            return None
        self._recorder.update(chosen=choice.configuration, predicted=predicted)
        if not self._run:
            return None
        if (confirm := self._confirm) is not None:
            self._recorder.muted = True
            try:
                agreed = ask_while_training(
                    lambda: confirm(decision.curve, choice, predicted), self._trainer, at_end=self._at_end
                )
            finally:
                self._recorder.muted = False
            if not agreed:
                return None
        return choice.configuration

    def _train(
        self, chosen: Configuration, model: JobModel | None, known: Known, operations: OperationHandler
    ) -> None:
        """Train to the goal at the choice, unless what is asked for or what policies see speaks for another."""
        trainer = self._trainer
        self.state = replace(self.state, chosen=chosen)
        self._recorder.on_event(PhaseChanged("running", f"to {trainer.goal.words} at {chosen}"))
        replanning = self._replanning(model, known)

        def remaining() -> float | None:
            return remaining_samples(trainer, model if replanning is None else replanning.model)

        def planned() -> Configuration | None:
            if replanning is None:
                return None
            wanted = replanning.look()
            self.state = replace(self.state, moved_to=replanning.reached)
            return wanted

        policy_loop = PolicyLoop(
            trainer,
            policy=policy_for(self._job),
            reference=chosen,
            remaining_samples=remaining,
            planned=planned,
        )
        policy_loop.run(operations)

    def _replanning(self, model: JobModel | None, known: Known) -> Replanning | None:
        """Asks again during the run; None where nothing was modelled, or the policy is another."""
        search = self.state.search
        if model is None or search is None or self._job.elastic.policy != "model":
            return None
        # A model of these very measurements would count them twice.
        prior = None if search.measurements else model

        def fit(measured: Sequence[Measurement], noise: Sequence[NoiseReading] | None) -> JobModel:
            return self._fit(measured, known, prior=prior, noise=noise)

        return Replanning(
            self._trainer, self._job, known.space, model=model, fit=fit, measurements=search.measurements
        )

    def _end_without_choice(self, decision: Decision | None, known: Known) -> JobState:
        if decision is None:
            self._trainer.note(
                "training was done before the search was, so nothing was left to choose; search fewer workers, "
                "or lower profile.steps, for a shorter search"
            )
            state = self._end_of_training(known)
            return state if self._run else "planned"
        if isinstance(decision.choice, Infeasible):
            raise NoFeasiblePlanError(decision.choice.reason)
        return "planned"  # a plan, or the user said no

    def _end_of_training(self, known: Known) -> JobState:
        """Learn what the run itself showed: the epochs to the target."""
        trainer, search, library = self._trainer, self.state.search, known.library
        if trainer.reached and trainer.goal.text:
            library.converged(
                trainer.history.samples_by_batch, trainer.history.epochs[-1].epoch + 1, self._recorder.job_id
            )
        if search is not None and search.measurements:
            try:
                model = self._fit(search.measurements, known, prior=None)
                library.keep(model, self._recorder.job_id, measurements=len(search.measurements))
            except ConfigurationError as error:
                trainer.note(f"nothing is kept of this run for later ones: {error}")
        missed = self._job.goal.target is not None and not trainer.reached
        return "target_missed" if missed else "succeeded"

    # ---- what several of them need -------------------------------------------------------------------------

    def _fit(
        self,
        measurements: Sequence[Measurement],
        known: Known,
        *,
        prior: JobModel | None,
        noise: Sequence[NoiseReading] | None = None,
    ) -> JobModel:
        """The models by all that is known now; see `fit_model`."""
        measured = profile_of(
            self._trainer,
            measurements,
            dataset_size=known.dataset_size,
            convergence=known.library.convergence,
        )
        prior = known.similar if prior is None else prior
        return fit_model(measured, known.space, self._job.goal, prior=prior, noise=noise)

    def _why_enough(self, search: Search, known: Known) -> str:
        """Why no other configuration need be profiled; empty where one may pay."""
        try:
            model = self._fit(search.measurements, known, prior=None)
        except ConfigurationError:
            return ""  # more measurements may help
        return why_measure_no_more(search, model, self._trainer, known.space, self._job)

    def _expected_samples(self, known: Known) -> float | None:
        """To the target, before the models are fitted; None where nothing is known."""
        goal = self._job.goal
        epochs = float(goal.max_epochs) if goal.target is None else goal.epochs_hint
        if goal.target is not None and known.library.convergence:
            epochs = statistics.median(run.epochs for run in known.library.convergence)
        return None if epochs is None else epochs * known.dataset_size
