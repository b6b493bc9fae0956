"""The course of a finished run's metric, as it is stored with a job's model for similar jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.models.earlier_runs import EarlierRun
from scavenger.models.learning_curve import SAME_SAMPLES, Mode, passage_log_sd
from scavenger.models.types import Finite, Positive

POINTS_MAX = 128

LATE_MIN = 4
"""Evaluations of the later half of a course that tell its noise."""


@dataclass(frozen=True, slots=True)
class Course:
    """The evaluations of a run, thinned out.

    Attributes:
        metric: The goal's metric.
        epochs: At the evaluations, increasing.
        values: The metric there.
    """

    metric: str
    epochs: tuple[Positive, ...]
    values: tuple[Finite, ...]

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.values) or len(self.epochs) < 2:
            raise ValueError("a course needs as many values as epochs, and two")
        if any(after <= before for before, after in zip(self.epochs, self.epochs[1:], strict=False)):
            raise ValueError("the epochs of a course must increase")

    @classmethod
    def of(cls, metric: str, epochs: Sequence[float], values: Sequence[float]) -> Course | None:
        """At most `POINTS_MAX` of the finite values, even in epochs and in their logarithm; None if fewer than two."""
        known = [(at, value) for at, value in zip(epochs, values, strict=True) if math.isfinite(value)]
        if len(known) < 2:
            return None
        last, half = len(known) - 1, POINTS_MAX // 2
        places = np.concatenate((np.linspace(0, last, half), np.geomspace(1, len(known), half) - 1))
        kept = [known[place] for place in np.unique(np.round(places).astype(np.int64))]
        return cls(metric, tuple(float(at) for at, _ in kept), tuple(float(value) for _, value in kept))

    def earlier(self) -> EarlierRun:
        """The course as it tells the shapes for the forecast of another run."""
        return EarlierRun(np.array(self.epochs), np.array(self.values))

    def passage_log_sd(self, target: float, mode: Mode, *, noise: float, limit: float) -> float:
        """Standard deviation of ln of the epochs by the noise of the evaluations alone; 0 if that is unknown.

        Args:
            noise: Of an evaluation; 0 if unknown. Then that counts which the course shows.
            limit: Epochs after which a run ends.
        """
        noise = SAME_SAMPLES * noise or self.noise()
        return (
            0.0
            if noise <= 0.0
            else passage_log_sd(self.epochs, self.values, target, mode=mode, noise=noise, limit=limit)
        )

    def noise(self) -> float:
        """Standard deviation of an evaluation, by second differences of the later half; 0 if unknown.

        The course is nearly straight there, so that they have six times its variance.
        """
        late = np.array(self.values[len(self.values) // 2 :])
        return math.sqrt(float(np.mean(np.diff(late, 2) ** 2)) / 6.0) if len(late) >= LATE_MIN else 0.0


def evaluation_noise(
    metric: str | None, target: float | None, mode: Mode, *, validation: int, training: int
) -> float:
    """Standard deviation of an evaluation near the target: binomial for an accuracy; 0 if unknown.

    Args:
        validation, training: Samples of an evaluation of either data; 0 if unknown.
    """
    if (
        metric is None or target is None or "acc" not in metric or mode != "max"
    ):  # such a name may also be of a loss
        return 0.0
    samples = validation if metric.startswith("val_") else training
    return math.sqrt(target * (1.0 - target) / samples) if samples and 0.0 < target < 1.0 else 0.0
