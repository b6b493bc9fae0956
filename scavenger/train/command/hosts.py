"""Starts, ends and hears the hosts of a command, one on each worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from scavenger.elastic.recovery import Status
from scavenger.errors import MessageError
from scavenger.train.command import messages as cm
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.supervisor.direct_workers import DirectWorkers
from scavenger.train.supervisor.processes import Processes
from scavenger.train.transport.messages import Beat, Failed


class Hosts(DirectWorkers):
    """The hosts of one job; `open` makes it. See `DirectWorkers` for the arguments.

    Attributes:
        arrived: What each host has told of itself; its port is always the newest.
        memory_bytes: The peak memory of each, with what its process has started.
    """

    role = "command"
    leave_s = 10.0

    def __init__(self, processes: Processes, *, first: int, clock: Callable[[], float]) -> None:
        super().__init__(processes, first=first, clock=clock)
        self.arrived: dict[str, cm.HostReady] = {}
        self._set_up: set[str] = set()
        self.memory_bytes: dict[str, int] = {}

    @property
    def starting(self) -> tuple[str, ...]:
        """Hosts that run and have not arrived, and that nothing has requested to end."""
        return tuple(name for name in self._staying(Status.STARTING) if self.placed(name))

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

    # ---- messages ------------------------------------------------------------------------------------------

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
                    self._network.heard(name)
                else:
                    yield name, message

    # ---- starting and ending -------------------------------------------------------------------------------

    def set_up(self, worker: str, words: tuple[str, ...]) -> bool:
        """Have a host prepare its machine, after which it arrives again; False if that is done, or it is this one."""
        if not self.elsewhere or worker in self._set_up:
            return False
        self._set_up.add(worker)
        self.send(worker, cm.SetUp(words))
        return True

    def arrive(self, worker: str, arrived: cm.HostReady) -> None:
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
        self.send(worker, cm.EndHost(reason))
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
