"""Predicted and actual results of a run: time, cost, progress and search overhead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from scavenger.control.search.profile import Search, Spent
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.report import Actual, Predicted, SearchOutcome
from scavenger.models.job_model import LOG_SD_MAX, JobModel
from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.run_ahead import RunAhead
from scavenger.models.starts import Lasting, Starts, first_start
from scavenger.models.statistical import StatisticalModel

SETUP_LOG_SD = 0.3
"""Standard deviation of ln of the start of a VM."""

NOTHING_SEARCHED = SearchOutcome("none", "nothing was searched", (), 0.0, 0.0)


def progress_of(trainer: Trainer, model: JobModel) -> float:
    """Completed share of the way to the target, in [0, 1], as estimated by the model.

    Samples trained at batch size B count as their share of the `e(B) D` samples that the whole way takes at B.
    """
    return min(1.0, _behind(trainer, model))


def _behind(trainer: Trainer, model: JobModel) -> float:
    """Samples trained over those that the model expected; above 1 in a run that takes longer."""
    statistical = model.statistical
    by_batch = trainer.history.samples_by_batch
    return (
        sum(samples / _epochs(statistical, batch) for batch, samples in by_batch.items()) / model.dataset_size
    )


@lru_cache(maxsize=1024)
def _epochs(statistical: StatisticalModel, global_batch_size: int) -> float:
    """Epochs to the target; cached, since every step needs it and averaging thousands of laws is slow."""
    epochs, _ = statistical.predict(np.array([global_batch_size], dtype=np.float64))
    return float(epochs[0])


def remaining_samples(trainer: Trainer, model: JobModel | None) -> float | None:
    """Expected remaining samples at the batch size in effect; None if unknown."""
    if model is None or trainer.configuration is None:
        return None
    epochs = _epochs(model.statistical, trainer.configuration.global_batch_size)
    return max(0.0, 1.0 - progress_of(trainer, model)) * epochs * model.dataset_size


def run_ahead(
    trainer: Trainer, model: JobModel, curve: TradeoffCurve, choice: Choice, *, end: Lasting
) -> RunAhead:
    """What is left of the run: the start of missing workers, the rest of the way, and the end.

    While workers start, the job trains on its present workers, at the chosen batch size; how long they take, and what
    is trained meanwhile, is uncertain as all the rest is, see `models.run_ahead`.

    Args:
        curve: The predictions of which the choice is one.
        end: Saving the model and ending the processes.
    """
    point, there = choice.point, choice.configuration
    training_s, usd_per_s = point.time_s - point.setup_s, point.cost_usd / point.time_s
    workers_usd_per_s = trainer.workers_usd_per_hour(there.vm, there.workers) / 3600.0
    present = sum(trainer.supervisor.vm_of(name) == there.vm for name in trainer.supervisor.alive)
    missing = trainer.further_start if there.workers > present else None
    meanwhile_s, start_usd_per_s = _time_meanwhile_s(trainer, curve, there, present), workers_usd_per_s
    if point.setup_s:  # the curve includes the setup, during which nothing trains
        missing, meanwhile_s, start_usd_per_s = Lasting(point.setup_s, SETUP_LOG_SD), math.inf, usd_per_s
    epochs, epochs_log_sd = model.statistical.predict(np.array([there.global_batch_size], dtype=np.float64))
    log_sd = math.log((point.time_interval_s[1] - point.setup_s) / training_s) / INTERVAL_Z
    behind = _behind(trainer, model)
    return RunAhead(
        whole=Lasting(training_s, math.sqrt(max(0.0, log_sd**2 - float(epochs_log_sd[0]) ** 2))),
        meanwhile_s=meanwhile_s,
        usd_per_s=usd_per_s,
        start_usd_per_s=start_usd_per_s,
        behind=behind,
        share_max=behind + _epochs_allowed(trainer, model) / float(epochs[0]),
        epochs_log_sd=min(float(epochs_log_sd[0]), LOG_SD_MAX),
        first=trainer.first_start,
        missing=missing,
        end=end,
        end_paid=trainer.terms() is not None,
        stall=_pause(trainer, there),
    )


def _pause(trainer: Trainer, there: Configuration) -> Lasting | None:
    """What pauses training until it goes on at a configuration; None if nothing is known to."""
    if trainer.configuration is None:
        return trainer.program_start
    return None if trainer.configuration == there else trainer.stall(there)


def predict_run(trainer: Trainer, model: JobModel, choice: Choice, rest: RunAhead) -> Predicted:
    """Predict the whole run, from its start to its end, by what is left of it."""
    point = choice.point
    ahead = rest.predict()
    now_s, now_usd = trainer.elapsed_s, trainer.cost_usd
    low_s, high_s = ahead.time_interval_s
    low_usd, high_usd = ahead.cost_interval_usd
    meanwhile = ahead.share * (1.0 - ahead.remaining) - rest.behind
    spent_epochs = _epochs_trained(trainer, model.dataset_size) + meanwhile * point.epochs
    return Predicted(
        time_s=now_s + ahead.time_s,
        time_interval_s=(now_s + low_s, now_s + high_s),
        cost_usd=now_usd + ahead.cost_usd,
        cost_interval_usd=(now_usd + low_usd, now_usd + high_usd),
        step_time_s=point.step_time_s,
        epochs=spent_epochs + ahead.share * ahead.remaining * point.epochs,
        spent_s=now_s + ahead.start_s,
        spent_usd=now_usd + ahead.start_usd,
        remaining=ahead.remaining,
        end_s=rest.end.median_s,
        spent_epochs=spent_epochs,
    )


def predict_anew(trainer: Trainer, model: JobModel, choice: Choice, rest: RunAhead) -> Predicted:
    """Predict a run that begins at the choice, as after a plan: it starts all of its workers, and searches nothing.

    Args:
        rest: As of `run_ahead` for the run that made the choice.
    """
    point, terms = choice.point, trainer.terms()
    own, earlier = trainer.starts.first_s, trainer.earlier_starts.first_s
    start = first_start(Starts((*earlier, statistics.median(own)) if own else earlier))
    if terms is not None and terms.setup_s:
        start = Lasting(terms.setup_s, SETUP_LOG_SD)
    workers = point.configuration.workers
    usd_per_s = trainer.workers_usd_per_hour(point.configuration.vm, workers) / 3600.0
    anew = replace(
        rest,
        meanwhile_s=math.inf,
        start_usd_per_s=usd_per_s if terms is None else rest.usd_per_s,
        behind=0.0,
        share_max=math.inf if model.statistical.fixed is not None else model.max_epochs / point.epochs,
        first=(start, 0.0),
        missing=None,
        stall=trainer.program_start,
    ).predict()
    return Predicted(
        time_s=anew.time_s,
        time_interval_s=anew.time_interval_s,
        cost_usd=anew.cost_usd,
        cost_interval_usd=anew.cost_interval_usd,
        step_time_s=point.step_time_s,
        epochs=point.epochs * anew.share,
        spent_s=anew.start_s,
        spent_usd=anew.start_usd,
        remaining=anew.remaining,
        end_s=rest.end.median_s,
        spent_epochs=(1.0 - anew.remaining) * anew.share * point.epochs,
    )


def _epochs_allowed(trainer: Trainer, model: JobModel) -> float:
    """Epochs until the run ends, whether its target is reached or not; more than 0, infinite without a target."""
    if model.statistical.fixed is not None:
        return math.inf
    return max(model.max_epochs - _epochs_trained(trainer, model.dataset_size), 1e-6)


def _epochs_trained(trainer: Trainer, dataset_size: int) -> float:
    """Epochs that are trained, at whatever batch sizes; those of earlier attempts too."""
    before = trainer.history.before
    return before.epoch + (before.consumed + trainer.history.samples) / dataset_size


def _time_meanwhile_s(trainer: Trainer, curve: TradeoffCurve, there: Configuration, present: int) -> float:
    """Time that the whole training takes on the present workers, at another configuration's batch size."""
    now = trainer.configuration or replace(there, workers=max(1, min(present, there.workers)))
    found = curve.find(replace(now, global_batch_size=there.global_batch_size))
    return math.inf if found is None else found.time_s


def search_outcome(search: Search, choice: Choice | None, progress: float, trainer: Trainer) -> SearchOutcome:
    """Summarize the search; its overhead excludes the training progress that its steps made.

    Args:
        choice: The chosen configuration's prediction; None if nothing was chosen.
        progress: Completed share of the way to the target at the time of the choice.
    """
    ended = search.ended or Spent.by_now(trainer)
    overhead_s = overhead_usd = None
    if not search.plan.configurations:
        overhead_s = overhead_usd = 0.0
    elif choice is not None and trainer.history.first_view_at_s is not None:
        began_s = max(search.began.time_s, trainer.history.first_view_at_s)
        # below 0 where the search trained at faster or cheaper configurations than the chosen one: it added nothing
        overhead_s = max(ended.time_s - began_s - progress * choice.point.time_s, 0.0)
        spent_usd = ended.cost_usd - search.began.cost_usd
        overhead_usd = max(spent_usd - progress * choice.point.cost_usd, 0.0)
    return SearchOutcome(
        strategy=search.plan.strategy,
        reason=search.plan.reason,
        profiled=search.measurements,
        time_s=ended.time_s - search.began.time_s,
        cost_usd=ended.cost_usd - search.began.cost_usd,
        overhead_s=overhead_s,
        overhead_usd=overhead_usd,
    )


def actual_of(
    trainer: Trainer, dataset_size: int, chosen: Configuration | None, *, end_s: float = 0.0
) -> Actual | None:
    """Actual results of a run whose processes have ended; None if no step was applied.

    Args:
        chosen: Configuration whose step time is reported; if the job never ran on it, its last configuration is used.
        end_s: Time since the end of training.
    """
    if not trainer.history.samples:
        return None
    configurations = [one for one in (chosen, trainer.configuration) if one is not None]
    return Actual(
        time_s=trainer.elapsed_s,
        cost_usd=trainer.cost_usd,
        step_time_s=trainer.history.step_time_s(*configurations),
        epochs=_epochs_trained(trainer, dataset_size),
        end_s=end_s,
        first_start_s=_median(trainer.starts.first_s),
        start_s=_median(trainer.starts.further_s),
        rest_of_start_s=trainer.rest_of_start_s,
        program_start_s=_median(trainer.history.program_starts_s) or trainer.history.warm_up_s,
    )


def _median(times_s: Sequence[float]) -> float:
    return statistics.median(times_s) if times_s else 0.0
