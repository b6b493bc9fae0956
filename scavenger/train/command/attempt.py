"""One start of a command's group, what it was started for, and where its checkpoints are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from scavenger.train.command import messages as cm
from scavenger.train.command.progress import AttemptProcesses
from scavenger.train.command.stored_folder import Listing
from scavenger.train.command.whole import WholeStates


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where the command's checkpoints are.

    Attributes:
        folder: Its own folder on this machine; if each process has one of its own, those here begin with its name.
        storage: URL under which hosts store it, if each has one of its own; else empty.
        seen: Called with what a host has stored.
    """

    folder: str
    storage: str = ""
    seen: Callable[[Listing], None] = lambda files: None

    def folder_of(self, worker: str, there: str) -> str:
        """The folder of one process.

        Args:
            there: That of its machine, if it is another one than this.
        """
        if not self.storage:
            return self.folder
        return there or f"{self.folder}-{worker}"


@dataclass(frozen=True, slots=True)
class Target:
    """What the group is to be."""

    workers: int
    global_batch_size: int
    reason: str
    lr_scale: float = 1.0


@dataclass(slots=True)
class Attempt:
    """One start of the group.

    Attributes:
        target: What it was started for; it may have fewer members.
        began_s, heard_s: When it began, and when it was last heard of, monotonic seconds.
        request: What the program was asked.
        reporting: Whether the program reports by `scavenger_report`, so that it sees requests.
        live: Whether it takes its batches from the job, so that it is asked for others while it trains.
        changing: What it was asked to go on as, as `target` for which it was started; None if nothing, or once it has.
        ended: Exit status of the processes that have ended.
        ending: Whether it is being ended.
        until_s: When its processes are killed.
        cause: Why it failed; empty otherwise.
        killed: Whether that is the end of a worker, or something from outside killed its command, as for memory.
        raised: The exceptions by which processes told that they end.
        saved: Whether it has reported a checkpoint.
        states: Which states of its folder are whole, if that is carried.
    """

    group: AttemptProcesses
    target: Target
    began_s: float
    heard_s: float
    request: cm.AskProgram
    states: WholeStates
    reporting: bool = False
    live: bool = False
    changing: Target | None = None
    ended: dict[str, int] = field(default_factory=dict)
    ending: bool = False
    until_s: float = math.inf
    cause: str = ""
    killed: bool = False
    raised: dict[str, str] = field(default_factory=dict)
    saved: bool = False

    @property
    def left(self) -> tuple[str, ...]:
        """Members whose process has not ended."""
        return tuple(name for name in self.group.members if name not in self.ended)
