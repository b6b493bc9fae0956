"""The runs of a job's Keras callbacks: what a worker is asked when an epoch ends, and what its answer leads to."""

from __future__ import annotations

from scavenger.control.training.goal import Goal
from scavenger.control.training.history import TrainingHistory
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.measurement import EpochRecord
from scavenger.train.transport import messages as m

__all__ = ["CallbackRuns"]


class CallbackRuns:
    """Requests runs of the callbacks and keeps their results in the history. Pure: it reads no clock, does no I/O.

    Args:
        goal: The training goal.
        history: Training history, which has the runs so far.
    """

    def __init__(self, goal: Goal, history: TrainingHistory) -> None:
        self._goal, self._history = goal, history
        self._awaited: tuple[int, int] | None = None

    def request(self, epoch: int, step: int, record: EpochRecord | None, *, last: bool) -> m.RunCallbacks:
        """The request for the run after an epoch; the run before gives the state that it begins with.

        Args:
            epoch: The epoch; -1 for the beginning of training.
            step: Its last step.
            record: Its record; None at the beginning.
            last: Whether training ends with it, whatever callbacks say.
        """
        self._awaited = (epoch, step)
        return self._request(epoch, step, record, self._before(epoch), last=last)

    def begins_anew(self, epoch: int) -> bool:
        """Whether there is no state for the run after an epoch, although it is not the first run of the job."""
        return epoch >= 0 and self._before(epoch) is None

    def take(self, run: m.CallbacksRun) -> CallbackRunRecord | None:
        """Add a run to the history; returns None if it is not awaited."""
        if (run.epoch, run.step) != self._awaited:
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

    def _before(self, epoch: int) -> CallbackRunRecord | None:
        runs = self._history.callback_runs
        return runs[-1] if runs and runs[-1].epoch < epoch else None

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
            epochs=self._goal.spec.max_epochs,
            last=last,
            state="" if before is None else before.state,
            rate_scale=1.0 if before is None else before.rate_scale,
        )
