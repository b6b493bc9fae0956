"""The training goal, evaluated as a pure function of the epochs' metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from scavenger.domain.goal import GoalSpec
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import MetricOutcome
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import plural

_SINGLE_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Goal:
    """A target metric or a number of epochs to train."""

    spec: GoalSpec

    def check(self, names: Sequence[str]) -> None:
        """Check that the model has the goal's metric.

        Raises:
            ConfigurationError: If it has no such metric.
        """
        metric = self.spec.metric
        if metric is None or metric in names:
            return
        if metric.startswith("val_") and metric[4:] in names:
            raise ConfigurationError(
                f"goal.metric: {metric} needs validation data: give KerasJob(..., validation=(x, y)) or "
                f"LoopJob(..., metrics=['{metric}']), or write {metric[4:]}"
            )
        close = get_close_matches(metric, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigurationError(
            f"goal.metric: the model has no metric {metric!r}; it has {', '.join(names)}{hint}"
        )

    def check_direction(self) -> None:
        """Check that it is known whether the metric is to rise or to fall.

        Raises:
            ConfigurationError: If neither `goal.mode` nor the metric's name tells it.
        """
        if self.spec.direction_unknown:
            raise ConfigurationError(
                f"whether {self.spec.metric} is to rise or to fall is not known by its name: add mode: max or "
                "mode: min to goal",
                key="goal.metric",
            )

    def doubt(self, value: float | None) -> str:
        """The question to the user if the first evaluation meets the target of a metric whose direction is guessed.

        A metric that falls from 37 to 5 would be at its target at once if it were taken for one that rises.
        """
        if not (self.spec.direction_guessed and self.reached(value)):
            return ""
        falls = self.spec.direction == "min"
        return (
            f"goal.mode: the first evaluation, {value:g}, meets the target {self.spec.target:g} already, if "
            f"{self.spec.metric} is to {'fall' if falls else 'rise'}, as its name suggests: write mode: "
            f"{'min' if falls else 'max'} if so, else mode: {'max' if falls else 'min'}"
        )

    def value(self, epoch: EpochRecord) -> float | None:
        """The goal's metric in an epoch; None if it is missing or not finite."""
        value = None if self.spec.metric is None else epoch.metrics.get(self.spec.metric)
        return value if value is not None and math.isfinite(value) else None

    def better(self, value: float, best: float | None) -> bool:
        """Whether a value improves on the best so far."""
        if best is None:
            return True
        return value > best if self.spec.direction == "max" else value < best

    def reached(self, value: float | None) -> bool:
        """Whether a value meets the target; False without a target or a value.

        Frameworks tell metrics in single precision, in which an accuracy of 0.9 is 0.8999999762: a value that
        equals the target there has met it.
        """
        target = self.spec.target
        if target is None or value is None:
            return False
        near = float(np.float32(target)) if abs(target) < _SINGLE_MAX else target
        return value >= min(target, near) if self.spec.direction == "max" else value <= max(target, near)

    def outcome(self, epochs: Sequence[EpochRecord]) -> MetricOutcome | None:
        """Best value and whether the target was reached; None for a job without a metric."""
        if self.spec.metric is None:
            return None
        best: float | None = None
        for epoch in epochs:
            value = self.value(epoch)
            if value is not None and self.better(value, best):
                best = value
        return MetricOutcome(self.spec.metric, best, self.spec.target, self.reached(best))

    @property
    def text(self) -> str:
        """The target as text for fingerprints, since epochs to different goals are not comparable."""
        if self.spec.metric is None or self.spec.target is None:
            return ""
        sign = ">=" if self.spec.direction == "max" else "<="
        return f"{self.spec.metric}{sign}{self.spec.target:g}"

    @property
    def words(self) -> str:
        """The goal as shown to the user."""
        if self.spec.target is None:
            return plural(self.spec.max_epochs, "epoch")
        return f"{self.text} within {plural(self.spec.max_epochs, 'epoch')}"
