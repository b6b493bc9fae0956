"""What a run is predicted to come to, and what it came to."""

from __future__ import annotations

import statistics
from functools import lru_cache

import numpy as np

from scavenger.control.search.profile import Search, Spent
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice
from scavenger.domain.report import Actual, Predicted, SearchOutcome
from scavenger.models.job_model import JobModel
from scavenger.models.statistical import StatisticalModel

__all__ = [
    "NOTHING_SEARCHED",
    "actual_of",
    "predict_run",
    "progress_of",
    "remaining_samples",
    "search_outcome",
]

NOTHING_SEARCHED = SearchOutcome("none", "nothing was searched", (), 0.0, 0.0)


def progress_of(trainer: Trainer, model: JobModel) -> float:
    """Share of the way to the target that the steps so far have gone, in [0, 1], as the model sees it.

    Samples trained at batch size B count as their share of the `e(B) D` that the whole way would take at B.
    """
    by_batch = trainer.history.samples_by_batch
    if not by_batch:
        return 0.0
    statistical = model.statistical
    done = sum(samples / _epochs(statistical, batch) for batch, samples in by_batch.items())
    return min(1.0, done / model.dataset_size)


@lru_cache(maxsize=1024)
def _epochs(statistical: StatisticalModel, global_batch_size: int) -> float:
    """To the target; kept, since it is asked at every step, and an average over thousands of laws takes longer."""
    epochs, _ = statistical.predict(np.array([global_batch_size], dtype=np.float64))
    return float(epochs[0])


def remaining_samples(trainer: Trainer, model: JobModel | None) -> float | None:
    """What the model expects to be left, at the batch size in effect; None where nothing is known."""
    if model is None or trainer.configuration is None:
        return None
    epochs = _epochs(model.statistical, trainer.configuration.global_batch_size)
    return max(0.0, 1.0 - progress_of(trainer, model)) * epochs * model.dataset_size


def predict_run(trainer: Trainer, choice: Choice, progress: float) -> Predicted:
    """The whole run, as seen from here: what is spent, the start of missing workers, and what is left."""
    point = choice.point
    there = point.configuration
    setup_s = setup_usd = 0.0
    if point.setup_s:
        due_s = point.setup_s  # the curve knows of it, and what it costs
        due_usd = due_s * point.cost_usd / point.time_s
    else:
        due_s = due_usd = 0.0
        if there.workers > sum(
            trainer.supervisor.vm_of(name) == there.vm for name in trainer.supervisor.alive
        ):
            # where no worker is ready yet, the first one has taken all the time so far, and one more takes no less
            setup_s = statistics.median(trainer.setup_s) if trainer.setup_s else trainer.elapsed_s
            setup_usd = setup_s * trainer.price_usd_per_hour(there.vm) / 3600.0 * there.workers
    now_s, now_usd, left = trainer.elapsed_s + setup_s, trainer.cost_usd + setup_usd, 1.0 - progress

    def time_at(value: float) -> float:
        return now_s + due_s + left * (value - due_s)

    def cost_at(value: float) -> float:
        return now_usd + due_usd + left * (value - due_usd)

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
    )


def search_outcome(search: Search, choice: Choice | None, progress: float, trainer: Trainer) -> SearchOutcome:
    """How the search went, with what its steps would have saved had they been run at the choice.

    Args:
        choice: None where nothing was chosen.
        progress: Share of the way to the target that lay behind at the choice.
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


def actual_of(trainer: Trainer, dataset_size: int, chosen: Configuration | None) -> Actual | None:
    """What the run came to, once its processes have ended; None where no step was applied.

    Args:
        chosen: Where the step time is to be told of; where it ran on instead, if it never got there.
    """
    if not trainer.history.samples:
        return None
    places = [place for place in (chosen, trainer.configuration) if place is not None]
    samples = trainer.history.before.consumed + trainer.history.samples
    return Actual(
        time_s=trainer.elapsed_s,
        cost_usd=trainer.cost_usd,
        step_time_s=trainer.history.step_time_s(*places),
        epochs=trainer.history.before.epoch + samples / dataset_size,
    )
