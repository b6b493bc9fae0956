"""Which state of the command's folder is whole in the storage, when every process has a folder of its own. Pure.

The first process's folder counts. Of another one, what it has written itself is added: a program may have every process
save a part. What any of them has removed of the files that all began with is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scavenger.train.command.checkpoints import CommandCheckpoint
from scavenger.train.command.stored_folder import Listing, StoredFile


def merged(begun: Listing, folders: Sequence[Listing]) -> dict[str, StoredFile]:
    """The folder as one.

    Args:
        begun: What all began with.
        folders: The folder of each process, the first one's first.
    """
    own = [{path: file for path, file in folder.items() if begun.get(path) != file} for folder in folders]
    kept = {path for path in begun if all(path in folder for folder in folders)}
    found = {path: begun[path] for path in kept}
    for files in reversed(own):
        found |= files
    return found


@dataclass(slots=True)
class WholeStates:
    """The states of one attempt.

    Args:
        members: Its workers, the first one first.
        begun: What is in the folder at the start.

    Attributes:
        every_rank: Whether each process saves a part of a checkpoint.
    """

    members: tuple[str, ...]
    begun: Listing
    every_rank: bool = False
    _told: list[tuple[CommandCheckpoint, float]] = field(default_factory=list)
    _stored: dict[tuple[str, int], Listing] = field(default_factory=dict)
    _last: dict[str, Listing] = field(default_factory=dict)

    @property
    def newest_told(self) -> CommandCheckpoint | None:
        """The newest checkpoint that the program told of."""
        return self._told[-1][0] if self._told else None

    def told(self, checkpoint: CommandCheckpoint, took_s: float) -> None:
        """The first process has told of a checkpoint."""
        self._told.append((checkpoint, took_s))

    def stored(
        self, name: str, number: int, files: Listing, now: CommandCheckpoint, *, last: bool
    ) -> tuple[CommandCheckpoint, float] | None:
        """A worker has stored its folder; returns the checkpoint that is whole by this, and the time that it took.

        Args:
            number: How many checkpoints it had told of.
            now: What a program that tells of none is at.
            last: Whether its process has ended.
        """
        if last:
            self._last[name] = files
            return None
        self._stored = {key: kept for key, kept in self._stored.items() if key[0] != name}
        self._stored[name, number] = files
        awaited = self.members if self.every_rank else self.members[:1]
        folders = [self._stored.get((member, number)) for member in awaited]
        if any(folder is None for folder in folders) or number > len(self._told):
            return None
        checkpoint, took_s = self._told[number - 1] if number else (now, 0.0)
        files = merged(self.begun, [folder for folder in folders if folder is not None])
        return replace(checkpoint, files=files), took_s

    def ended(self, now: CommandCheckpoint, held: Listing) -> CommandCheckpoint | None:
        """All processes have ended by themselves; returns what they left, if that is more than what is held."""
        folders = [self._last.get(member) for member in self.members]
        if any(folder is None for folder in folders):
            return None
        files = merged(self.begun, [folder for folder in folders if folder is not None])
        return None if files == dict(held) else replace(self.newest_told or now, files=files)

    @property
    def objects(self) -> set[str]:
        """Names of all objects that a later state may name again."""
        listings = [self.begun, *self._stored.values(), *self._last.values()]
        return {file.stored for listing in listings for file in listing.values()}
