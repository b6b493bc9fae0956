"""Queue of the sequencer's orders to a worker, without duplicates: orders repeat while the worker is busy."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from scavenger.elastic.view import WorkerView
from scavenger.train.transport.messages.data import Order, Summarise, TakeMap, TakeView, worker_view_of
from scavenger.train.transport.messages.values import MapBody

_VIEWS_KEPT = 2


class Orders:
    """Pending orders, at most one per action, and the views and maps of buckets that they refer to.

    A repeated order is merged with the pending one. An order of a later step or view replaces all earlier ones,
    because the sequencer has gone on without them.
    """

    def __init__(self) -> None:
        self._views: dict[int, WorkerView] = {}
        self._maps: dict[int, MapBody] = {}
        self._waiting: OrderedDict[str, Order | Summarise] = OrderedDict()
        self._newest = (0, 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: Order | Summarise | TakeView | TakeMap) -> None:
        """Add a message that has arrived."""
        if isinstance(message, TakeMap):
            self._maps[message.map.number] = message.map
            for number in sorted(self._maps)[:-_VIEWS_KEPT]:
                del self._maps[number]
            return
        if isinstance(message, TakeView):
            self._views[message.number] = worker_view_of(message)
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

    def next(self) -> Order | Summarise | None:
        """Remove and return the oldest pending order; None if there is none."""
        return self._waiting.popitem(last=False)[1] if self._waiting else None

    def superseded(self, order: Order) -> bool:
        """Return whether an order of a later step or view has arrived since."""
        return self._newest > (order.view, order.step)

    def view(self, number: int) -> WorkerView | None:
        """Return the view of that number; None if it has not arrived."""
        return self._views.get(number)

    def map(self, number: int) -> MapBody | None:
        """Return the map of buckets of that number; None if it has not arrived."""
        return self._maps.get(number)

    @property
    def newest_map(self) -> MapBody | None:
        """The newest map of buckets that has arrived."""
        return self._maps[max(self._maps)] if self._maps else None
