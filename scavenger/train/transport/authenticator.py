"""Authenticates connections to a job's hub: a process must have an admitted key, and the name admitted with it.

ZeroMQ requests the decision for each connection by the ZeroMQ Authentication Protocol, and reports for each message
which key its connection has.

References:
    P. Hintjens, "ZeroMQ RFC 27: ZeroMQ Authentication Protocol", https://rfc.zeromq.org/spec/27/
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils import z85

__all__ = ["Authenticator"]

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_REQUEST_FRAMES = 7  # version, id, domain, address, identity, mechanism, and the key


class Authenticator:
    """The authenticator of the hubs of one context; it rejects keys that were not admitted.

    `answer` must be called regularly, since connections wait for its decision.

    Args:
        context: The ZeroMQ context, which must have no server socket yet.
    """

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)
        self._names: dict[str, str] = {}
        self._keys: dict[str, str] = {}

    def admit(self, name: str, key: str) -> None:
        """Admit a process by its name and public key (Z85); the previous key of that name is no longer valid."""
        self._names.pop(self._keys.get(name, ""), None)
        self._names[key], self._keys[name] = name, key

    def name_of(self, key: str) -> str | None:
        """Return the name that a key was admitted for; None if it was not admitted, or is no longer valid."""
        return self._names.get(key)

    def answer(self) -> None:
        """Accept or reject all connections that wait for a decision."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            key = z85.encode(frames[-1]).decode() if len(frames) == _REQUEST_FRAMES else ""
            status = (b"200", b"OK") if key in self._names else (b"400", b"not admitted")
            self.socket.send_multipart([_VERSION, frames[1], *status, key.encode(), b""])

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
