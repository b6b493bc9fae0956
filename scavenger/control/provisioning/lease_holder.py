"""The name that a service holds a lease by, from which others on its machine can tell that it has ended."""

from __future__ import annotations

import socket
from datetime import UTC, datetime

from scavenger.store.owner import is_owner_alive, this_process
from scavenger.store.records import Owner

__all__ = ["holder_name", "is_known_dead"]

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""No heartbeat: the process alone is asked about."""


def holder_name() -> str:
    """Of the calling process."""
    owner = this_process()
    return f"{owner.host}/{owner.pid}/{owner.started_at_s:.2f}"


def is_known_dead(holder: str) -> bool:
    """Whether it was a process of this machine and is none any more; False of what nobody here can know."""
    try:
        host, pid, started_at_s = holder.rsplit("/", 2)
        owner = Owner(int(pid), host, float(started_at_s))
    except ValueError:
        return False
    if host != socket.gethostname():
        return False
    return not is_owner_alive(owner, LONG_AGO, at=datetime.now(UTC))
