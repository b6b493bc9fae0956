"""The Ray actor that `scavenger.train.engines.ray.engine` starts on a host to run one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scavenger.train.engines.process import LOG_BYTES_MAX, ProcessEngine
from scavenger.train.transport.messages.values import ProcessConfiguration

_ANSWER_S = 0.5
"""Longest time that `watch` waits for a change."""
_TICK_S = 0.05
_LOG_PART_BYTES = 64 << 10
"""Ray sends up to 100 kB inline; larger results go through its object store."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Process id and host address of a process that was started."""

    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Report:
    """Changes of a process since the last report.

    Attributes:
        log: New output.
        suspended: Whether the process is stopped (state T).
        memory_bytes: Its resident memory.
        status: Its exit status; None as long as it runs.
        reason: What the host knows beyond the status; may be empty.
        working: Whether it was seen to use a processor, or to wait for one, since the last report.
    """

    log: bytes
    suspended: bool
    memory_bytes: int
    status: int | None
    reason: str = ""
    working: bool = False


class ProcessActor:
    """Ray actor that runs one process on this host.

    Ray calls `watch` and `stop` in one thread each, and all other methods, in order, in a third.
    """

    def __init__(self, command: Sequence[str] | None, lease_s: float) -> None:
        self._engine = ProcessEngine(None, -1, command=command, fork_target=None)
        self._name = ""
        self._sent = 0
        self._suspended = False
        self._last: Report | None = None
        self._lock = threading.Lock()  # only one of `watch` and `stop` may clean up after the process
        self._asked_at = time.monotonic()
        guard = threading.Thread(target=self._guard, args=(os.getppid(), lease_s), name="scavenger-guard")
        guard.daemon = True
        guard.start()

    def start(self, config: ProcessConfiguration, env: dict[str, str] | None) -> Placed:
        """Start the process. Idempotent, because the answer may be lost."""
        import ray

        if not self._name:
            # the training code must not control the cluster that it runs on
            os.environ.pop("RAY_AUTH_TOKEN", None)
            self._engine.launch(config, env=env)
            self._name = config.name
        return Placed(self._engine.pid(self._name), ray.util.get_node_ip_address())

    def watch(self) -> Report:
        """Return a report as soon as something has changed, at the latest after `_ANSWER_S`."""
        self._asked_at = time.monotonic()
        deadline = self._asked_at + _ANSWER_S
        while True:
            with self._lock:
                report = self._last or self._look()
            changed, self._suspended = report.suspended != self._suspended, report.suspended
            if report.status is not None:
                return report
            if report.log or changed or time.monotonic() > deadline:
                return replace(report, working=self._engine.idle_s(self._name) < _ANSWER_S)
            time.sleep(_TICK_S)

    def stop(self, grace_s: float) -> None:
        """End the process; `watch` reports the end."""
        with self._lock:
            if self._last is None:
                self._engine.stop(grace_s=grace_s)
                self._end(-signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self._engine.kill(self._name)

    def send_line(self, line: bytes) -> None:
        self._engine.send_line(self._name, line)

    def show_stack(self) -> None:
        self._engine.show_stack(self._name)

    def _guard(self, raylet: int, lease_s: float) -> None:
        """Exit when the raylet has ended, which Ray itself notices late, or when the leader stops calling `watch`."""
        while os.getppid() == raylet and time.monotonic() - self._asked_at < lease_s:
            time.sleep(_TICK_S)
        os._exit(1)  # the reaper kills the process

    def _look(self) -> Report:
        for ended in self._engine.poll():
            return self._end(ended.status, ended.cause if ended.out_of_memory else "")
        memory_bytes = self._engine.sample_memory().get(self._name, 0)
        return Report(self._read(_LOG_PART_BYTES), self._engine.suspended(self._name), memory_bytes, None)

    def _end(self, status: int, reason: str = "") -> Report:
        self._last = Report(self._read(LOG_BYTES_MAX), False, 0, status, reason)
        self._engine.close()
        return self._last

    def _read(self, bytes_max: int) -> bytes:
        with self._engine.log(self._name).open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            if size > LOG_BYTES_MAX:  # a log that grows faster than it is fetched loses its middle
                self._sent = max(self._sent, size - bytes_max)
            if self._sent > size:  # the log was truncated
                self._sent = max(0, size - bytes_max)
            file.seek(self._sent)
            part = file.read(bytes_max)
            self._sent += len(part)
            if self._sent >= size > LOG_BYTES_MAX:
                file.truncate(0)
                self._sent = 0
        return part
