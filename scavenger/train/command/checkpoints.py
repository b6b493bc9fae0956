"""What is on record of a command's checkpoints: the step and epoch of each. Their content is the command's own."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from scavenger.errors import ConfigurationError
from scavenger.sdk.report import COUNTS
from scavenger.train.checkpoints.checkpoint import CheckpointStore, Manifest
from scavenger.train.checkpoints.files import local_path

__all__ = ["CommandCheckpoint", "CommandCheckpoints", "Kept"]

_FOLDER = "command"


@dataclass(frozen=True, slots=True)
class CommandCheckpoint:
    """A checkpoint that the command has saved.

    Attributes:
        step: The last step that it includes.
        epoch: The epoch in progress.
        samples: Samples of it so far.
        path: Where it is, if the command has told.
    """

    step: int
    epoch: int
    samples: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is on record of a checkpoint: the newest view and the number of workers that the job has had, too."""

    checkpoint: CommandCheckpoint
    view: int
    launched: int
    samples_per_epoch: int


class CommandCheckpoints:
    """The record of one job's checkpoints, next to the folder that the command saves to.

    Args:
        url: See `CheckpointStore`.
        command: The command, as the job file has it.

    Attributes:
        folder: The command's own folder, `{checkpoint_dir}`.
    """

    def __init__(self, url: str, command: str) -> None:
        self._store = CheckpointStore(url)
        self._fingerprint = hashlib.sha256(f"command {command}".encode()).hexdigest()
        local = local_path(url)
        self.folder = (
            f"{url.rstrip('/')}/{_FOLDER}" if local is None else str(Path(local).resolve() / _FOLDER)
        )
        self._local = local is not None

    def make_folder(self) -> None:
        """Make the command's folder, if it is one of this machine.

        Raises:
            ConfigurationError: If it cannot be made.
        """
        try:
            if self._local:
                Path(self.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{self.folder}: {error.strerror or error}", key="checkpoint.path"
            ) from error

    @property
    def empty(self) -> bool:
        """Whether the command has saved nothing there, as far as can be seen from here."""
        return self._local and all(path.name == COUNTS for path in Path(self.folder).glob("*"))

    def newest_at_s(self) -> float:
        """When something in the folder was last changed; 0 if nothing is there, or it is elsewhere."""
        if not self._local:
            return 0.0
        return max(
            (path.stat().st_mtime for path in Path(self.folder).glob("**/*") if path.is_file()), default=0.0
        )

    def record(self, kept: Kept, *, now: datetime) -> int:
        """Record a checkpoint, from which `resume` goes on; returns its size in bytes, as far as it is known.

        Raises:
            TransientError: If it cannot be written.
            ConfigurationError: If there is no permission.
        """
        checkpoint = kept.checkpoint
        attempt = uuid.uuid4().hex[:16]
        part = self._store.write_part(
            checkpoint.step, attempt, "record", {"step": np.array([checkpoint.step])}
        )
        self._store.commit(
            Manifest(
                fingerprint=self._fingerprint,
                step=checkpoint.step,
                attempt=attempt,
                epoch=checkpoint.epoch,
                consumed=checkpoint.samples,
                view=kept.view,
                parts=(part,),
                created_at=now,
                state={
                    "launched": kept.launched,
                    "samples_per_epoch": kept.samples_per_epoch,
                    "path": checkpoint.path,
                },
            )
        )
        path = Path(checkpoint.path)
        return path.stat().st_size if checkpoint.path and path.is_file() else 0

    def latest(self) -> Kept | None:
        """The newest checkpoint on record; None if there is none.

        Raises:
            ConfigurationError: If it belongs to another job.
            TransientError: If it cannot be read.
        """
        found = self._store.latest(finite=True)
        if found is None:
            return None
        manifest = found.manifest
        if manifest.fingerprint != self._fingerprint:
            raise ConfigurationError(f"the checkpoint of step {manifest.step} is of another command")
        state = manifest.state
        held = CommandCheckpoint(manifest.step, manifest.epoch, manifest.consumed, state["path"])
        return Kept(held, manifest.view, state["launched"], state["samples_per_epoch"])
