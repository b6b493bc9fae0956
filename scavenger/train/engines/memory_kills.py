"""Which processes the kernel killed because memory ran out: SIGKILL alone does not say who sent it.

The kernel counts such kills for each memory cgroup (`oom_kill`), and for the whole machine in `/proc/vmstat`. A process
that ended by SIGKILL was one of them only where the counter of its cgroup has risen by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

__all__ = ["MemoryKills", "find_counter"]

_RECENT_S = 10.0
"""A large process may take seconds to end after it was killed, and so long its kill waits to be explained."""
_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def find_counter(
    membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS, machine: Path = _MACHINE
) -> Path | None:
    """The file that counts the kills of this process's memory cgroup; None where the kernel tells of none.

    Args:
        membership: Which cgroups this process is in.
        cgroups: Where cgroups are mounted.
        machine: The counters of the whole machine, for a process in no memory cgroup.
    """
    found: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        # within a container the path may be that of the host, where the container's own cgroup is the mount itself
        if "memory" in controllers.split(","):  # version 1
            found += [cgroups / "memory" / part / "memory.oom_control" for part in (below, "")]
        elif not controllers:  # version 2
            found += [cgroups / part / "memory.events" for part in (below, "")]
    return next((file for file in (*found, machine) if _read(file) is not None), None)


class MemoryKills:
    """Tells which of a host's processes were killed for want of memory.

    Args:
        counter: See `find_counter`; None tells of none.
    """

    def __init__(self, counter: Path | None) -> None:
        self._counter = counter
        self._count = 0 if counter is None else _read(counter) or 0
        self._unexplained: deque[float] = deque()

    def among(self, killed: Sequence[str], now_s: float) -> frozenset[str]:
        """Of processes that have ended by a SIGKILL that nobody here sent, those that memory ran out for.

        To be asked often, also without any. Where fewer kills were counted than processes have ended, it is not known
        which of them were meant, and none is named.

        Args:
            now_s: Monotonic seconds.
        """
        count = None if self._counter is None else _read(self._counter)
        if count is not None:
            self._unexplained.extend([now_s] * (count - self._count))
            self._count = count
        while self._unexplained and now_s - self._unexplained[0] > _RECENT_S:
            self._unexplained.popleft()
        if not killed or len(killed) > len(self._unexplained):
            return frozenset()
        for _ in killed:
            self._unexplained.popleft()
        return frozenset(killed)


def _read(counter: Path) -> int | None:
    """Kills so far; None where the file does not tell."""
    try:
        for line in counter.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
