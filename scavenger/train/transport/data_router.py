"""An aggregator's server of the data channel: messages by ZeroMQ, and payloads by streams beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import zmq

from scavenger.train.names import aggregator_number
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
        self._poller: zmq.Poller | None = None
        self._streams: PayloadServer | None = None
        self._copies: PayloadServer | None = None
        """The streams of other aggregators, which copy buckets: training does not wait for these, so they give way."""

    def start(self, poller: zmq.Poller) -> None:
        """Begin to accept streams; without a port for them, everything goes by ZeroMQ.

        Args:
            poller: Waits for what arrives by the streams, too, from now on.
        """
        if self._host.startswith("/"):
            return
        self._poller = poller
        self._streams = self._listening(gives_way=False)

    def _listening(self, *, gives_way: bool) -> PayloadServer | None:
        assert self._poller is not None
        streams = PayloadServer(self._host if is_own(self._host) else "", self.malformed, gives_way=gives_way)
        try:
            streams.start()
        except OSError as error:
            log.warning("payloads go by ZeroMQ, which is slower: cannot listen at another port: %s", error)
            streams.close()
            return None
        self._poller.register(streams.fileno(), zmq.POLLIN)
        return streams

    def _of(self, peer: str) -> PayloadServer | None:
        """Return the streams that a peer's is among."""
        return self._streams if aggregator_number(peer) is None else self._copies

    def offer(self, peer: str) -> PayloadOffer | None:
        """Make an offer of a stream, to be sent to the peer."""
        if self._streams is not None and self._copies is None and aggregator_number(peer) is not None:
            self._copies = self._listening(gives_way=True)
        streams = self._of(peer)
        return None if streams is None else streams.offer(peer)

    def dismiss(self, peer: str) -> None:
        """Close the stream of a peer that is gone, or has another key now."""
        if (streams := self._of(peer)) is not None:
            streams.dismiss(peer)

    def send(self, peer: str, message: Message, payload: Any = None) -> None:
        """See `Router.send`; what has to stay in the order of payloads goes by the peer's stream, if there is one."""
        streams = self._of(peer) if is_ordered(message) else None
        if streams is None or not streams.send(peer, message, payload):
            super().send(peer, message, payload)

    def drop(self, peer: str) -> None:
        """Do not send what is queued at a peer's stream and was not begun."""
        if (streams := self._of(peer)) is not None:
            streams.drop(peer)

    def receive(self) -> Iterator[tuple[str, Message, Any]]:
        """See `Router.receive`. The memory of a payload is used again when nobody has a view of it any more."""
        yield from super().receive()
        for streams in (self._streams, self._copies):
            if streams is not None:
                yield from streams.receive()

    def close(self) -> None:
        """Close the socket and the streams."""
        for streams in (self._streams, self._copies):
            if streams is not None:
                streams.close()
        super().close()
