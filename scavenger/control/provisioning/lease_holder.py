"""Names of lease holders, by which other processes on the same machine can detect that a holder has ended."""

from __future__ import annotations

import socket
from datetime import UTC, datetime

from scavenger.store.owner import is_owner_alive, this_process
from scavenger.store.records import Owner

__all__ = ["holder_name", "is_known_dead"]

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""A heartbeat time that never counts as recent, so that only the process itself is checked."""


def holder_name() -> str:
    """The lease holder name of the calling process."""
    owner = this_process()
    return f"{owner.host}/{owner.pid}/{owner.started_at_s:.2f}"


def is_known_dead(holder: str) -> bool:
    """Whether the holder was a process on this machine that has ended; False if that cannot be determined."""
    try:
        host, pid, started_at_s = holder.rsplit("/", 2)
        owner = Owner(int(pid), host, float(started_at_s))
    except ValueError:
        return False
    if host != socket.gethostname():
        return False
    return not is_owner_alive(owner, LONG_AGO, at=datetime.now(UTC))
