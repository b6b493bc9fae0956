"""Outlook of a running job: what the course of its metric tells of the epochs, time and cost that are to come."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scavenger.control.search.rates import rate_of_epochs, rates_ahead, rates_so_far, schedule_of
from scavenger.control.training.trainer import Trainer
from scavenger.domain.curve import EPOCHS_FROM
from scavenger.domain.job import GoalSpec
from scavenger.domain.measurement import ConvergenceRecord
from scavenger.domain.report import EpochsForecast, Forecasted, Noted
from scavenger.models.course import Course, evaluation_noise
from scavenger.models.curve_points import EVALUATIONS_MIN
from scavenger.models.curve_shapes import RateSchedule
from scavenger.models.earlier_runs import EarlierRun
from scavenger.models.epoch_laws import LAW_LOG_SD
from scavenger.models.job_model import JobModel
from scavenger.models.learning_curve import Forecast, Hint, forecast
from scavenger.models.statistical import HINT_LOG_SD
from scavenger.presentation.formatting import plural

KEPT_RATIO = 1.25
"""A forecast is kept for the report if it, or the epochs that it is made after, have changed by this factor."""

WARNED_AFTER = 5
"""Fewest evaluations before the user is warned: earlier forecasts are mostly the prior."""

BOUND_RATIO, BOUND_LOG_SD = 3.0, 1.0
"""How many times longer `max_epochs` is than what its user expects, and the standard deviation of ln of it: bounds are
set with room to spare. By judgement; no data tells."""

WARNED_BELOW = (0.5, 0.1)
"""Probabilities of reaching the target within the limits below which the user is warned, once each."""


@dataclass(frozen=True, slots=True)
class _Course:
    """The course of the goal's metric, in epochs as long as those at the batch size in effect.

    Attributes:
        at, values: Of every evaluation with a value.
        schedule: The learning rates of the whole run, or so far; None if they do not change, or are not known.
        worth: Epochs at that batch size for which one of those so far counts.
        limit: Where the run ends at the latest.
        epochs: Evaluated epochs, whatever their batch size.
        prior: What is known of the epochs at the batch size in effect.
    """

    at: tuple[float, ...]
    values: tuple[float, ...]
    schedule: RateSchedule | None
    worth: float
    limit: float
    epochs: int
    prior: Hint
    global_batch_size: int


_Key = tuple[JobModel | None, int, int]


class EpochForecaster:
    """Forecasts the epochs of one job whenever it has evaluated another one.

    Attributes:
        searching: Whether the configuration in effect is only tried.
        forecasts: Forecasts so far that are kept for the report.
    """

    def __init__(self, trainer: Trainer, goal: GoalSpec) -> None:
        self._trainer, self._goal = trainer, goal
        self._told: tuple[_Key, JobModel] | None = None
        self._alone: tuple[_Key, Forecast | None] | None = None
        self._warned: set[float] = set()
        self.searching = False
        self.forecasts: list[EpochsForecast] = []

    def told(self, model: JobModel) -> JobModel:
        """The model with the level of its epochs set by the metric's course; itself while that tells nothing."""
        key = self._key(model)
        if key is None:
            return model
        if self._told is None or self._told[0][0] is not model or self._told[0][1:] != key[1:]:
            self._told = (key, self._tell(model))
        return self._told[1]

    def alone(self, dataset_size: int, expected_epochs: float | None) -> float | None:
        """The share of the way that is behind by the metric's course alone, before a model was fitted; None if unknown.

        Args:
            expected_epochs: What is known of the epochs; None if nothing.
        """
        key = self._key(None)
        if key is not None and (self._alone is None or self._alone[0] != key):
            prior = None if expected_epochs is None else Hint(expected_epochs, HINT_LOG_SD)
            self._alone = (key, self._forecast(self._course(1.0, dataset_size, prior), dataset_size))
        found = None if self._alone is None else self._alone[1]
        return None if found is None else found.seen / found.total

    def course(self) -> Course | None:
        """The course of the goal's metric, to be stored; None without a metric or with fewer than two evaluations."""
        metric, rows = self._goal.metric, self._rows()
        return (
            None
            if metric is None
            else Course.of(metric, [at for at, *_ in rows], [value for *_, value in rows])
        )

    def _rows(self) -> list[tuple[int, int, float]]:
        """Epochs, step and value of every evaluation with a value."""
        goal = self._trainer.goal
        return [
            (epoch.epoch + 1, epoch.step, value)
            for epoch in self._trainer.history.epochs
            if (value := goal.value(epoch)) is not None
        ]

    def _key(self, model: JobModel | None) -> _Key | None:
        """What a forecast depends on; None if there can be none."""
        history, now = self._trainer.history, self._trainer.configuration
        if self._goal.target is None or now is None or not (history.epochs and history.samples):
            return None
        return model, history.epochs[-1].step, now.global_batch_size

    def missed(self, model: JobModel) -> ConvergenceRecord | None:
        """When a run that has ended short of its target would have reached it; None if its course is too short."""
        course = self._course_by(model) if self._key(model) is not None else None
        if course is None or len(course.values) < WARNED_AFTER:
            return None
        found = self._found(course, self._earlier(model), limit=None)
        if found is None:
            return None
        return ConvergenceRecord(course.global_batch_size, found.total, 1.0, max(found.log_sd, LAW_LOG_SD))

    def _course_by(self, model: JobModel) -> _Course | None:
        """The course in epochs at the batch size in effect, as the model's law of epochs converts the others."""
        now, samples = self._trainer.configuration, self._trainer.history.samples_by_batch
        assert now is not None
        if not samples:
            return None
        sizes = np.array([now.global_batch_size, *samples], dtype=np.float64)
        needed, log_sd = model.statistical.predict(sizes)
        counts = np.array(list(samples.values()), dtype=np.float64)
        # A sample at another batch size is worth as much more as fewer of them reach the target.
        worth = float(np.sum(counts * needed[0] / needed[1:]) / counts.sum())
        known = None if model.relative_only else Hint(float(needed[0]), max(float(log_sd[0]), 1e-3))
        return self._course(worth, model.dataset_size, known)

    def _earlier(self, model: JobModel) -> tuple[EarlierRun, ...]:
        """The stored course of the goal's metric, if there is one."""
        course = model.course
        return () if course is None or course.metric != self._goal.metric else (course.earlier(),)

    def _tell(self, model: JobModel) -> JobModel:
        course = self._course_by(model)
        found = self._forecast(course, model.dataset_size, self._earlier(model))
        if course is None or found is None:
            return model
        note = (
            f"{EPOCHS_FROM}the course of {self._goal.metric} over {plural(course.epochs, 'epoch')}"
            f"{'' if model.relative_only else ' and what was known before'}"
        )
        level = model.statistical.at_level(course.global_batch_size, found.total, found.log_sd, note)
        return replace(model, statistical=level)

    def _forecast(
        self, course: _Course | None, dataset_size: int, earlier: Sequence[EarlierRun] = ()
    ) -> Forecast | None:
        """Forecast and publish; None if the course is too short."""
        found = None if course is None else self._found(course, earlier, limit=course.limit)
        if course is not None and found is not None:
            self._publish(found, course, dataset_size)
        return found

    def _found(
        self, course: _Course, earlier: Sequence[EarlierRun], *, limit: float | None
    ) -> Forecast | None:
        target = self._goal.target
        if target is None:
            return None
        found = forecast(
            course.at,
            course.values,
            target,
            mode=self._goal.direction,
            limit=limit,
            hint=course.prior,
            schedule=course.schedule,
            earlier=earlier,
            noise=self._noise(),
        )
        # Values may be of such a size that their differences overflow.
        return found if math.isfinite(found.total) else None

    def _noise(self) -> float:
        """Standard deviation of an evaluation near the target: binomial for an accuracy; 0 if unknown."""
        goal, manifest = self._goal, self._trainer.supervisor.manifest
        if manifest is None:
            return 0.0
        return evaluation_noise(
            goal.metric,
            goal.target,
            goal.direction,
            validation=manifest.validation_size,
            training=manifest.dataset_size,
        )

    def _course(self, worth: float, dataset_size: int, known: Hint | None) -> _Course | None:
        """The course so far; None if it is too short, or has reached the target.

        Args:
            worth: Epochs at the batch size in effect for which an epoch so far counts.
            known: What is known of the epochs; None if only the bound.
        """
        history, goal, now = self._trainer.history, self._trainer.goal, self._trainer.configuration
        rows = self._rows()
        if now is None or len(rows) < EVALUATIONS_MIN or any(goal.reached(value) for *_, value in rows):
            return None
        epochs, at = history.epochs[-1].epoch + 1, tuple(epoch * worth for epoch, *_ in rows)
        limit = at[-1] + self._goal.max_epochs - epochs
        return _Course(
            at=at,
            values=tuple(value for *_, value in rows),
            schedule=self._schedule(
                at, [(epoch, step) for epoch, step, _ in rows], worth, limit, dataset_size
            ),
            worth=worth,
            limit=limit,
            epochs=epochs,
            prior=known or Hint(self._goal.max_epochs / BOUND_RATIO, BOUND_LOG_SD),
            global_batch_size=now.global_batch_size,
        )

    def _schedule(
        self,
        at: Sequence[float],
        ends: Sequence[tuple[int, int]],
        worth: float,
        limit: float,
        dataset_size: int,
    ) -> RateSchedule | None:
        """The rates of the whole run where the optimizer or a callback tells them; else those so far."""
        history, now = self._trainer.history, self._trainer.configuration
        manifest = self._trainer.supervisor.manifest
        if manifest is None or now is None:
            return None
        of_steps = schedule_of(manifest.optimizer)
        if of_steps is not None:
            own = manifest.schedule_batch
            steps_per_unit = -(-dataset_size // (own or now.global_batch_size))
            steps = [epoch * steps_per_unit if own else step for epoch, step in ends]
            return rates_ahead(of_steps, at, steps, steps_per_unit=steps_per_unit, limit=limit)
        of_epochs = rate_of_epochs(history.callback_runs)
        if of_epochs is not None:
            return rates_ahead(of_epochs, at, [epoch for epoch, _ in ends], steps_per_unit=1.0, limit=limit)
        return rates_so_far(history.epochs, history.callback_runs, worth)

    def _publish(self, found: Forecast, course: _Course, dataset_size: int) -> None:
        """Tell observers of the forecast, and warn if the limits come too early."""
        trainer = self._trainer
        epoch_s, usd_per_s = self._epoch_s(course, dataset_size), self._usd_per_s()
        left_s = (found.total - found.seen) * epoch_s
        limits = trainer.limits
        reach = {f"within {plural(self._goal.max_epochs, 'epoch')}": 1.0 - found.never}
        if limits.deadline_s is not None:
            more = (limits.deadline_s - trainer.elapsed_s) / epoch_s
            reach[f"within {limits.deadline_s:g} s"] = found.reached_by(found.seen + more)
        if limits.budget_usd is not None:
            more = (limits.budget_usd - trainer.cost_usd) / (epoch_s * usd_per_s) if usd_per_s else math.inf
            reach[f"within ${limits.budget_usd:g}"] = found.reached_by(found.seen + more)
        tightest = min(reach, key=lambda words: reach[words])
        before = course.epochs - found.seen
        made = EpochsForecast(
            after_epochs=course.epochs,
            epochs=before + found.total,
            epochs_interval=(before + found.low, before + found.high),
            time_s=trainer.elapsed_s + left_s,
            cost_usd=trainer.cost_usd + left_s * usd_per_s,
            never=found.never,
            within_limits=min(reach[tightest], 1.0 - found.never),
        )
        kept = not self.forecasts or _differs(made, self.forecasts[-1])
        if kept:
            self.forecasts.append(made)
        trainer.tell(Forecasted(made, kept))
        self._warn(made.within_limits, tightest, len(course.values))

    def _warn(self, probability: float, limit: str, evaluations: int) -> None:
        crossed = {most for most in WARNED_BELOW if probability < most}
        if evaluations >= WARNED_AFTER and crossed - self._warned:
            self._warned |= crossed
            # the report tells how it came, so it does not repeat what looked likely before
            words = (
                f"at this rate {self._goal.metric} {self._goal.target:g} is reached with "
                f"{max(1.0, 100.0 * probability):.0f} % probability {limit}"
            )
            self._trainer.tell(Noted("warning", words))

    def _epoch_s(self, course: _Course, dataset_size: int) -> float:
        """Time of an epoch with its evaluation, at the configuration in effect.

        One that a search only tries will not last, so meanwhile the undisturbed steps of all that were tried count.
        """
        now, history = self._trainer.configuration, self._trainer.history
        assert now is not None
        pauses = [pause_s for _, pause_s in history.evaluation_s()]
        pause_s = statistics.median(pauses) if pauses else 0.0
        if self.searching and history.measured:
            samples = sum(samples for _, samples, _ in history.measured.values())
            seconds = math.fsum(seconds for *_, seconds in history.measured.values())
            return (dataset_size / samples * seconds + pause_s) / course.worth
        steps = -(-dataset_size // now.global_batch_size)
        return steps * history.step_time_s(now) * (history.mean_over_median or 1.0) + pause_s

    def _usd_per_s(self) -> float:
        trainer, now = self._trainer, self._trainer.configuration
        assert now is not None
        return (trainer.workers_usd_per_hour(now.vm, now.workers) + trainer.shared_usd_per_hour) / 3600.0


def _differs(made: EpochsForecast, last: EpochsForecast) -> bool:
    figures = ((made.epochs, last.epochs), (float(made.after_epochs), float(last.after_epochs)))
    return any(abs(math.log(new / old)) >= math.log(KEPT_RATIO) for new, old in figures)
