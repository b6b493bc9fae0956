"""Bounds the connections to the server: anybody who reaches its port can open one, with a token or without.

A connection is **proven** once a request on it had a valid token. Of those that are not, the oldest are closed when
they are too many, and each when its request takes too long. What is left of the process's descriptors is for runners,
logs and the store.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from scavenger.train.transport.connections import raise_descriptor_limit

HEAD_S = 10.0
"""How long a handshake, and then the head of each request, may take to arrive, seconds."""
UNPROVEN_S = 60.0
"""How long a request without a valid token may take, seconds: with one, its first upload on the connection."""
LOOP = "scavenger.server.connections:ServerLoop"
"""Where uvicorn finds the event loop."""
_UNPROVEN_MAX, _UNPROVEN_SHARE = 256, 4
_RESERVE_MAX, _RESERVE_SHARE = 512, 2
"""Descriptors that no connection may have, at most and as a share of all."""

Peer = tuple[str, int]


class ServerLoop(uvloop.Loop):
    """Ends handshakes of TLS that do not come to their end."""

    async def create_server(self, *args: Any, ssl: Any = None, **options: Any) -> Any:
        if ssl is not None:
            options.setdefault("ssl_handshake_timeout", HEAD_S)
        return await super().create_server(*args, ssl=ssl, **options)


class _Connection:
    """One connection: its transport, and when it is closed unless something happens before."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.proven = self.busy = False
        self._timer: asyncio.TimerHandle | None = None

    def close_in(self, seconds: float | None) -> None:
        """Close it after so long; None: not by time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.transport.abort)
        )


class Connections:
    """The connections of one server, used in the thread of its event loop.

    Args:
        head_s: See `HEAD_S`.
        unproven_s: See `UNPROVEN_S`.
        unproven_max: Most connections that are not proven; None: by the process's descriptors.
        most: Most connections; None: by the process's descriptors.
    """

    def __init__(
        self,
        *,
        head_s: float = HEAD_S,
        unproven_s: float = UNPROVEN_S,
        unproven_max: int | None = None,
        most: int | None = None,
    ) -> None:
        limit = raise_descriptor_limit()
        self._head_s, self._unproven_s = head_s, unproven_s
        self._unproven_max = unproven_max or min(_UNPROVEN_MAX, limit // _UNPROVEN_SHARE)
        self._most = most or limit - min(_RESERVE_MAX, limit // _RESERVE_SHARE)
        self._open: dict[Peer, _Connection] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol of connections, for uvicorn."""
        connections = self

        class Bounded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                # kept, as a connection by TLS knows no peer any more when it is lost
                self._seen_from = _peer(transport)
                connections._made(self._seen_from, cast(asyncio.Transport, transport))

            def connection_lost(self, exc: Exception | None) -> None:
                connections._lost(self._seen_from, self.transport)
                super().connection_lost(exc)

        return Bounded

    def app(self, app: ASGIApp) -> ASGIApp:
        """The application, whose requests are seen here."""

        async def seen(scope: Scope, receive: Receive, send: Send) -> None:
            one = self._open.get(tuple(scope.get("client") or ()))
            if scope["type"] != "http" or one is None:
                await app(scope, receive, send)
                return

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start" and scope.get("state", {}).get("user"):
                    one.proven = True
                    one.close_in(None)
                await send(message)

            one.busy = True
            one.close_in(None if one.proven else self._unproven_s)
            try:
                await app(scope, receive, sending)
            finally:
                one.busy = False
                if not one.transport.is_closing():
                    one.close_in(self._head_s)

        return seen

    def _made(self, peer: Peer, transport: asyncio.Transport) -> None:
        unproven = [one for one in self._open.values() if not one.proven]
        one = self._open[peer] = _Connection(transport)
        one.close_in(self._head_s)
        if len(unproven) >= self._unproven_max or (unproven and len(self._open) > self._most):
            next((other for other in unproven if not other.busy), unproven[0]).transport.abort()
        elif len(self._open) > self._most:
            transport.abort()

    def _lost(self, peer: Peer, transport: asyncio.Transport) -> None:
        one = self._open.get(peer)
        if one is not None and one.transport is transport:
            one.close_in(None)
            del self._open[peer]


def _peer(transport: asyncio.BaseTransport) -> Peer:
    host, port = transport.get_extra_info("peername")[:2]
    return str(host), int(port)
