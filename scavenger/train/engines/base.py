"""What starts, watches and ends the processes of a job: the contract of every engine.

`tests/train/engine_conformance.py` holds every implementation to it.
"""

from __future__ import annotations

import select
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["GRACE_S", "LINE_BYTES_MAX", "Engine", "Exit", "PreemptionNotice", "as_line"]

GRACE_S = 5.0
"""How long `stop` waits for each of its steps, unless told."""

LINE_BYTES_MAX = select.PIPE_BUF - 1
"""Longest line of `Engine.tell`: what the system writes to a pipe wholly or not at all, less the line's end."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that ended.

    Attributes:
        name: As in its `ProcessConfiguration`.
        status: Its exit status; negative: the signal that killed it, or would have, where nobody is left to tell.
        reason: What the engine knows beyond the status, e.g. that the host was lost; empty if nothing.
        refused: It never ran, as there is no place for it.
        out_of_memory: The kernel killed it because memory ran out, by its own count.
    """

    name: str
    status: int
    reason: str = ""
    refused: bool = False
    out_of_memory: bool = False

    @property
    def cause(self) -> str:
        """What happened, to stand behind the name in a sentence."""
        if self.reason:
            return self.reason
        if self.status >= 0:
            return f"ended with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:  # a real-time signal, or none at all
            name = f"signal {-self.status}"
        return f"was killed by {name}" + (": out of memory" if self.out_of_memory else "")


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """A process whose host has been told that it will end.

    Attributes:
        name: As in its `ProcessConfiguration`.
        in_s: Until then; None where no time is set, as at a mere risk.
        reason: In words.
    """

    name: str
    in_s: float | None
    reason: str


class Engine(Protocol):
    """Runs each role of a job as a process group of its own, on this host or on many.

    The process that holds the engine is the *leader*. An engine is used from one thread; `kill_all` and
    `running` may also be called from a signal handler. No method but `stop` and `close` waits for a process.

    **When the leader ends**, in whatever way, even by SIGKILL, every process ends and whatever its code started
    ends with it: at once on the leader's host, and on others within seconds of the moment when they notice.
    A host that is cut off from the leader ends its processes when `poll` has not reached them for minutes; until
    then they live, and it is for the protocol between them to refuse what they say.

    **News comes by `poll`**: `pid`, `host`, `suspended`, `sample_memory` and the content of `log` are as of the
    last one where the process runs on another host.

    A name that was never launched is a `KeyError` everywhere.
    """

    def launch(
        self,
        boot: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """Start a process, which finds its bootstrap as the first line of its standard input.

        Args:
            boot: What the process is told. A name may be used again once `running` lacks it; its log goes on.
            env: Variables beside those that it inherits.
            host: The address, as `host` tells it, to run at; None: wherever there is room.
            vm: The type of VM to run on; of no account to an engine whose hosts are all alike.

        Returns:
            Its id at its host, or 0 while it is still being placed: `pid` tells it later, and `poll` tells
            if that came to nothing.

        Raises:
            ValueError: If a process of that name runs, or the engine cannot run at that host.
            RuntimeError: If the engine is closed.
            OSError: If this machine cannot start one.
        """
        ...

    def poll(self) -> list[Exit]:
        """Processes that have ended since the last look, each once; what they started has ended with them.

        Those that `stop` ended are not among them. Never waits.
        """
        ...

    def doomed(self) -> tuple[PreemptionNotice, ...]:
        """Processes whose host has been told that it will end, each told once."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """Addresses of the hosts that workers can be put on; empty where a new one can be had for each."""
        return ()

    def avoid(self, hosts: Collection[str]) -> None:
        """Start no more workers on these hosts, by their addresses, as long as there is another; on all others, do.

        Processes that run there stay. An engine that runs everything on one host does nothing.
        """
        ...

    def kill(self, name: str) -> None:
        """End a process and all that it started, at once; `poll` reports it. Nothing if it has ended."""
        ...

    def kill_all(self) -> None:
        """`kill` to everything, without waiting; safe to call from a signal handler, and twice."""
        ...

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """End processes that have been told to quit: wait, then SIGTERM, then SIGKILL to each group.

        Idempotent: those that have ended are passed over.

        Args:
            names: None: all.
            grace_s: Seconds for each of the first two steps.

        Raises:
            CleanupError: If one cannot be ended, or nobody can tell; the message names it.
        """
        ...

    def close(self) -> None:
        """`stop` everything, briefly, and give back what the engine holds. Idempotent; logs stay.

        Raises:
            CleanupError: As `stop`; what can be given back is given back all the same.
        """
        ...

    @property
    def in_doubt(self) -> bool:
        """The leader hears too few of its other hosts to tell whether they live: silence proves nothing for now."""
        return False

    @property
    def leader_host(self) -> str:
        """The address of the leader's own host, by which processes reach it."""
        ...

    @property
    def leader_port(self) -> int:
        """Where the leader is to listen for its processes; 0: at any port."""
        return 0

    def reachable(self, url: str) -> str:
        """By which URL processes reach what the leader reaches by this one: another where files are not shared."""
        return url

    @property
    def running(self) -> tuple[str, ...]:
        """Names of those whose end has not been seen."""
        ...

    def pid(self, name: str) -> int:
        """Its id at its host, also after its end; 0 if it has not been placed yet."""
        ...

    def host(self, name: str) -> str:
        """The address of its host; empty if it has not been placed yet."""
        ...

    def log(self, name: str) -> Path:
        """The file on the leader's host that holds what the process writes to its output and error output."""
        ...

    def suspended(self, name: str) -> bool:
        """Whether it is stopped by SIGSTOP or its like (state T): alive, and silent until continued."""
        ...

    def tell(self, name: str, line: bytes) -> None:
        """Put a further line on its standard input, in order; its end of line is added.

        Not kept for a process that has ended or has left too much unread: what matters must be answered.

        Raises:
            ValueError: If the line holds an end of line or is longer than `LINE_BYTES_MAX`.
        """
        ...

    def sample_memory(self) -> dict[str, int]:
        """Largest resident memory seen so far of each running process, bytes; shared pages count for each."""
        ...

    def cap_logs(self) -> None:
        """Keep the end of logs that have grown beyond bounds, also while their processes write."""
        ...

    def show_stack(self, name: str) -> None:
        """Have a process write where it stands to its log (SIGUSR1). Nothing if it has ended."""
        ...


def as_line(line: bytes) -> bytes:
    """A line with its end, fit for one write to a pipe.

    Raises:
        ValueError: See `Engine.tell`.
    """
    if b"\n" in line or len(line) > LINE_BYTES_MAX:
        raise ValueError(f"not one line of at most {LINE_BYTES_MAX} bytes: {line[:40]!r}")
    return line + b"\n"
