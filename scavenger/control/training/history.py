"""Training history of a job: its steps and epochs, and statistics of them."""

from __future__ import annotations

import bisect
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from scavenger.control.training.goal import Goal
from scavenger.control.training.sample_counter import SampleCounter
from scavenger.control.training.view_in_effect import VIEW_WARM_UP_STEPS
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import EpochRecord, StepRecord
from scavenger.domain.snapshot import Departure
from scavenger.models.noise import NoiseTracker
from scavenger.train.transport import messages as m

RECENT_STEPS = 50
"""Number of recent steps kept per worker, for policies that compare workers."""
KEPT_STEPS = 4096
"""Minimum number of steps kept in memory, 0.5 kB each; the journal has all of them. The steps of a window that is being
measured are kept regardless of their number."""

SLOW_STEP_MAX = 10.0
"""How many times the median a slow step counts as at most; see `TrainingHistory.mean_over_median`."""


@dataclass(frozen=True, slots=True)
class EarlierAttempts:
    """Time, cost and progress of earlier attempts at a job.

    Attributes:
        step: The last applied step that was not undone.
        epoch, consumed: Position in the data: completed epochs, and samples consumed of the next epoch.
        epochs: Evaluated epochs that were not undone.
        samples_by_batch: Samples trained, by global batch size, as far as known.
        callback_runs: Runs of the callbacks that were not undone.
    """

    step: int = 0
    epoch: int = 0
    consumed: int = 0
    elapsed_s: float = 0.0
    cost_usd: float = 0.0
    epochs: tuple[EpochRecord, ...] = ()
    samples_by_batch: tuple[tuple[int, int], ...] = ()
    callback_runs: tuple[CallbackRunRecord, ...] = ()


@dataclass(slots=True)
class _WorkerSteps:
    """The steps to which a worker has contributed: how many, and the newest with their seconds and samples."""

    count: int = 0
    recent: deque[tuple[int, float, int]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))


class TrainingHistory:
    """Applied steps and evaluated epochs; a rollback removes the ones that it undoes.

    Args:
        goal: Determines the best epoch.
        before: Time, cost and progress of earlier attempts at the job; None if there were none.

    Attributes:
        steps: The newest steps of this attempt, oldest first.
        epochs: Evaluated epochs, including those of earlier attempts.
        callback_runs: Runs of the callbacks, oldest first, including those of earlier attempts.
        best_epoch: The first epoch with the best value of the goal's metric; None if none has a value.
        measured: Number of undisturbed steps, their samples and their seconds, by configuration.
        noise: Smoothed gradient noise.
        departures: Workers that left while the job continued.
        setup_s: Time from launch until ready of each worker that became ready, seconds.
        program_starts_s: Seconds from each start of a program, which is started anew for each view, to its first step.
        stalls_s: How long each change of workers that was asked for paused training, seconds; without the first view.
        batch_stalls_s: The same of changes with the same workers, as of the batch size.
        too_many: Fewest samples that did not fit into the memory of a worker's device at once; None if all did.
        aggregator_waits: The last undisturbed steps that tell what they waited for each aggregator, oldest first.
        joined_at_s: When each worker's first view took effect, seconds since the job began.
    """

    def __init__(self, goal: Goal, before: EarlierAttempts | None = None) -> None:
        self._goal, self.before = goal, before or EarlierAttempts()
        self.steps: list[StepRecord] = []
        self.epochs: list[EpochRecord] = []
        self.callback_runs = list(self.before.callback_runs)
        self.best_epoch: EpochRecord | None = None
        self._samples = SampleCounter(self.before.samples_by_batch)
        self.measured: dict[Configuration, tuple[int, int, float]] = {}
        self.noise = NoiseTracker()
        self.departures: list[Departure] = []
        self.setup_s: list[float] = []
        self.program_starts_s: list[float] = []
        self.stalls_s: list[float] = []
        self.batch_stalls_s: list[float] = []
        self._first_steps: list[StepRecord] = []
        """The first steps of the attempt's first view, and its first partial batch."""
        self.too_many: int | None = None
        self.joined_at_s: dict[str, float] = {}
        self.aggregator_waits: deque[m.StepReport] = deque(maxlen=RECENT_STEPS)
        self._steps_of: dict[str, _WorkerSteps] = {}
        self._step_times_s: dict[tuple[int, int], deque[float]] = {}
        self._workers_at: dict[int, int] = {}
        self._window = (0, 0)
        for epoch in self.before.epochs:
            self.evaluated(epoch)

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Number of the last applied step."""
        return self.before.step if self._samples.step is None else self._samples.step

    @property
    def first_view_at_s(self) -> float | None:
        """Start of training in this attempt, seconds since the job began; None before the first view."""
        return min(self.joined_at_s.values(), default=None)

    @property
    def samples(self) -> int:
        """Number of samples trained in this attempt."""
        return self._samples.samples

    @property
    def samples_by_batch(self) -> dict[int, int]:
        """Samples trained, by global batch size, including earlier attempts."""
        return self._samples.by_batch

    def fits(self, local_batch_size: int) -> bool:
        """Whether so many samples may fit into the memory of a worker's device at once, as far as known."""
        return self.too_many is None or local_batch_size < self.too_many

    def steps_since(self, step: int) -> list[StepRecord]:
        """The steps after a step, oldest first, as far as they are kept in memory."""
        found = bisect.bisect_right(self.steps, step, key=lambda record: record.step)
        return self.steps[found:]

    def window(self, configuration: Configuration, since_step: int) -> list[StepRecord]:
        """The undisturbed steps of a configuration after a step, oldest first, as far as kept in memory."""
        self._window = (since_step, self.step)
        return [
            record
            for record in self.steps_since(since_step)
            if not record.disturbed
            and record.workers == configuration.workers
            and record.global_batch_size == configuration.global_batch_size
        ]

    def step_time_s(self, *configurations: Configuration) -> float:
        """Median time of the newest undisturbed steps of the first configuration that has any, else of all steps.

        Raises:
            statistics.StatisticsError: If no step was applied.
        """
        for one in configurations:
            if times_s := self._step_times_s.get((one.workers, one.global_batch_size)):
                return statistics.median(times_s)
        every = (took for taken in self._step_times_s.values() for took in taken)
        return statistics.median([record.step_time_s for record in self.steps] or every)

    @property
    def mean_over_median(self) -> float | None:
        """Mean time of the undisturbed steps of a configuration over their median, over all configurations; at least 1.

        A run takes as long as its steps together, and a few slow ones are not seen in the median. A step counts as at
        most `SLOW_STEP_MAX` times the median, so that no single one doubles the figure. None before any step.
        """
        usual = taken = 0.0
        for times_s in self._step_times_s.values():
            middle = statistics.median(times_s)
            usual += middle * len(times_s)
            taken += sum(min(took, SLOW_STEP_MAX * middle) for took in times_s)
        return max(1.0, taken / usual) if usual > 0.0 else None

    def evaluation_s(self) -> tuple[tuple[int, float], ...]:
        """Median evaluation time at the end of an epoch, seconds, by number of workers."""
        workers_at = self._workers_at
        pauses: dict[int, list[float]] = {}
        for epoch in self.epochs:
            if epoch.step in workers_at:
                pauses.setdefault(workers_at[epoch.step], []).append(epoch.evaluation_s)
        return tuple((workers, statistics.median(values)) for workers, values in sorted(pauses.items()))

    @property
    def warm_up_s(self) -> float:
        """What the attempt's first steps and its first evaluation took more than later ones, seconds; at least 0.

        There, functions are compiled and caches filled: of the first view these are its first steps and its first
        partial batch, of which a script may compile each size anew.
        """
        more_s = 0.0
        for first in self._first_steps:
            usual = self._step_times_s.get((first.workers, first.global_batch_size))
            more_s += max(0.0, first.step_time_s - statistics.median(usual)) if usual else 0.0
        own = self.epochs[len(self.before.epochs) :]
        if len(own) > 1:
            later_s = statistics.median(epoch.evaluation_s for epoch in own[1:])
            more_s += max(0.0, own[0].evaluation_s - later_s)
        return more_s

    def steps_of(self, worker: str) -> int:
        """Number of steps to which a worker has contributed."""
        return self._steps_of[worker].count if worker in self._steps_of else 0

    def recent(self, worker: str) -> list[tuple[float, int]]:
        """Compute time (seconds) and samples of a worker in each of the last `RECENT_STEPS` steps, oldest first."""
        first, own = self.step - RECENT_STEPS, self._steps_of.get(worker, _WorkerSteps())
        return [(took, samples) for step, took, samples in own.recent if step > first]

    # ---- updates -------------------------------------------------------------------------------------------

    def viewed(self, workers: Iterable[str], at_s: float) -> None:
        """Record that a view of these workers has taken effect."""
        for worker in workers:
            self.joined_at_s.setdefault(worker, at_s)

    def stalled(self, took_s: float, *, same_workers: bool) -> None:
        """Record how long a change of view that was asked for paused training, seconds."""
        (self.batch_stalls_s if same_workers else self.stalls_s).append(took_s)

    def stepped(
        self, report: m.StepReport, configuration: Configuration | None, *, disturbed: bool, at_s: float
    ) -> StepRecord:
        """Record an applied step; returns its record.

        Args:
            configuration: The configuration in effect.
            disturbed: Whether the step's time does not represent the configuration.
            at_s: Seconds since the job began.
        """
        for worker, start, stop in report.pieces:
            own = self._steps_of.setdefault(worker, _WorkerSteps())
            own.count += 1
            own.recent.append((report.step, report.worker_compute_s[worker], stop - start))
        if report.aggregator_wait_s and not disturbed:
            self.aggregator_waits.append(report)
        record = StepRecord(
            step=report.step,
            view=report.view,
            epoch=report.epoch,
            workers=report.workers,
            global_batch_size=report.global_batch_size,
            samples=report.samples,
            step_time_s=report.step_time_s,
            compute_s=report.compute_s,
            sync_s=max(0.0, report.step_time_s - report.compute_s),
            loss=report.loss,
            mean_worker_sqnorm=report.mean_worker_sqnorm,
            mean_sqnorm=report.mean_sqnorm,
            noise_parts=report.noise_parts,
            disturbed=disturbed,
            at_s=at_s,
        )
        self.noise = self.noise.update(record)
        record = replace(record, gradient_noise=self.noise.gradient_noise, noise_scale=self.noise.noise_scale)
        self.steps.append(record)
        self._forget_steps()
        if disturbed:
            self._note_first(record)
        if not disturbed:
            key = (record.workers, record.global_batch_size)
            self._step_times_s.setdefault(key, deque(maxlen=KEPT_STEPS)).append(record.step_time_s)
        if not disturbed and configuration is not None:
            steps, samples, seconds = self.measured.get(configuration, (0, 0, 0.0))
            self.measured[configuration] = (
                steps + 1,
                samples + record.samples,
                seconds + record.step_time_s,
            )
        self._samples.add(record.step, record.global_batch_size, record.samples)
        return record

    def _note_first(self, record: StepRecord) -> None:
        first, partial = self._first_steps, record.samples < record.global_batch_size
        same_view = not first or record.view == first[0].view
        over = first and first[-1].samples < first[-1].global_batch_size
        if same_view and not over and (partial or len(first) < VIEW_WARM_UP_STEPS):
            first.append(record)

    def _forget_steps(self) -> None:
        """Drop old steps, except those of a window being measured; done in batches to keep the cost low."""
        if len(self.steps) < 2 * KEPT_STEPS:
            return
        since, asked_at = self._window
        newest = self.steps[-1].step - KEPT_STEPS
        if asked_at > newest:
            newest = min(newest, since)
        del self.steps[: bisect.bisect_right(self.steps, newest, key=lambda record: record.step)]

    def left(self, worker: str) -> None:
        """Drop the records of a worker that has left; names are never reused."""
        self._steps_of.pop(worker, None)

    def evaluated(self, epoch: EpochRecord) -> bool:
        """Record an evaluated epoch; returns whether it is the best so far."""
        value = self._goal.value(epoch)
        best = None if self.best_epoch is None else self._goal.value(self.best_epoch)
        improved = value is not None and self._goal.better(value, best)
        if improved:
            self.best_epoch = epoch
        self.epochs.append(epoch)
        if self.steps and self.steps[-1].step == epoch.step:
            self._workers_at[epoch.step] = self.steps[-1].workers
        return improved

    @property
    def rate_scale(self) -> float:
        """The learning rate that callbacks have set last, over the one that the model was compiled with."""
        return self.callback_runs[-1].rate_scale if self.callback_runs else 1.0

    def callback_run_of(self, epoch: int) -> CallbackRunRecord | None:
        """The run of the callbacks when this epoch had ended; None if there was none."""
        runs = reversed(self.callback_runs)
        return next((run for run in runs if run.epoch == epoch and run.batch is None), None)

    def roll_back(self, step: int) -> int:
        """Undo the steps after a step, and the evaluation of an epoch that ended with that step.

        Returns:
            The number of undone steps.
        """
        undone = self._samples.undo(step)
        del self.steps[bisect.bisect_right(self.steps, step, key=lambda record: record.step) :]
        self._workers_at = {at: workers for at, workers in self._workers_at.items() if at < step}
        standing = [epoch for epoch in self.epochs if epoch.step < step]
        self.callback_runs = [run for run in self.callback_runs if run.epoch < 0 or run.step < step]
        self.epochs, self.best_epoch = [], None
        for epoch in standing:
            self.evaluated(epoch)
        for own in self._steps_of.values():
            own.recent.clear()
        return undone
