"""Optuna 5 [1]_: trials are jobs of a study that share what is learned, warm workers and a budget.

Pruning, cost as a second value or as a constraint, and a stop at the budget are Optuna's own means; a sampler and a
pruner that count dollars are in `scavenger.integrations.optuna_search`::

    study = client.study("digits", budget="$2")
    search = optuna.create_study(study_name="digits", storage="sqlite:///digits.db", load_if_exists=True)
    resume_interrupted(search)
    search.optimize(objective(study, job, suggest), n_trials=40, callbacks=[StopAtBudget(study)])

References:
    .. [1] Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", 2019.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from scavenger.domain.report import EpochEnded, Event, Observer, StepDone
from scavenger.errors import ConfigurationError, LimitReachedError, ScavengerError
from scavenger.integrations.trials import usual_cost_usd

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from scavenger.domain.measurement import EpochRecord
    from scavenger.pipelines.job import Job
    from scavenger.pipelines.study import Study, Trial

__all__ = ["COST", "StopAtBudget", "objective", "resume_interrupted"]

log = logging.getLogger(__name__)

COST = "cost_usd"
"""Name of the constraint, and of the attribute of a trial, that have its cost."""

Suggest = Callable[["optuna.Trial"], Mapping[str, Any]]


def objective(
    study: Study,
    job: Job,
    suggest: Suggest,
    *,
    cost: Literal["attribute", "constraint", "direction"] = "attribute",
    cost_max_usd: float | None = None,
) -> Callable[[optuna.Trial], float | tuple[float, float]]:
    """An objective for `optuna.study.Study.optimize`: the best value of the job's goal metric.

    After each epoch, the metric is reported under the number of epochs, and a trial that Optuna prunes stops at its
    next step. A trial whose parameters are on record is not run again. Each trial has the attributes `cost_usd`,
    `time_s`, `profiled` and `job_id`.

    Args:
        study: Runs the trials.
        job: The job that is searched; its goal has a metric.
        suggest: Asks the trial for its parameters, which become the job's `params`.
        cost: Where the cost goes: only among the attributes; also as a constraint, `cost_max_usd` at most (of samplers
            that know constraints); or as a second value, for a study with two directions, which cannot prune.
        cost_max_usd: The highest cost of a trial of which the search is to learn as feasible, US dollars.

    Returns:
        The objective. It raises `optuna.TrialPruned` for a trial that was pruned or stopped by the budget, and
        `ScavengerError` for one that failed, which `optimize(catch=ScavengerError)` goes on after.

    Raises:
        ConfigurationError: If the job has no goal metric, or a limit is missing.
    """
    if (metric := job.spec.goal.metric) is None:
        raise ConfigurationError("the search needs a metric; name goal.metric", key="goal.metric")
    if (cost == "constraint") != (cost_max_usd is not None):
        raise ConfigurationError("cost='constraint' and cost_max_usd go together; give both, or neither")

    def run(trial: optuna.Trial) -> float | tuple[float, float]:
        import optuna

        from scavenger.integrations.optuna_search import note_epoch

        spent = _Spent()

        def on_epoch(record: EpochRecord) -> bool:
            if cost == "direction" or metric not in record.metrics:
                return False
            note_epoch(trial, record.epoch + 1, job.spec.goal.max_epochs, spent.usd)
            trial.report(record.metrics[metric], record.epoch + 1)
            return trial.should_prune()

        try:
            done = study.run(job, suggest(trial), on_epoch=on_epoch, observer=spent)
        except LimitReachedError as used_up:
            trial.study.stop()
            raise optuna.TrialPruned(str(used_up)) from used_up
        _note(trial, done)
        if cost_max_usd is not None:
            trial.set_constraint(COST, done.cost_usd - cost_max_usd)
        if done.value is not None and done.complete:
            return (done.value, done.cost_usd) if cost == "direction" else done.value
        if done.pruned or done.state == "stopped":
            raise optuna.TrialPruned(done.error)
        if done.state == "interrupted":
            raise KeyboardInterrupt
        raise ScavengerError(done.error or f"the trial ended: {done.state}")

    return run


class _Spent(Observer):
    """What a job has cost up to its last step, US dollars; by a server, up to its last evaluation."""

    usd = 0.0

    def on_event(self, event: Event) -> None:
        """See `Observer`."""
        if isinstance(event, StepDone | EpochEnded) and event.cost_usd is not None:
            self.usd = event.cost_usd


def _note(trial: optuna.Trial, done: Trial) -> None:
    for name, value in (
        (COST, done.cost_usd),
        ("time_s", done.time_s),
        ("profiled", done.profiled),
        ("job_id", done.id),
    ):
        trial.set_user_attr(name, value)


class StopAtBudget:
    """A callback that ends a search when what is left would not pay for another trial.

    Args:
        study: Has the budget.
        reserve_usd: What must be left for another trial; None: the median cost of those that are complete.
    """

    def __init__(self, study: Study, reserve_usd: float | None = None) -> None:
        self._study, self._reserve_usd = study, reserve_usd

    def __call__(self, search: optuna.Study, trial: FrozenTrial) -> None:
        """See `optuna.study.Study.optimize`."""
        left_usd, needed_usd = self._study.left_usd, self._needed_usd()
        if left_usd <= needed_usd:
            log.info(
                "the search ends: %.3g US dollars are left, and a trial costs %.3g", left_usd, needed_usd
            )
            search.stop()

    def _needed_usd(self) -> float:
        if self._reserve_usd is not None:
            return self._reserve_usd
        return usual_cost_usd(self._study)


def resume_interrupted(search: optuna.Study) -> int:
    """Queue the parameters of trials again whose program was killed; call it before `optimize`.

    In Optuna's storage they run forever. Their jobs go on from a checkpoint, if they have one.

    Args:
        search: A study that no other program is optimizing.

    Returns:
        The number of such trials.
    """
    from optuna.trial import TrialState

    left = search.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in left:
        search.tell(trial.number, state=TrialState.FAIL)
        if trial.params:
            search.enqueue_trial(trial.params)
    return len(left)
