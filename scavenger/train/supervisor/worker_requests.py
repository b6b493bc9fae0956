"""The owner's requests about workers: to launch some, to train with a number of them, and to release the others."""

from __future__ import annotations

from collections.abc import Collection

from scavenger.elastic.recovery import Role
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.routing import Routing
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m


class WorkerRequests:
    """The requests about one job's workers.

    Args:
        processes: The engine and the hub.
        routing: Leads to the coordinator.

    Attributes:
        command: The number of the newest request for a configuration.
        configuration: That request; None before the first.
    """

    def __init__(
        self, processes: Processes, registry: ProcessRegistry, slots: WorkerSlots, routing: Routing
    ) -> None:
        self._processes, self._registry, self._slots, self._routing = processes, registry, slots, routing
        self.command = 0
        self.configuration: m.ResizeMembers | None = None

    def launch(self, workers: int, vm: str, *, token: int, threads: int | None) -> tuple[str, ...]:
        """Start more workers; returns their names.

        Args:
            workers: How many to start.
            vm: The type of VM to run on, if the engine has several.
            token: The coordinator's.
            threads: Threads that each computes with; None for the number in the job source.

        Raises:
            WorkersLostError: If the block has no free slots for so many.
        """
        names = []
        for _ in range(workers):
            name = self._slots.next_worker()
            self._processes.launch("worker", name, token=token, threads=threads, vm=vm)
            self._registry.launched(name, Role.WORKER, vm=vm)
            names.append(name)
        self.announce_placed()
        return tuple(names)

    def announce_placed(self) -> None:
        """Notify the coordinator of workers that have a host: their time limit for starting begins then."""
        for name in self._registry.unannounced:
            if self._processes.engine.pid(name):
                self.announce(name)

    def announce(self, worker: str) -> None:
        """Notify the coordinator of a worker."""
        self._registry[worker].announced = True
        self._routing.send(m.Launched(worker))

    def resize(
        self, workers: int, global_batch_size: int, reason: str, without: Collection[str], lr_scale: float
    ) -> None:
        """Have the coordinator train with another configuration; see `Supervisor.resize`."""
        self.command += 1
        self._registry.ask_to_leave(without)
        self.configuration = m.ResizeMembers(
            self.command, workers, global_batch_size, reason, tuple(without), lr_scale
        )
        self._routing.send(self.configuration)

    def release(self, keep: int) -> None:
        """Have the coordinator release workers that no view needs, until `keep` are alive."""
        if self.settled and (len(self._registry.alive) > keep or self._registry.departing):
            self.command += 1
            self._routing.send(m.ReleaseSpares(self.command, keep))

    @property
    def settled(self) -> bool:
        """Whether the newest request has taken effect."""
        roster = self._registry.roster
        return roster.settled and roster.command == self.command
