"""What supervisors of jobs without aggregators have in common: loops of the user's own, and commands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping

from scavenger.elastic.migration import BucketMap
from scavenger.errors import NotSupportedError
from scavenger.train.supervisor.events import Event
from scavenger.train.supervisor.known_workers import KnownWorkers
from scavenger.train.supervisor.watching import MemoryWatch
from scavenger.train.transport import messages as m

_TURN_S = 0.05


class WithoutAggregators(KnownWorkers):
    """The part of `scavenger.train.supervisor.face` that follows from the process registry, and from no aggregators.

    Attributes:
        no_aggregators: Why what needs them is refused.
        manifest: Description of what is trained; None before it is known.
        quarantined: Samples that are left out, by their positions in the data.
        on_wait: Called while the end of the job is waited for.
        recorded: Whether all events that `poll` has returned are stored, so that a checkpoint may be written.
    """

    no_aggregators: str

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._memory = MemoryWatch()
        self.manifest: m.Manifest | None = None
        self.quarantined: tuple[int, ...] = ()
        self.on_wait: Callable[[], None] | None = None
        self.recorded: Callable[[], bool] = lambda: True

    @abstractmethod
    def _update(self, timeout_s: float) -> None:
        """Handle what has happened, waiting at most `timeout_s` for something."""

    def _turn(self) -> None:
        self._update(_TURN_S)
        if self.on_wait is not None:
            self.on_wait()

    # ---- what has no place here ------------------------------------------------------------------------------

    def run_callbacks(self, request: m.RunCallbacks) -> None:
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
