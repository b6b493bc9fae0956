"""The runs of a job's Keras callbacks: what a worker is asked when an epoch or step ends, and what that leads to."""

from __future__ import annotations

import msgspec

from scavenger.control.training.history import TrainingHistory
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.measurement import EpochRecord
from scavenger.train.transport import messages as m


def _batch_after(before: CallbackRunRecord | None, epoch: int) -> int:
    """The number of the step after a run, within its epoch."""
    return 0 if before is None or before.epoch != epoch or before.batch is None else before.batch + 1


class CallbackRuns:
    """Requests runs of the callbacks and keeps their results in the history. Pure: it reads no clock, does no I/O.

    Args:
        epochs: Epochs of the whole run, as far as known: what callbacks are told.
        history: Training history, which has the runs so far.
    """

    def __init__(self, epochs: int, history: TrainingHistory) -> None:
        self.epochs, self._history = epochs, history
        self._awaited: m.RunCallbacks | None = None

    def request(
        self, epoch: int, step: int, record: EpochRecord | None, *, last: bool, every: bool
    ) -> m.RunCallbacks:
        """The request for the run after an epoch; the run before gives the state that it begins with.

        Args:
            epoch: The epoch; -1 for the beginning of training.
            step: Its last step.
            record: Its record; None at the beginning.
            last: Whether training ends with it, whatever callbacks say.
            every: Whether callbacks run after every step, too.
        """
        before = self._before(epoch, step, every=every)
        request = self._request(epoch, step, record, before, last=last)
        if every and epoch >= 0 and not self._stopped_within(epoch):
            request = msgspec.structs.replace(request, batch=_batch_after(before, epoch))
        self._awaited = request
        return request

    def request_within(self, report: m.BatchReport) -> m.RunCallbacks | None:
        """The request for the run after a step within an epoch; None for a step that is not the newest."""
        runs = self._history.callback_runs
        if runs and runs[-1].step > report.step:
            return None
        before = self._before(report.epoch, report.step, every=True)
        request = self._request(report.epoch, report.step, None, before, last=False)
        self._awaited = msgspec.structs.replace(
            request, batch=_batch_after(before, report.epoch), ends_epoch=False, sums=report.sums
        )
        return self._awaited

    def run_within(self, report: m.BatchReport) -> CallbackRunRecord | None:
        """The run after a step within an epoch, if it is the newest; else None."""
        runs = self._history.callback_runs
        newest = runs[-1] if runs and runs[-1].batch is not None else None
        return newest if newest is not None and newest.step == report.step else None

    def begins_anew(self, epoch: int, step: int, *, every: bool) -> bool:
        """Whether there is no state for the run after an epoch or step, although it is not the first of the job."""
        return epoch >= 0 and self._before(epoch, step, every=every) is None

    def stopping(self, epoch: int) -> CallbackRunRecord | None:
        """The run that stopped training in the newest epoch, this one, or at its end; None if none did."""
        newest = self._history.callback_runs[-2:]
        return next((run for run in newest if run.epoch == epoch and run.stopped_by), None)

    def checkpointed(self, step: int) -> None:
        """Drop what no rollback to a checkpoint needs: the runs within epochs before the step before it."""
        self._history.callback_runs = [
            run for run in self._history.callback_runs if run.batch is None or run.step >= step - 1
        ]

    def take(self, run: m.CallbacksRun) -> CallbackRunRecord | None:
        """Add a run to the history; returns None if it is not awaited."""
        awaited = self._awaited
        if awaited is None or (run.epoch, run.step, run.ends_epoch) != (
            awaited.epoch,
            awaited.step,
            awaited.ends_epoch,
        ):
            return None
        self._awaited = None
        record = CallbackRunRecord(
            epoch=run.epoch,
            step=run.step,
            state=run.state,
            rate_scale=run.rate_scale,
            learning_rate=run.learning_rate,
            stopped_by=run.stopped_by,
            keep_best=run.keep_best,
            batch=None if run.ends_epoch else awaited.batch,
            rates_ahead=run.rates_ahead,
        )
        self._history.callback_runs.append(record)
        return record

    def forget(self) -> None:
        """Await no answer any more, since the epoch is undone."""
        self._awaited = None

    @property
    def last(self) -> m.RunCallbacks | None:
        """The last run as a request, for `on_train_end`; None if there was no run."""
        runs, epochs = self._history.callback_runs, self._history.epochs
        if not runs:
            return None
        return self._request(
            runs[-1].epoch, runs[-1].step, epochs[-1] if epochs else None, runs[-1], last=True
        )

    @property
    def keep_best(self) -> bool:
        """Whether a callback decides which weights are the best."""
        return any(run.keep_best is not None for run in self._history.callback_runs)

    def _before(self, epoch: int, step: int, *, every: bool) -> CallbackRunRecord | None:
        """The run before that after an epoch or step; None if it is not known."""
        newest = self._history.callback_runs[-1] if self._history.callback_runs else None
        if newest is None or newest.epoch > epoch or (newest.epoch == epoch and newest.batch is None):
            return None
        # with runs after every step, the one before is that of the step before, or has stopped training at this step
        return newest if not every or newest.step >= step - 1 else None

    def _stopped_within(self, epoch: int) -> bool:
        """Whether the newest run has stopped training within this epoch, so that only its end is left to run."""
        newest = self._history.callback_runs[-1:]
        return any(run.epoch == epoch and run.batch is not None and run.stopped_by for run in newest)

    def _request(
        self,
        epoch: int,
        step: int,
        record: EpochRecord | None,
        before: CallbackRunRecord | None,
        *,
        last: bool,
    ) -> m.RunCallbacks:
        return m.RunCallbacks(
            number=0,
            epoch=epoch,
            step=step,
            metrics={} if record is None else record.metrics,
            epochs=self.epochs,
            last=last,
            state="" if before is None else before.state,
            rate_scale=1.0 if before is None else before.rate_scale,
        )
