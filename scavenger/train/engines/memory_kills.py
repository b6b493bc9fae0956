"""Detection of processes that the kernel killed because memory ran out; SIGKILL alone does not show its sender.

The kernel counts such kills for each memory cgroup (`oom_kill`), and for the whole machine in `/proc/vmstat`. A process
that ended by SIGKILL was one of them only if the counter of its cgroup has risen by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

_RECENT_S = 10.0
"""How long a counted kill waits for the end of its process: a large process may take seconds to end."""
_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def find_counter(
    membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS, machine: Path = _MACHINE
) -> Path | None:
    """Find the file that counts the kills of this process's memory cgroup; None if the kernel has no counter.

    Args:
        membership: File that lists the cgroups of this process.
        cgroups: Mount point of the cgroup file system.
        machine: File with the counters of the whole machine, for a process in no memory cgroup.
    """
    found: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        # in a container the path may be the host's, while the mount point itself is the container's cgroup
        if "memory" in controllers.split(","):  # version 1
            found += [cgroups / "memory" / part / "memory.oom_control" for part in (below, "")]
        elif not controllers:  # version 2
            found += [cgroups / part / "memory.events" for part in (below, "")]
    return next((file for file in (*found, machine) if _read(file) is not None), None)


class MemoryKills:
    """Identifies the processes of a host that were killed because memory ran out.

    Args:
        counter: See `find_counter`; None: no process is identified.
    """

    def __init__(self, counter: Path | None) -> None:
        self._counter = counter
        self._count = 0 if counter is None else _read(counter) or 0
        self._unexplained: deque[float] = deque()

    def among(self, killed: Sequence[str], now_s: float) -> frozenset[str]:
        """Return which of the given processes were killed because memory ran out.

        Call this often, also without processes. If fewer kills were counted than processes have ended, it is unknown
        which of them the kernel killed, and none is returned.

        Args:
            killed: Names of processes that ended by a SIGKILL that this program did not send.
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
    """Read the number of kills so far; None if the file has no such counter."""
    try:
        for line in counter.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
