"""The workflow of a started job: search, choose a configuration, move to it and train to the goal."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from scavenger.control.jobs.resumption import Resumption
from scavenger.control.places.kinds import kind_of
from scavenger.control.places.needs import Kind
from scavenger.control.places.room import fit_to_data
from scavenger.control.provisioning.model_size import model_size, record_size
from scavenger.control.search.model_library import ModelLibrary, fingerprint_of
from scavenger.control.search.outcome import NOTHING_SEARCHED, progress_of, remaining_samples
from scavenger.control.search.outlook import EpochForecaster
from scavenger.control.search.own_batch import resumed_epochs
from scavenger.control.search.profile import Search, Spent, profile
from scavenger.control.search.replan import Replanning
from scavenger.control.search.select import (
    Misfit,
    Selection,
    ask_while_training,
    decide,
    fit_model,
    judged,
    misfit,
    profile_of,
    repeated,
    steps_of,
)
from scavenger.control.search.sources import Sources
from scavenger.control.training.balancing import Balancing
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.policy_loop import PolicyLoop
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve, thinned
from scavenger.domain.document import report_document
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.pool import RatePoint, WorkLeft
from scavenger.domain.report import ChoiceMade, JobState, PhaseChanged, Predicted, ReportedJob, RunReport
from scavenger.errors import ConfigurationError, NoFeasiblePlanError
from scavenger.models.fixed_epochs import FixedEpochs
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.models.run_scatter import with_the_run
from scavenger.models.starts import ending
from scavenger.policy.batch import batch_rule
from scavenger.policy.table import policy_for
from scavenger.presentation.formatting import plural
from scavenger.search.aggregator_vms import named_vms
from scavenger.search.plan import SearchPlan, plan_search
from scavenger.store import Store

Confirm = Callable[[TradeoffCurve, Choice, Predicted], bool]
Answer = TypeVar("Answer")

RATE_POINTS_MAX = 256
"""Most workers of which a pool is told the rate that is predicted."""
CURVE_POINTS_MAX = 2_000
"""Most points of the curve that the journal keeps, about a megabyte; the report has all of them."""


@dataclass(frozen=True, slots=True)
class Known:
    """Information for a job's models in addition to its own measurements.

    Attributes:
        space: The search space of the job file, without configurations that the data cannot fill.
        dataset_size: Training samples of an epoch.
        library: Stored models and convergence records of finished runs.
        similar: A stored model of a similar job, which shortens the search; None if there is none.
        compared: What of the job was compared with those of stored models, for the user.
    """

    space: SearchSpace
    dataset_size: int
    library: ModelLibrary
    similar: JobModel | None = None
    compared: str = ""


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """Results of a job so far, from which its report is made.

    Attributes:
        space: The search space: first that of the job file, later without configurations that the data cannot fill.
        search: The newest search; None before it has begun.
        decision: Decision of the newest search; None before it, and for a resumed job.
        predicted: Predicted time and cost of the whole run; None before the choice.
        chosen: The configuration on which the job trains to its goal; None before the choice.
        moved_to: The newest configuration that refitted models moved the job to; None before such a move.
    """

    space: SearchSpace
    search: Search | None = None
    decision: Selection | None = None
    predicted: Predicted | None = None
    chosen: Configuration | None = None
    moved_to: Configuration | None = None


class JobWorkflow:
    """Searches for a job's configuration, moves the job to it and trains to the goal.

    Args:
        trainer: Must be started before `run` is called.
        space: The search space of the job file; configurations that the data cannot fill are removed later.
        hardware: See `Place`.
        folder: Folder of the training code.
        run: False if the job ends with the choice.
        confirm: Asked before the chosen configuration is paid for; None to go ahead.
        at_end: Called with the error that ends training while `confirm` is asked.
        resumed: Checkpoint, time, cost and progress of earlier attempts; None for a new job.
        approved: See `JobRun`: the run is held against it, and not against what it predicts at its choice.

    Attributes:
        state: Results so far; replaced by a new value whenever they change.
        outlook: Forecasts of the epochs while the job trains.
    """

    def __init__(
        self,
        trainer: Trainer,
        job: JobSpec,
        space: SearchSpace,
        *,
        store: Store,
        recorder: Recorder,
        hardware: str,
        folder: Path,
        run: bool,
        confirm: Confirm | None,
        at_end: Callable[[BaseException], None],
        resumed: Resumption | None,
        approved: Predicted | None = None,
    ) -> None:
        self.trainer, self._job = trainer, job
        self._model: JobModel | None = None  # by which the progress is estimated
        self._expected: tuple[int, float | None] | None = None
        self._store, self._recorder, self._hardware, self._folder = store, recorder, hardware, folder
        self._run, self._confirm, self._at_end, self._resumed = run, confirm, at_end, resumed
        self._approved = approved
        self._cut: Callable[[], bool] = lambda: False
        self._left_out: list[str] = []  # warnings about stored models, from the thread that reads the store
        self.state = WorkflowState(space)
        self.outlook = EpochForecaster(trainer, job.goal)

    def batch_at(self, workers: int) -> int:
        """The global batch size for a number of workers, by the job's batch rule."""
        elastic, now, state = self._job.elastic, self.trainer.configuration, self.state
        assert now is not None
        largest = elastic.batch_max or state.space.global_batch_sizes[-1]
        rule = batch_rule(elastic.batch, batch_max=largest)
        return rule.global_batch_size(workers, state.moved_to or state.chosen or now)

    def progress(self) -> float | None:
        """The completed share of the way to the target; None if unknown."""
        if self._model is not None:
            return progress_of(self.trainer, self._model)
        return None if self._expected is None else self.outlook.alone(*self._expected)

    @property
    def rate(self) -> float | None:
        """Samples a second in the present configuration; None before a step was undisturbed."""
        now = self.trainer.configuration
        steps = None if now is None else self.trainer.history.measured.get(now)
        return None if steps is None or steps[2] <= 0.0 else steps[1] / steps[2]

    def left(self) -> WorkLeft | None:
        """What is still to be done; None if it is not known."""
        trainer, model = self.trainer, self._model
        if model is not None and trainer.configuration is not None:
            samples = remaining_samples(trainer, model)
            batch = float(trainer.configuration.global_batch_size)
            log_sd = 0.0
            if self._job.goal.target is not None:
                log_sd = float(model.statistical.predict(np.array([batch]))[1][0])
            share = self.progress()
            whole = None if samples is None or share is None or share >= 1.0 else samples / (1.0 - share)
            return None if samples is None else WorkLeft(samples, log_sd, whole)
        share = self.progress()
        if share is None or self._expected is None or self._expected[1] is None:
            return None
        whole = self._expected[1] * self._expected[0]
        return WorkLeft(max(0.0, 1.0 - share) * whole, whole=whole)

    def rates(self) -> tuple[RatePoint, ...]:
        """The curve of the job: by its model once it has chosen, else what was measured; by growing workers."""
        trainer, model = self.trainer, self._model
        measured: dict[int, float] = {}
        for configuration, (_, samples, seconds) in trainer.history.measured.items():
            if seconds > 0.0:
                measured[configuration.workers] = max(
                    measured.get(configuration.workers, 0.0), samples / seconds
                )
        points = {count: RatePoint(count, rate, measured=True) for count, rate in measured.items()}
        if model is not None and self.state.chosen is not None:
            low, high = self._job.elastic_range
            sizes = [(count, self.batch_at(count)) for count in range(low, min(high, RATE_POINTS_MAX) + 1)]
            workers, batch = np.array([size for size in sizes if size[0] <= size[1]], dtype=np.int64).T
            step_s = model.predict(trainer.offer, workers, batch).step_time_s * model.mean_over_median
            predicted = zip(workers.tolist(), (batch / step_s).tolist(), strict=True)
            points |= {
                count: RatePoint(count, rate, measured=count in measured)
                for count, rate in predicted
                if count not in measured
            }
        return tuple(points[count] for count in sorted(points))

    # ---- the run -------------------------------------------------------------------------------------------

    def run(self, operations: OperationHandler) -> JobState:
        """Train to the goal or, for a plan, until the choice is made; returns how the job ended.

        Raises:
            NoFeasiblePlanError: If no configuration meets the constraints.
            ScavengerError: If another error ends the job.
        """
        self._cut = lambda: operations.cuts
        known = self._read_library()
        if self._resumed is not None and self._resumed.chosen is not None:
            return self._continue(self._resumed, self._resumed.chosen, known, operations)
        plan, prior, known = self._plan(known)
        decision, chosen = self._search_and_move(plan, prior, known)
        if prior is not None and chosen is not None:
            decision, chosen = self._verified(prior, decision, chosen, known)
        if chosen is None:
            return self._end_without_choice(decision, known)
        assert decision is not None
        self._train(chosen, decision.model, known, operations)
        return self._end_of_training(known)

    def _continue(
        self, before: Resumption, chosen: Configuration, known: Known, operations: OperationHandler
    ) -> JobState:
        """Move to the configuration that an earlier attempt chose, and train to the goal."""
        trainer, model = self.trainer, known.library.same
        nothing = SearchPlan("none", "resumed at the configuration chosen before", (), 0)
        now = Spent.by_now(trainer)
        self.state = replace(self.state, search=Search(nothing, now, ended=now), predicted=before.predicted)
        self._model = model
        if model is None:
            expected = self._expected_samples(known)
            self._expected = (known.dataset_size, None if expected is None else expected / known.dataset_size)
        if self._job.at_equal_progress:
            self._last_for(resumed_epochs(self._job, chosen, before.predicted, model), chosen)
        trainer.move(chosen, "resumed", meanwhile=chosen.global_batch_size)
        self._train(chosen, model, known, operations)
        return self._end_of_training(known)

    # ---- phases of the run ---------------------------------------------------------------------------------

    def _read_library(self) -> Known:
        """Wait for the description of the training module, and read stored models of such jobs."""
        trainer, recorder = self.trainer, self._recorder
        trainer.until(lambda: trainer.supervisor.manifest is not None)
        manifest = trainer.supervisor.manifest
        assert manifest is not None
        space, notes = fit_to_data(self.state.space, manifest.dataset_size)
        self.state = replace(self.state, space=space)
        for note in (*manifest.notes, *notes):
            trainer.note(note)
        if manifest.schedule_batch and self._job.batch_size_varies:
            trainer.note(
                f"the schedule of the learning rate is followed by samples: {manifest.schedule_batch}, the job's own "
                "batch, count as one of its steps at every batch size; elastic.schedule: steps counts each step as one"
            )
        if self._job.at_equal_progress and self._job.run is None:
            own = self._job.reference_batch_size
            trainer.last_for(FixedEpochs(self._job.goal.max_epochs, None, own), own)
        trainer.goal.check(manifest.metric_names)
        sources = self._ask(lambda: Sources.of(self._job, self._folder, manifest))
        fingerprint = fingerprint_of(
            manifest,
            trainer.goal.text,
            vm=space.offers[0].vm,
            hardware=self._hardware,
            sources=sources,
        )
        recorder.update(fingerprint=fingerprint)
        if trainer.supervisor.migrations is not None:  # loops and commands have none
            size = model_size(manifest, self._job.elastic.aggregators)
            recorder.keep(lambda: record_size(self._store, recorder.job_id, size))
        library = self._ask(
            lambda: ModelLibrary.read(
                self._store, fingerprint, write=recorder.keep, warn=self._left_out.append
            )
        )
        trainer.earlier_starts, trainer.earlier_rests_s = library.starts, library.rests_of_starts_s
        trainer.earlier_program_starts_s = library.program_starts_s
        return Known(space, manifest.dataset_size, library, compared=sources.compared)

    def _plan(self, known: Known) -> tuple[SearchPlan, JobModel | None, Known]:
        """Plan the profiling; returns the plan, a stored model to use instead (or None), and the known information."""
        library, search = known.library, self._job.search
        same = library.same
        universal = self._ask(library.universal) if search.strategy == "universal" else None
        settings_differ = same is None and search.strategy in ("none", "reuse")
        if same is None and search.strategy in ("auto", "none", "reuse"):
            same = self._of_other_vms(library)
            settings_differ = settings_differ and same is None
        nearest = self._ask(library.nearest) if settings_differ else None
        if nearest is not None:
            same, differing = nearest
            self.trainer.note(
                f"the stored model is from a job that differs from this one only in its {differing}"
            )
        plan = plan_search(
            known.space,
            search.strategy,
            has_same=same is not None,
            has_any=universal is not None,
            steps=self._job.profile.steps,
            points=self._job.profile.points,
        )
        if nearest is not None:
            of = f"of a job with another {nearest[1]}, so its epochs are less certain"
            plan = replace(plan, reason=f"{plan.reason}: {of}")
        changed = self._ask(library.changed) if plan.strategy == "partial" else ""
        if changed:
            plan = replace(plan, reason=f"{plan.reason}, only one with another {changed}")
        if plan.strategy == "none" or changed:
            plan = replace(plan, reason=f"{plan.reason}; {known.compared}")
        alike = self._ask(library.similar) if plan.strategy == "partial" else None
        if alike is not None:
            similar, differing = alike
            source = f"a job with another {differing}" if differing else "the same job"
            plan = replace(plan, reason=f"{plan.reason}; a stored model of {source} shortens the search")
            known = replace(known, similar=similar)
        return plan, {"none": same, "universal": universal}.get(plan.strategy), known

    def _of_other_vms(self, library: ModelLibrary) -> JobModel | None:
        """The same job's model of another number of aggregator VMs, told of the present one."""
        manifest = self.trainer.supervisor.manifest
        if manifest is None or self.trainer.supervisor.migrations is None:
            return None
        size = model_size(manifest, self._job.elastic.aggregators)
        if (found := self._ask(lambda: library.of_other_vms(size))) is None:
            return None
        model, before, now = found
        self.trainer.note(
            f"the stored model is from a run with {named_vms(before)}: what {named_vms(now)} change is predicted, and "
            "held against the first steps"
        )
        return model

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Query the store on another thread while training continues."""
        answer = self._recorder.ask(question, self.trainer.pump)
        while self._left_out:
            self.trainer.note(self._left_out.pop(0))
        return answer

    def _plan_again(self, known: Known) -> SearchPlan:
        """Plan the profiling after the stored model proved not to fit this machine."""
        profile = self._job.profile
        plan = plan_search(
            known.space, "partial", has_same=False, has_any=False, steps=profile.steps, points=profile.points
        )
        return replace(plan, reason="the stored model did not fit this machine")

    def _search_and_move(
        self, plan: SearchPlan, prior: JobModel | None, known: Known
    ) -> tuple[Selection | None, Configuration | None]:
        """Search, unless a stored model serves; then choose a configuration and move to it.

        Returns:
            The decision, or None if training finished before it; and the configuration that the job moved to, or
            None if the run ends here.
        """
        trainer = self.trainer
        search = begun = Search(plan, Spent.by_now(trainer))
        self.state = replace(self.state, search=begun, decision=None, predicted=None)
        if prior is None:
            expected = self._expected_samples(known)
            epochs = None if expected is None else expected / known.dataset_size
            self._model, self._expected = None, (known.dataset_size, epochs)
            self.outlook.searching = True
            for search in profile(
                begun,
                trainer,
                self._recorder,
                self._job.profile,
                known.space,
                judge=lambda so_far: self._judged(so_far, known),
                samples=expected,
                cut=self._cut,
            ):
                self.state = replace(self.state, search=search)
            if not self._cut():
                search = self._repeated(search, known)
        if trainer.finished:
            self._decide_late(search, known)
            return None, None
        count = len(search.measurements)
        evidence = f"{plural(count, 'measured configuration')}" if count else "a stored model is used"
        if search.ended_because:
            evidence += f": {search.ended_because}"
        model = self._fit(search.measurements, known, prior=prior)
        decision = self._decide(model, search, known, evidence)
        if count:
            known.library.keep(decision.model, self._recorder.job_id, measurements=count)
        self.outlook.searching = False
        return decision, self._moved(decision, "chosen" if prior is None else "known from earlier runs")

    def _verified(
        self, prior: JobModel, decision: Selection | None, chosen: Configuration, known: Known
    ) -> tuple[Selection | None, Configuration | None]:
        """Compare a stored model with the first steps; where it is off, correct it (`reuse`), or search after all."""
        wrong = misfit(prior, chosen, self.trainer, steps=self._job.profile.steps)
        if wrong is None:
            return decision, chosen
        if self._job.search.strategy == "reuse":
            return self._corrected(wrong, prior, known)
        self.trainer.note(
            f"the stored model does not fit this machine: {wrong.off}; the job is profiled instead"
        )
        return self._search_and_move(self._plan_again(known), None, known)

    def _corrected(
        self, wrong: Misfit, prior: JobModel, known: Known
    ) -> tuple[Selection, Configuration | None]:
        """Correct a stored model by the first steps of the run, and choose again; nothing is profiled.

        Computing and synchronising keep their laws, and get a factor each: what a machine does that is busier or idler
        than before. The corrected model serves this run alone, as the next one may find the machine as it was.
        """
        search = self.state.search
        assert search is not None
        plan = replace(search.plan, reason=f"{search.plan.reason}, corrected by the first steps: {wrong.off}")
        model = self._fit((wrong.measured,), known, prior=prior)
        decision = self._decide(
            model,
            replace(search, plan=plan),
            known,
            f"a stored model is used, corrected by the first steps: {wrong.off}",
        )
        return decision, self._moved(decision, "known from earlier runs, corrected by the first steps")

    def _moved(self, decision: Selection, reason: str) -> Configuration | None:
        """Move to the choice if it is confirmed; returns it, or None if the run ends here."""
        trainer, chosen = self.trainer, self._confirmed(decision)
        if chosen is not None:
            self._model = decision.told
            self._last_for(decision.model.statistical.fixed, chosen)
            trainer.move(chosen, reason, meanwhile=chosen.global_batch_size)
        return chosen

    def _last_for(self, epochs: FixedEpochs | None, chosen: Configuration) -> None:
        """Have the run last as long as was predicted; a program of its own ends by itself."""
        if epochs is not None and self._job.run is None:
            self.trainer.last_for(epochs, chosen.global_batch_size)

    def _decide(self, model: JobModel, search: Search, known: Known, evidence: str) -> Selection:
        """Predict all configurations and choose one; the search ends with that.

        Args:
            evidence: What the model rests on, for the user.
        """
        self._recorder.on_event(PhaseChanged("fitting", evidence))
        decision = decide(
            model,
            self.trainer,
            known.space,
            self._job,
            told=self.outlook.told(model),
            end=ending(known.library.endings_s, tensorflow=kind_of(self._job, self._folder) is Kind.KERAS),
            anew=not self._run,
        )
        late = self._run and self.trainer.finished
        predicted = None if late else decision.predicted
        if predicted is not None and self._run:
            searched = decision.at.time_s - search.began.time_s, decision.at.cost_usd - search.began.cost_usd
            predicted = self._approved or replace(predicted, search_s=searched[0], search_usd=searched[1])
        decision = replace(decision, predicted=predicted)
        if not late:
            self._recorder.on_event(ChoiceMade(decision.curve, decision.choice, predicted))
        self.trainer.journal.add("curve", self._curve_document(decision))
        self.state = replace(
            self.state,
            search=replace(search, ended=decision.at),
            decision=decision,
            predicted=decision.predicted,
        )
        return decision

    def _decide_late(self, search: Search, known: Known) -> None:
        """Choose for another run of a job that has ended before its search did, if its steps tell enough for that."""
        measured, now = search.measurements, self.trainer.configuration
        if not measured and now is not None and (own := steps_of(now, self.trainer)) is not None:
            measured = (own,)
        with contextlib.suppress(ConfigurationError):  # no step was undisturbed
            decision = self._decide(
                self._fit(measured, known, prior=None), search, known, "the job ended before its search did"
            )
            if not self._run:
                self._confirmed(decision)

    def _curve_document(self, decision: Selection) -> dict[str, Any]:
        """The curve and the choice as a report of the running job, for those who look at it from elsewhere."""
        few, notes = thinned(decision.curve, decision.choice, CURVE_POINTS_MAX)
        report = RunReport(
            job=ReportedJob(self._recorder.job_id, self._job.name, "running"),
            search=NOTHING_SEARCHED,
            curve=replace(few, notes=(*few.notes, *notes)),
            choice=decision.choice,
            predicted=decision.predicted,
        )
        return report_document(report)

    def _confirmed(self, decision: Selection) -> Configuration | None:
        """Ask the user to confirm the choice; returns it, or None if the run ends here."""
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
                    lambda: confirm(decision.curve, choice, predicted), self.trainer, at_end=self._at_end
                )
            finally:
                self._recorder.muted = False
            if not agreed:
                return None
        return choice.configuration

    def _train(
        self, chosen: Configuration, model: JobModel | None, known: Known, operations: OperationHandler
    ) -> None:
        """Train to the goal on the chosen configuration, carrying out operations and policy decisions."""
        trainer = self.trainer
        self.state = replace(self.state, chosen=chosen)
        until = trainer.goal.words
        own = self._job.reference_batch_size
        if self._job.at_equal_progress and self._job.run is None and chosen.global_batch_size != own:
            until = (
                f"{plural(trainer.callbacks.epochs, 'epoch')}, with the progress of {until} at batch {own},"
            )
        self._recorder.on_event(PhaseChanged("running", f"to {until} at {chosen}"))
        replanning = self._replanning(model, known)

        def remaining() -> float | None:
            if replanning is not None:
                return remaining_samples(trainer, replanning.model)
            if model is None:
                return None
            told = self.outlook.told(model)
            self._model = told
            return remaining_samples(trainer, told)

        def planned() -> tuple[Configuration | None, str]:
            if replanning is None:
                return None, ""
            wanted = replanning.look()
            self._model = replanning.model
            self.state = replace(self.state, moved_to=replanning.reached)
            return wanted, replanning.because

        policy_loop = PolicyLoop(
            trainer,
            policy=policy_for(self._job),
            reference=chosen,
            remaining_samples=remaining,
            planned=planned,
            balance=self._balancing(),
        )
        trainer.supervisor.engine.stand_by(chosen.workers)  # what follows is not profiled
        policy_loop.run(operations)

    def _balancing(self) -> Callable[[], None]:
        """Build what moves buckets between aggregators; it does nothing if the job does not want that."""
        trainer = self.trainer
        migrations = trainer.supervisor.migrations
        if migrations is None or not self._job.elastic.moves_buckets:
            return lambda: None
        return Balancing(
            migrations,
            lambda: [*trainer.history.aggregator_waits],
            note=trainer.note,
            clock=lambda: trainer.elapsed_s,
        ).look

    def _replanning(self, model: JobModel | None, known: Known) -> Replanning | None:
        """Build the replanning of this run; None without a fitted model or with another policy."""
        search = self.state.search
        if model is None or search is None or self._job.elastic.policy != "model":
            return None
        # A prior fitted to these same measurements would count them twice.
        prior = None if search.measurements else model

        def fit(measured: Sequence[Measurement], noise: Sequence[NoiseReading] | None) -> JobModel:
            return self._fit(measured, known, prior=prior, noise=noise)

        return Replanning(
            self.trainer,
            self._job,
            known.space,
            model=model,
            fit=fit,
            measurements=search.measurements,
            outlook=self.outlook.told,
        )

    def _end_without_choice(self, decision: Selection | None, known: Known) -> JobState:
        if decision is None:
            decision = self.state.decision
            chosen = (
                "no step tells what to choose" if decision is None else "the choice is for another run of it"
            )
            self.trainer.note(
                f"the job ended before its search did, so it is too small to gain by one; {chosen}"
            )
            state = self._end_of_training(known)
            if self._run:
                return state
        if decision is not None and isinstance(decision.choice, Infeasible):
            raise NoFeasiblePlanError(decision.choice.reason)
        return "planned"  # a plan, or the user said no

    def _end_of_training(self, known: Known) -> JobState:
        """Store the epochs to the target and the fitted model for later jobs."""
        trainer, search, library = self.trainer, self.state.search, known.library
        if trainer.reached and trainer.goal.text:
            samples = trainer.history.samples_by_batch
            epochs, needed = trainer.history.epochs[-1].epoch + 1, self._epochs_needed(tuple(samples), known)
            library.converged(samples, epochs, self._recorder.job_id, needed=needed)
        elif trainer.goal.text:
            model = self._model_at_end(known)
            lacked = None if model is None else self.outlook.missed(model)
            if lacked is not None:
                library.add(lacked, self._recorder.job_id)
        if search is not None and search.measurements:
            try:
                measured = self._with_the_run(search.measurements)
                model = replace(self._fit(measured, known, prior=None), course=self.outlook.course())
                library.keep(model, self._recorder.job_id, measurements=len(measured))
            except ConfigurationError as error:
                trainer.note(f"no model of this run is stored for later jobs: {error}")
        missed = self._job.goal.target is not None and not (trainer.reached or trainer.stopped_by)
        if missed:
            key, epochs = self._recorder.job_id[:8], self._job.goal.max_epochs
            trainer.note(
                f"the target is missed after {plural(epochs, 'epoch')}; "
                f"`scavenger resume {key} --max-epochs N` trains on to N"
            )
        return "target_missed" if missed else "succeeded"

    # ---- helpers -------------------------------------------------------------------------------------------

    def _with_the_run(self, profiled: tuple[Measurement, ...]) -> tuple[Measurement, ...]:
        """The measurements of the search and of the run's own steps, as `with_the_run` joins them."""
        chosen = self.state.chosen
        own = None if chosen is None else steps_of(chosen, self.trainer)
        enough = own is not None and own.steps >= self._job.profile.steps
        return with_the_run(profiled, own) if own is not None and enough else profiled

    def _fit(
        self,
        measurements: Sequence[Measurement],
        known: Known,
        *,
        prior: JobModel | None,
        noise: Sequence[NoiseReading] | None = None,
    ) -> JobModel:
        """Fit the models to everything known so far; see `fit_model`."""
        measured = profile_of(
            self.trainer,
            measurements,
            dataset_size=known.dataset_size,
            convergence=known.library.convergence,
            run_ratios=known.library.run_ratios,
            rerun_ratios=() if measurements else known.library.rerun_ratios,
            twice=() if self.state.search is None else self.state.search.twice,
        )
        prior = known.similar if prior is None else prior
        earlier = known.library.same or prior
        course = None if earlier is None else earlier.course
        model = fit_model(measured, known.space, self._job, prior=prior, noise=noise, course=course)
        decided = None if self.state.decision is None else self.state.decision.model.statistical.fixed
        if decided is None or not self._job.at_equal_progress:
            return model
        # What noise says later does not change how long the run lasts that was chosen, and agreed to.
        return replace(model, statistical=replace(model.statistical, law=decided))

    def _epochs_needed(self, sizes: Sequence[int], known: Known) -> dict[int, float] | None:
        """Epochs of the whole run at each batch size, by the models at its end; None without a model."""
        model = self._model_at_end(known)
        if model is None:
            return None
        epochs, _ = model.statistical.predict(np.array(sizes, dtype=np.float64))
        return dict(zip(sizes, epochs.tolist(), strict=True))

    def _model_at_end(self, known: Known) -> JobModel | None:
        search, decision = self.state.search, self.state.decision
        model = known.library.same if decision is None else decision.model
        if search is not None and search.measurements:
            # Without a fit the choice's model serves; that none is stored for later jobs is said where it would be.
            with contextlib.suppress(ConfigurationError):
                model = self._fit(search.measurements, known, prior=None)
        return model

    def _judged(self, search: Search, known: Known) -> Search:
        """The search with its favourite and, if another measurement cannot pay off, with why."""
        try:
            model = self._fit(search.measurements, known, prior=None)
        except ConfigurationError:
            return search  # more measurements may help
        return judged(search, self.outlook.told(model), self.trainer, known.space, self._job)

    def _repeated(self, search: Search, known: Known) -> Search:
        """The search with its first point measured again at its end, which shows how the machine drifts."""
        if self._job.profile.max_time is not None or self._job.profile.max_cost is not None:
            return search  # what profiling may take is for points that can change the choice
        with contextlib.suppress(ConfigurationError):  # without a fit, `_search_and_move` tells why
            told = self.outlook.told(self._fit(search.measurements, known, prior=None))
            search = repeated(search, told, self.trainer, known.space, self._job)
            self.state = replace(self.state, search=search)
        return search

    def _expected_samples(self, known: Known) -> float | None:
        """Expected samples to the target before the models are fitted; None if unknown."""
        goal = self._job.goal
        epochs = float(goal.max_epochs) if goal.target is None else goal.epochs_hint
        if goal.target is not None and known.library.convergence:
            epochs = statistics.median(run.epochs for run in known.library.convergence)
        return None if epochs is None else epochs * known.dataset_size
