"""Predicted and actual results of a run: time, cost, progress and search overhead."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import lru_cache

import numpy as np

from scavenger.control.search.profile import Search, Spent
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.report import Actual, Predicted, SearchOutcome
from scavenger.models.job_model import JobModel
from scavenger.models.statistical import StatisticalModel

__all__ = [
    "ENDING_S",
    "NOTHING_SEARCHED",
    "actual_of",
    "predict_run",
    "progress_of",
    "remaining_samples",
    "search_outcome",
]

ENDING_S = 2.0
"""Usual time for saving a model and ending the processes: 1.4 s on two quiet processors, 1.9 to 3 s on busy ones."""

NOTHING_SEARCHED = SearchOutcome("none", "nothing was searched", (), 0.0, 0.0)


def progress_of(trainer: Trainer, model: JobModel) -> float:
    """Completed share of the way to the target, in [0, 1], as estimated by the model.

    Samples trained at batch size B count as their share of the `e(B) D` samples that the whole way takes at B.
    """
    by_batch = trainer.history.samples_by_batch
    if not by_batch:
        return 0.0
    statistical = model.statistical
    done = sum(samples / _epochs(statistical, batch) for batch, samples in by_batch.items())
    return min(1.0, done / model.dataset_size)


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


def predict_run(
    trainer: Trainer, curve: TradeoffCurve, choice: Choice, progress: float, *, end_s: float = ENDING_S
) -> Predicted:
    """Predict the whole run: time and cost so far, the start of missing workers, the rest of the way, and the end.

    While workers start, the job trains on its present workers, at the chosen batch size.

    Args:
        curve: The predictions of which the choice is one.
        progress: Completed share of the way to the target, in [0, 1].
        end_s: Time for saving the model and ending the processes.
    """
    point = choice.point
    there = point.configuration
    setup_s = setup_usd = 0.0
    left = 1.0 - progress
    if point.setup_s:
        due_s = point.setup_s  # the curve includes the setup and its cost
        due_usd = due_s * point.cost_usd / point.time_s
    else:
        due_s = due_usd = 0.0
        if there.workers > sum(
            trainer.supervisor.vm_of(name) == there.vm for name in trainer.supervisor.alive
        ):
            # if no worker is ready yet, the first has taken all the time so far, and another takes at least that long
            setup_s = statistics.median(trainer.setup_s) if trainer.setup_s else trainer.elapsed_s
            meanwhile_s = _time_meanwhile_s(trainer, curve, there)
            setup_s = min(setup_s, left * meanwhile_s)
            left -= setup_s / meanwhile_s
            setup_usd = setup_s * trainer.price_usd_per_hour(there.vm) / 3600.0 * there.workers
    now_s, now_usd = trainer.elapsed_s + setup_s, trainer.cost_usd + setup_usd
    end_usd = end_s * trainer.price_usd_per_hour(there.vm) / 3600.0 * there.workers

    def time_at(value: float) -> float:
        return now_s + due_s + left * (value - due_s) + end_s

    def cost_at(value: float) -> float:
        return now_usd + due_usd + left * (value - due_usd) + end_usd

    return Predicted(
        time_s=time_at(point.time_s),
        time_interval_s=(time_at(point.time_interval_s[0]), time_at(point.time_interval_s[1])),
        cost_usd=cost_at(point.cost_usd),
        cost_interval_usd=(cost_at(point.cost_interval_usd[0]), cost_at(point.cost_interval_usd[1])),
        step_time_s=point.step_time_s,
        epochs=point.epochs,
        spent_s=now_s + due_s,
        spent_usd=now_usd + due_usd,
        remaining=left,
        end_s=end_s,
    )


def _time_meanwhile_s(trainer: Trainer, curve: TradeoffCurve, there: Configuration) -> float:
    """Time that the whole training takes on the present workers, at another configuration's batch size."""
    now = trainer.configuration
    found = None if now is None else curve.find(replace(now, global_batch_size=there.global_batch_size))
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
        overhead_s = ended.time_s - began_s - progress * choice.point.time_s
        overhead_usd = ended.cost_usd - search.began.cost_usd - progress * choice.point.cost_usd
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
    samples = trainer.history.before.consumed + trainer.history.samples
    return Actual(
        time_s=trainer.elapsed_s,
        cost_usd=trainer.cost_usd,
        step_time_s=trainer.history.step_time_s(*configurations),
        epochs=trainer.history.before.epoch + samples / dataset_size,
        end_s=end_s,
    )
