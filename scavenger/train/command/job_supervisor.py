"""Runs a command as a job: takes its requests, and records its checkpoints.

There is neither a coordinator nor an aggregator, and no shared memory: the processes of the command exchange gradients
by themselves. What a job may ask for between two steps is done by ending the group and starting it again.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from scavenger.errors import ModelNotSavedError, ScavengerError, TrainingCodeError
from scavenger.train.checkpoints.format import DamagedError
from scavenger.train.command.attempt import CheckpointPlace, Target
from scavenger.train.command.checkpoints import CommandCheckpoint, CommandCheckpoints, Kept
from scavenger.train.command.hosts import Hosts
from scavenger.train.command.progress import CommandProgress
from scavenger.train.command.source import CommandSource
from scavenger.train.command.stored_folder import Listing
from scavenger.train.command.supervisor import CommandSupervisor
from scavenger.train.engines.base import GRACE_S, Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import Timeouts
from scavenger.train.names import partial_model
from scavenger.train.supervisor.events import Leaving
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint

_CARRIED = "carried"
"""How the names of folders in the job's outputs begin in which processes here save what an object store keeps."""


def _remove_carried(work_dir: Path) -> None:
    """Remove the folders that processes here saved to; what counts of them is in the object store."""
    for folder in work_dir.glob(f"{_CARRIED}-*"):
        shutil.rmtree(folder, ignore_errors=True)


class CommandJobSupervisor(CommandSupervisor):
    """Supervises the processes of one command job; `open` makes one.

    Args:
        hosts, source, begun, place, kept, timeouts: See `CommandSupervisor`.
        checkpoints: The record of its checkpoints.
        plan: When checkpoints are asked for; None for never.
        work_dir: The job's outputs.
        first_batch: The global batch size of a group that is started to learn how many samples an epoch has.
        clock: Monotonic seconds.

    Attributes:
        manifest: Description of the command, with the size of its newest checkpoint, by which time is reserved for the
            end; None before the samples of an epoch are known.
        quarantined: None: samples are the command's own.
    """

    model_file = "model"

    def __init__(
        self,
        hosts: Hosts,
        source: CommandSource,
        checkpoints: CommandCheckpoints,
        plan: CheckpointPlan | None,
        work_dir: Path,
        *,
        begun: CommandProgress,
        place: CheckpointPlace,
        kept: Kept | None,
        timeouts: Timeouts,
        first_batch: int,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(hosts, source, begun, place=place, kept=kept, timeouts=timeouts, clock=clock)
        self._checkpoints, self._plan, self._work_dir = checkpoints, plan, work_dir
        self._first_batch = first_batch
        self._returned_step, self._recorded_step = begun.step, begun.step
        self._saved_at_s, self._saved_files_s = clock(), checkpoints.newest_at_s()

    @classmethod
    def open(
        cls,
        source: CommandSource,
        *,
        work_dir: Path,
        timeouts: Timeouts,
        checkpoint: CheckpointPlan,
        first_batch: int,
        restore: RestorePoint | None = None,
        engine: Callable[[Path, int], Engine] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> CommandJobSupervisor:
        """Listen for the hosts of a command; `start` starts them. See `Supervisor.open` for the arguments.

        Raises:
            ConfigurationError: If the engine's port cannot be bound, or the checkpoint belongs to another command.
            TransientError: If the checkpoints cannot be read.
        """
        checkpoints = CommandCheckpoints(checkpoint.url, source.run.command)
        kept = None if restore is None else checkpoints.latest()
        begun = CommandCheckpoint(0, 0, 0) if kept is None else kept.checkpoint
        hosts = Hosts.open(
            source.job,
            log_dir=work_dir / "logs",
            first=0 if kept is None else kept.launched,
            engine=engine or ProcessEngine,
            clock=clock,
        )
        try:
            carried = hosts.elsewhere or not checkpoints.is_here
            storage = checkpoints.carry(begun.files) if carried else ""
            if not carried:
                checkpoints.make_folder()
            _remove_carried(work_dir)  # of an attempt that was killed
            return cls(
                hosts,
                replace(source, carry_every_s=checkpoint.every_s or 0.0),
                checkpoints,
                checkpoint,
                work_dir,
                begun=CommandProgress(begun.step, begun.epoch, begun.samples),
                place=CheckpointPlace(
                    checkpoints.folder if checkpoints.is_here else str(work_dir.absolute() / _CARRIED),
                    hosts.engine.reachable(storage) if storage else "",
                    checkpoints.seen,
                ),
                kept=kept,
                timeouts=timeouts,
                first_batch=first_batch,
                clock=clock,
            )
        except BaseException:
            hosts.close()
            raise

    # ---- the owner's requests ------------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        self.launch(workers, vm, threads=threads)
        if self._samples_per_epoch is None:
            self._target = Target(workers, max(workers, self._first_batch), "start")

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        """Start more workers, which run the command when a group needs them. Returns their names."""
        return tuple(self._hosts.launch(vm, threads=threads) for _ in range(workers))

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """Train on K of the ready workers with batch B, once the command has saved, ended and started again."""
        self._registry.ask_to_leave(without)
        self._target = Target(workers, global_batch_size, reason, lr_scale)

    def release(self, keep: int) -> None:
        if not self.settled:
            return
        alive = self.alive
        spare = [name for name in reversed(alive) if name not in self._members]
        for name in spare[: max(0, len(alive) - keep)]:
            self._leave(name)

    def verdict(
        self, epoch: int, *, stop: bool, keep_best: bool, rate_scale: float = 1.0, step: int | None = None
    ) -> None:
        """Answer an `EpochReport`; a command that reports by `scavenger_report` waits for the answer."""
        if stop:
            self._stop_after_epoch(epoch)
        else:
            self._ask(epoch=epoch)

    def finish(
        self,
        path: Path,
        *,
        best: bool,
        checkpoint: bool = False,
        within_s: float | None = None,
        callbacks: m.RunCallbacks | None = None,
    ) -> None:
        """Have the command save and end, and make `path` a link to what it has saved; `best` is not known here.

        Raises:
            TrainingCodeError: If it has saved nothing.
            ModelNotSavedError: If the link cannot be made.
        """
        self.keep_state(best=best, within_s=within_s)
        held = self._held
        if held is not None and held.files is not None:
            self._fetch(held.files, path)
        if self._checkpoints.empty and not (held is not None and held.path):
            raise TrainingCodeError(
                f"the command has saved nothing in {{checkpoint_dir}}, {self._checkpoints.folder}; have it save its "
                "model there, or tell where it did by report.checkpoint(path)"
            )
        target = held.path if held is not None and held.path else self._checkpoints.folder
        if held is not None and held.files is not None:
            target = str(Path(self._checkpoints.folder) / held.path)
        if not os.path.isabs(target) and "://" not in target:
            target = str(self._source.job.job_dir / target)
        if Path(target).is_relative_to(path.parent.resolve()):  # so that the outputs can be taken elsewhere
            target = os.path.relpath(target, path.parent.resolve())
        part = partial_model(path)
        try:
            part.unlink(missing_ok=True)
            part.symlink_to(target)
            part.replace(path)
        except OSError as error:
            raise ModelNotSavedError(f"{path}: {error.strerror or error}") from error

    def _fetch(self, files: Listing, path: Path) -> None:
        """Put the carried folder, as it is held, beside the other outputs of the job.

        Raises:
            ModelNotSavedError: If there is no room for it, or it cannot be read.
        """
        try:
            self._checkpoints.fetch(files, path.parent)
        except (OSError, DamagedError, ValueError) as error:
            raise ModelNotSavedError(f"{self._checkpoints.folder}: {error}") from error

    def keep_state(self, *, best: bool, within_s: float | None = None) -> None:
        grace_s = self._source.run.grace
        deadline = self._clock() + (2 * grace_s if within_s is None else within_s)
        self._paused = True
        while self._attempt is not None and self._clock() <= deadline:
            self._attempt.until_s = min(self._attempt.until_s, deadline)
            self._turn()
        while self._saved is not None and self._clock() <= deadline + GRACE_S:
            self._turn()

    def close(self, *, grace_s: float = GRACE_S) -> None:
        try:
            self._hosts.close()
        finally:
            _remove_carried(self._work_dir)

    # ---- the state of the job ------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """The peak memory of each worker so far, with what its command has started."""
        return self._hosts.memory_bytes or self._memory.peaks

    # ---- the loop ------------------------------------------------------------------------------------------

    def _update(self, timeout_s: float) -> None:
        super()._update(timeout_s)
        if self.manifest is None and self._samples_per_epoch is not None:
            self.manifest = self._source.manifest(self._samples_per_epoch)
        self._memory.look(self.engine, self._clock())
        self._look_at_checkpoints()
        for name in self._registry.departing:
            if name not in self._members:
                self._leave(name)
        self._set_roster()

    def _leave(self, name: str) -> None:
        if self._hosts.leave(name, "it is not needed"):
            self._events.append(Leaving(name))

    def _look_at_checkpoints(self) -> None:
        """Ask for a checkpoint when one is due, and record those that the command has told of."""
        plan, now = self._plan, self._clock()
        if self._saved is not None and self._saved[0].step <= self._returned_step and self.recorded():
            (saved, took_s), self._saved = self._saved, None
            self._saved_at_s, self._recorded_step = now, saved.step
            try:
                date = datetime.now(UTC)
                kept = Kept(saved, self._view, self._hosts.launched, self._samples_per_epoch or 0)
                size = self._checkpoints.record(kept, now=date)
                if saved.files is not None:
                    self._checkpoints.tidy_up(saved.files, self._named)
                self._events.append(m.CheckpointWritten(saved.step, saved.epoch, took_s, size))
                if self.manifest is not None and size:
                    self.manifest = self._source.manifest(self.manifest.dataset_size, checkpoint_bytes=size)
            except ScavengerError as error:
                self._events.append(m.CheckpointFailed(saved.step, str(error)))
        step = self._progress.step
        if plan is None or step <= self._recorded_step:
            return
        soon = bool(plan.every_steps) and step - self._recorded_step >= plan.every_steps
        if soon or now - self._saved_at_s >= (plan.every_s or math.inf):
            self._save()

    @property
    def _named(self) -> set[str]:
        """Objects that a checkpoint to come may name."""
        attempt, held = self._attempt, self._held
        names = set() if attempt is None else attempt.states.objects
        return names | (
            set() if held is None or held.files is None else {f.stored for f in held.files.values()}
        )

    def _ended_quietly(self) -> None:
        """A command that does not tell of checkpoints has saved one if it ended as asked, and its files are new."""
        newest_s = self._checkpoints.newest_at_s()
        if newest_s > self._saved_files_s:
            self._saved_files_s = newest_s
            self._checkpointed("", 0.0)

    def _set_roster(self) -> None:
        """Tell the registry which of the workers that have arrived train."""
        attempt = self._attempt
        training = set() if attempt is None or attempt.ending else set(attempt.left)
        states = {name: "training" if name in training else "ready" for name in self._hosts.ready}
        self._registry.roster = m.Roster(0, states, self.settled, 0, ())
