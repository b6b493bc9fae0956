"""The sequencer's messages to workers: each gets views and maps once, before the first order that refers to them."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.elastic import steps as st
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import View
from scavenger.train.transport.messages.data import DataMessage, Order, TakeMap, TakeView
from scavenger.train.transport.messages.values import map_body, piece_body


class WorkerOrders:
    """Sends orders to workers.

    Args:
        send: Sends a message to a worker.
    """

    def __init__(self, send: Callable[[str, DataMessage], None]) -> None:
        self.send = send
        self._view: View | None = None
        self._ranks: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._maps_sent: dict[str, int] = {}

    def order(
        self,
        instruction: st.Proceed,
        *,
        quarantined: tuple[int, ...],
        cautious: bool,
        loss_scale: float = 1.0,
        buckets: BucketMap,
    ) -> None:
        """Send a worker its order, and before that the view and the map of buckets, if they were not sent yet.

        Args:
            instruction: The order.
            quarantined: Samples to leave out.
            cautious, loss_scale: See `Order`.
            buckets: The map under which the weights of the step are held.
        """
        self._send_view(instruction.worker, instruction.view)
        if self._maps_sent.get(instruction.worker) != buckets.number:
            self._maps_sent[instruction.worker] = buckets.number
            self.send(instruction.worker, TakeMap(map_body(buckets)))
        self.send(
            instruction.worker,
            Order(
                instruction.action,
                instruction.step,
                instruction.view.number,
                tuple(piece_body(piece) for piece in instruction.pieces),
                quarantined,
                cautious,
                loss_scale,
                buckets.number,
            ),
        )

    def tell_map(self, buckets: BucketMap) -> None:
        """Tell all members the map under which weights are held that others than the sequencer ask them to fetch."""
        for worker in self._ranks:
            self.send(worker, TakeMap(map_body(buckets)))

    def lacks_view(self, worker: str) -> None:
        """Record that a worker has no view and no map: it has just connected, or asks for them."""
        self._sent.pop(worker, None)
        self._maps_sent.pop(worker, None)

    def _send_view(self, worker: str, view: View) -> None:
        if self._view is None or self._view.number != view.number:
            self._view = view
            self._ranks = {member.worker: rank for rank, member in enumerate(view.members)}
            self._sent = {name: number for name, number in self._sent.items() if name in self._ranks}
            self._maps_sent = {name: one for name, one in self._maps_sent.items() if name in self._ranks}
        if self._sent.get(worker) != view.number:
            self._sent[worker] = view.number
            self.send(
                worker,
                TakeView(
                    view.number,
                    view.first_step,
                    view.global_batch_size,
                    view.position.epoch,
                    view.position.consumed,
                    view.workers,
                    self._ranks.get(worker, -1),
                ),
            )
