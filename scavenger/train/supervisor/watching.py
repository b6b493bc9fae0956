"""What the supervisor watches at intervals: memory and work of processes, and the network between it and them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from scavenger.elastic.liveness import HEARTBEAT_S, LATE_S, SILENT_S
from scavenger.elastic.outage import NetworkOutage
from scavenger.train.engines.base import Engine
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.transport import messages as m

_MEMORY_SAMPLE_S = 0.5
_QUIT_S = 10.0  # how long a released worker may take to end; its time is paid for


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


class WorkWatch:
    """Looks, once per heartbeat, whether processes that have fallen silent work, so that they are only slow."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def heard(self, name: str, now: float) -> None:
        """Record a message of a process, at monotonic seconds."""
        self._heard[name] = now

    def look(self, engine: Engine, running: Collection[str], now: float) -> dict[str, float]:
        """Return the silent processes that worked recently, with the seconds since then.

        Args:
            engine: Knows when a process was last seen to work.
            running: Processes to look at; all others are forgotten.
            now: Monotonic seconds.
        """
        self._heard = {name: at for name, at in self._heard.items() if name in running}
        late = [name for name, at in self._heard.items() if now - at > LATE_S]
        return {name: idle_s for name in late if (idle_s := engine.idle_s(name)) < SILENT_S}


class NetworkWatch:
    """Decides, once per heartbeat, whether the silence of processes is the network's."""

    def __init__(self) -> None:
        self._outage = NetworkOutage()
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


class Watch:
    """Watches the processes of one job.

    Args:
        send: Sends a message to the coordinator.
    """

    def __init__(self, registry: ProcessRegistry, send: Callable[[m.Message], None]) -> None:
        self._engine, self._registry, self._send = registry.engine, registry, send
        self._memory, self._network, self._work = MemoryWatch(), NetworkWatch(), WorkWatch()

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """The peak memory of each process so far."""
        return self._memory.peaks

    def heard(self, name: str, now: float) -> None:
        """Record a heartbeat of a process, at monotonic seconds."""
        self._network.heard(name)
        self.worked(name, now)

    def worked(self, name: str, now: float) -> None:
        """Record another message of a process, at monotonic seconds."""
        self._work.heard(name, now)

    def look(self, now: float) -> Mapping[str, float] | None:
        """Sample memory, kill released workers that do not end, and tell the coordinator whose silence means nothing.

        Returns:
            The silent processes that worked recently, with the seconds since then; None until the next heartbeat is
            due.
        """
        self._memory.look(self._engine, now)
        for worker in self._registry.let_go:
            if now - worker.leaving_s > _QUIT_S:
                self._engine.kill(worker.name)
        if not self._network.is_due(now):
            return None
        beating, coordinator = self._registry.beating, self._registry.coordinator
        working = self._work.look(self._engine, {*beating, coordinator}, now)
        # without these heartbeats, the coordinator counts no process as silent
        if self._network.in_doubt(self._engine, beating, now):
            # it may find one silent before it misses them
            working |= {name: 0.0 for name in beating if name != coordinator}
        else:
            self._send(m.Beat())
        if working:
            self._send(m.Working(working))
        return working
