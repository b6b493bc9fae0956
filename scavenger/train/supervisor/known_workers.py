"""What a supervisor knows of its workers by its process registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from scavenger.train.supervisor.events import ProcessState
from scavenger.train.supervisor.process_registry import ProcessRegistry


class KnownWorkers(ABC):
    """The part of `scavenger.train.supervisor.face` that the process registry answers."""

    @property
    @abstractmethod
    def _registry(self) -> ProcessRegistry:
        """The processes of the job."""

    @property
    def alive(self) -> tuple[str, ...]:
        """Running workers, including starting ones, that nothing has requested to end."""
        return self._registry.alive

    def workers(self, *states: str) -> tuple[str, ...]:
        """Return the names of living workers in any of the states `starting`, `ready` and `training`."""
        return self._registry.in_states(*states)

    @property
    def starting(self) -> int:
        """Number of workers that are starting."""
        return len(self.workers("starting"))

    @property
    def ready(self) -> int:
        """Number of workers that train or are ready to."""
        return len(self.workers("ready", "training"))

    @property
    def ending(self) -> bool:
        """Whether a released worker has not ended yet."""
        return bool(self._registry.let_go)

    @property
    def existing(self) -> Mapping[str, int]:
        """Number of workers that are paid for, by type of VM; includes released ones that have not ended yet."""
        return self._registry.existing

    def vm_of(self, worker: str) -> str:
        """Return the type of VM that a worker was launched on."""
        return self._registry[worker].vm

    def processes(self) -> tuple[ProcessState, ...]:
        """Return the state of every process that the job has had."""
        return self._registry.processes()

    def worker_seconds(self) -> Mapping[str, float]:
        """Return the seconds that workers have existed, summed over the workers of each type of VM."""
        return self._registry.worker_seconds()
