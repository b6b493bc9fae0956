"""Starts and ends the workers of a job without a coordinator: they talk to the job's own process alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import ClassVar, Self

from scavenger.elastic.membership import worker_name
from scavenger.elastic.recovery import Role
from scavenger.train.engines.base import Engine
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.watching import NetworkWatch
from scavenger.train.transport.block_file import create_block


class DirectWorkers:
    """The workers of one job, which are loops of the user's own or hosts of a command; `open` makes them.

    Args:
        processes: The engine and the hub.
        first: Number of the first worker; a resumed job does not use the names of earlier workers again.
        clock: Monotonic seconds.

    Attributes:
        role: What the processes are started as.
        leave_s: How long a worker that was ordered to end may take, seconds.
        has_block: Whether workers on this machine share memory with this process.
        registry: The state of every worker that there has been in this run.
    """

    role: ClassVar[str]
    leave_s: ClassVar[float]
    has_block: ClassVar[bool] = False

    def __init__(self, processes: Processes, *, first: int, clock: Callable[[], float]) -> None:
        self._processes, self._first, self._clock = processes, first, clock
        self._placed_s: dict[str, float] = {}
        self._network, self._doubted_s = NetworkWatch(), clock()
        self.registry = ProcessRegistry(processes.engine, clock)

    @classmethod
    def open(
        cls,
        source: JobSource,
        *,
        log_dir: Path,
        first: int,
        engine: Callable[[Path, int], Engine],
        clock: Callable[[], float],
    ) -> Self:
        """Listen for the workers; `launch` starts them.

        Args:
            source: The training code.
            log_dir: Folder for each worker's output.
            first: Number of the first worker; see the class.
            engine: Makes the engine from the folder for logs and the block's descriptor.
            clock: Monotonic seconds.

        Raises:
            ConfigurationError: If the engine's port cannot be bound.
        """
        block_fd = create_block() if cls.has_block else -1
        return cls(
            Processes.open(source, engine, log_dir=log_dir, block_fd=block_fd), first=first, clock=clock
        )

    @property
    def engine(self) -> Engine:
        """The engine that runs the processes."""
        return self._processes.engine

    @property
    def elsewhere(self) -> bool:
        """Whether workers run on other machines than this one."""
        return self.engine.socket_dir is None

    @property
    def launched(self) -> int:
        """How many workers the job has had, which is the number of the next one."""
        return self._first + len(self.registry.workers)

    def launch(self, vm: str = "", *, threads: int | None = None) -> str:
        """Start a worker, on this type of VM and with so many threads; returns its name."""
        name = worker_name(self.launched)
        self._processes.launch(self.role, name, vm=vm, threads=threads)
        self.registry.launched(name, Role.WORKER, vm=vm)
        return name

    def placed(self, worker: str) -> bool:
        """Whether a worker has a machine; one that is forked on this machine gets its process id later."""
        if worker not in self._placed_s and (not self.elsewhere or self.engine.pid(worker)):
            self._placed_s[worker] = self._clock() if self.elsewhere else self.registry[worker].launched_s
        return worker in self._placed_s

    def age_s(self, worker: str) -> float:
        """Seconds since a worker's process was started; 0 while it waits for a machine."""
        return self._clock() - self._placed_s[worker] if self.placed(worker) else 0.0

    def in_doubt(self, beating: Collection[str], now: float) -> float | None:
        """Look whether what does not arrive may be the network's fault, so that it is no evidence against any worker.

        Args:
            beating: Workers that send heartbeats.
            now: Monotonic seconds.

        Returns:
            Seconds since the last look, by which the time of workers does not pass; None if nothing is in doubt.
        """
        passed, self._doubted_s = now - self._doubted_s, now
        if not self._network.in_doubt(self.engine, beating, now):
            return None
        for worker in self._placed_s:
            self._placed_s[worker] += passed
        return passed

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, or the timeout has passed."""
        self._processes.wait(timeout_s)

    def tidy_up(self) -> None:
        """Kill workers that were ordered to end and do not."""
        now = self._clock()
        for worker in self.registry.let_go:
            if now - worker.leaving_s > self.leave_s:
                self.engine.kill(worker.name)

    def close(self) -> None:
        """End every process and free everything; safe to call twice."""
        self.engine.kill_all()
        for worker in self.registry.workers:
            if worker.ended_s is None:
                self.registry.ended(worker.name, "", expected=True)
        self._processes.close()
