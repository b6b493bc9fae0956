"""A job whose parts are put together: starts them, keeps them alive, saves the model, and ends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scavenger.control.jobs.platform import Resources
from scavenger.control.jobs.workflow import JobWorkflow
from scavenger.control.training.journal import Journals
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
    journals: Journals
    resources: Resources
    supervisor: Supervisor
    trainer: Trainer
    workflow: JobWorkflow
    operations: OperationHandler


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
        unsaved: Why the model could not be saved, and what is left instead; empty where it could.
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
        self._waiting: set[Path] = set()
        self.model_path: Path | None = None
        self.unsaved = ""

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
        parts.supervisor.recorded = parts.journals.sync
        return parts.workflow.run(parts.operations)

    def tick(self) -> None:
        """About once a second, from the thread that trains."""
        parts = self.parts
        parts.recorder.tick(parts.trainer)
        self._report_journals()
        parts.resources.tick(parts.trainer.drain_s)
        self._report_checkpoint()
        parts.operations.look()

    def stop_as_asked(self, reason: str, save: bool) -> None:
        """End in order, with the model or without."""
        self._save_wanted = save
        self._stop(reason)

    def _live_on(self) -> None:
        """While the model is saved: VMs are heard of and renewed, and others see that the job lives."""
        self.parts.trainer.take_last_steps()  # a checkpoint waits until they are recorded
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
        best = trainer.history.best_epoch is not None and not trainer.reached
        try:
            within_s = trainer.drain_s - CLOSE_S if in_haste else trainer.left_s
            supervisor.finish(path, best=best, checkpoint=not trainer.finished, within_s=within_s)
            self.model_path = path
            trainer.take_last_steps()
            self._report_checkpoint()
        except (ScavengerError, OSError) as error:
            self._keep_state(path, error, best=best, in_haste=in_haste)

    def _keep_state(self, path: Path, error: Exception, *, best: bool, in_haste: bool) -> None:
        """The model could not be saved: keep a checkpoint, from which `resume` can."""
        trainer = self.parts.trainer
        with contextlib.suppress(ScavengerError, OSError):
            if trainer.finished:  # before that, one was written with the attempt to save
                within_s = trainer.drain_s - CLOSE_S if in_haste else trainer.left_s
                self.parts.supervisor.keep_state(best=best, within_s=within_s)
            trainer.take_last_steps()
            self._report_checkpoint()
        kept = "no checkpoint could be written either"
        if trainer.checkpoint_step:
            kept = (
                f"the checkpoint of step {trainer.checkpoint_step} is kept; once that is mended, "
                f"`scavenger resume {self.parts.recorder.job_id[:8]}` writes the model"
            )
        self.unsaved = f"the model could not be saved: {path}: {error}; {kept}"
        trainer.note(self.unsaved)

    def _report_journals(self) -> None:
        """Say once of each journal that waits for room."""
        for journal in self.parts.journals.all:
            if journal.problem and journal.path not in self._waiting:
                self.parts.trainer.note(
                    f"{journal.problem}; the job goes on, and what is to be written there waits"
                )
            (self._waiting.add if journal.problem else self._waiting.discard)(journal.path)

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

    def _report_checkpoint(self) -> None:
        """Once there is a checkpoint, the job can be resumed."""
        if self.parts.trainer.checkpoint_step and self.parts.recorder.record.checkpoint is None:
            self.parts.recorder.checkpointed(self._checkpoints)
