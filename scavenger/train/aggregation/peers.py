"""An aggregator's connections to the others of its job, from which it copies buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import zmq

from scavenger.elastic.initialization import Endpoint
from scavenger.train.aggregation.upstream import Upstream
from scavenger.train.transport.messages import Join, Joined, Message
from scavenger.train.transport.payload_streams import PayloadClient, is_ordered
from scavenger.train.transport.sockets import Dealer, Keys, Malformed


class Peers:
    """Connections that are made when they are first needed. To the first aggregator there is one already.

    Args:
        context: ZeroMQ context.
        name: The aggregator's name.
        keys: Its key pair as a client.
        memory: Identity of its block.
        poller: Waits for messages from the others, too.
        upstream: The connection to the first aggregator, which that itself lacks.

    Attributes:
        stored: Called by another thread with each payload that has arrived, before `receive` yields it.
    """

    def __init__(
        self, context: Any, name: str, keys: Keys, *, memory: str, poller: zmq.Poller, upstream: Upstream
    ) -> None:
        self._context, self._name, self._keys, self._memory = context, name, keys, memory
        self._poller, self._upstream = poller, upstream
        self._addresses: tuple[Endpoint, ...] = ()
        self._dealers: dict[int, Dealer] = {}
        self._joined: set[int] = set()
        self._streams: PayloadClient | None = None
        self.stored: Callable[[int, Message, memoryview], None] = lambda *_: None

    def connect(self, aggregators: tuple[Endpoint, ...]) -> None:
        """Use these aggregators from now on; connections to others are closed."""
        for index in list(self._dealers):
            if self._addresses[index] != aggregators[index]:
                dealer = self._dealers.pop(index)
                self._poller.unregister(dealer.socket)
                dealer.close()
        self._joined.clear()
        if self._streams is not None:
            self._streams.forget()
        self._addresses = aggregators

    def send(self, index: int, message: Message, payload: Any = None) -> None:
        """Send to another aggregator; what has to stay in the order of payloads goes by its stream, if there is one."""
        if index not in self._joined:
            self._joined.add(index)
            self._send(index, Join(self._memory))
        if (
            self._streams is None
            or not is_ordered(message)
            or not self._streams.send(index, message, payload)
        ):
            self._send(index, message)

    def _send(self, index: int, message: Message) -> None:
        if index == 0:
            if self._upstream.connected:
                self._upstream.send(message)
            return
        if index not in self._dealers:
            at = self._addresses[index]
            dealer = Dealer(self._context, self._name, at.address, at.key.encode(), self._keys)
            self._dealers[index] = dealer
            self._poller.register(dealer.socket, zmq.POLLIN)
        self._dealers[index].send(message)

    def joined(self, index: int, message: Joined) -> None:
        """Accept another aggregator's offer of a stream for payloads."""
        if message.payloads is None:
            return
        if self._streams is None:
            self._streams = PayloadClient(Malformed(), gives_way=True, stored=self._stored)
            self._streams.start()
            self._poller.register(self._streams.fileno(), zmq.POLLIN)
        host = self._addresses[index].address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        self._streams.connect(index, host, message.payloads)

    def _stored(self, index: int, message: Message, payload: memoryview) -> None:
        self.stored(index, message, payload)

    def receive(self) -> Iterator[tuple[int, Message, Any]]:
        """Yield what has arrived from others, with its payload, except by the connection to the first aggregator."""
        for index, dealer in list(self._dealers.items()):
            for message, payload in dealer.receive():
                yield index, message, payload
        if self._streams is not None:
            yield from self._streams.receive()
            for index in self._streams.lost():
                self._send(index, Join(self._memory))

    def close(self) -> None:
        """Close all connections."""
        for dealer in self._dealers.values():
            dealer.close()
        if self._streams is not None:
            self._streams.close()
