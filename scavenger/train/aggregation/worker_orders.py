"""The sequencer's messages to workers: each gets views and maps once, before the first order that refers to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scavenger.elastic import steps as st
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.pieces import first_piece
from scavenger.elastic.view import Share, View, WorkerView, plan_step
from scavenger.train.transport.messages.data import DataMessage, Go, Order, TakeMap, TakeView


@dataclass(frozen=True, slots=True)
class Terms:
    """What all orders of a step have in common.

    Attributes:
        quarantined, cautious, loss_scale: See `Order`.
        buckets: The map under which the weights of the step are held.
    """

    quarantined: tuple[int, ...]
    cautious: bool
    loss_scale: float
    buckets: BucketMap

    @property
    def ordinary(self) -> bool:
        """Whether they are what `Go` stands for."""
        return not self.quarantined and not self.cautious and self.loss_scale == 1.0


class WorkerOrders:
    """Sends orders to workers.

    Args:
        send: Sends a message to a worker.
        dataset_size: Training samples per epoch.
    """

    def __init__(self, send: Callable[[str, DataMessage], None], dataset_size: int) -> None:
        self.send, self._dataset_size = send, dataset_size
        self._view: View | None = None
        self._ranks: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._maps_sent: dict[str, int] = {}
        self._cut, self._shares = (-1, -1), tuple[Share, ...]()

    def order(self, instruction: st.Proceed, terms: Terms) -> None:
        """Send a worker its order, and before that the view and the map of buckets, if they were not sent yet."""
        worker, number = instruction.worker, terms.buckets.number
        self._send_view(worker, instruction.view)
        if self._maps_sent.get(worker) != number:
            self._maps_sent[worker] = number
            self.send(worker, TakeMap(terms.buckets))
        pieces = instruction.pieces
        if terms.ordinary and self._is_own_share(instruction):
            piece = pieces[0].number - first_piece(instruction.view.number)
            self.send(worker, Go(instruction.step, instruction.view.number, piece, number))
            return
        self.send(
            worker,
            Order(
                instruction.action,
                instruction.step,
                instruction.view.number,
                pieces,
                terms.quarantined,
                terms.cautious,
                terms.loss_scale,
                number,
            ),
        )

    def _is_own_share(self, instruction: st.Proceed) -> bool:
        """Whether a worker is to train with the one share, in its first slot, that it has by the view."""
        view, pieces = instruction.view, instruction.pieces
        rank = self._ranks.get(instruction.worker)
        # one that is no member yet may compute the share of a worker that was lost
        if rank is None or instruction.action != "train" or len(pieces) != 1:
            return False
        if self._cut != (view.number, instruction.step):
            self._cut = view.number, instruction.step
            self._shares = plan_step(view, instruction.step + 1, self._dataset_size).shares
        return pieces[0].share == self._shares[rank] and pieces[0].slot == view.members[rank].slot

    def tell_map(self, buckets: BucketMap) -> None:
        """Tell all members the map under which weights are held that others than the sequencer ask them to fetch."""
        for worker in self._ranks:
            self.send(worker, TakeMap(buckets))

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
            rank = self._ranks.get(worker)
            known = WorkerView(
                view.number, view.first_step, view.global_batch_size, view.position, view.workers, rank
            )
            self.send(worker, TakeView(known))
