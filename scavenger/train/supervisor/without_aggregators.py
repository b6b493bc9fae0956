"""What supervisors of jobs without aggregators have in common: loops of the user's own, and commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from scavenger.elastic.migration import BucketMap
from scavenger.errors import NotSupportedError
from scavenger.train.supervisor.events import ProcessState
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.transport import messages as m

__all__ = ["WithoutAggregators"]


class WithoutAggregators(ABC):
    """The part of `scavenger.train.supervisor.face` that follows from the process registry, and from no aggregators.

    Attributes:
        no_aggregators: Why what needs them is refused.
    """

    no_aggregators: str

    @property
    @abstractmethod
    def _registry(self) -> ProcessRegistry:
        """The processes of the job."""

    # ---- what has no place here ------------------------------------------------------------------------------

    def run_callbacks(self, request: m.RunCallbacks) -> None:  # noqa: B027 - there is nothing to do
        """Nothing: there are no callbacks of Keras."""

    def migrate(self, buckets: Mapping[int, int]) -> None:
        """Refuse to move buckets.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(self.no_aggregators)

    def use_aggregators(self, aggregators: Collection[int]) -> None:
        """Refuse to choose aggregators.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(self.no_aggregators)

    @property
    def aggregators(self) -> int:
        """Number of aggregators: none."""
        return 0

    @property
    def map(self) -> BucketMap | None:
        """Which aggregator holds each bucket of the model: None."""
        return None

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """Size of each bucket of the model: there are none."""
        return ()

    @property
    def migrating(self) -> bool:
        """Whether buckets move: never, as there are no aggregators."""
        return False

    @property
    def migrated(self) -> m.Migrated | None:
        """The end of the newest migration of buckets: None."""
        return None

    # ---- the workers -----------------------------------------------------------------------------------------

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
        """Number of workers that are paid for, by type of VM."""
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
