"""Payloads between hosts: a TCP stream beside each CURVE connection, sealed with AES-GCM under keys that came by it.

A worker that joins an aggregator gets an *offer* by CURVE, which encrypts it and has authenticated both: a port, a
ticket and a key for each direction. It connects to the port, shows the ticket, and proves that it has the keys. Each
offer holds for one connection; a stream that breaks is replaced by another with other keys, after another `Join`.

A connection that has not proven to have the keys is kept for a few seconds, gets no memory, and does not hold up
others. Without a stream, as while there is none yet or a firewall is in its way, payloads go by CURVE.
"""

from __future__ import annotations

import functools
import logging
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from scavenger.train.transport.connections import raise_descriptor_limit
from scavenger.train.transport.messages import Message, encode
from scavenger.train.transport.messages.data import (
    BucketsSent,
    Chunk,
    ChunkQuery,
    Contributed,
    GradientBucket,
)
from scavenger.train.transport.messages.values import PayloadOffer
from scavenger.train.transport.payload_frames import (
    HEADER_BYTES_MAX,
    KEY_BYTES,
    PAYLOAD_BYTES_MAX,
    PayloadFrame,
)
from scavenger.train.transport.payload_loop import Outgoing, PayloadLoop, StreamConnection

_TICKET_BYTES = 16
_BACKLOG = 1024
_GUESTS_MAX = 256
_GUESTS_SHARE = 8
"""At most one descriptor in this many belongs to a connection that has not proven to have the keys."""
_TURN_GUESTS = 64
_PROOF_S = 10.0
_CONNECT_S = 10.0
_ACCEPT_AGAIN_S = 0.5
_RETRY_S, _RETRY_S_MAX = 0.1, 60.0

log = logging.getLogger(__name__)

_Key = tuple[int, int]
"""A worker's stream: the number of its round, see `PayloadClient`, and the aggregator's index."""


def is_ordered(message: Message) -> bool:
    """Whether a message belongs to a payload, or is about payloads before it: these must stay in their order."""
    return isinstance(message, Chunk | ChunkQuery | GradientBucket | BucketsSent | Contributed)


def _frame(message: Message, payload: Any) -> Outgoing | None:
    """Make a frame of a message; None if it is too large for one."""
    header = encode(message)
    view = None if payload is None or not len(payload) else memoryview(payload).cast("B")
    if len(header) > HEADER_BYTES_MAX or (view is not None and len(view) > PAYLOAD_BYTES_MAX):
        return None
    return Outgoing(header, view)


def _send(loop: PayloadLoop, connection: StreamConnection | None, message: Message, payload: Any) -> bool:
    frame = None if connection is None or not connection.open else _frame(message, payload)
    if frame is None or connection is None:
        return False
    connection.queue.append(frame)
    loop.call(functools.partial(connection.handle, selectors.EVENT_WRITE))
    return True


# ---- the aggregator's end ----------------------------------------------------------------------------------


class PayloadServer:
    """Accepts the streams of an aggregator's workers.

    Args:
        host: The address to listen at; empty for all of this machine's.
        malformed: Called with the peer's name for a frame that holds no message.
        gives_way: See `PayloadLoop`.
    """

    def __init__(self, host: str, malformed: Callable[[str], None], *, gives_way: bool = False) -> None:
        self._host, self._malformed = host, malformed
        self._loop = PayloadLoop(malformed, gives_way=gives_way)
        self._listener: socket.socket | None = None
        self._offers: dict[bytes, tuple[str, PayloadOffer]] = {}
        self._tickets: dict[str, bytes] = {}
        self._streams: dict[str, StreamConnection] = {}
        self._guests: dict[_Guest, float] = {}
        """Until when each may stay, monotonic seconds; the oldest first."""
        self._sweeps = False
        self._guests_max = min(_GUESTS_MAX, raise_descriptor_limit() // _GUESTS_SHARE)

    def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: If that is not possible.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.create_server((self._host, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._loop.selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._loop.start()

    def offer(self, peer: str) -> PayloadOffer:
        """Make keys for a stream of a peer, to be sent to it by CURVE; those before, if unused, hold no longer."""
        assert self._listener is not None
        offer = PayloadOffer(
            self._listener.getsockname()[1],
            secrets.token_bytes(_TICKET_BYTES),
            secrets.token_bytes(KEY_BYTES),
            secrets.token_bytes(KEY_BYTES),
        )
        self._offers.pop(self._tickets.get(peer, b""), None)
        self._offers[offer.ticket], self._tickets[peer] = (peer, offer), offer.ticket
        return offer

    def dismiss(self, peer: str) -> None:
        """Accept nothing from a peer any more, unless it gets another offer."""
        self._offers.pop(self._tickets.pop(peer, b""), None)
        self._loop.call(functools.partial(self._drop, peer))

    def send(self, peer: str, message: Message, payload: Any = None) -> bool:
        """Queue a message by the peer's stream; returns False if there is none. A payload is read when it is sent."""
        return _send(self._loop, self._streams.get(peer), message, payload)

    def drop(self, peer: str) -> None:
        """Do not send what is queued for a peer and was not begun."""
        if (stream := self._streams.get(peer)) is not None:
            stream.queue.clear()

    def fileno(self) -> int:
        """The descriptor that is readable when messages have arrived."""
        return self._loop.fileno()

    def receive(self) -> Iterator[tuple[str, Message, memoryview | None]]:
        """Yield what has arrived, see `PayloadLoop.receive`."""
        return cast(Iterator[tuple[str, Message, memoryview | None]], self._loop.receive())

    def close(self) -> None:
        """Close all streams."""
        self._loop.close()
        if self._listener is not None:
            self._listener.close()

    # ---- the loop's thread ---------------------------------------------------------------------------------

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        try:
            for _turn in range(_TURN_GUESTS):
                link, _address = self._listener.accept()
                link.setblocking(False)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._guests[_Guest(self, self._loop, link)] = time.monotonic() + _PROOF_S
                if len(self._guests) > self._guests_max:
                    self.leave(next(iter(self._guests)))
                if not self._sweeps:
                    self._sweeps = True
                    self._loop.later(_PROOF_S, self._sweep)
        except BlockingIOError:
            return
        except OSError:  # as when all descriptors are used
            self._loop.selector.unregister(self._listener)
            self._loop.later(_ACCEPT_AGAIN_S, self._accept_again)
            if self._guests:
                self.leave(next(iter(self._guests)))

    def _sweep(self) -> None:
        """Close the connections that have stayed too long without a proof."""
        now = time.monotonic()
        for guest in [guest for guest, until in self._guests.items() if until <= now]:
            self.leave(guest)
        self._sweeps = bool(self._guests)
        if self._guests:
            self._loop.later(next(iter(self._guests.values())) - now, self._sweep)

    def _accept_again(self) -> None:
        assert self._listener is not None
        self._loop.selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def offered(self, ticket: bytes) -> PayloadOffer | None:
        """Return the offer of a ticket, if it holds."""
        found = self._offers.get(ticket)
        return None if found is None else found[1]

    def admit(self, guest: _Guest, ticket: bytes, stream: StreamConnection) -> str | None:
        """Let a guest in that has the keys; returns its name. Its offer is used up, and its stream before is closed."""
        peer, _ = self._offers.pop(ticket, ("", None))
        if not peer:
            return None
        self._guests.pop(guest, None)
        self._drop(peer)
        self._streams[peer] = stream
        return peer

    def arrived(self, peer: str, frame: PayloadFrame) -> None:
        """Hand over a frame of a stream."""
        self._loop.arrived(peer, frame)

    def leave(self, guest: _Guest) -> None:
        """Close a connection that has not proven to have the keys."""
        if guest in self._guests:
            del self._guests[guest]
            guest.close()

    def ended(self, peer: str, stream: StreamConnection) -> None:
        """A stream has ended."""
        if self._streams.get(peer) is stream:
            del self._streams[peer]

    def _drop(self, peer: str) -> None:
        stream = self._streams.pop(peer, None)
        if stream is not None:
            stream.close()


class _Guest:
    """A connection that somebody has made: first it shows a ticket, then an empty frame that only its keys can seal."""

    def __init__(self, server: PayloadServer, loop: PayloadLoop, link: socket.socket) -> None:
        self._server, self._loop, self._link = server, loop, link
        self._ticket = b""
        self._stream: StreamConnection | None = None
        self._peer: str | None = None
        loop.selector.register(link, selectors.EVENT_READ, self._handle)

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()
        else:
            self._loop.selector.unregister(self._link)
            self._link.close()

    def _handle(self, _: int) -> None:
        if self._link.fileno() < 0:
            return
        try:
            data = self._link.recv(_TICKET_BYTES - len(self._ticket))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._ticket += data
        if not data:
            self._server.leave(self)
        elif len(self._ticket) == _TICKET_BYTES:
            self._begin()

    def _begin(self) -> None:
        offer = self._server.offered(self._ticket)
        if offer is None:
            self._server.leave(self)
            return
        self._loop.selector.unregister(self._link)
        self._stream = StreamConnection(
            self._loop,
            self._link,
            send_key=offer.to_worker,
            receive_key=offer.to_aggregator,
            received=self._received,
            ended=self._ended,
        )

    def _received(self, frame: PayloadFrame) -> None:
        assert self._stream is not None
        if self._peer is not None:
            self._server.arrived(self._peer, frame)
            return
        self._peer = self._server.admit(self, self._ticket, self._stream)
        if self._peer is None:
            self._server.leave(self)

    def _ended(self) -> None:
        self._server.leave(self)
        if self._peer is not None and self._stream is not None:
            self._server.ended(self._peer, self._stream)


# ---- the worker's end --------------------------------------------------------------------------------------


class PayloadClient:
    """A worker's streams to aggregators, by their indices, or those of another aggregator.

    Args:
        malformed: Called with a stream's name for a frame that holds no message.
        gives_way: See `PayloadLoop`.
        stored: Called by the streams' thread with each payload and the index of its sender, before `receive` yields it.
    """

    def __init__(
        self,
        malformed: Callable[[str], None],
        *,
        gives_way: bool = False,
        stored: Callable[[int, Message, memoryview], None] = lambda *_: None,
    ) -> None:
        self._loop = PayloadLoop(
            malformed,
            gives_way=gives_way,
            stored=lambda key, message, payload: stored(cast(_Key, key)[1], message, payload),
        )
        self._round = 0
        """Grows with each call of `forget`; what began in an earlier round is over."""
        self._streams: dict[_Key, StreamConnection] = {}
        self._connecting: set[socket.socket] = set()
        self._failures: dict[_Key, int] = {}
        self._lost: deque[_Key] = deque()

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def connect(self, index: int, host: str, offer: PayloadOffer) -> None:
        """Begin to connect to an aggregator, instead of the stream before."""
        self._loop.call(functools.partial(self._connect, (self._round, index), host, offer))

    def forget(self) -> None:
        """Close all streams, as the aggregators are others now."""
        self._round += 1
        self._loop.call(self._close_outdated)

    def send(self, index: int, message: Message, payload: Any = None) -> bool:
        """Queue a message by a stream; returns False if there is none. A payload is read when it is sent."""
        return _send(self._loop, self._streams.get((self._round, index)), message, payload)

    def fileno(self) -> int:
        """The descriptor that is readable when something has arrived, or a stream is lost."""
        return self._loop.fileno()

    def receive(self) -> Iterator[tuple[int, Message, memoryview | None]]:
        """Yield what has arrived, see `PayloadLoop.receive`."""
        for key, message, payload in self._loop.receive():
            number, index = cast(_Key, key)
            if number == self._round:
                yield index, message, payload

    def lost(self) -> Iterator[int]:
        """Yield the aggregators to which there is no stream, but should be one: another offer is due."""
        while self._lost:
            number, index = self._lost.popleft()
            if number == self._round:
                yield index

    def close(self) -> None:
        """Close all streams."""
        self._loop.close()

    # ---- the loop's thread ---------------------------------------------------------------------------------

    def _close_outdated(self) -> None:
        for key in [key for key in self._streams if key[0] != self._round]:
            self._streams.pop(key).close()
        self._failures = {key: count for key, count in self._failures.items() if key[0] == self._round}

    def _connect(self, key: _Key, host: str, offer: PayloadOffer) -> None:
        if key[0] != self._round:
            return
        if (before := self._streams.pop(key, None)) is not None:
            before.close()
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, offer.port, type=socket.SOCK_STREAM
            )[0]
            link = socket.socket(family, kind, protocol)
        except OSError:
            self._failed(key)
            return
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.connect_ex(address)  # an error makes the socket writable, too
        self._connecting.add(link)
        self._loop.selector.register(
            link, selectors.EVENT_WRITE, functools.partial(self._connected, key, link, offer)
        )
        self._loop.later(_CONNECT_S, functools.partial(self._give_up, key, link))

    def _give_up(self, key: _Key, link: socket.socket) -> None:
        """End an attempt to connect that has failed or was not answered in time."""
        if link in self._connecting:
            self._connecting.remove(link)
            self._loop.selector.unregister(link)
            link.close()
            self._failed(key)

    def _connected(self, key: _Key, link: socket.socket, offer: PayloadOffer, _: int) -> None:
        try:
            link.send(offer.ticket)
        except OSError:
            self._give_up(key, link)
            return
        self._connecting.remove(link)
        self._loop.selector.unregister(link)
        stream = StreamConnection(
            self._loop,
            link,
            send_key=offer.to_aggregator,
            receive_key=offer.to_worker,
            received=functools.partial(self._received, key),
            ended=functools.partial(self._ended, key),
        )
        self._streams[key] = stream
        stream.queue.appendleft(Outgoing(b"", None))
        stream.handle(selectors.EVENT_WRITE)
        if key[0] != self._round:
            self._close_outdated()

    def _received(self, key: _Key, frame: PayloadFrame) -> None:
        self._failures.pop(key, None)
        self._loop.arrived(key, frame)

    def _ended(self, key: _Key) -> None:
        self._streams.pop(key, None)
        self._failed(key)

    def _failed(self, key: _Key) -> None:
        failures = self._failures[key] = self._failures.get(key, -1) + 1
        log.info("no stream of payloads to aggregator %d: they go by its other connection", key[1])
        delay_s = min(_RETRY_S * 2 ** min(failures, 20), _RETRY_S_MAX)
        self._loop.later(delay_s, functools.partial(self._is_lost, key))

    def _is_lost(self, key: _Key) -> None:
        if key[0] == self._round:
            self._lost.append(key)
            self._loop.notify()
