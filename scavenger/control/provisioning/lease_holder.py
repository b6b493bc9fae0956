"""Names of lease holders, by which other processes on the same machine can detect that a holder has ended."""

from __future__ import annotations

from scavenger.store.births import Birth
from scavenger.store.owner import fate, this_process
from scavenger.store.records import Owner


def holder_name() -> str:
    """The lease holder name of the calling process."""
    owner = this_process()
    return f"{owner.host}/{owner.pid}/{owner.birth or f'{owner.started_at_s:.2f}'}"


def process_of(holder: str) -> Owner | None:
    """The process that a holder's name says; None if it says none."""
    try:
        host, pid, start = holder.rsplit("/", 2)
        if Birth.parse(start) is not None:
            return Owner(int(pid), host, 0.0, birth=start)
        return Owner(int(pid), host, float(start))  # of an earlier version, or where the kernel does not tell
    except ValueError:
        return None


def is_known_dead(holder: str) -> bool:
    """Whether the holder was a process on this machine that has ended; False if that cannot be determined."""
    process = process_of(holder)
    return process is not None and fate(process) == "dead"
