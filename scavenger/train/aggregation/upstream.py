"""The connection of an aggregator to the first one, which sequences the job's steps."""

from __future__ import annotations

import time
from typing import Any

import zmq

from scavenger.elastic.initialization import Endpoint
from scavenger.train.transport.messages import Message
from scavenger.train.transport.sockets import Dealer, Keys

_REPEAT_S = 1.0


class Upstream:
    """Connection to the sequencer; there is none before `connect`, and never one of the first aggregator.

    Args:
        context: ZeroMQ context.
        name: The aggregator's name.
        keys: The aggregator's key pair as a client.
        poller: Waits for messages from the sequencer too.
    """

    def __init__(self, context: Any, name: str, keys: Keys, poller: zmq.Poller) -> None:
        self._context, self._name, self._keys, self._poller = context, name, keys, poller
        self._dealer: Dealer | None = None
        self._sent_at, self._heard = 0.0, False

    @property
    def unheard(self) -> bool:
        """Whether the sequencer has not answered for a second since something was sent over this connection."""
        return self.connected and not self._heard and time.monotonic() - self._sent_at > _REPEAT_S

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._dealer is not None

    def connect(self, first: Endpoint) -> None:
        """Connect to the first aggregator, instead of the one before it."""
        if self._dealer is not None:
            self._poller.unregister(self._dealer.socket)
            self._dealer.close()
        self._heard = False
        self._dealer = Dealer(self._context, self._name, first.address, first.key.encode(), self._keys)
        self._poller.register(self._dealer.socket, zmq.POLLIN)

    def send(self, message: Message) -> None:
        """Send a message to the sequencer."""
        assert self._dealer is not None
        self._sent_at = time.monotonic()
        self._dealer.send(message)

    def receive(self) -> list[tuple[Message, bytes | None]]:
        """Return the messages that have arrived, with their payloads."""
        found = [] if self._dealer is None else list(self._dealer.receive())
        self._heard = self._heard or bool(found)
        return found

    def close(self) -> None:
        """Close the connection."""
        if self._dealer is not None:
            self._dealer.close()
