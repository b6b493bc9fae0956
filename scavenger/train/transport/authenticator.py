"""Authenticates connections to a server of a job: a process must have an admitted key, and the name admitted with it.

ZeroMQ requests the decision for each connection by the ZeroMQ Authentication Protocol, and reports for each message
which key its connection has.

References:
    P. Hintjens, "ZeroMQ RFC 27: ZeroMQ Authentication Protocol", https://rfc.zeromq.org/spec/27/
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils import z85

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_ROUTE_FRAMES = 2  # the connection that asks, and an empty frame
_REQUEST_FRAMES = 7  # version, id, domain, address, identity, mechanism, and the key
_WAITING_MAX = 1024


class Authenticator:
    """The authenticator of the server sockets of one context; it rejects keys that were not admitted.

    `answer` must be called regularly, since connections wait for its decision.

    Args:
        context: The ZeroMQ context, which must have no server socket yet.
        may_follow: Whether a key may be admitted after its holder has connected: then a client with an unknown key
            waits for that; otherwise it is rejected at once.
    """

    def __init__(self, context: Any, *, may_follow: bool = False) -> None:
        self._waiting_max = _WAITING_MAX if may_follow else 0
        self._waiting: list[tuple[list[bytes], str]] = []
        self.socket = context.socket(zmq.ROUTER)  # a request may be answered later than one after it
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)
        self._names: dict[str, str] = {}
        self._keys: dict[str, str] = {}

    def admit(self, name: str, key: str) -> bool:
        """Admit a process by its name and public key (Z85); the previous key of that name is no longer valid.

        Returns:
            Whether that name had another key, or none, before.
        """
        before = self._keys.get(name, "")
        self._names.pop(before, None)
        self._names[key], self._keys[name] = name, key
        return before != key

    def dismiss(self, name: str) -> None:
        """Admit a process no longer."""
        self._names.pop(self._keys.pop(name, ""), None)

    def name_of(self, key: str) -> str | None:
        """Return the name that a key was admitted for; None if it was not admitted, or is no longer valid."""
        return self._names.get(key)

    def answer(self) -> None:
        """Accept or reject all connections that wait for a decision."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            route, request = frames[:_ROUTE_FRAMES], frames[_ROUTE_FRAMES:]
            key = z85.encode(request[-1]).decode() if len(request) == _REQUEST_FRAMES else ""
            self._waiting.append(([*route, _VERSION, *request[1:2]], key))
        left = []
        for reply, key in self._waiting:
            if key in self._names:
                self.socket.send_multipart([*reply, b"200", b"OK", key.encode(), b""])
            else:
                left.append((reply, key))
        surplus = max(0, len(left) - self._waiting_max)
        for reply, _ in left[:surplus]:  # those that have waited longest; most have hung up
            self.socket.send_multipart([*reply, b"400", b"not admitted", b"", b""])
        self._waiting = left[surplus:]

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
