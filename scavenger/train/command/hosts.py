"""Starts, ends and hears the hosts of a command, one on each worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from scavenger.elastic.membership import worker_name
from scavenger.elastic.recovery import Role, Status
from scavenger.errors import MessageError
from scavenger.train.command import messages as cm
from scavenger.train.engines.base import Engine
from scavenger.train.job_source import JobSource
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.transport.messages import Beat, Failed

__all__ = ["Hosts"]

_LEAVE_S = 10.0
"""How long a host that was ordered to leave may take, seconds."""


class Hosts:
    """The hosts of one job; `open` makes it.

    Args:
        processes: The engine and the hub.
        first: Number of the first worker; a resumed job does not use the names of earlier workers again.
        clock: Monotonic seconds.

    Attributes:
        arrived: What each host has told of itself; its port is always the newest.
        memory_bytes: The peak memory of each, with what its process has started.
    """

    def __init__(self, processes: Processes, *, first: int, clock: Callable[[], float]) -> None:
        self._processes, self._first, self._clock = processes, first, clock
        self.registry = ProcessRegistry(processes.engine, clock)
        self.arrived: dict[str, cm.Arrived] = {}
        self._placed_s: dict[str, float] = {}
        self._set_up: set[str] = set()
        self.memory_bytes: dict[str, int] = {}

    @classmethod
    def open(
        cls,
        source: JobSource,
        *,
        log_dir: Path,
        first: int,
        engine: Callable[[Path, int], Engine],
        clock: Callable[[], float],
    ) -> Hosts:
        """Listen for the hosts; `launch` starts them.

        Raises:
            ConfigurationError: If the engine's port cannot be bound.
        """
        return cls(Processes.open(source, engine, log_dir=log_dir), first=first, clock=clock)

    @property
    def engine(self) -> Engine:
        """The engine that runs the hosts."""
        return self._processes.engine

    @property
    def launched(self) -> int:
        """How many workers the job has had, which is the number of the next one."""
        return self._first + len(self.registry.workers)

    @property
    def elsewhere(self) -> bool:
        """Whether hosts run on other machines than this one."""
        return self.engine.socket_dir is None

    @property
    def starting(self) -> tuple[str, ...]:
        """Hosts that run and have not arrived, and that nothing has requested to end."""
        return tuple(name for name in self._staying(Status.STARTING) if self._placed(name))

    @property
    def awaited(self) -> tuple[str, ...]:
        """Hosts that have not arrived, and that nothing has requested to end; some may have no machine yet."""
        return self._staying(Status.STARTING)

    @property
    def ready(self) -> tuple[str, ...]:
        """Hosts that have arrived, and that nothing has requested to end."""
        return self._staying(Status.READY)

    def _staying(self, status: Status) -> tuple[str, ...]:
        return tuple(e.name for e in self.registry.workers if e.status is status and e.stays)

    def _placed(self, worker: str) -> bool:
        """Whether a host has a machine; one that is forked on this machine gets its process id later."""
        if worker not in self._placed_s and (not self.elsewhere or self.engine.pid(worker)):
            self._placed_s[worker] = self._clock() if self.elsewhere else self.registry[worker].launched_s
        return worker in self._placed_s

    def age_s(self, worker: str) -> float:
        """Seconds since a host's process was started; 0 while it waits for a machine."""
        return self._clock() - self._placed_s[worker] if self._placed(worker) else 0.0

    # ---- messages ------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, or the timeout has passed."""
        self._processes.wait(timeout_s)

    def send(self, worker: str, message: cm.CommandMessage) -> None:
        """Queue a message; it is dropped if the host has ended."""
        self._processes.pass_on(worker, cm.encode(message))

    def take(self) -> Iterator[tuple[str, cm.CommandMessage | Failed]]:
        """Yield the messages of hosts that are not lost, with the sender; handles heartbeats."""
        for peer, frames in self._processes.take():
            name = peer.removesuffix(HEARTBEAT_SUFFIX)
            entry = self.registry.worker(name)
            if entry is None or entry.ended_s is not None or entry.status is Status.EXPELLED or not frames:
                continue
            with contextlib.suppress(MessageError):
                message = cm.decode(frames[0])
                if isinstance(message, Beat):
                    self.registry.beat(name, message)
                else:
                    yield name, message

    # ---- starting and ending -------------------------------------------------------------------------------

    def launch(self, vm: str = "", *, threads: int | None = None) -> str:
        """Start a host on this type of VM; returns its name."""
        name = worker_name(self.launched)
        self._processes.launch("command", name, vm=vm, threads=threads)
        self.registry.launched(name, Role.WORKER, vm=vm)
        return name

    def set_up(self, worker: str, words: tuple[str, ...]) -> bool:
        """Have a host prepare its machine, after which it arrives again; False if that is done, or it is this one."""
        if not self.elsewhere or worker in self._set_up:
            return False
        self._set_up.add(worker)
        self.send(worker, cm.SetUp(words))
        return True

    def arrive(self, worker: str, arrived: cm.Arrived) -> None:
        """Note that a host has arrived."""
        entry = self.registry[worker]
        entry.status = Status.READY if entry.status is Status.STARTING else entry.status
        entry.was_ready, self.arrived[worker] = True, arrived

    def next_port(self, worker: str, port: int) -> None:
        """Note another port that is free on a host."""
        self.arrived[worker] = msgspec.structs.replace(self.arrived[worker], port=port)

    def address(self, worker: str) -> tuple[str, int]:
        """Where the processes of a group find the one of a host."""
        return self.engine.host(worker), self.arrived[worker].port

    def leave(self, worker: str, reason: str) -> bool:
        """Order a host to end; returns False if that was done before."""
        if not self.registry.leaving(worker):
            return False
        self.send(worker, cm.Leave(reason))
        return True

    def expel(self, worker: str, cause: str) -> None:
        """End a host that counts as lost."""
        if self.registry[worker].ended_s is None:
            self.engine.kill(worker)
            self.registry.expel(worker, cause)

    def ended(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the hosts that have ended unexpectedly, with the cause, and whether they never ran."""
        for ended in self.engine.poll():
            entry = self.registry[ended.name]
            expected = entry.status in (Status.LEAVING, Status.EXPELLED)
            self.registry.ended(ended.name, ended.cause)
            if not expected:
                yield ended.name, ended.cause, ended.refused

    def tidy_up(self) -> None:
        """Kill hosts that were ordered to leave and do not."""
        now = self._clock()
        for entry in self.registry.let_go:
            if now - entry.leaving_s > _LEAVE_S:
                self.engine.kill(entry.name)

    def close(self) -> None:
        """End every process and free everything; safe to call twice."""
        self.engine.kill_all()
        for entry in self.registry.workers:
            if entry.ended_s is None:
                self.registry.ended(entry.name, "", expected=True)
        self._processes.close()
