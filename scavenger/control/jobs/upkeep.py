"""Keeps what a job needs while it trains, and saves its model at the end."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from scavenger.control.places.place import Allocation
from scavenger.control.training.journal import Journals
from scavenger.control.training.limits import CLOSE_S, weights_bytes
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.report import PhaseChanged
from scavenger.errors import ModelNotSavedError, ScavengerError, TrainingCodeError, WorkersLostError

_ALIVE_S = 1.0
"""Interval between heartbeats while the model is saved."""


class Upkeep:
    """Does the periodic work of one attempt at a job, and saves its model.

    Args:
        resources: What the job runs on, not closed before the model is saved.
        checkpoints: The URL of its checkpoints.

    Attributes:
        model_path: The saved model; None until it is saved.
        ending_at_s: Running time of the job when training had ended; None before that.
        unsaved: Why the model could not be saved and what was kept instead; empty unless saving failed.
        unsaved_code: The exit code for that.
        lost: Whether it could not be saved as no process was left that held it.
    """

    def __init__(
        self,
        trainer: Trainer,
        recorder: Recorder,
        journals: Journals,
        resources: Allocation,
        *,
        checkpoints: str,
        clock: Callable[[], float],
    ) -> None:
        self._trainer, self._recorder, self._journals, self._resources = (
            trainer,
            recorder,
            journals,
            resources,
        )
        self._checkpoints, self._clock = checkpoints, clock
        self._alive_at, self._ticked_step = 0.0, 0
        self._waiting: set[Path] = set()
        self._short_of_room = False
        self.model_path: Path | None = None
        self.ending_at_s: float | None = None
        self.unsaved, self.unsaved_code, self.lost = "", 0, False

    def tick(self) -> None:
        """Do periodic work, about once a second, on the training thread."""
        trainer = self._trainer
        self._recorder.tick(trainer)
        manifest = trainer.supervisor.manifest
        model_bytes = 0.0 if manifest is None else weights_bytes(manifest)
        self._check_room(model_bytes)
        before, self._ticked_step = self._ticked_step, trainer.step
        self._resources.tick(
            trainer.drain_s,
            step=trainer.step,
            model_bytes=model_bytes,
            steps=trainer.history.steps_since(before),
        )
        self._report_checkpoint()

    def recorded(self) -> bool:
        """Whether a checkpoint may be committed: all its steps are in the journals, or training has ended without room.

        A job that is resumed without the last lines knows less of its past; without the checkpoint its model is lost.
        """
        return self._journals.sync() or self.ending_at_s is not None

    def live_on(self) -> None:
        """Renew VM leases and record heartbeats while the model is saved."""
        self._trainer.take_last_steps()  # a checkpoint waits until they are recorded
        self._report_checkpoint()  # whatever ends the command while it saves, the job can be resumed
        now = self._clock()
        if now - self._alive_at < _ALIVE_S:
            return
        self._alive_at = now
        self._recorder.tick(self._trainer)
        with contextlib.suppress(ScavengerError):  # how the job ends has been decided already
            self._resources.tick()

    def _report_checkpoint(self) -> None:
        """Record the checkpoints' URL once the first checkpoint exists, so that the job can be resumed."""
        if self._trainer.checkpoint_step and self._recorder.record.checkpoint is None:
            self._recorder.checkpointed(self._checkpoints)

    def _check_room(self, model_bytes: float) -> None:
        """Warn once, while there is time, of what finds no room; again if room was made and is used up."""
        trainer, folder = self._trainer, self._trainer.journal.path.parent
        for journal in self._journals.all:
            if journal.problem and journal.path not in self._waiting:
                trainer.note(
                    f"{journal.problem}; the job continues, and its lines wait until they can be written"
                )
            (self._waiting.add if journal.problem else self._waiting.discard)(journal.path)
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            if free < model_bytes and not self._short_of_room:
                trainer.note(
                    f"{folder}: {free / 1e6:.3g} MB are free, and the model takes at least {model_bytes / 1e6:.3g} MB: "
                    "make room before training ends"
                )
            self._short_of_room = free < model_bytes

    def save(self, *, in_haste: bool, wanted: bool = True) -> None:
        """Write the model: the weights with the reported metric, or the latest weights if there is no metric.

        Args:
            in_haste: A limit is near, so saving may use only the time reserved for it.
            wanted: False if whoever stopped the job wants no model.
        """
        trainer, supervisor = self._trainer, self._trainer.supervisor
        self.ending_at_s = trainer.elapsed_s if self.ending_at_s is None else self.ending_at_s
        if not (trainer.step and wanted) or self.model_path:
            return
        path = trainer.journal.path.with_name(supervisor.model_file)
        self._recorder.on_event(PhaseChanged("saving", str(path)))
        # where the target was reached, the last epoch is the best one
        best = (trainer.history.best_epoch is not None or trainer.callbacks.keep_best) and not trainer.reached
        try:
            supervisor.finish(
                path,
                best=best,
                checkpoint=not trainer.finished or self._may_go_on,
                within_s=self._within_s(in_haste),
                callbacks=trainer.callbacks.last,
            )
            self.model_path = path
            trainer.take_last_steps()
            self._report_checkpoint()
        except (ScavengerError, OSError) as error:
            self._keep_state(path, error, best=best, in_haste=in_haste)

    def _within_s(self, in_haste: bool) -> float | None:
        return self._trainer.drain_s - CLOSE_S if in_haste else self._trainer.left_s

    @property
    def _may_go_on(self) -> bool:
        """Whether a finished job may be given more epochs, as it has missed its target."""
        trainer = self._trainer
        return trainer.goal.spec.target is not None and not (trainer.reached or trainer.stopped_by)

    def _keep_state(self, path: Path, error: Exception, *, best: bool, in_haste: bool) -> None:
        """Keep a checkpoint after saving has failed, so that `resume` can write the model."""
        trainer = self._trainer
        with contextlib.suppress(ScavengerError, OSError):
            if trainer.finished and not self._may_go_on:  # otherwise the attempt to save wrote one
                trainer.supervisor.keep_state(best=best, within_s=self._within_s(in_haste))
            trainer.take_last_steps()
            self._report_checkpoint()
        kept = "no checkpoint could be written either"
        if trainer.checkpoint_step:
            kept = (
                f"the checkpoint of step {trainer.checkpoint_step} is kept; once the cause is fixed, "
                f"`scavenger resume {self._recorder.job_id[:8]}` writes the model; with `--output-dir DIR` to "
                "another disk"
            )
        # a program that saves nothing does no better the next time; other causes pass
        by_code = isinstance(error, TrainingCodeError)
        self.unsaved_code = (TrainingCodeError if by_code else ModelNotSavedError).exit_code
        self.lost = isinstance(error, WorkersLostError)
        self.unsaved = f"the model could not be saved: {path}: {error}; {kept}"
        trainer.note(self.unsaved)
