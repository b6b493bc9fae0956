"""What is on record of a command's checkpoints: the step and epoch of each. Their content is the command's own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from scavenger.errors import ConfigurationError
from scavenger.sdk.report import COUNTS
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.files import local_path, open_files
from scavenger.train.checkpoints.manifest import CheckpointManifest
from scavenger.train.command.stored_folder import OBJECT, Listing, StoredFile, StoredFolder, checked, size_of

_FOLDER = "command"
_STORED = "command-files"
_KEEP = 2
"""Checkpoints on record whose files are kept; as many as the store of records keeps."""


_Files = dict[str, StoredFile]


@dataclass(frozen=True, slots=True)
class CommandCheckpoint:
    """A checkpoint that the command has saved.

    Attributes:
        step: The last step that it includes.
        epoch: The epoch in progress.
        samples: Samples of it so far.
        path: Where it is, if the command has told; in its folder if that is carried.
        files: The folder as it was stored; None if it is the same folder everywhere, and not carried.
    """

    step: int
    epoch: int
    samples: int
    path: str = ""
    files: Listing | None = None


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
        folder: The command's own folder, `{checkpoint_dir}`; of a carried one, where the last state is put.
        storage: URL under which files of a carried folder are stored.
    """

    def __init__(self, url: str, command: str) -> None:
        self._store = CheckpointStore(url, keep=_KEEP)
        self._fingerprint = hashlib.sha256(f"command {command}".encode()).hexdigest()
        local = local_path(url)
        self.folder = (
            f"{url.rstrip('/')}/{_FOLDER}" if local is None else str(Path(local).resolve() / _FOLDER)
        )
        self.storage = (
            f"{url.rstrip('/')}/{_STORED}" if local is None else str(Path(local).resolve() / _STORED)
        )
        self._local = local is not None
        self._kept: list[set[str]] = []
        self._seen: set[str] = set()

    @property
    def is_here(self) -> bool:
        """Whether the command's folder, or what it is stored in, is one of this machine."""
        return self._local

    def make_folder(self) -> None:
        """Make the command's folder.

        Raises:
            ConfigurationError: If it cannot be made.
        """
        try:
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
            CheckpointManifest(
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
                    "folder": self.folder,
                    **({} if checkpoint.files is None else {"files": msgspec.to_builtins(checkpoint.files)}),
                },
            )
        )
        if checkpoint.files is not None:
            return size_of(checkpoint.files)
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
        files = None if "files" not in state else checked(msgspec.convert(state["files"], _Files))
        path, folder = state["path"], state["folder"]
        if os.path.isabs(path) and Path(path).is_relative_to(folder):  # the folder may be elsewhere by now
            path = str(Path(self.folder) / Path(path).relative_to(folder))
        held = CommandCheckpoint(manifest.step, manifest.epoch, manifest.consumed, path, files)
        return Kept(held, manifest.view, state["launched"], state["samples_per_epoch"])

    # ---- a carried folder ----------------------------------------------------------------------------------

    def carry(self, held: Listing | None) -> str:
        """Prepare to have the folder carried; returns the URL under which its files are stored.

        Removes what an attempt that was killed has stored, and recorded in no checkpoint; nobody stores anything now.

        Args:
            held: The state that the job begins with.

        Raises:
            ConfigurationError: If the place cannot be read.
        """
        files, names = open_files(self.storage), _objects(held or {})
        try:
            for name in set(files.folders()) - names:
                files.remove(name, OBJECT)
        except OSError as error:
            raise ConfigurationError(
                f"{self.storage}: {error.strerror or error}", key="checkpoint.path"
            ) from error
        self._seen, self._kept = set(names), [names]
        return self.storage

    def fetch(self, files: Listing, work_dir: Path) -> None:
        """Put a state of the carried folder into one of this machine: `folder`, or one of the job's outputs.

        Raises:
            OSError, DamagedError: If that fails.
        """
        if not self._local:
            self.folder = str(work_dir / _FOLDER)
        StoredFolder(Path(self.folder), open_files(self.storage)).fetch(files)
        self._local = True

    def seen(self, files: Listing) -> None:
        """Note what a worker has stored."""
        self._seen |= _objects(files)

    def tidy_up(self, newest: Listing, wanted: Collection[str]) -> None:
        """Remove objects that no checkpoint on record names any more.

        Args:
            newest: Of the checkpoint that was just recorded.
            wanted: Objects that a later checkpoint may name again.
        """
        self._kept = [*self._kept, _objects(newest)][-_KEEP:]
        keep = set(wanted).union(*self._kept)
        files = open_files(self.storage)
        for name in sorted(self._seen - keep):
            with contextlib.suppress(OSError):  # the next one tries again
                files.remove(name, OBJECT)
                self._seen.discard(name)


def _objects(files: Mapping[str, StoredFile]) -> set[str]:
    return {file.stored for file in files.values() if file.stored}
