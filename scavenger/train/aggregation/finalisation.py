"""The end of a job's training: all aggregators finalise their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport.messages.data import DataMessage, Finalise


class Finalisation:
    """Finalises the weights of a step, or restores the best ones, on all aggregators.

    Args:
        shard: The first aggregator's model shard.
        others: Indices of the other aggregators.
        order: Sent to the other aggregators.
        send: Sends a message to another aggregator, by index.
    """

    def __init__(
        self,
        shard: ModelShard,
        others: Iterable[int],
        order: Finalise,
        *,
        send: Callable[[int, DataMessage], None],
    ) -> None:
        self._shard, self._order, self._send = shard, order, send
        self._awaited = set(others)

    @property
    def complete(self) -> bool:
        """Whether all other aggregators have answered."""
        return not self._awaited

    def carry_out(self) -> None:
        """Finalise here, and request it of all that have not answered; idempotent."""
        self._shard.finalise(self._order.step, best=self._order.best)
        for aggregator in sorted(self._awaited):
            self._send(aggregator, self._order)

    def answered(self, aggregator: int) -> None:
        """Record that an aggregator has finalised its weights."""
        self._awaited.discard(aggregator)
