"""Who may come in at a job's hub: whoever holds a key that was given out, under the name that it was given for.

ZeroMQ asks at each connection, by the ZeroMQ Authentication Protocol, and tells of each message which key it came by.

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
    """That of the hubs of one context. Nobody who was not admitted gets in; `answer` must be called again and again.

    Args:
        context: Must have no server socket yet.
    """

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)
        self._names: dict[str, str] = {}
        self._keys: dict[str, str] = {}

    def admit(self, name: str, key: str) -> None:
        """Let in who has this public key (Z85), as the one of this name; who had the name before is shut out."""
        self._names.pop(self._keys.get(name, ""), None)
        self._names[key], self._keys[name] = name, key

    def name_of(self, key: str) -> str | None:
        """Whom a key was given to; None where it is not, or no longer, anybody's."""
        return self._names.get(key)

    def answer(self) -> None:
        """Let in or turn away everybody who waits."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            key = z85.encode(frames[-1]).decode() if len(frames) == _REQUEST_FRAMES else ""
            status = (b"200", b"OK") if key in self._names else (b"400", b"not admitted")
            self.socket.send_multipart([_VERSION, frames[1], *status, key.encode(), b""])

    def close(self) -> None:
        self.socket.close()
