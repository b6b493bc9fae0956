"""The aggregators of a job in the pool of this machine, which other jobs use too."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from scavenger.train.engines.forking import ForkedProcess
from scavenger.train.pool import protocol
from scavenger.train.pool.connection import PoolConnection


class Tenants:
    """Has the pool start a job's aggregators, for `ProcessEngine`.

    A tenant ends with the job, as every process does, and also with the manager of the pool; the job then starts it
    again, with a manager if none serves.

    Args:
        folder: The folder of the pool.
        join: How the job introduces itself, to who asks for the pool's load, too.

    Attributes:
        memory_fd: Descriptor of the job's shared-memory block, as tenants have it.
    """

    memory_fd = protocol.MEMORY_FD

    def __init__(self, folder: Path, join: protocol.PoolJoin) -> None:
        self._folder, self._join = folder, join
        self._pool: PoolConnection | None = None
        self._started: list[ForkedProcess] = []
        self._used: dict[int, float] = {}  # processor seconds, by process id

    def launch(
        self, name: str, command: Sequence[str], env: dict[str, str], log: int, memory: int
    ) -> ForkedProcess:
        """See `PoolConnection.launch`."""
        if self._pool is None or not self._pool.alive:
            self._pool = PoolConnection(self._folder, self._join)
        self._started.append(self._pool.launch(name, command, env, log, memory))
        return self._started[-1]

    def report(self, view: int, steps_s: Sequence[float], step_bytes: int = 0) -> None:
        """Tell the pool of the job's steps, by which it places its aggregators.

        Args:
            view: Number of the view in which they were made.
            steps_s: Times of the steps since the last call, seconds.
            step_bytes: What all workers send the aggregators in a step, or get from them; does not matter here.
        """
        if self._pool is not None and steps_s:
            self._pool.report(view, steps_s)

    def used(self) -> tuple[float, float | None]:
        """Processor seconds that the job's tenants have used, as far as was seen; they have no price of their own."""
        self._started = [process for process in self._started if process.returncode is None]
        for process in self._started:
            if process.pid:
                with contextlib.suppress(psutil.Error):
                    times = psutil.Process(process.pid).cpu_times()
                    self._used[process.pid] = times.user + times.system
        return sum(self._used.values()), None

    def nudge(self) -> None:
        """Continue the manager of the pool if it was stopped."""
        if self._pool is not None:
            self._pool.nudge()

    def close(self) -> None:
        """End the connection, and with it all tenants."""
        if self._pool is not None:
            self._pool.close()
