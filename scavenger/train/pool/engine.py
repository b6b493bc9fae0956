"""Engine of a job whose aggregators run in the pool of this machine, which other jobs use too."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from scavenger.train.engines.base import Exit
from scavenger.train.engines.forking import ForkedProcess
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.pool import protocol
from scavenger.train.pool.connection import PoolConnection
from scavenger.train.transport.messages.values import ProcessConfiguration

_ROLE = "aggregator"


class PooledEngine(ProcessEngine):
    """Runs a job's processes on this machine, its aggregators as tenants of the pool.

    A tenant ends with the job, as every process does, and also with the manager of the pool; the job then starts it
    again, with a manager if none serves.

    Args:
        log_dir, memory_fd, command, gpus: See `ProcessEngine`.
        folder: The folder of the pool.
        job_id: The job's id, shown to who asks for the pool's load.
        job: Its name, too.
    """

    def __init__(
        self,
        log_dir: Path | None,
        memory_fd: int,
        *,
        folder: Path,
        job_id: str,
        job: str,
        command: Sequence[str] | None = None,
        gpus: Sequence[str] | None = None,
    ) -> None:
        super().__init__(log_dir, memory_fd, command=command, gpus=gpus)
        self._folder, self._join = folder, protocol.PoolJoin(protocol.PROTOCOL, job_id, job)
        self._pool: PoolConnection | None = None
        self._used: dict[int, float] = {}  # processor seconds, by process id

    def launch(
        self,
        config: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """See `Engine.launch`; 0 for an aggregator."""
        if config.role == _ROLE and config.memory_fd >= 0:
            config = msgspec.structs.replace(config, memory_fd=protocol.MEMORY_FD)
        return super().launch(config, env=env, host=host, vm=vm)

    def report(self, view: int, steps_s: Sequence[float]) -> None:
        """Tell the pool of the job's steps, by which it places its aggregators.

        Args:
            view: Number of the view in which they were made.
            steps_s: Times of the steps since the last call, seconds.
        """
        if self._pool is not None and steps_s:
            self._pool.report(view, steps_s)

    def aggregation_cpu_s(self) -> float:
        """Processor time that the job's aggregators have used in the pool, seconds, as far as it was seen."""
        for name in self.running:
            if (pid := self.pid(name)) and self._processes[name].config.role == _ROLE:
                with contextlib.suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    self._used[pid] = times.user + times.system
        return sum(self._used.values())

    def poll(self) -> list[Exit]:
        if self._pool is not None:
            self._pool.nudge()
        return super().poll()

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._pool is not None:
                self._pool.close()

    def _start(
        self, config: ProcessConfiguration, env: dict[str, str], log: int, *, again: bool = False
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        if config.role != _ROLE:
            return super()._start(config, env, log, again=again)
        if again:
            raise OSError("two managers of the pool have ended before they started it")
        if self._pool is None or not self._pool.alive:
            self._pool = PoolConnection(self._folder, self._join)
        return self._pool.launch(config.name, self._command, env, log, self._fd)
