"""Whether the silence of processes says anything of them: not while the leader cannot hear the hosts that they run on.

=========  ======================================  ==========================================================
state      event                                   next
=========  ======================================  ==========================================================
sound      the hosts are in doubt                  broken; every process is awaited
broken     the hosts are heard again               mending, for as long as it was broken (within bounds)
mending    an awaited process is heard, or ends    it is awaited no more
mending    none is awaited, or the time is over    sound
mending    the hosts are in doubt                  broken; every process is awaited
=========  ======================================  ==========================================================

A connection that was cut comes back by itself, with all that was on its way, but late: TCP waits twice as long before
each attempt, so up to as long again as it was cut.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["MEND_MAX_S", "Outage"]

MEND_MAX_S = 130.0
"""The longest that TCP waits between two attempts is 120 s."""
_MEND_LEAST_S = 10.0


class Outage:
    """One leader's view of the network to its processes."""

    def __init__(self) -> None:
        self._broken_at: float | None = None
        self._mend_by: float | None = None
        self._awaited: set[str] = set()

    def heard(self, name: str) -> None:
        """A process has said something."""
        if self._mend_by is not None:
            self._awaited.discard(name)

    def look(self, now: float, *, in_doubt: bool, processes: Collection[str]) -> bool:
        """Whether nobody's silence counts now.

        Args:
            now: Monotonic seconds.
            in_doubt: The leader does not hear the hosts, see `Engine.in_doubt`.
            processes: Those that run.
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
