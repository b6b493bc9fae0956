"""Events of the processes on VMs, until the engine takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scavenger.train.engines.vm.messages import Report
from scavenger.train.engines.vm.values import AgentSession, ProcessEvent, Unread

LEASE_S = 300.0
"""Time without a call of `take` after which the leader counts as hung, and sends no more heartbeats."""
_EVENTS_MAX, _EVENTS_BYTES_MAX = 1000, 8 << 20
"""Limits of the events of one VM that wait for the engine; an agent has at most two MiB in flight."""


class EventQueue:
    """Events that wait for the engine, with their launch numbers."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, ProcessEvent]] = deque()
        self._attended_at: float | None = None

    def record(self, session: AgentSession, launch: int, event: ProcessEvent) -> None:
        """Add an event of a process on a VM."""
        self._events.append((launch, event))
        session.unread.events += 1
        if isinstance(event, Report):
            session.unread.log_bytes += len(event.log)

    def is_full(self, session: AgentSession) -> bool:
        """Whether no more events of this VM are taken until the engine has taken some."""
        return session.unread.events > _EVENTS_MAX or session.unread.log_bytes > _EVENTS_BYTES_MAX

    def take(self, sessions: Iterable[AgentSession], now: float) -> list[tuple[int, ProcessEvent]]:
        """Remove and return all events; shows that the engine is alive."""
        self._attended_at = now
        events = list(self._events)
        self._events.clear()
        for session in sessions:
            session.unread = Unread()
        return events

    def unattended(self) -> None:
        """Record that no engine calls `take` any more."""
        self._attended_at = None

    def engine_hangs(self, now: float) -> bool:
        """Whether an engine has called `take`, but not for a long time."""
        return self._attended_at is not None and now - self._attended_at > LEASE_S
