"""A worker's connections to the aggregators of its job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import zmq

from scavenger.elastic.initialization import Endpoint
from scavenger.train.transport.messages import Message
from scavenger.train.transport.messages.data import Contributed, Join
from scavenger.train.transport.messages.values import PayloadOffer
from scavenger.train.transport.payload_streams import PayloadClient, is_ordered
from scavenger.train.transport.sockets import Dealer, Keys, Malformed

log = logging.getLogger(__name__)


class AggregatorConnection:
    """A worker's connection to one aggregator.

    Args:
        index: The aggregator's index.
        dealer: Its ZeroMQ socket.
        streams: The worker's streams for payloads.
    """

    def __init__(self, index: int, dealer: Dealer, streams: PayloadClient) -> None:
        self._index, self.dealer, self._streams = index, dealer, streams

    def send(self, message: Message, payload: Any = None) -> None:
        """Queue a message; its payload is not copied, so the sender must not change it until it has been sent.

        What has to stay in the order of payloads goes by the stream, if there is one.
        """
        if not is_ordered(message) or not self._streams.send(self._index, message, payload):
            self.dealer.send(message, payload)


class AggregatorConnections:
    """Connections to all aggregators, the sequencer first. There are none before `connect`.

    Args:
        context: ZeroMQ context.
        name: The worker's name.
        keys: The worker's key pair.
        memory: Identity of the worker's memory block.
        control: Connection to the hub, for which `wait` waits too.

    Attributes:
        remote: Indices of the aggregators that do not share the worker's memory.
    """

    def __init__(self, context: Any, name: str, keys: Keys, *, memory: str, control: Dealer) -> None:
        self._context, self._name, self._keys, self._memory = context, name, keys, memory
        self._poller = zmq.Poller()
        self._poller.register(control.socket, zmq.POLLIN)
        self._streams: PayloadClient | None = None
        self._all: list[AggregatorConnection] = []
        self._hosts: list[str] = []
        self._joined: set[int] = set()
        self._is_apart = False
        self.remote: tuple[int, ...] = ()

    @property
    def local(self) -> tuple[int, ...]:
        """Indices of the aggregators that share the worker's memory."""
        return tuple(index for index in range(len(self._all)) if index not in self.remote)

    def connect(self, aggregators: tuple[Endpoint, ...]) -> None:
        """Connect to the aggregators, instead of those before them."""
        if self._all:
            log.info("reconnecting to the aggregators")
        for connection in self._all:
            self._poller.unregister(connection.dealer.socket)
            connection.dealer.close()
        streams = self._started_streams()
        streams.forget()
        self._joined.clear()
        self.remote = tuple(i for i, at in enumerate(aggregators) if at.memory != self._memory)
        self._is_apart = any(not at.address.startswith("ipc://") for at in aggregators)
        self._hosts = [at.address.removeprefix("tcp://").rpartition(":")[0] for at in aggregators]
        self._all = [
            AggregatorConnection(
                index, Dealer(self._context, self._name, at.address, at.key.encode(), self._keys), streams
            )
            for index, at in enumerate(aggregators)
        ]
        for connection in self._all:
            self._poller.register(connection.dealer.socket, zmq.POLLIN)
            connection.send(Join(self._memory))

    def joined(self, index: int, offer: PayloadOffer | None) -> bool:
        """Record that an aggregator can send to this worker; returns whether all can.

        Args:
            index: The aggregator's index.
            offer: Its offer of a stream for payloads, which is accepted if it is on another host.
        """
        if offer is not None and index in self.remote:
            self._started_streams().connect(index, self._hosts[index].strip("[]"), offer)
        self._joined.add(index)
        return len(self._joined) == len(self._all)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until a message arrives, at most `timeout_s`; None for no limit."""
        self._poller.poll(None if timeout_s is None else int(timeout_s * 1000))

    def receive(self) -> Iterator[tuple[int, AggregatorConnection, Message, Any]]:
        """Yield the messages that have arrived: the aggregator's index, its connection, message and payload.

        The memory of a payload is used again when nobody has a view of it any more.
        """
        for index, connection in enumerate(self._all):
            for message, payload in connection.dealer.receive():
                yield index, connection, message, payload
        if self._streams is not None:
            for index, message, arrived in self._streams.receive():
                yield index, self._all[index], message, arrived
            for index in self._streams.lost():
                self._all[index].send(Join(self._memory))

    def to_aggregator(self, index: int) -> AggregatorConnection:
        """Return the connection to an aggregator."""
        return self._all[index]

    def offer(self, result: Contributed) -> None:
        """Send a result to the sequencer, and to the other aggregators if some process may be on another host."""
        for connection in self._all[: None if self._is_apart else 1]:
            connection.send(result)

    def to_sequencer(self, message: Message) -> None:
        """Send a message to the sequencer."""
        self._all[0].send(message)

    def close(self) -> None:
        """Close the streams; the context closes the rest."""
        if self._streams is not None:
            self._streams.close()

    def _started_streams(self) -> PayloadClient:
        """Return the streams, whose thread runs from the first connection on."""
        if self._streams is None:
            self._streams = PayloadClient(Malformed())
            self._streams.start()
            self._poller.register(self._streams.fileno(), zmq.POLLIN)
        return self._streams
