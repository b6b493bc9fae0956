"""Routes at a server socket: the connections by which processes are reached, each bound to the key that opened it.

A process chooses the route of each of its connections: its name, the time, and random bytes that only the server
learns. So a process with a valid key of its own can take no connection of another, whatever name it claims; and what
is sent to a name goes by the route that the holder of that name's key opened last.
"""

from __future__ import annotations

import secrets
import struct
import time
from typing import NamedTuple

_END = b"\0"
_SUFFIX = struct.Struct(">cQ16s")
"""What follows the name: its end, when the connection was opened (monotonic nanoseconds), and random bytes."""


class _Bound(NamedTuple):
    key: str
    opened: int
    route: bytes


def new_route(name: str) -> bytes:
    """Make the route of a new connection of a process."""
    return name.encode() + _SUFFIX.pack(_END, time.monotonic_ns(), secrets.token_bytes(16))


def parse_route(route: bytes) -> tuple[str, int]:
    """Return the name that a route claims, and when its connection was opened.

    Raises:
        ValueError: If it is no such route.
    """
    name, suffix = route[: -_SUFFIX.size], route[-_SUFFIX.size :]
    if not name or not suffix.startswith(_END):
        raise ValueError(f"not a route: {route!r}")
    return name.decode(), _SUFFIX.unpack(suffix)[1]


class Routes:
    """The newest route of each name."""

    def __init__(self) -> None:
        self._bound: dict[str, _Bound] = {}

    def heard(self, name: str, key: str, opened: int, route: bytes) -> bool:
        """Take note that a message has arrived, whose key is that of the name.

        Times are compared for one key only: it belongs to one process, on one machine.

        Returns:
            Whether the route is the newest one of that process; it has left any other.
        """
        bound = self._bound.get(name)
        if bound is not None and bound.route == route and bound.key == key:
            return True
        if bound is not None and bound.key == key and opened < bound.opened:
            return False
        self._bound[name] = _Bound(key, opened, route)
        return True

    def to(self, name: str) -> tuple[bytes, str] | None:
        """Return the newest route of a name and the key that opened it; None before its holder was heard."""
        bound = self._bound.get(name)
        return None if bound is None else (bound.route, bound.key)
