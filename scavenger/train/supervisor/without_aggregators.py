"""What supervisors of jobs without aggregators have in common: loops of the user's own, and commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scavenger.elastic.migration import BucketMap
from scavenger.errors import NotSupportedError
from scavenger.train.supervisor.known_workers import KnownWorkers
from scavenger.train.transport import messages as m

__all__ = ["WithoutAggregators"]


class WithoutAggregators(KnownWorkers):
    """The part of `scavenger.train.supervisor.face` that follows from the process registry, and from no aggregators.

    Attributes:
        no_aggregators: Why what needs them is refused.
    """

    no_aggregators: str

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
