"""What engines share whose processes run on other hosts: the last known state of each process."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from scavenger.private_files import FILE_MODE
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.engines.logs import cap_log
from scavenger.train.engines.vm import messages as m
from scavenger.train.transport.messages.values import ProcessConfiguration


@dataclass(slots=True)
class RemoteProcess:
    """Last known state of a process on another host.

    Attributes:
        log: Local file to which its output is copied.
        place_by: Deadline for its placement, after which it counts as ended, monotonic seconds.
        pid: Process id on its host; 0 until it is placed.
        host: Address of its host; empty until it is placed.
        memory_bytes: Largest resident memory seen.
        suspended: Whether it is stopped (state T).
        worked_at: When it was last reported to work, monotonic seconds.
        ended: Whether its end is known.
    """

    config: ProcessConfiguration
    log: Path
    place_by: float
    pid: int = 0
    host: str = ""
    memory_bytes: int = 0
    suspended: bool = False
    worked_at: float = -math.inf
    ended: bool = False

    @property
    def where(self) -> str:
        """Name, process id and host, for messages to users."""
        return f"{self.config.name} (process {self.pid} on {self.host})"


P = TypeVar("P", bound=RemoteProcess)


class RemoteProcesses(Engine, Generic[P]):
    """Keeps the state of all processes; a subclass places them, forwards commands and receives reports.

    Args:
        log_dir: Local folder to which output is copied, one file per process.
        clock: Returns monotonic seconds.

    Attributes:
        log_dir, clock: See the arguments.
    """

    def __init__(self, log_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.log_dir, self.clock = log_dir, clock
        self._processes: dict[str, P] = {}
        self._exits: list[Exit] = []
        self._closed = False

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(name for name, process in self._processes.copy().items() if not process.ended)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def host(self, name: str) -> str:
        return self._processes[name].host

    def log(self, name: str) -> Path:
        return self._processes[name].log

    def suspended(self, name: str) -> bool:
        return self._processes[name].suspended

    def idle_s(self, name: str) -> float:
        process = self._processes[name]
        return math.inf if process.ended else self.clock() - process.worked_at

    def sample_memory(self) -> dict[str, int]:
        return {
            name: process.memory_bytes
            for name, process in self._processes.items()
            if not process.ended and process.memory_bytes
        }

    def cap_logs(self) -> None:
        """See `Engine.cap_logs`; the hosts truncate their own logs."""
        for process in self._processes.values():
            if not process.ended:
                cap_log(process.log)

    # ---- for subclasses ------------------------------------------------------------------------------------

    def _check_launch(self, name: str) -> None:
        """Check that a process of this name may be launched.

        Raises:
            RuntimeError, ValueError: See `Engine.launch`.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        if name in self.running:
            raise ValueError(f"a process {name!r} runs already")

    def _new_log(self, name: str) -> Path:
        log = self.log_dir / f"{name}.log"
        log.touch(FILE_MODE)
        return log

    def _report(self, process: P, report: m.Report) -> None:
        """Record a host's report about a process."""
        if report.log:
            with process.log.open("ab") as file:
                file.write(report.log)
        process.suspended = report.suspended
        if report.working:
            process.worked_at = self.clock()
        process.memory_bytes = max(process.memory_bytes, report.memory_bytes)
        if report.status is not None:
            self._end(process, report.status, report.reason)

    def _end(self, process: P, status: int, reason: str = "", *, refused: bool = False) -> None:
        """Record the end of a process, for `poll` to return."""
        process.ended, process.suspended = True, False
        cap_log(process.log)
        self._exits.append(Exit(process.config.name, status, reason, refused))

    def _lose(self, process: P, reason: str) -> None:
        """Record that a process is lost, or never ran."""
        self._end(process, -signal.SIGKILL, reason)

    def _take_exits(self) -> list[Exit]:
        exits, self._exits = self._exits, []
        return exits

    def _waited_too_long(self) -> list[P]:
        """Return the processes that were not placed in time."""
        now = self.clock()
        return [one for one in self._processes.values() if not one.ended and self._waits(one, now)]

    def _waits(self, process: P, now: float) -> bool:
        return not process.pid and now > process.place_by
