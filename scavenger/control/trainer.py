"""Drives a coordinator: records what it reports, answers epochs, replaces lost workers, holds the limits."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from scavenger.control.goal import Goal
from scavenger.control.journal import Journal
from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.measurement import EpochRecord, Measurement, StepRecord
from scavenger.domain.report import EpochEnded, Event, Noted, Observer, StepDone, ViewChanged, WorkerChanged
from scavenger.elastic.membership import WorkerState
from scavenger.errors import Interrupted, LimitReachedError, WorkersLostError
from scavenger.models.noise import NoiseTracker
from scavenger.train import messages as m
from scavenger.train.coordinator import Coordinator, Lost, Started

__all__ = ["Limits", "Trainer", "measure"]

VIEW_WARM_UP_STEPS = 3
"""The first steps of a view, whose times tell of caches and new shapes rather than of the configuration."""
REPLACEMENTS_MAX = 3
"""Workers replaced over a run, before it goes on with what is left: a create-die loop must end."""
DRAIN_S = 5.0
"""Time kept in reserve below a deadline or budget, for saving a small model and ending the workers."""
CLOSE_S = 2.0
"""The part of `DRAIN_S` in which the workers end; the rest is for saving."""
SAVED_BYTES_PER_S = 50e6
"""How fast a model is written at least: a slow network disk, where a model's file is often bound for."""
_POLL_S = 0.05
_FLUSH_S = 1.0
_MAD_TO_SD = 1.4826
_BYTES = {"float16": 2, "int16": 2, "float32": 4, "int32": 4, "uint32": 4, "int8": 1, "uint8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Limits:
    """What the run must not exceed; None where there is no limit."""

    deadline_s: float | None
    budget_usd: float | None


class Trainer:
    """One job's training, at whatever configuration it is told.

    Args:
        coordinator: Not started yet; `start` does.
        offer: What a worker costs.
        started_at: Clock reading at the job's beginning.
        on_tick: Called about once a second, for whoever records that the job lives.

    `pump` and everything that waits raises what `Coordinator.poll` raises, `LimitReachedError` before a limit
    would be crossed, and `Interrupted` after `stop`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        goal: Goal,
        offer: Offer,
        limits: Limits,
        journal: Journal,
        observer: Observer,
        started_at: float,
        on_tick: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.coordinator, self.goal, self.offer, self._limits = coordinator, goal, offer, limits
        self.journal, self._observer, self._on_tick, self._clock = journal, observer, on_tick, clock
        self._started_at = started_at
        self.steps: list[StepRecord] = []
        self.samples_by_batch: dict[int, int] = {}
        self.epochs: list[EpochRecord] = []
        self.noise = NoiseTracker()
        self.warnings: list[str] = []
        self.setup_s: list[float] = []
        self.configuration: Configuration | None = None
        self.first_view_at_s: float | None = None
        self.finished = False
        self.reached = False
        self.progress: Callable[[], float | None] = lambda: None
        self.best_epoch: EpochRecord | None = None
        self.wanted = 0
        self._replaced = 0
        self._view: m.ViewInstalled | None = None
        self._view_steps = 0
        self._stop_reason: str | None = None
        self._ticked_at = 0.0

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_at

    @property
    def cost_usd(self) -> float:
        """What the workers have cost so far, from their launch on."""
        return self.coordinator.worker_seconds() * self.offer.price_usd_per_hour / 3600.0

    @property
    def workers_max(self) -> int | None:
        """The largest cluster that can be kept alive; None where nothing speaks against any."""
        return self.wanted if self._replaced > REPLACEMENTS_MAX else None

    @property
    def drain_s(self) -> float:
        """Time to end in order: a worker writes the model after what it is at, and all are ended."""
        manifest = self.coordinator.manifest
        tensors = () if manifest is None else manifest.tensors
        state_bytes = sum(math.prod(t.shape) * _BYTES.get(t.dtype, 8) for t in tensors)
        busy = [record.step_time_s for record in self.steps[-VIEW_WARM_UP_STEPS:]]
        busy += [epoch.evaluation_s for epoch in self.epochs[-1:]]
        return DRAIN_S + state_bytes / SAVED_BYTES_PER_S + max(busy, default=0.0)

    @property
    def step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    def stop(self, reason: str) -> None:
        """Have the next `pump` raise `Interrupted`; safe from signal handlers and other threads."""
        self._stop_reason = reason

    def heed_stop(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self._stop_reason is not None:
            raise Interrupted(self._stop_reason)

    def note(self, message: str) -> None:
        """Warn the user, now and in the report."""
        self.warnings.append(message)
        self._tell(Noted("warning", message))

    # ---- what is wanted ------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool]) -> None:
        """Train until a condition holds or training is finished."""
        while not (self.finished or condition()):
            self.pump()

    def start(self, workers: int) -> None:
        """Start the job's processes, unless that alone would cross a limit."""
        self._hold_limits(workers)
        self.wanted = workers
        self.coordinator.start(workers)

    def move(
        self,
        target: Configuration,
        reason: str,
        *,
        meanwhile: int | None = None,
        give_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Go over to a configuration: start what is missing while training goes on, switch, let the spare go.

        Args:
            reason: For the report.
            meanwhile: Batch size to train with while workers start; None to stay at the present one.
            give_up: Whether to wait no longer for workers to start.

        Returns:
            Whether it is there: not where training finished or it was given up before, nor where workers were
            lost that could not be replaced, so that there are fewer.
        """
        self.wanted = target.workers
        missing = target.workers - len(self.coordinator.membership.alive)
        if missing > 0:
            now = self.configuration
            if meanwhile is not None and (now is None or now.global_batch_size != meanwhile):
                workers = len(self.coordinator.membership.alive) if now is None else now.workers
                self.coordinator.resize(min(workers, meanwhile), meanwhile, "while workers start")
            self._launch(missing)
        self.until(lambda: self.coordinator.ready >= self.wanted or give_up())
        if not self.finished and self.coordinator.ready < self.wanted:
            # those that still start are let go once they are ready, unless they are wanted by then
            self.wanted = max(1, self.coordinator.membership.count(WorkerState.TRAINING))
            return False
        if self.finished:
            return False
        workers = min(target.workers, self.wanted)
        self.coordinator.resize(workers, max(workers, target.global_batch_size), reason)
        self.until(lambda: self.coordinator.membership.settled)
        self._release()
        self.until(lambda: not self.coordinator.ending)
        return not self.finished and self.wanted == target.workers

    def _release(self) -> None:
        """Let workers go beyond those wanted, so that nobody pays for them."""
        for worker in self.coordinator.release(self.wanted):
            self._tell(WorkerChanged(worker, "leaving"))

    def _launch(self, workers: int) -> None:
        for worker in self.coordinator.launch(workers):
            self._tell(WorkerChanged(worker, "starting"))

    # ---- the loop ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take in what has happened, at most a moment's worth."""
        for event in self.coordinator.poll(_POLL_S):
            match event:
                case m.StepReport():
                    self._stepped(event)
                case m.EpochReport():
                    self._epoch_ended(event)
                case m.ViewInstalled():
                    self._installed(event)
                case Started():
                    self.setup_s.append(event.setup_s)
                    self._tell(WorkerChanged(event.worker, "ready", f"after {event.setup_s:.1f} s"))
                case Lost():
                    self._lost(event)
        self._release()
        self.heed_stop()
        self._hold_limits(self.coordinator.existing)
        now = self._clock()
        if now - self._ticked_at >= _FLUSH_S:
            self._ticked_at = now
            self.journal.flush()
            self._on_tick()

    def take_last_steps(self) -> None:
        """Record the steps that were applied while training was being stopped; no more follows from them."""
        for event in self.coordinator.poll(0.0):
            match event:
                case m.StepReport():
                    self._stepped(event)
                case m.ViewInstalled():
                    self._installed(event)

    def _installed(self, event: m.ViewInstalled) -> None:
        self._view, self._view_steps = event, 0
        self.configuration = Configuration(self.offer.vm, event.workers, event.global_batch_size)
        if self.first_view_at_s is None:
            self.first_view_at_s = self.elapsed_s

    def _stepped(self, report: m.StepReport) -> None:
        self._view_steps += 1
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
            disturbed=self._disturbed(report),
            at_s=self.elapsed_s,
        )
        self.noise = self.noise.update(record)
        record = replace(record, gradient_noise=self.noise.gradient_noise, noise_scale=self.noise.noise_scale)
        self.steps.append(record)
        batch = record.global_batch_size
        self.samples_by_batch[batch] = self.samples_by_batch.get(batch, 0) + record.samples
        self.journal.add("step", record)
        if self._view_steps == 1 and self._view is not None and self.configuration is not None:
            # in the first step of a view, all that was not computing was waiting for the change
            change = ViewChanged(
                self._view.view, self.configuration, self._view.first_step, record.sync_s, self._view.reason
            )
            self.journal.add("view", change)
            self._tell(change)
        self._tell(StepDone(record, self.progress(), self.cost_usd))

    def _disturbed(self, report: m.StepReport) -> bool:
        shared = self.offer.shared_cpus is not None
        return (
            self._view_steps <= VIEW_WARM_UP_STEPS
            or report.samples < report.global_batch_size
            or (shared and (self.coordinator.starting > 0 or self.coordinator.ending))
        )

    def _epoch_ended(self, report: m.EpochReport) -> None:
        record = EpochRecord(
            epoch=report.epoch,
            step=report.step,
            metrics=report.metrics,
            evaluation_s=report.evaluation_s,
            at_s=self.elapsed_s,
        )
        value = self.goal.value(record)
        best = None if self.best_epoch is None else self.goal.value(self.best_epoch)
        improved = value is not None and self.goal.better(value, best)
        if improved:
            self.best_epoch = record
        self.epochs.append(record)
        self.journal.add("epoch", record)
        self.reached = self.goal.reached(value)
        self.finished = self.reached or record.epoch + 1 >= self.goal.spec.max_epochs
        self.coordinator.verdict(stop=self.finished, keep_best=improved)
        self._tell(EpochEnded(record, self.goal.spec.metric, self.goal.spec.target))

    def _lost(self, event: Lost) -> None:
        self._tell(WorkerChanged(event.worker, "lost", event.cause))
        alive = len(self.coordinator.membership.alive)
        if alive >= self.wanted:
            return
        if self._replaced < REPLACEMENTS_MAX:
            self._replaced += 1
            self.note(
                f"{event.worker} {event.cause}; its samples were computed by the others, and it is replaced"
            )
            self._launch(self.wanted - alive)
        elif alive:
            self._replaced += 1
            self.wanted = alive
            self.note(
                f"{event.worker} {event.cause}; {REPLACEMENTS_MAX} workers have been replaced already, so "
                f"the job goes on with {alive}"
            )
        else:
            raise WorkersLostError(
                f"{event.worker} {event.cause}, as did {REPLACEMENTS_MAX} replacements; "
                f"see {self.coordinator.engine.log(event.worker)}"
            )

    def _hold_limits(self, workers: int) -> None:
        """Stop while there is still enough left for so many workers to end in order."""
        deadline, budget = self._limits.deadline_s, self._limits.budget_usd
        if deadline is not None and self.elapsed_s + self.drain_s >= deadline:
            raise LimitReachedError(
                f"stopped after {self.elapsed_s:.0f} s, before the deadline of {deadline:g} s is crossed"
            )
        if budget is not None:
            drain = workers * self.drain_s * self.offer.price_usd_per_hour / 3600.0
            if self.cost_usd + drain > budget:
                raise LimitReachedError(
                    f"stopped at ${self.cost_usd:.4f}, before the budget of ${budget:g} would be crossed"
                )

    def _tell(self, event: Event) -> None:
        self._observer.on_event(event)

    # ---- measuring -----------------------------------------------------------------------------------------

    def window(self, configuration: Configuration, since_step: int) -> list[StepRecord]:
        """The undisturbed steps of a configuration after a step, oldest first."""
        return list(reversed(list(self._window(configuration, since_step))))

    def _window(self, configuration: Configuration, since_step: int) -> Iterator[StepRecord]:
        for record in reversed(self.steps):
            if record.step <= since_step:
                return
            if (
                not record.disturbed
                and record.workers == configuration.workers
                and record.global_batch_size == configuration.global_batch_size
            ):
                yield record

    def worker_memory_bytes(self) -> int:
        """Largest resident memory that a training worker has had."""
        training = self.coordinator.membership.workers(WorkerState.TRAINING)
        sizes = self.coordinator.memory_bytes
        return max((sizes.get(worker, 0) for worker in training), default=0)

    def evaluation_s(self) -> tuple[tuple[int, float], ...]:
        """Median pause at the end of an epoch, by worker count."""
        workers_at = {record.step: record.workers for record in self.steps}
        pauses: dict[int, list[float]] = {}
        for epoch in self.epochs:
            if epoch.step in workers_at:
                pauses.setdefault(workers_at[epoch.step], []).append(epoch.evaluation_s)
        return tuple((workers, statistics.median(values)) for workers, values in sorted(pauses.items()))


def measure(
    configuration: Configuration, window: list[StepRecord], noise: NoiseTracker, memory_bytes: int
) -> Measurement:
    """Condense undisturbed steps into a measurement; medians, since single steps may be far off.

    Raises:
        ValueError: If there is no step.
    """
    if not window:
        raise ValueError(f"no undisturbed step of {configuration}")
    times = [record.step_time_s for record in window]
    middle = statistics.median(times)
    spread = _MAD_TO_SD * statistics.median(abs(value - middle) for value in times)
    measurement = Measurement(
        configuration=configuration,
        steps=len(window),
        step_time_s=middle,
        step_time_spread_s=spread,
        compute_s=statistics.median(record.compute_s for record in window),
        sync_s=statistics.median(record.sync_s for record in window),
        gradient_noise=noise.gradient_noise,
        noise_scale=noise.noise_scale,
        memory_bytes=memory_bytes,
    )
    if noise.noise_scale is not None and not math.isfinite(noise.noise_scale):
        return replace(measurement, noise_scale=None)
    return measurement
