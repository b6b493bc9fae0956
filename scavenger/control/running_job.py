"""A job whose parts are put together: starts them, keeps them alive, saves the model, and ends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scavenger.control.jobs.workflow import JobWorkflow
from scavenger.control.platform import Resources
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import CLOSE_S
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.report import JobState, Observer, PhaseChanged
from scavenger.errors import CleanupError, LimitReachedError, ScavengerError
from scavenger.train.supervisor.supervisor import Supervisor

__all__ = ["MODEL_FILE", "Parts", "RunningJob"]

MODEL_FILE = "model.keras"
"""In the job's own folder."""
_ALIVE_S = 1.0
"""Between two signs of life while the model is saved."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a job is made of."""

    recorder: Recorder
    journal: Journal
    resources: Resources
    supervisor: Supervisor
    trainer: Trainer
    driver: JobWorkflow
    operator: OperationHandler


class RunningJob:
    """One attempt at a job.

    Args:
        parts: Not started yet.
        observer: Is told of the end, which the store need not hear.
        checkpoints: Where they go, as a URL.
        warnings: What was said of its resources; grows.
        stop: Ends the job in order.

    Attributes:
        model_path: The saved model; None before.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        observer: Observer,
        checkpoints: str,
        warnings: Sequence[str],
        stop: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.parts, self.warnings = parts, warnings
        self._observer, self._checkpoints, self._stop, self._clock = observer, checkpoints, stop, clock
        self._save_wanted, self._closed = True, False
        self._alive_at = 0.0
        self.model_path: Path | None = None

    # ---- the run -------------------------------------------------------------------------------------------

    def run(self) -> JobState:
        """Start the processes and drive the job to its end; returns how it ended.

        Raises:
            ScavengerError: Whatever else ends it.
        """
        parts = self.parts
        parts.trainer.start(parts.resources.space.workers[0])
        parts.recorder.watch(parts.supervisor)
        parts.supervisor.on_wait = self._live_on
        return parts.driver.run(parts.operator)

    def tick(self) -> None:
        """About once a second, from the thread that trains."""
        parts = self.parts
        parts.recorder.tick(parts.trainer)
        parts.resources.tick(parts.trainer.drain_s)
        self._tell_of_checkpoint()
        parts.operator.look()

    def stop_as_asked(self, reason: str, save: bool) -> None:
        """End in order, with the model or without."""
        self._save_wanted = save
        self._stop(reason)

    def _live_on(self) -> None:
        """While the model is saved: VMs are heard of and renewed, and others see that the job lives."""
        now = self._clock()
        if now - self._alive_at < _ALIVE_S:
            return
        self._alive_at = now
        self.parts.recorder.tick(self.parts.trainer)
        with contextlib.suppress(ScavengerError):  # what ends the job has been decided
            self.parts.resources.tick()

    # ---- the end -------------------------------------------------------------------------------------------

    def end_at_once(self, error: BaseException) -> None:
        """Save and end the processes; what cannot be ended is tried again, and told, at the job's end."""
        in_haste = isinstance(error, LimitReachedError)
        self.save(in_haste=in_haste)
        with contextlib.suppress(CleanupError):
            self.close(in_haste=in_haste)

    def save(self, *, in_haste: bool) -> None:
        """Write the model: the weights that the report's metric is of, or the last where there is no metric.

        Args:
            in_haste: A limit is near: take no longer than what is kept in reserve for it.
        """
        trainer, supervisor, recorder = self.parts.trainer, self.parts.supervisor, self.parts.recorder
        if not (trainer.step and self._save_wanted) or self.model_path or self._closed:
            return
        path = trainer.journal.path.with_name(MODEL_FILE)
        recorder.on_event(PhaseChanged("saving", str(path)))
        # where the target was reached, the last epoch is the best one
        best = trainer.course.best_epoch is not None and not trainer.reached
        try:
            within_s = trainer.drain_s - CLOSE_S if in_haste else trainer.left_s
            supervisor.finish(path, best=best, checkpoint=not trainer.finished, within_s=within_s)
            self.model_path = path
            trainer.take_last_steps()
            self._tell_of_checkpoint()
        except (ScavengerError, OSError) as error:
            trainer.note(f"the model could not be saved: {error}")

    def close(self, *, in_haste: bool) -> None:
        """End every process, and give back what was rented; may be tried again.

        Raises:
            CleanupError: If something may be left.
        """
        supervisor, resources = self.parts.supervisor, self.parts.resources
        try:
            self._closed = True
            supervisor.close(**({"grace_s": CLOSE_S / 2} if in_haste else {}))
        finally:
            if count := resources.vms:
                vms = "1 VM" if count == 1 else f"{count} VMs"
                self._observer.on_event(PhaseChanged("ending", vms))
            resources.close()

    def _tell_of_checkpoint(self) -> None:
        """Once there is a checkpoint, the job can be resumed."""
        if self.parts.trainer.checkpoint_step and self.parts.recorder.record.checkpoint is None:
            self.parts.recorder.checkpointed(self._checkpoints)
