"""The processes on a VM: runs them, and reports what comes up. For the agent's one thread; nothing here waits."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scavenger.train.engines.process import LOG_BYTES_MAX, ProcessEngine
from scavenger.train.engines.vm import messages as m
from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["ProcessRunner"]

_MEMORY_S = 0.5


@dataclass(slots=True)
class _Tail:
    """How far a log has been sent; processes of one name write to one log."""

    path: Path
    sent: int = 0

    def read(self, *, ended: bool) -> bytes:
        """The next part. What is written faster than it is fetched loses its middle, and the file stays bounded."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size > LOG_BYTES_MAX and not ended:
                self.sent = max(self.sent, size - m.LOG_PART_BYTES)
            if self.sent > size:  # shortened at its end
                self.sent = max(0, size - m.LOG_PART_BYTES)
            file.seek(self.sent)
            part = file.read(m.LOG_PART_BYTES)
            self.sent += len(part)
            if self.sent >= size > LOG_BYTES_MAX:
                file.truncate(0)
                self.sent = 0
            return part
        return b""


@dataclass(slots=True)
class _Process:
    config: ProcessConfiguration
    engine: ProcessEngine
    suspended: bool = False
    memory_bytes: int = 0
    memory_at: float = float("-inf")
    term_at: float = float("inf")
    kill_at: float = float("inf")
    status: int | None = None
    reason: str = ""


@dataclass(slots=True)
class ProcessRunner:
    """All that run here.

    Args:
        send: Tells the leader.
    """

    send: Callable[[m.AgentMessage], None]
    _engines: dict[tuple[str, ...], ProcessEngine] = field(default_factory=dict)
    _processes: dict[int, _Process] = field(default_factory=dict)
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _reason: str = ""

    @property
    def busy(self) -> bool:
        """Something runs, or its end has not been told."""
        return bool(self._processes)

    def start(self, order: m.Start, folder: Path | None) -> None:
        """Run a process.

        Args:
            order: The leader's.
            folder: Of the training code, in place of the leader's; None if it needs none.
        """
        config = msgspec.structs.replace(
            order.boot,
            memory_fd=-1,
            job_dir="" if folder is None else str(folder),
            threads=min(order.boot.threads, os.cpu_count() or 1),
        )
        try:
            engine = self._engine(order.command)
            pid = engine.launch(config, env=order.env)
        except (OSError, ValueError, RuntimeError) as error:
            self.refuse(order.launch, f"could not be run on its VM: {error}")
            return
        self._processes[order.launch], self._reason = _Process(config, engine), ""
        self._tails.setdefault(config.name, _Tail(engine.log(config.name)))
        self.send(m.Placed(order.launch, pid))

    def refuse(self, launch: int, reason: str) -> None:
        """Tell of a process that will not run."""
        self.send(m.Report(launch, status=-signal.SIGKILL, reason=reason[:2000]))

    def kill(self, launch: int) -> None:
        """End a process at once; `step` tells of it."""
        if (process := self._processes.get(launch)) is not None and process.status is None:
            process.engine.kill(process.config.name)

    def stop(self, launch: int, grace_s: float, now: float) -> None:
        """Have a process end by itself, then by SIGTERM, then by SIGKILL."""
        if (process := self._processes.get(launch)) is not None:
            process.term_at, process.kill_at = now + grace_s, now + 2 * grace_s

    def stop_all(self, grace_s: float, now: float, reason: str) -> None:
        """End everything: SIGTERM at once, SIGKILL after a while."""
        self._reason = reason
        for process in self._processes.values():
            process.term_at, process.kill_at = now, now + grace_s

    def send_line(self, launch: int, line: bytes) -> None:
        if (process := self._processes.get(launch)) is not None:
            with contextlib.suppress(ValueError):
                process.engine.send_line(process.config.name, line)

    def show_stack(self, launch: int) -> None:
        if (process := self._processes.get(launch)) is not None and process.status is None:
            process.engine.show_stack(process.config.name)

    def step(self, now: float, *, room: bool) -> None:
        """Look after everything once.

        Args:
            room: Whether there is room on the line for more than what must be told.
        """
        ends = {(engine, ended.name): ended for engine in self._engines.values() for ended in engine.poll()}
        for launch, process in list(self._processes.items()):
            name = process.config.name
            if (ended := ends.get((process.engine, name))) is not None:
                process.status = ended.status
                process.reason = ended.cause if ended.out_of_memory else ""
            if process.status is None:
                self._signal_if_due(process, now)
            if room:
                self._report(launch, process, now)

    def close(self) -> None:
        """End what still runs."""
        for engine in self._engines.values():
            engine.kill_all()
        for engine in self._engines.values():
            engine.close()

    def _engine(self, command: tuple[str, ...]) -> ProcessEngine:
        if command not in self._engines:
            self._engines[command] = (
                ProcessEngine(None, -1, command=command) if command else ProcessEngine(None, -1)
            )
        return self._engines[command]

    @staticmethod
    def _signal_if_due(process: _Process, now: float) -> None:
        if now >= process.kill_at:
            process.engine.kill(process.config.name)
            process.kill_at = float("inf")
        elif now >= process.term_at:
            process.term_at = float("inf")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # its end has not been collected, so the id is its own
                os.killpg(process.engine.pid(process.config.name), signal.SIGTERM)

    def _report(self, launch: int, process: _Process, now: float) -> None:
        ended = process.status is not None
        log = self._tails[process.config.name].read(ended=ended)
        if ended and not log:
            self.send(m.Report(launch, status=process.status, reason=self._reason or process.reason))
            del self._processes[launch]
            return
        suspended, memory = process.suspended, process.memory_bytes
        if not ended:
            suspended = process.engine.suspended(process.config.name)
            if now - process.memory_at >= _MEMORY_S:
                process.memory_at = now
                memory = process.engine.sample_memory().get(process.config.name, memory)
        if log or (suspended, memory) != (process.suspended, process.memory_bytes):
            process.suspended, process.memory_bytes = suspended, memory
            self.send(m.Report(launch, log, suspended, memory))
