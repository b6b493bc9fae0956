"""Queue of the sequencer's orders to a worker, without duplicates: orders repeat while the worker is busy."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from scavenger.elastic.membership import worker_slot
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.pieces import first_piece
from scavenger.elastic.view import Piece, WorkerView, share_of, step_range
from scavenger.train.transport.messages.data import (
    Go,
    Order,
    Summarise,
    TakeMap,
    TakeView,
)

_VIEWS_KEPT = 2


class Orders:
    """Pending orders, at most one per action, and the views and maps of buckets that they refer to.

    A repeated order is merged with the pending one. An order of a later step or view replaces all earlier ones,
    because the sequencer has gone on without them.

    Args:
        worker: The worker's name.
        dataset_size: Training samples per epoch.
    """

    def __init__(self, worker: str, dataset_size: int) -> None:
        self._worker, self._dataset_size = worker, dataset_size
        self._views: dict[int, WorkerView] = {}
        self._maps: dict[int, BucketMap] = {}
        self._waiting: OrderedDict[str, Order | Summarise] = OrderedDict()
        self._newest = (0, 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: Order | Go | Summarise | TakeView | TakeMap) -> None:
        """Add a message that has arrived."""
        if isinstance(message, Go):
            message = self._order_of(message)
        if isinstance(message, TakeMap):
            self._maps[message.map.number] = message.map
            for number in sorted(self._maps)[:-_VIEWS_KEPT]:
                del self._maps[number]
            return
        if isinstance(message, TakeView):
            self._views[message.view.number] = message.view
            for number in sorted(self._views)[:-_VIEWS_KEPT]:
                del self._views[number]
            return
        newest = (message.view, message.step)
        if newest < self._newest:
            return
        if newest > self._newest:
            self._newest = newest
            self._waiting.clear()
        action = message.action if isinstance(message, Order) else "summarise"
        before = self._waiting.get(action)
        if isinstance(message, Order) and isinstance(before, Order):
            pieces = {piece.number: piece for piece in (*before.pieces, *message.pieces)}
            message = msgspec.structs.replace(message, pieces=tuple(pieces.values()))
        self._waiting[action] = message

    def _order_of(self, message: Go) -> Order:
        """What the message stands for; without pieces if the view that gives the share has not arrived."""
        view, pieces = self._views.get(message.view), tuple[Piece, ...]()
        if view is not None and view.rank is not None and message.step + 1 >= view.first_step:
            whole = step_range(view, message.step + 1, self._dataset_size).samples
            share, number = share_of(whole, view.workers, view.rank), first_piece(view.number) + message.piece
            slot = worker_slot(self._worker)
            pieces = (Piece(number, share, self._worker, slot),)
        return Order("train", message.step, message.view, pieces, (), False, map=message.map)

    def next(self) -> Order | Summarise | None:
        """Remove and return the oldest pending order; None if there is none."""
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def superseded(self, order: Order) -> bool:
        """Return whether an order of a later step or view has arrived since."""
        return self._newest > (order.view, order.step)

    def view(self, number: int) -> WorkerView | None:
        """Return the view of that number; None if it has not arrived."""
        return self._views.get(number)

    def map(self, number: int) -> BucketMap | None:
        """Return the map of buckets of that number; None if it has not arrived."""
        return self._maps.get(number)

    @property
    def newest_map(self) -> BucketMap | None:
        """The newest map of buckets that has arrived."""
        return self._maps[max(self._maps)] if self._maps else None
