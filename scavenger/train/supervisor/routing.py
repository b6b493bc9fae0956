"""Routes messages through the supervisor's hub: between the coordinator and the other processes."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.errors import MessageError
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import EVERYBODY

_UNDELIVERED_MAX = 10_000
"""Messages that wait for the first coordinator: a few of each process, unless one sends without end."""


class Routing:
    """Passes messages on, and shows them to the supervisor.

    Args:
        processes: The engine and the hub.
        registry: Knows the present coordinator.
        from_process: Handles a message of another process than the coordinator, by its name; returns whether to pass
            it on to the coordinator.
        from_coordinator: Handles a message of the coordinator to the supervisor, or None for one that is passed on.
        is_first: Whether the present coordinator is the job's first, and may not have started yet.
    """

    def __init__(
        self,
        processes: Processes,
        registry: ProcessRegistry,
        *,
        from_process: Callable[[str, m.Message], bool],
        from_coordinator: Callable[[m.Message | None], None],
        is_first: Callable[[], bool],
    ) -> None:
        self._processes, self._registry = processes, registry
        self._from_process, self._from_coordinator = from_process, from_coordinator
        self._is_first = is_first
        self._undelivered: list[tuple[str, bytes]] = []

    def send(self, message: m.Message) -> None:
        """Send the coordinator a message of the supervisor."""
        self._processes.pass_on(self._registry.coordinator, b"", m.encode(message))

    def welcome(self, brief: m.Brief) -> None:
        """Send a coordinator that has started what it must know, and what has arrived for it before."""
        self.send(brief)
        for peer, body in self._undelivered if self._is_first() else ():
            self._processes.pass_on(self._registry.coordinator, peer.encode(), body)
        self._undelivered.clear()

    def receive(self) -> None:
        """Handle everything that has arrived."""
        for peer, frames in self._processes.take():
            by_coordinator = peer.startswith("coordinator")
            try:
                if by_coordinator:
                    target, body = frames
                    name = target.decode()
                else:
                    (body,) = frames
                    name = ""
                message = None if name else m.decode(body)
            except (MessageError, ValueError):
                self._processes.hub.malformed(peer)
                continue
            if by_coordinator and peer == self._registry.coordinator:  # else it was replaced
                self._from_coordinator(message)
                self._to_processes(name, body)
            elif not by_coordinator and message is not None and self._from_process(peer, message):
                self._to_coordinator(peer, body)

    def _to_processes(self, name: str, body: bytes) -> None:
        if name == EVERYBODY:
            for process in self._processes.engine.running:
                if not process.startswith("coordinator"):
                    self._processes.pass_on(process, body)
        elif name:
            self._processes.pass_on(name, body)

    def _to_coordinator(self, peer: str, body: bytes) -> None:
        coordinator = self._registry.coordinator
        if self._is_first() and self._registry[coordinator].beat is None:
            # the first coordinator may start after processes that send to it, and it sends no roll call
            if len(self._undelivered) < _UNDELIVERED_MAX:
                self._undelivered.append((peer, body))
        else:
            self._processes.pass_on(coordinator, peer.encode(), body)
