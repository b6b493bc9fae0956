"""The batch size and the epochs of a job without a target."""

from __future__ import annotations

from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Predicted
from scavenger.models.fixed_epochs import FixedEpochs
from scavenger.models.job_model import JobModel
from scavenger.presentation.formatting import plural


def own_batch_only(job: JobSpec, model: JobModel, trainer: Trainer | None = None) -> tuple[int, str] | None:
    """The job's own batch with the reason why no other may be chosen; None if any may.

    Args:
        trainer: Of the running job; None before it runs.
    """
    fixed = model.statistical.fixed
    if fixed is None or not job.at_equal_progress:
        return None
    if fixed.critical_batch_size is None or fixed.reference_batch_size != job.reference_batch_size:
        return (
            job.reference_batch_size,
            "no noise was measured, which tells the epochs that others would need",
        )
    if job.run is not None:
        return (
            job.reference_batch_size,
            f"its program trains {plural(job.goal.max_epochs, 'epoch')} at any batch size",
        )
    if trainer is None:
        return None
    manifest, runs = trainer.supervisor.manifest, trainer.history.callback_runs
    if (manifest is not None and manifest.schedule_batch) or any(run.rates_ahead for run in runs):
        epochs = job.goal.max_epochs
        return (
            job.reference_batch_size,
            f"its learning rate follows a schedule over {plural(epochs, 'epoch')}",
        )
    return None


def resumed_epochs(
    job: JobSpec, chosen: Configuration, predicted: Predicted | None, stored: JobModel | None
) -> FixedEpochs:
    """The epochs of a resumed job without a target: by its own stored model, else as many more as were predicted."""
    epochs, own, size = job.goal.max_epochs, float(job.reference_batch_size), float(chosen.global_batch_size)
    fixed = None if stored is None else stored.statistical.fixed
    if fixed is not None and fixed.critical_batch_size is not None:
        return FixedEpochs(epochs, fixed.critical_batch_size, own)
    growth = size / own
    if predicted is not None and predicted.remaining:
        growth = predicted.epochs_ahead / predicted.remaining / epochs
    return FixedEpochs.through(epochs, own, size, growth)
