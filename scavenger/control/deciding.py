"""The search's deciding part: from what is known to a choice, and whether live steps bear it out."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

from scavenger.control.outcome import predict_run, progress_of
from scavenger.control.profiling import Search
from scavenger.control.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Choice
from scavenger.domain.job import GoalSpec, JobSpec
from scavenger.domain.measurement import ConvergenceRecord, Profile
from scavenger.errors import ConfigurationError
from scavenger.models.job_model import JobModel
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.search.reuse import DRIFT_MAX, step_time_drift

__all__ = ["ask_while_training", "decide", "fit_model", "still_fits"]


def fit_model(
    search: Search,
    trainer: Trainer,
    space: SearchSpace,
    goal: GoalSpec,
    *,
    dataset_size: int,
    convergence: tuple[ConvergenceRecord, ...],
    prior: JobModel | None,
) -> JobModel:
    """The models, fitted to what was measured, to finished runs, and to a stored model where there is one.

    Raises:
        ConfigurationError: If nothing was measured and nothing is stored, or it cannot be fitted.
    """
    if prior is None and not search.measurements:
        raise ConfigurationError(
            "profile: max_time or max_cost was used up before one configuration was measured; raise it"
        )
    measured = Profile(
        measurements=tuple(search.measurements),
        dataset_size=dataset_size,
        evaluation_s=trainer.course.evaluation_s(),
        setup_s=statistics.median(trainer.setup_s) if trainer.setup_s else 0.0,
        convergence=convergence,
    )
    try:
        return JobModel.fit(
            measured,
            space=space,
            epochs_hint=goal.epochs_hint,
            max_epochs=goal.max_epochs,
            fixed_epochs=goal.target is None,
            prior=prior,
        )
    except ValueError as error:
        raise ConfigurationError(f"the models cannot be fitted: {error}") from None


def decide(search: Search, model: JobModel, trainer: Trainer, space: SearchSpace, job: JobSpec) -> None:
    """Predict every configuration and choose, with what is spent and done so far; fills in the search.

    Limits are held against the rest of the way, since what was trained so far need not be trained again.
    """
    search.progress = progress_of(trainer, model)
    search.ended_s, search.ended_usd = trainer.elapsed_s, trainer.cost_usd
    deadline_s, budget_usd, remaining = (
        job.constraints.deadline,
        job.constraints.budget,
        1.0 - search.progress,
    )
    search.curve = build_curve(
        model,
        space,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        workers_max=trainer.workers_max,
        spent_time_s=search.ended_s,
        spent_usd=search.ended_usd,
        remaining=remaining,
    )
    search.choice = choose(
        search.curve,
        job.objective if isinstance(job.objective, str) else "utility",
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        spent_time_s=search.ended_s,
        spent_usd=search.ended_usd,
        remaining=remaining,
        worth=None if job.utility is None else job.utility.worth_at,
    )
    if isinstance(search.choice, Choice):
        search.predicted = predict_run(trainer, search.choice, search.progress)


def still_fits(prior: JobModel, chosen: Configuration, trainer: Trainer, *, steps: int) -> bool:
    """Train on for some steps, and tell whether a stored model agrees with them; notes where it does not."""
    begin = trainer.step
    trainer.until(
        lambda: trainer.wanted < chosen.workers or len(trainer.course.window(chosen, begin)) >= steps
    )
    window = trainer.course.window(chosen, begin)
    if trainer.finished or not window:
        return True
    live_s = statistics.median(record.step_time_s for record in window)
    drift = step_time_drift(prior, chosen, trainer.offer, live_s)
    if drift <= DRIFT_MAX:
        return True
    trainer.note(
        f"the stored model does not fit this machine: a step takes {live_s * 1e3:.1f} ms, {drift:.0%} off "
        "what it says; profiling after all"
    )
    return False


def ask_while_training(
    ask: Callable[[], bool], trainer: Trainer, *, at_end: Callable[[BaseException], None]
) -> bool:
    """Ask on this thread while another one trains, so that limits hold however long the answer takes.

    Args:
        at_end: Called at once, on the other thread, when training ends with an error, which is raised here
            once there is an answer.
    """
    answered = threading.Event()
    failures: list[BaseException] = []

    def train() -> None:
        try:
            trainer.until(answered.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again on the thread that drives the job
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
    trainer.heed_stop()  # the wish may have come between the other thread's last look and the answer
    return agreed
