"""What the supervisor watches at intervals: the memory of processes, and the network between it and them."""

from __future__ import annotations

from collections.abc import Collection

from scavenger.elastic.liveness import HEARTBEAT_S
from scavenger.elastic.outage import Outage
from scavenger.train.engines.base import Engine

__all__ = ["MemoryWatch", "NetworkWatch"]

_MEMORY_SAMPLE_S = 0.5


class MemoryWatch:
    """Samples the memory of all processes.

    Attributes:
        peaks: The peak memory of each process so far, bytes.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._sampled_at = 0.0

    def look(self, engine: Engine, now: float) -> None:
        """Take a sample, and bound the size of logs, if it is time for that."""
        if now - self._sampled_at >= _MEMORY_SAMPLE_S:
            self._sampled_at = now
            self.peaks |= engine.sample_memory()
            engine.cap_logs()


class NetworkWatch:
    """Decides, once per heartbeat, whether the silence of processes is the network's."""

    def __init__(self) -> None:
        self._outage = Outage()
        self._looked_at = 0.0

    def heard(self, name: str) -> None:
        """Record a heartbeat of a process."""
        self._outage.heard(name)

    def is_due(self, now: float) -> bool:
        """Whether a heartbeat's time has passed since the last look; then this is the next one."""
        if now - self._looked_at < HEARTBEAT_S:
            return False
        self._looked_at = now
        return True

    def in_doubt(self, engine: Engine, beating: Collection[str], now: float) -> bool:
        """Whether silence does not count as failure now.

        Args:
            engine: Knows whether the hosts are silent.
            beating: Processes that run and have sent heartbeats.
            now: Monotonic seconds.
        """
        return self._outage.look(now, in_doubt=engine.in_doubt, processes=beating)
