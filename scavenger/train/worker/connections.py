"""A worker's connections to the aggregators of its job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import zmq

from scavenger.train.transport.messages import Message
from scavenger.train.transport.messages.data import Contributed, Join
from scavenger.train.transport.messages.values import AggregatorAddress
from scavenger.train.transport.sockets import Dealer, Keys

__all__ = ["Connections"]

log = logging.getLogger(__name__)


class Connections:
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
        self._dealers: list[Dealer] = []
        self._joined: set[int] = set()
        self._is_apart = False
        self.remote: tuple[int, ...] = ()

    @property
    def local(self) -> tuple[int, ...]:
        """Indices of the aggregators that share the worker's memory."""
        return tuple(index for index in range(len(self._dealers)) if index not in self.remote)

    def connect(self, aggregators: tuple[AggregatorAddress, ...]) -> None:
        """Connect to the aggregators, instead of those before them."""
        if self._dealers:
            log.info("reconnecting to the aggregators")
        for dealer in self._dealers:
            self._poller.unregister(dealer.socket)
            dealer.close()
        self._joined.clear()
        self.remote = tuple(i for i, at in enumerate(aggregators) if at.memory != self._memory)
        self._is_apart = any(not at.address.startswith("ipc://") for at in aggregators)
        self._dealers = [
            Dealer(self._context, self._name, at.address, at.key.encode(), self._keys) for at in aggregators
        ]
        for dealer in self._dealers:
            self._poller.register(dealer.socket, zmq.POLLIN)
            dealer.send(Join(self._memory))

    def joined(self, index: int) -> bool:
        """Record that an aggregator can send to this worker; returns whether all can."""
        self._joined.add(index)
        return len(self._joined) == len(self._dealers)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until a message arrives, at most `timeout_s`; None for no limit."""
        self._poller.poll(None if timeout_s is None else int(timeout_s * 1000))

    def receive(self) -> Iterator[tuple[int, Dealer, Message, bytes | None]]:
        """Yield the messages that have arrived: the aggregator's index, its connection, message and payload."""
        for index, dealer in enumerate(self._dealers):
            for message, payload in dealer.receive():
                yield index, dealer, message, payload

    def to_aggregator(self, index: int) -> Dealer:
        """Return the connection to an aggregator."""
        return self._dealers[index]

    def offer(self, result: Contributed) -> None:
        """Send a result to the sequencer, and to the other aggregators if some process may be on another host."""
        for dealer in self._dealers[: None if self._is_apart else 1]:
            dealer.send(result)

    def to_sequencer(self, message: Message) -> None:
        """Send a message to the sequencer."""
        self._dealers[0].send(message)
