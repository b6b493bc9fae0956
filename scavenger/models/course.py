"""The course of a finished run's metric, as it is stored with a job's model for similar jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scavenger.models.earlier_runs import EarlierRun
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

    def passage_sd(self) -> float:
        """Evaluations by which their noise moves the one that is first seen to reach the target; 0 if unknown.

        Of a metric that changes by `s` in an epoch, after which it is evaluated, and has the noise `n`, an evaluation
        has the value of another one that is `n / s` away. Noise is what second differences of the later half show, as
        the course is nearly straight there: they have six times its variance.
        """
        half = len(self.values) // 2
        at, late = np.array(self.epochs[half:]), np.array(self.values[half:])
        if len(late) < LATE_MIN:
            return 0.0
        noise = math.sqrt(float(np.mean(np.diff(late, 2) ** 2)) / 6.0)
        slope = abs(float(np.polyfit(at, late, 1)[0]))
        return noise / slope if slope > 0.0 else math.inf if noise else 0.0
