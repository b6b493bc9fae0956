"""What `scavenger.train.engines.ray.engine` runs on a host: a Ray actor that keeps one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from scavenger.train.engines.process import LOG_BYTES_MAX, ProcessEngine
from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["Host", "Placed", "Report"]

_ANSWER_S = 0.5
"""How long a host lets the leader wait for news."""
_TICK_S = 0.05
_LOG_PART_BYTES = 64 << 10
"""Ray sends up to 100 kB within an answer; more would go through its object store."""


@dataclass(frozen=True, slots=True)
class Placed:
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Report:
    """What has come up at the host since the last report; `status` is None as long as the process runs.

    `reason`: what the host knows beyond the status; empty if nothing.
    """

    log: bytes
    suspended: bool
    memory_bytes: int
    status: int | None
    reason: str = ""


class Host:
    """The actor: one process on this host.

    Ray calls `watch` and `stop` in a thread each, and everything else, in order, in a third.
    """

    def __init__(self, command: Sequence[str] | None, lease_s: float) -> None:
        self._engine = (
            ProcessEngine(None, -1) if command is None else ProcessEngine(None, -1, command=command)
        )
        self._name = ""
        self._sent = 0
        self._suspended = False
        self._last: Report | None = None
        self._lock = threading.Lock()  # only one of `watch` and `stop` may bury the process
        self._asked_at = time.monotonic()
        guard = threading.Thread(target=self._guard, args=(os.getppid(), lease_s), name="scavenger-guard")
        guard.daemon = True
        guard.start()

    def start(self, boot: ProcessConfiguration, env: dict[str, str] | None) -> Placed:
        """Idempotent, since its answer may be lost."""
        import ray

        if not self._name:
            # the training code must not command the cluster that it runs on
            os.environ.pop("RAY_AUTH_TOKEN", None)
            self._engine.launch(boot, env=env)
            self._name = boot.name
        return Placed(self._engine.pid(self._name), ray.util.get_node_ip_address())

    def watch(self) -> Report:
        """Answers as soon as there is news, and after a while in any case."""
        self._asked_at = time.monotonic()
        deadline = self._asked_at + _ANSWER_S
        while True:
            with self._lock:
                report = self._last or self._look()
            changed, self._suspended = report.suspended != self._suspended, report.suspended
            if report.log or changed or report.status is not None or time.monotonic() > deadline:
                return report
            time.sleep(_TICK_S)

    def stop(self, grace_s: float) -> None:
        """Ends the process; `watch` tells of it."""
        with self._lock:
            if self._last is None:
                self._engine.stop(grace_s=grace_s)
                self._end(-signal.SIGTERM)

    def kill(self) -> None:
        self._engine.kill(self._name)

    def tell(self, line: bytes) -> None:
        self._engine.tell(self._name, line)

    def show_stack(self) -> None:
        self._engine.show_stack(self._name)

    def _guard(self, raylet: int, lease_s: float) -> None:
        """End with the raylet, which Ray takes for alive until it is collected, or when nobody asks any more."""
        while os.getppid() == raylet and time.monotonic() - self._asked_at < lease_s:
            time.sleep(_TICK_S)
        os._exit(1)  # the reaper ends the rest

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
            if size > LOG_BYTES_MAX:  # if written faster than it is fetched, its middle is lost
                self._sent = max(self._sent, size - bytes_max)
            if self._sent > size:  # shortened at its end
                self._sent = max(0, size - bytes_max)
            file.seek(self._sent)
            part = file.read(bytes_max)
            self._sent += len(part)
            if self._sent >= size > LOG_BYTES_MAX:
                file.truncate(0)
                self._sent = 0
        return part
