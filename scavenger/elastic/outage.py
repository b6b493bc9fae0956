"""Whether the silence of processes counts as failure: not while the network to their hosts is broken.

=========  ======================================  ==========================================================
state      event                                   next
=========  ======================================  ==========================================================
sound      the hosts are in doubt                  broken; every process is awaited
broken     the hosts are heard again               mending, for as long as it was broken (within bounds)
mending    an awaited process is heard, or ends    it is no longer awaited
mending    none is awaited, or the time is over    sound
mending    the hosts are in doubt                  broken; every process is awaited
=========  ======================================  ==========================================================

A connection that was cut comes back by itself, with all that was on its way, but late: TCP waits twice as long before
each attempt, so up to as long again as it was cut.
"""

from __future__ import annotations

from collections.abc import Collection

MEND_MAX_S = 130.0
"""Longest time of mending: TCP waits at most 120 s between two attempts."""
_MEND_LEAST_S = 10.0


class NetworkOutage:
    """State of the network between a supervisor and its processes."""

    def __init__(self) -> None:
        self._broken_at: float | None = None
        self._mend_by: float | None = None
        self._awaited: set[str] = set()

    def heard(self, name: str) -> None:
        """Record a message of a process."""
        if self._mend_by is not None:
            self._awaited.discard(name)

    def look(self, now: float, *, in_doubt: bool, processes: Collection[str]) -> bool:
        """Update the state; returns whether silence does not count as failure now.

        Args:
            now: Monotonic seconds.
            in_doubt: Whether the hosts are silent, see `Engine.in_doubt`.
            processes: Processes that run.
        """
        if in_doubt:
            self._broken_at = now if self._broken_at is None else self._broken_at
            self._mend_by, self._awaited = None, set(processes)
            return True
        if self._broken_at is None:
            return False
        if self._mend_by is None:
            self._mend_by = now + min(MEND_MAX_S, _MEND_LEAST_S + now - self._broken_at)
        self._awaited &= set(processes)
        if self._awaited and now < self._mend_by:
            return True
        self._broken_at = self._mend_by = None
        self._awaited = set()
        return False
