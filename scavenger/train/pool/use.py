"""What a tenant uses of the machine, from the kernel's counters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import psutil

from scavenger.train.engines.tree_use import waited_s_of

_WINDOW_S = 10.0
"""Time over which the load is averaged: some steps of most jobs."""


@dataclass(slots=True)
class TenantUse:
    """Samples of one process's use.

    Attributes:
        cpu_s: Processor time that it has used, seconds.
        waited_s: Time for which its threads were ready, but waited for a processor, seconds, of those that live.
        memory_bytes: Its private resident memory.
    """

    cpu_s: float = 0.0
    waited_s: float = 0.0
    memory_bytes: int = 0
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def sample(self, pid: int, now: float) -> None:
        """Look at the process, unless it has ended.

        Args:
            pid: Its id.
            now: Monotonic seconds.
        """
        try:
            process = psutil.Process(pid)
            times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            return
        self.waited_s = max(self.waited_s, waited_s_of(pid))
        self.note(times.user + times.system, max(0, memory.rss - memory.shared), now)

    def note(self, cpu_s: float, memory_bytes: int, now: float) -> None:
        """Add a sample."""
        self.cpu_s, self.memory_bytes = cpu_s, memory_bytes
        self._samples.append((now, cpu_s))
        while now - self._samples[0][0] > _WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def load_cpus(self) -> float:
        """Processors that it has used in the last seconds, on average; 0 before the second sample."""
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return max(0.0, last - first) / max(1e-3, last_s - first_s)
