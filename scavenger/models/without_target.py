"""The law of a run without a target, by what is known of the critical batch size, with notes for the user."""

from __future__ import annotations

import math

import numpy as np

from scavenger.models.critical_batch import ScalePrior, three_digits
from scavenger.models.fixed_epochs import FixedEpochs

SHOWN = 3
"""Batch sizes whose epochs a note lists."""


def without_target(
    epochs: float, scale: ScalePrior, batch_sizes: tuple[int, ...], *, reference: int | None, known: bool
) -> tuple[FixedEpochs, tuple[str, ...]]:
    """The law of a run without a target, and notes on it for the user.

    Args:
        epochs: `goal.max_epochs`.
        scale: What is known of B*.
        batch_sizes: Of the search space, increasing.
        reference: B0; None if each batch size trains as many epochs.
        known: Whether B* rests on measured noise, or on a stored model.
    """
    critical = math.exp(scale.log_mean) if scale.informed else None
    if len(batch_sizes) == 1:  # nothing to compare progress with
        return FixedEpochs(epochs, None, reference), (_lasts(epochs),)
    if reference is None:
        return FixedEpochs(epochs, critical), _as_they_stand(epochs, critical, scale)
    law = FixedEpochs(epochs, critical if known else None, float(reference))
    others = [size for size in batch_sizes if size != reference]
    shown = [others[at] for at in sorted({round(at) for at in np.linspace(0, len(others) - 1, SHOWN)})]
    needed = ", ".join(
        f"{count:g} at {size}"
        for size, count in zip(shown, law.epochs(np.array(shown, dtype=np.float64)), strict=True)
    )
    fixed = f"--epochs-fixed compares {epochs:g} of each"
    if not known:
        return law, (
            f"no noise was measured, so a larger batch is taken to need as many steps, the most that it can: for "
            f"{epochs:g} epochs at batch {reference}, {needed}; {fixed}",
        )
    far = float(max(others, key=lambda size: abs(math.log(size / reference))))
    doubt = math.exp(scale.log_sd * abs(_slope(far, critical) - _slope(float(reference), critical)))
    return law, (
        f"compared at equal progress: that of {epochs:g} epochs at batch {reference} takes {needed}, known to a "
        f"factor of {doubt:.2g}; {fixed}",
        scale.note,
    )


def _slope(size: float, critical: float | None) -> float:
    """d ln (1 + B / B*) / d ln (1 / B*), in [0, 1)."""
    return 0.0 if critical is None else size / (size + critical)


def _as_they_stand(epochs: float, critical: float | None, scale: ScalePrior) -> tuple[str, ...]:
    lasts = _lasts(epochs)
    if critical is None:
        return lasts, "no noise scale was measured: how much progress a larger batch gives up is unknown"
    worth = f"{epochs:g} / (1 + B / {three_digits(critical)})"
    return (
        lasts,
        f"progress: {epochs:g} epochs at batch B do the work of {worth} of very small batches; {scale.note}",
    )


def _lasts(epochs: float) -> str:
    return f"no target: every run lasts {epochs:g} epochs"
