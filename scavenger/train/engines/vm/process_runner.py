"""Runs the processes on a host and reports on them. Used by one thread at a time; no method but `close` waits."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scavenger.train.engines.logs import LOG_BYTES_MAX
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.tree_use import TreeUse, tree_use
from scavenger.train.engines.vm import messages as m
from scavenger.train.transport.messages.values import ProcessConfiguration

_SAMPLE_S = 0.5
"""How often the memory and the work of a process are looked at, seconds."""
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def is_disk_error(error: Exception) -> bool:
    """Whether the disk of this host is full, or fails."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


@dataclass(slots=True)
class _Tail:
    """Position up to which a log has been sent; processes of the same name share one log."""

    path: Path
    sent: int = 0

    def read(self, *, ended: bool) -> bytes:
        """Return the next part. A log that grows faster than it is read loses its middle, so its size is limited."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size > LOG_BYTES_MAX and not ended:
                self.sent = max(self.sent, size - m.LOG_PART_BYTES)
            if self.sent > size:  # the log was truncated
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
    placed: bool = False
    suspended: bool = False
    memory_bytes: int = 0
    use: TreeUse = field(default_factory=TreeUse)
    sampled_at: float = float("-inf")
    term_at: float = float("inf")
    kill_at: float = float("inf")
    status: int | None = None
    reason: str = ""


@dataclass(slots=True)
class ProcessRunner:
    """The processes that run on this host.

    Args:
        send: Sends a message to the leader.
        forks: Whether workers are forked from a process that has imported what they need.
    """

    send: Callable[[m.AgentMessage], None]
    forks: bool = True
    _engines: dict[tuple[str, ...], ProcessEngine] = field(default_factory=dict)
    _processes: dict[int, _Process] = field(default_factory=dict)
    _tails: dict[str, _Tail] = field(default_factory=dict)
    _reason: str = ""

    @property
    def busy(self) -> bool:
        """Whether a process runs, or its end has not been reported."""
        return bool(self._processes)

    def start(self, order: m.Start, folder: Path | None) -> None:
        """Run a process.

        Args:
            order: The leader's order.
            folder: This host's copy of the folder of the training code; None if the process does not need it.

        Raises:
            OSError: The disk does not take it, and nothing else runs here.
        """
        config = msgspec.structs.replace(
            order.boot,
            memory_fd=-1,
            job_dir="" if folder is None else str(folder),
            threads=min(order.boot.threads, os.cpu_count() or 1),
        )
        try:
            engine = self._engine(order.command)
            engine.launch(config, env=order.env)
        except (OSError, ValueError, RuntimeError) as error:
            self.refuse(order.launch, f"could not be run on its host: {error}")
            if is_disk_error(error) and not self.busy:
                raise  # the next one would end like this one
            return
        self._processes[order.launch], self._reason = _Process(config, engine), ""
        self._tails.setdefault(config.name, _Tail(engine.log(config.name)))
        self._place(order.launch)

    def refuse(self, launch: int, reason: str) -> None:
        """Report a process that will not run."""
        self.send(m.Report(launch, status=-signal.SIGKILL, reason=reason[:2000]))

    def kill(self, launch: int) -> None:
        """End a process at once; `step` reports it."""
        if (process := self._processes.get(launch)) is not None and process.status is None:
            process.engine.kill(process.config.name)

    def stop(self, launch: int, grace_s: float, now: float) -> None:
        """Let a process end by itself, then end it by SIGTERM, then by SIGKILL."""
        if (process := self._processes.get(launch)) is not None:
            process.term_at, process.kill_at = now + grace_s, now + 2 * grace_s

    def stop_all(self, grace_s: float, now: float, reason: str) -> None:
        """End all processes: SIGTERM at once, SIGKILL after `grace_s`."""
        self._reason = reason
        for process in self._processes.values():
            process.term_at, process.kill_at = now, now + grace_s

    def show_stack(self, launch: int) -> None:
        if (process := self._processes.get(launch)) is not None and process.status is None:
            process.engine.show_stack(process.config.name)

    def step(self, now: float, *, room: bool) -> None:
        """Check all processes once: collect ends, send signals and report.

        Args:
            now: Monotonic seconds.
            room: Whether the channel has capacity for reports.
        """
        ends = {(engine, ended.name): ended for engine in self._engines.values() for ended in engine.poll()}
        for launch, process in list(self._processes.items()):
            name = process.config.name
            if (ended := ends.get((process.engine, name))) is not None:
                process.status = ended.status
                process.reason = ended.cause if ended.out_of_memory else ""
            if process.status is None:
                self._place(launch)
                self._signal_if_due(process, now)
            if room:
                self._report(launch, process, now)

    def close(self) -> None:
        """Kill all processes and release the engines."""
        for engine in self._engines.values():
            engine.kill_all()
        for engine in self._engines.values():
            engine.close()

    def _place(self, launch: int) -> None:
        """Tell the leader of a process that has its id now; one that is forked gets it after a while."""
        process = self._processes[launch]
        if not process.placed and (pid := process.engine.pid(process.config.name)):
            process.placed = True
            self.send(m.Placed(launch, pid))

    def _engine(self, command: tuple[str, ...]) -> ProcessEngine:
        if command not in self._engines:
            self._engines[command] = (
                ProcessEngine(None, -1, command=command or None)
                if self.forks
                else ProcessEngine(None, -1, command=command or None, fork_targets={})
            )
        return self._engines[command]

    @staticmethod
    def _signal_if_due(process: _Process, now: float) -> None:
        if now >= process.kill_at:
            process.engine.kill(process.config.name)
            process.kill_at = float("inf")
        elif now >= process.term_at:
            process.term_at = float("inf")
            process.engine.terminate(process.config.name)

    def _report(self, launch: int, process: _Process, now: float) -> None:
        ended = process.status is not None
        log = self._tails[process.config.name].read(ended=ended)
        if ended and not log:
            self.send(m.Report(launch, status=process.status, reason=self._reason or process.reason))
            del self._processes[launch]
            return
        suspended, memory, working = process.suspended, process.memory_bytes, False
        if not ended:
            name = process.config.name
            suspended = process.engine.suspended(name)
            if now - process.sampled_at >= _SAMPLE_S:
                process.sampled_at = now
                memory = process.engine.sample_memory().get(name, memory)
                working = process.engine.idle_s(name) < _SAMPLE_S
                if process.config.role == "tenant":
                    process.use = tree_use(process.engine.pid(name))
                    working, memory = True, process.use.memory_bytes
        if log or working or (suspended, memory) != (process.suspended, process.memory_bytes):
            process.suspended, process.memory_bytes = suspended, memory
            use = process.use
            self.send(m.Report(launch, log, suspended, memory, working, use.cpu_s, use.waited_s))
