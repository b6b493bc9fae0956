"""Selection: predicts all configurations, chooses one, and verifies the choice against live steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scavenger.control.search.outcome import predict_anew, predict_run, progress_of, run_ahead
from scavenger.control.search.own_batch import own_batch_only
from scavenger.control.search.profile import Search, Spent, next_to_profile, repeat_first, too_large_model
from scavenger.control.training.measure import measure
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.cost import CostEstimate
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.figures import rounded
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.domain.providers import capabilities_of
from scavenger.domain.report import Predicted
from scavenger.errors import ConfigurationError
from scavenger.models.cost import estimate_of
from scavenger.models.course import Course, evaluation_noise
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.models.run_ahead import RunAhead
from scavenger.models.starts import Lasting
from scavenger.search import replan as search_more
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.search.replan import SwitchCost, staying
from scavenger.search.reuse import DRIFT_MAX, step_time_drift


@dataclass(frozen=True, slots=True)
class Selection:
    """Predictions for every configuration and the choice among them.

    Attributes:
        model: The models as they were fitted.
        told: The models behind the curve: those, with what the metric's course tells of the epochs.
        at: Time and cost of the job when the choice was made.
        progress: Completed share of the way to the target at that time.
        predicted: Predicted results of the whole run; None if no choice was possible.
        estimate: Itemized cost of the chosen configuration; None if only workers are paid for.
        ahead: What the prediction says is uncertain of the rest of the run.
    """

    model: JobModel
    told: JobModel
    curve: TradeoffCurve
    choice: Choice | Infeasible
    at: Spent
    progress: float
    predicted: Predicted | None = None
    estimate: CostEstimate | None = None
    ahead: RunAhead | None = None


def fit_model(
    measured: Profile,
    space: SearchSpace,
    job: JobSpec,
    *,
    prior: JobModel | None,
    noise: Sequence[NoiseReading] | None = None,
    course: Course | None = None,
) -> JobModel:
    """Fit the models to measurements, finished runs and, if there is one, a stored model.

    Args:
        course: Of an earlier run of this job.
        noise: Noise readings over the run; None takes the noise of the measurements.

    Raises:
        ConfigurationError: If there are no measurements and no stored model, or the models cannot be fitted.
    """
    if prior is None and not measured.measurements:
        raise ConfigurationError(
            "profile: max_time or max_cost was used up before one configuration was measured; raise it"
        )
    goal = job.goal
    passage_log_sd = 0.0
    if goal.target is not None and course is not None and course.metric == goal.metric:
        sizes = {"validation": measured.validation_size, "training": measured.dataset_size}
        passage_log_sd = course.passage_log_sd(
            goal.target,
            goal.direction,
            noise=evaluation_noise(goal.metric, goal.target, goal.direction, **sizes),
            limit=float(goal.max_epochs),
        )
    try:
        return JobModel.fit(
            measured,
            space=space,
            epochs_hint=job.goal.epochs_hint,
            max_epochs=job.goal.max_epochs,
            fixed_epochs=job.goal.target is None,
            reference_batch_size=job.reference_batch_size if job.at_equal_progress else None,
            prior=prior,
            noise=noise,
            passage_log_sd=passage_log_sd,
            rate_kept=job.elastic.lr_scaling == "none",
        )
    except ValueError as error:
        raise ConfigurationError(f"the models cannot be fitted: {error}") from None


def profile_of(
    trainer: Trainer,
    measurements: Sequence[Measurement],
    *,
    dataset_size: int,
    convergence: tuple[ConvergenceRecord, ...],
    run_ratios: tuple[float, ...] = (),
    rerun_ratios: tuple[float, ...] = (),
    twice: tuple[Measurement, ...] = (),
) -> Profile:
    """Collect the data for a fit: measurements, earlier runs, and evaluation and setup times of this run."""
    manifest = trainer.supervisor.manifest
    return Profile(
        measurements=tuple(measurements),
        dataset_size=dataset_size,
        evaluation_s=trainer.history.evaluation_s(),
        setup_s=trainer.setup_s,
        convergence=convergence,
        validation_size=0 if manifest is None else manifest.validation_size,
        mean_over_median=trainer.history.mean_over_median,
        run_ratios=run_ratios,
        rerun_ratios=rerun_ratios,
        twice=twice,
    )


def decide(
    model: JobModel,
    trainer: Trainer,
    space: SearchSpace,
    job: JobSpec,
    *,
    told: JobModel,
    end: Lasting,
    anew: bool = False,
) -> Selection:
    """Predict every configuration and choose one, given the time, cost and progress so far.

    Limits are compared with the rest of the way, since completed training is not repeated.

    Args:
        anew: Whether what is predicted is a run that begins at the choice, and not the rest of this one.
        told: The same, with what the metric's course tells of the epochs; they decide, unless nothing meets the limits
            by them: a forecast from a few evaluations ends no job.
        end: Saving the model and ending the processes.
    """
    over, stays = trainer.finished, not anew
    curve, choice = choose_now(told, trainer, space, job, over=over, stays=stays)
    if isinstance(choice, Infeasible) and told is not model:
        told = model
        curve, choice = choose_now(told, trainer, space, job, over=over, stays=stays)
    progress, at = progress_of(trainer, told), Spent.by_now(trainer)
    if isinstance(choice, Infeasible):
        return Selection(model, told, curve, choice, at, progress)
    terms = trainer.terms()
    ahead = run_ahead(trainer, told, curve, choice, end=end)
    offer = space.offer(choice.configuration.vm)
    rents = terms is not None and capabilities_of(offer.provider).rents
    return Selection(
        model,
        told,
        curve,
        choice,
        at,
        progress,
        predicted=predict_anew(trainer, told, choice, ahead)
        if anew
        else predict_run(trainer, told, choice, ahead),
        ahead=ahead,
        estimate=estimate_of(choice.point, offer, terms) if terms is not None and rents else None,
    )


def choose_now(
    model: JobModel,
    trainer: Trainer,
    space: SearchSpace,
    job: JobSpec,
    *,
    over: bool = False,
    stays: bool = True,
) -> tuple[TradeoffCurve, Choice | Infeasible]:
    """Build the tradeoff curve, given the time, cost and progress so far, and choose by the job's objective.

    Args:
        over: Whether the job has ended, so that what is chosen is for another run of it.
        stays: Whether the job stays where it is, if a change costs more than it brings.
    """
    worth = None if job.utility is None else job.utility.worth_at
    deadline_s, budget_usd = job.constraints.deadline, job.constraints.budget
    spent_s, spent_usd = (0.0, 0.0) if over else (trainer.elapsed_s, trainer.cost_usd)
    remaining = 1.0 if over else 1.0 - progress_of(trainer, model)
    curve = build_curve(
        model,
        space,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        workers_max=None if over else trainer.workers_max(trainer.elapsed_s),
        spent_time_s=spent_s,
        spent_usd=spent_usd,
        remaining=remaining,
        costs=trainer.terms(),
        too_many=trainer.history.too_many,
        too_large_model=too_large_model(trainer),
    )
    only = own_batch_only(job, model, trainer)
    choose_from = partial(
        choose,
        objective=job.objective if isinstance(job.objective, str) else "utility",
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        spent_time_s=spent_s,
        spent_usd=spent_usd,
        remaining=remaining,
        worth=worth,
        only=only,
    )
    choice = choose_from(curve)
    if not (over or isinstance(choice, Infeasible)):
        choice = _without_late_workers(trainer, curve, choice, remaining, choose_from)
        now = trainer.configuration
        if stays and now is not None and (only is None or now.global_batch_size == only[0]):
            choice = staying(
                curve,
                choice,
                now,
                remaining=remaining,
                switch=switch_to(choice, trainer),
                worth=worth_from_now(job, trainer),
            )
    if isinstance(choice, Infeasible):
        return curve, choice
    law = model.statistical.fixed
    if law is not None and (beside := law.beside_own(choice.configuration.global_batch_size)):
        choice = replace(choice, reason=f"{choice.reason}; {beside}")
    vms = trainer.aggregator_vms()
    if vms is not None:
        note = vms.network_note(choice.configuration.workers, choice.point.step_time_s)
        curve = replace(curve, notes=(*curve.notes, note)) if note else curve
    return curve, choice


def switch_to(choice: Choice, trainer: Trainer) -> SwitchCost:
    """What a change to the choice takes: the pause, and the pay of workers that start.

    Training continues while new workers start: what is lost is the gain during that time and the workers' cost, unless
    the curve includes it.
    """
    there = choice.configuration
    missing = max(0, there.workers - trainer.ready_on(there.vm))
    setup_s = trainer.setup_s if missing and not choice.point.setup_s else 0.0
    stall_s = _stall_s(trainer, there)  # in which nothing is trained
    starting = setup_s * trainer.workers_usd_per_hour(there.vm, missing)
    standing = stall_s * trainer.workers_usd_per_hour(there.vm, there.workers)
    return SwitchCost(stall_s, (starting + standing) / 3600.0)


def _stall_s(trainer: Trainer, there: Configuration, now: Configuration | None = None) -> float:
    """What a change of view pauses training for on average; see `Trainer.stall`."""
    found = trainer.stall(there, now)
    return 0.0 if found is None else found.mean_s


def worth_from_now(job: JobSpec, trainer: Trainer) -> Callable[[float], float] | None:
    """Worth of the result, dollars, by its time in seconds from now; None without a utility."""
    utility, elapsed_s = job.utility, trainer.elapsed_s
    return None if utility is None else (lambda left_s: utility.worth_at(elapsed_s + left_s))


def _without_late_workers(
    trainer: Trainer,
    curve: TradeoffCurve,
    choice: Choice,
    remaining: float,
    choose_from: Callable[[TradeoffCurve], Choice | Infeasible],
) -> Choice:
    """The choice among the present cluster sizes, if the job would end on one before another worker is ready.

    The curve of a job on this machine does not count the start of workers, in which the others train.
    """
    vm = choice.configuration.vm
    present = sum(trainer.supervisor.vm_of(name) == vm for name in trainer.supervisor.alive)
    if choice.point.setup_s or not 0 < present < choice.configuration.workers:
        return choice
    of, marks = curve.configurations, curve.marks
    here = (of.workers <= present) & (of.vm_index == of.vms.index(vm))
    start_s = trainer.further_start.median_s
    allowed = here & (marks.excluded == 0) & (curve.rest_s(remaining) <= start_s)
    if not np.any(allowed):
        return choice
    late = np.where(allowed, 0, len(marks.reasons))
    reasons = (*marks.reasons, "ends after the start of another worker")
    found = choose_from(replace(curve, marks=replace(marks, excluded=late, reasons=reasons)))
    if isinstance(found, Infeasible):
        return choice
    words = f"the job ends before another worker is ready, which takes {rounded(start_s, 2)} s"
    return replace(found, reason=f"{found.reason}; {words}")


def judged(search: Search, model: JobModel, trainer: Trainer, space: SearchSpace, job: JobSpec) -> Search:
    """The search with what would be chosen now and, if no other measurement can pay off, with the reason to end it."""
    curve, choice = choose_now(model, trainer, space, job)
    if isinstance(choice, Infeasible):
        return search
    search = replace(search, favourite=choice.configuration)
    next_ = next_to_profile(search, space, trainer)
    if next_ is None:
        return search  # the plan has ended
    chosen, there = curve.configurations.index(choice.configuration), curve.configurations.index(next_)
    assert chosen is not None
    assert there is not None
    missing = max(0, next_.workers - trainer.ready_on(next_.vm))
    setup_s = trainer.setup_s if missing else 0.0
    usd_per_s = trainer.workers_usd_per_hour(next_.vm, next_.workers) / 3600.0
    start_usd = setup_s * trainer.workers_usd_per_hour(next_.vm, missing) / 3600.0
    steps = search.plan.steps_per_configuration
    steps_s = steps * float(curve.step_time_s[there])
    # The training done by the measured steps is not lost.
    share = steps * next_.global_batch_size / (float(curve.epochs[there]) * model.dataset_size)
    waiting = _waiting(curve, choice, trainer.configuration, setup_s)
    # A change of view there, and one on to the choice, which is made anyway unless the job is there.
    stall_s = _stall_s(trainer, next_)
    if trainer.configuration == choice.configuration:
        stall_s += _stall_s(trainer, choice.configuration, next_)
    measuring = SwitchCost(
        max(0.0, steps_s - share * choice.point.time_s) + waiting.time_s + stall_s,
        max(0.0, steps_s * usd_per_s - share * choice.point.cost_usd)
        + start_usd
        + stall_s * usd_per_s
        + waiting.cost_usd,
    )
    enough = search_more.why_measure_no_more(
        curve,
        choice,
        model.ratio_log_sd(space, curve, chosen),
        remaining=1.0 - progress_of(trainer, model),
        measuring=measuring,
    )
    return replace(search, ended_because=enough)


def repeated(search: Search, model: JobModel, trainer: Trainer, space: SearchSpace, job: JobSpec) -> Search:
    """The search with its first point measured again, where there is time; see `repeat_first`."""
    if trainer.finished or len(search.measurements) < 2:
        return search
    curve, choice = choose_now(model, trainer, space, job)
    first = curve.find(search.measurements[0].configuration)
    if isinstance(choice, Infeasible) or first is None:
        return search
    left_s = choice.point.rest_s(1.0 - progress_of(trainer, model))
    lost = max(0.0, 1.0 - choice.point.time_s / first.time_s)
    return repeat_first(search, trainer, space, lost=lost, left_s=left_s)


def _waiting(curve: TradeoffCurve, choice: Choice, now: Configuration | None, setup_s: float) -> SwitchCost:
    """Time and cost lost by training on the present configuration while workers for the choice start."""
    here = None if now is None else curve.configurations.index(now)
    if here is None or not setup_s:
        return SwitchCost(0.0, 0.0)
    time_s, cost_usd = float(curve.time_s[here]), float(curve.cost_usd[here])
    done = setup_s / time_s  # share of the way completed meanwhile
    return SwitchCost(
        max(0.0, done * (time_s - choice.point.time_s)), max(0.0, done * (cost_usd - choice.point.cost_usd))
    )


@dataclass(frozen=True, slots=True)
class Misfit:
    """A stored model that is off from the first steps at the choice.

    Attributes:
        measured: Those steps; without memory and noise, which a few early steps do not tell.
        off: Their step time, and by how much the model is off.
    """

    measured: Measurement
    off: str


def steps_of(configuration: Configuration, trainer: Trainer, since: int = 0) -> Measurement | None:
    """The steps of a configuration after one, without noise and memory; None if there are none."""
    window = trainer.history.window(configuration, since)
    if not window:
        return None
    return replace(
        measure(configuration, window, trainer.history.noise, 0), gradient_noise=None, noise_scale=None
    )


def misfit(prior: JobModel, chosen: Configuration, trainer: Trainer, *, steps: int) -> Misfit | None:
    """Train for some steps, and compare a stored model with them; None if it fits, or no step can be compared."""
    begin = trainer.step
    trainer.until(
        lambda: trainer.wanted < chosen.workers or len(trainer.history.window(chosen, begin)) >= steps
    )
    measured = steps_of(chosen, trainer, begin)
    if trainer.finished or measured is None:
        return None
    drift = step_time_drift(prior, chosen, trainer.offer, measured.step_time_s)
    if drift <= DRIFT_MAX:
        return None
    off = f"{drift:.0%}" if drift < 10.0 else f"a factor of {rounded(1.0 + drift, 3)}"
    return Misfit(measured, f"a step takes {measured.step_time_s * 1e3:.1f} ms, {off} off its prediction")


def ask_while_training(
    ask: Callable[[], bool], trainer: Trainer, *, at_end: Callable[[BaseException], None]
) -> bool:
    """Ask the user on this thread while another thread trains, so that limits are enforced during the wait.

    Args:
        at_end: Called at once, on the other thread, when training ends with an error, which is raised here
            once there is an answer.
    """
    answered = threading.Event()
    failures: list[BaseException] = []

    def train() -> None:
        try:
            trainer.until(answered.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again on the job's thread
            failures.append(error)
            at_end(error)

    training = threading.Thread(target=train, name="scavenger-train")
    training.start()
    try:
        agreed = ask()
    finally:
        answered.set()
        training.join()
    if failures:
        raise failures[0]
    trainer.check_stop()  # a stop may have been requested after the other thread's last check
    return agreed
