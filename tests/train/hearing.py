"""Waiting for what arrives at a server socket, where the first thing to arrive may be that somebody is there."""

from __future__ import annotations

import time

from scavenger.train.transport.messages import Message
from scavenger.train.transport.sockets import Router

_WITHIN_S = 20.0


def heard(router: Router, count: int = 1) -> list[tuple[str, Message, bytes | None]]:
    """Receive until at least so many messages have arrived, and return them."""
    found: list[tuple[str, Message, bytes | None]] = []
    deadline = time.monotonic() + _WITHIN_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        router.wait(0.1)
        found += router.receive()
    return found


def refused(router: Router, count: int) -> list[tuple[str, Message, bytes | None]]:
    """Receive until so many messages in all have been dropped as invalid, and return those that were not."""
    found: list[tuple[str, Message, bytes | None]] = []
    deadline = time.monotonic() + _WITHIN_S
    while router.malformed.count < count:
        assert time.monotonic() < deadline, router.malformed.count
        router.wait(0.1)
        found += router.receive()
    return found
