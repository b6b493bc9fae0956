"""An aggregator's server of the data channel: messages by ZeroMQ, and payloads by streams beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import zmq

from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.messages import Message
from scavenger.train.transport.messages.values import PayloadOffer
from scavenger.train.transport.payload_streams import PayloadServer, is_ordered
from scavenger.train.transport.sockets import Keys, Router, is_own

log = logging.getLogger(__name__)


class DataRouter(Router):
    """A router that also has streams for payloads, where it listens at a port, once `start` was called.

    Args:
        context: The ZeroMQ context.
        keys: The aggregator's key pair.
        host: See `Router`.
        authenticator: See `Router`.
    """

    def __init__(
        self, context: Any, keys: Keys, host: str, *, authenticator: Authenticator | None = None
    ) -> None:
        super().__init__(context, keys, host, authenticator=authenticator)
        self._host = host
        self._streams: PayloadServer | None = None

    def start(self, poller: zmq.Poller) -> None:
        """Begin to accept streams; without a port for them, everything goes by ZeroMQ.

        Args:
            poller: Waits for what arrives by the streams, too, from now on.
        """
        if self._host.startswith("/"):
            return
        streams = PayloadServer(self._host if is_own(self._host) else "", self.malformed)
        try:
            streams.start()
        except OSError as error:
            log.warning("payloads go by ZeroMQ, which is slower: cannot listen at another port: %s", error)
            streams.close()
            return
        self._streams = streams
        poller.register(streams.fileno(), zmq.POLLIN)

    def offer(self, peer: str) -> PayloadOffer | None:
        """Make an offer of a stream, to be sent to the peer."""
        return None if self._streams is None else self._streams.offer(peer)

    def dismiss(self, peer: str) -> None:
        """Close the stream of a peer that is gone, or has another key now."""
        if self._streams is not None:
            self._streams.dismiss(peer)

    def send(self, peer: str, message: Message, payload: Any = None) -> None:
        """See `Router.send`; what has to stay in the order of payloads goes by the peer's stream, if there is one."""
        if self._streams is None or not is_ordered(message) or not self._streams.send(peer, message, payload):
            super().send(peer, message, payload)

    def receive(self) -> Iterator[tuple[str, Message, Any]]:
        """See `Router.receive`. The memory of a payload is used again when nobody has a view of it any more."""
        yield from super().receive()
        if self._streams is not None:
            yield from self._streams.receive()

    def close(self) -> None:
        """Close the socket and the streams."""
        if self._streams is not None:
            self._streams.close()
        super().close()
