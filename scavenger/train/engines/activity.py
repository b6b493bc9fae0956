"""Whether a process of this machine uses a processor or waits for one, from `/proc`."""

from __future__ import annotations

import math
import os
from contextlib import suppress

from scavenger.elastic.liveness import ProcessorUse, is_working

_INTERVAL_MAX_S = 2.0
"""Longest time between two looks for which work between them counts as recent."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOPPED = "TtZX"  # stopped, traced, ended: see proc_pid_stat(5)


class Activity:
    """Tells when one process was last seen to work, by comparing its use of the processor at two looks."""

    def __init__(self) -> None:
        self._seen: tuple[int, float, ProcessorUse] | None = None
        self._worked_at = -math.inf

    def idle_s(self, pid: int, now: float) -> float:
        """Look, and return the seconds since the process was last seen to work.

        Args:
            pid: Id of the process; it may have had to be started again since the last look.
            now: Monotonic seconds.

        Returns:
            Infinity before the second look, or if no two looks were close enough to each other.
        """
        use = _processor_use(pid)
        before, self._seen = self._seen, (pid, now, use)
        if before is not None and before[0] == pid and now - before[1] <= _INTERVAL_MAX_S:
            self._worked_at = now if is_working(before[2], use) else self._worked_at
        return now - self._worked_at


def _processor_use(pid: int) -> ProcessorUse:
    """Read the processor use of a process; one that has ended counts as stopped."""
    try:
        state, cpu_s = _stat(f"/proc/{pid}/stat")
        # the state of the process is that of its main thread, which may wait for one that computes
        return ProcessorUse(cpu_s, state in _STOPPED, state == "R" or _has_runnable_thread(pid))
    except OSError:
        return ProcessorUse(0.0, True, False)


def _has_runnable_thread(pid: int) -> bool:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):  # it has ended meanwhile
            if _stat(f"/proc/{pid}/task/{thread}/stat")[0] == "R":
                return True
    return False


def _stat(path: str) -> tuple[str, float]:
    """Return state and processor time, in seconds, of a process or thread."""
    with open(path, encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()  # the name before it may contain anything
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
