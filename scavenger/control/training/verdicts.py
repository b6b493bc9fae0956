"""The verdicts that training waits for when an epoch ends, or a step of a job with hooks of batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scavenger.control.training.callback_runs import CallbackRuns
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import TrainingHistory
from scavenger.control.training.orders import (
    Action,
    AskGoal,
    GiveVerdict,
    Notify,
    RunCallbacks,
    Situation,
    Warn,
    Write,
)
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import EpochEnded
from scavenger.models.fixed_epochs import FixedEpochs
from scavenger.train.transport import messages as m

ANOTHER = 0.5
"""Part of an epoch that makes another one worth training: epochs at several batch sizes do not add up to whole ones."""


class Verdicts:
    """Decides whether training goes on, by the goal and by what the callbacks say. Pure, as the controller.

    Args:
        goal: The training goal.
        history: Training history; epochs and runs of callbacks are added to it.
        warn_once: The actions that warn of a cause, the first time.

    Attributes:
        epochs: How many epochs training lasts at most, by batch size.
        callbacks: The runs of the callbacks.
        finished: Whether a verdict has ended training.
        reached: Whether the goal is reached.
        stopped_by: The callback, or the program of a command, that stopped training; empty if none did.
    """

    def __init__(
        self, goal: Goal, history: TrainingHistory, *, warn_once: Callable[[str, str], list[Action]]
    ) -> None:
        self._goal, self._history, self._warn_once = goal, history, warn_once
        self.epochs = FixedEpochs(goal.spec.max_epochs)
        self.callbacks = CallbackRuns(goal.spec.max_epochs, history)
        self.finished = self.reached = False
        self.stopped_by = ""

    def last_for(self, epochs: FixedEpochs, global_batch_size: int) -> None:
        """Have training last for these epochs, most of them at a batch size."""
        self.epochs = epochs
        self.callbacks.epochs = int(epochs.epochs(np.array([float(global_batch_size)]))[0])

    def roll_back(self) -> None:
        """Forget the verdict, and the run that is awaited: the epoch is undone."""
        self.finished = self.reached = False
        self.stopped_by = ""
        self.callbacks.forget()

    def epoch_ended(self, report: m.EpochReport, now: Situation) -> list[Action]:
        """Record an epoch, and have its callbacks run, or give the verdict on it."""
        epochs = self._history.epochs
        if report.epoch < 0 or (epochs and report.epoch <= epochs[-1].epoch):
            # a repeated report: the answer was lost; or the beginning of training
            return self._judge(report)
        record = EpochRecord(
            epoch=report.epoch,
            step=report.step,
            metrics=report.metrics,
            evaluation_s=report.evaluation_s,
            at_s=now.at_s,
        )
        doubt = "" if epochs else self._goal.doubt(self._goal.value(record))
        if doubt:
            return [AskGoal(doubt)]
        self._history.evaluated(record)
        return [
            Write("epoch", record),
            *self._judge(report),
            Notify(EpochEnded(record, self._goal.spec.metric, self._goal.spec.target)),
        ]

    def _judge(self, report: m.EpochReport) -> list[Action]:
        """Have the callbacks of an epoch run, if they have not yet; then give the verdict."""
        epoch, step, every = report.epoch, report.step, report.batch_hooks
        record = self._newest(epoch)
        awaited = report.callbacks and (epoch < 0 or record is not None)
        if not awaited or self._history.callback_run_of(epoch) is not None:
            verdict = self._verdict(epoch, record, report.stopped_by)
            told = record is not None and self.stopped_by and not self.reached
            words = f"stopped by {report.stopped_by} after epoch {epoch + 1}"
            return [verdict, *(self._warn_once(words, words) if told else [])]
        last = record is not None and (self._ends_at(record) or self.callbacks.stopping(epoch) is not None)
        lost = self._warn_of_lost_state(epoch, step, every=every)
        return [*lost, RunCallbacks(self.callbacks.request(epoch, step, record, last=last, every=every))]

    def batch_ended(self, report: m.BatchReport) -> list[Action]:
        """Have the callbacks run after a step, if they have not yet; then give the verdict."""
        if self.finished:
            return []
        if (run := self.callbacks.run_within(report)) is not None:
            return [self._verdict_within(run)]
        lost = self._warn_of_lost_state(report.epoch, report.step, every=True)
        request = self.callbacks.request_within(report)
        return [] if request is None else [*lost, RunCallbacks(request)]

    def _verdict_within(self, run: CallbackRunRecord) -> GiveVerdict:
        return GiveVerdict(run.epoch, bool(run.stopped_by), False, run.rate_scale, run.step)

    def _newest(self, epoch: int) -> EpochRecord | None:
        """The record of an epoch if it is the newest; None for an older one, whose verdict nobody awaits any more."""
        newest = self._history.epochs[-1] if self._history.epochs else None
        return newest if newest is not None and newest.epoch == epoch else None

    def _ends_at(self, record: EpochRecord) -> bool:
        """Whether training ends with an epoch, whatever callbacks say."""
        return self._goal.reached(self._goal.value(record)) or self._epochs_left(record.epoch + 1) < ANOTHER

    def _epochs_left(self, done: int) -> float:
        steps, samples = self._history.steps, self._history.samples_by_batch
        latest = steps[-1].global_batch_size if steps else max(samples, default=1)
        return self.epochs.left(done, samples, latest)

    def _verdict(self, epoch: int, record: EpochRecord | None, stopped_by: str = "") -> GiveVerdict:
        run, keep_best = self._history.callback_run_of(epoch), False
        if record is not None:
            self.reached = self._goal.reached(self._goal.value(record))
            stopping, last = self.callbacks.stopping(epoch), self._ends_at(record)
            if stopping is not None:
                self.stopped_by = stopping.stopped_by
            else:  # who stops at the last epoch misses a target as who is not stopped there
                self.stopped_by = "" if last else stopped_by
            self.finished = last or bool(self.stopped_by)
            keep_best = self._history.best_epoch is record
            if run is not None and run.keep_best is not None:
                keep_best = run.keep_best
        return GiveVerdict(epoch, record is not None and self.finished, keep_best, self._history.rate_scale)

    def _warn_of_lost_state(self, epoch: int, step: int, *, every: bool) -> list[Action]:
        words = "the record has no state of the callbacks, so they begin anew"
        return self._warn_once(words, words) if self.callbacks.begins_anew(epoch, step, every=every) else []

    def called_back(self, run: m.CallbacksRun) -> list[Action]:
        """Record a run of the callbacks that was awaited, and give the verdict."""
        record = self.callbacks.take(run)
        if record is None:
            return []
        actions: list[Action] = [Write("callbacks", record)]
        for note in run.notes:
            actions += self._warn_once(note, note)
        within = record.batch is not None
        verdict = (
            self._verdict_within(record) if within else self._verdict(run.epoch, self._newest(run.epoch))
        )
        actions.append(verdict)
        if record is self.callbacks.stopping(run.epoch) and not self.reached:
            at = f"at step {run.step}, in" if within else "after"
            actions.append(Warn(f"stopped by {run.stopped_by} {at} epoch {run.epoch + 1}"))
        return actions
