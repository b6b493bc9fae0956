"""A running job: starts its parts, keeps them alive, saves the model and shuts down."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scavenger.control.jobs.workflow import JobWorkflow
from scavenger.control.places.place import Allocation
from scavenger.control.training.journal import Journals
from scavenger.control.training.limits import CLOSE_S, weights_bytes
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.report import JobState, Observer, PhaseChanged
from scavenger.errors import (
    CleanupError,
    LimitReachedError,
    ModelNotSavedError,
    ScavengerError,
    TrainingCodeError,
)
from scavenger.train.supervisor.face import JobSupervisor

_ALIVE_S = 1.0
"""Interval between heartbeats while the model is saved."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The components of a job."""

    recorder: Recorder
    journals: Journals
    resources: Allocation
    supervisor: JobSupervisor
    trainer: Trainer
    workflow: JobWorkflow
    operations: OperationHandler


class JobAttempt:
    """One attempt at a job.

    Args:
        parts: The job's components, not started yet.
        observer: Receives the events of the shutdown, which are not recorded in the store.
        warnings: Warnings about its resources; the list grows during the run.
        stop: Ends the job in an orderly way, for a given reason.

    Attributes:
        model_path: The saved model; None until it is saved.
        ending_at_s: Running time of the job when training had ended; None before that.
        unsaved: Why the model could not be saved and what was kept instead; empty unless saving failed.
        unsaved_code: The exit code for that.
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
        self._alive_at, self._ticked_step = 0.0, 0
        self._waiting: set[Path] = set()
        self._short_of_room = False
        self.model_path: Path | None = None
        self.ending_at_s: float | None = None
        self.unsaved, self.unsaved_code = "", 0

    # ---- the run -------------------------------------------------------------------------------------------

    def run(self) -> JobState:
        """Start the processes and run the job to its end; returns how it ended.

        Raises:
            ScavengerError: If an error ends the job.
        """
        parts = self.parts
        parts.trainer.start(parts.resources.space.workers[0])
        parts.recorder.watch(parts.supervisor)
        parts.supervisor.on_wait = self._live_on
        parts.supervisor.recorded = self._recorded
        return parts.workflow.run(parts.operations)

    def _recorded(self) -> bool:
        """Whether a checkpoint may be committed: all its steps are in the journals, or training has ended without room.

        A job that is resumed without the last lines knows less of its past; without the checkpoint its model is lost.
        """
        return self.parts.journals.sync() or self.ending_at_s is not None

    def tick(self) -> None:
        """Do periodic work, about once a second, on the training thread."""
        parts = self.parts
        parts.recorder.tick(parts.trainer)
        self._report_journals()
        manifest = parts.supervisor.manifest
        model_bytes = 0.0 if manifest is None else weights_bytes(manifest)
        self._check_room(model_bytes)
        trainer, before = parts.trainer, self._ticked_step
        self._ticked_step = trainer.step
        parts.resources.tick(
            trainer.drain_s,
            step=trainer.step,
            model_bytes=model_bytes,
            steps=trainer.history.steps_since(before),
        )
        self._report_checkpoint()
        parts.operations.look()

    def stop_as_asked(self, reason: str, save: bool) -> None:
        """Stop the job on request, with or without saving the model."""
        self._save_wanted = save
        self._stop(reason)

    def _live_on(self) -> None:
        """Renew VM leases and record heartbeats while the model is saved."""
        self.parts.trainer.take_last_steps()  # a checkpoint waits until they are recorded
        self._report_checkpoint()  # whatever ends the command while it saves, the job can be resumed
        now = self._clock()
        if now - self._alive_at < _ALIVE_S:
            return
        self._alive_at = now
        self.parts.recorder.tick(self.parts.trainer)
        with contextlib.suppress(ScavengerError):  # how the job ends has been decided already
            self.parts.resources.tick()

    # ---- the end -------------------------------------------------------------------------------------------

    def end_at_once(self, error: BaseException) -> None:
        """Save the model and end the processes; a failed cleanup is retried and reported at the job's end."""
        in_haste = isinstance(error, LimitReachedError)
        self.save(in_haste=in_haste)
        with contextlib.suppress(CleanupError):
            self.close(in_haste=in_haste)

    def save(self, *, in_haste: bool) -> None:
        """Write the model: the weights with the reported metric, or the latest weights if there is no metric.

        Args:
            in_haste: A limit is near, so saving may use only the time reserved for it.
        """
        trainer, supervisor, recorder = self.parts.trainer, self.parts.supervisor, self.parts.recorder
        self.ending_at_s = trainer.elapsed_s if self.ending_at_s is None else self.ending_at_s
        if not (trainer.step and self._save_wanted) or self.model_path or self._closed:
            return
        path = trainer.journal.path.with_name(supervisor.model_file)
        recorder.on_event(PhaseChanged("saving", str(path)))
        # where the target was reached, the last epoch is the best one
        best = (trainer.history.best_epoch is not None or trainer.callbacks.keep_best) and not trainer.reached
        try:
            within_s = trainer.drain_s - CLOSE_S if in_haste else trainer.left_s
            supervisor.finish(
                path,
                best=best,
                checkpoint=not trainer.finished or self._may_go_on,
                within_s=within_s,
                callbacks=trainer.callbacks.last,
            )
            self.model_path = path
            trainer.take_last_steps()
            self._report_checkpoint()
        except (ScavengerError, OSError) as error:
            self._keep_state(path, error, best=best, in_haste=in_haste)

    @property
    def _may_go_on(self) -> bool:
        """Whether a finished job may be given more epochs, as it has missed its target."""
        trainer = self.parts.trainer
        return trainer.goal.spec.target is not None and not (trainer.reached or trainer.stopped_by)

    def _keep_state(self, path: Path, error: Exception, *, best: bool, in_haste: bool) -> None:
        """Keep a checkpoint after saving has failed, so that `resume` can write the model."""
        trainer = self.parts.trainer
        with contextlib.suppress(ScavengerError, OSError):
            if trainer.finished and not self._may_go_on:  # otherwise the attempt to save wrote one
                within_s = trainer.drain_s - CLOSE_S if in_haste else trainer.left_s
                self.parts.supervisor.keep_state(best=best, within_s=within_s)
            trainer.take_last_steps()
            self._report_checkpoint()
        kept = "no checkpoint could be written either"
        if trainer.checkpoint_step:
            kept = (
                f"the checkpoint of step {trainer.checkpoint_step} is kept; once the cause is fixed, "
                f"`scavenger resume {self.parts.recorder.job_id[:8]}` writes the model; with `--output-dir DIR` to "
                "another disk"
            )
        # a program that saves nothing does no better the next time; other causes pass
        by_code = isinstance(error, TrainingCodeError)
        self.unsaved_code = (TrainingCodeError if by_code else ModelNotSavedError).exit_code
        self.unsaved = f"the model could not be saved: {path}: {error}; {kept}"
        trainer.note(self.unsaved)

    def _report_journals(self) -> None:
        """Warn once about each journal that waits for disk space."""
        for journal in self.parts.journals.all:
            if journal.problem and journal.path not in self._waiting:
                self.parts.trainer.note(
                    f"{journal.problem}; the job continues, and its lines wait until they can be written"
                )
            (self._waiting.add if journal.problem else self._waiting.discard)(journal.path)

    def _check_room(self, model_bytes: float) -> None:
        """Warn once, while there is time, that the model will find no room; again if it was made and is used up."""
        folder = self.parts.trainer.journal.path.parent
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            if free < model_bytes and not self._short_of_room:
                self.parts.trainer.note(
                    f"{folder}: {free / 1e6:.3g} MB are free, and the model takes at least {model_bytes / 1e6:.3g} MB: "
                    "make room before training ends"
                )
            self._short_of_room = free < model_bytes

    def close(self, *, in_haste: bool) -> None:
        """End every process and release the rented VMs; may be called again after a failure.

        Raises:
            CleanupError: If a process or VM may be left running.
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
        """Record the checkpoints' URL once the first checkpoint exists, so that the job can be resumed."""
        if self.parts.trainer.checkpoint_step and self.parts.recorder.record.checkpoint is None:
            self.parts.recorder.checkpointed(self._checkpoints)
