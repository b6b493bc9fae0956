"""Holds a tenant to its part of the machine: the processors of its node, an equal share of them, and its memory.

An equal share is a matter of the kernel's scheduler, which shares processors among *groups* of processes. Two ways
make each tenant such a group (docs/adr/0038-pool-of-aggregators.md has their measurements): a cgroup, where this user
may make one, and otherwise the session of the tenant, which the kernel treats as a group if autogroups are on and the
manager is in no cgroup that limits processors. Without either, shares are by threads.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

ShareWay = Literal["cgroup", "session", "thread"]

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
_PREFIX = "scavenger-tenant-"


@dataclass(frozen=True, slots=True)
class Shares:
    """How tenants get equal shares of their node's processors.

    Attributes:
        way: See the module.
        parent: The cgroup in which tenants get theirs; None if they get none.
    """

    way: ShareWay
    parent: Path | None = None

    def group(self, name: str) -> TenantGroup:
        """Make the group of a tenant; without a cgroup if that fails."""
        if self.parent is not None:
            path = self.parent / f"{_PREFIX}{os.getpid()}-{name}"
            with contextlib.suppress(OSError):
                path.mkdir()
                return TenantGroup(path)
        return TenantGroup(None)

    def sweep(self) -> None:
        """Remove the cgroups that a killed manager has left empty; those of a living one may be about to be entered."""
        if self.parent is not None:
            for path in self.parent.glob(f"{_PREFIX}*"):
                maker = path.name.removeprefix(_PREFIX).partition("-")[0]
                if maker.isdecimal() and not psutil.pid_exists(int(maker)):
                    TenantGroup(path).remove()


@dataclass(frozen=True, slots=True)
class TenantGroup:
    """The group of one tenant.

    Attributes:
        path: Its cgroup; None if it has none.
    """

    path: Path | None

    def enter(self, processors: Collection[int], memory_bytes: int) -> None:
        """Put this process into the group, on these processors, with this limit on its private memory.

        For a process that has just been forked and has one thread.

        Args:
            processors: Numbers of the node's processors.
            memory_bytes: Limit on private memory (`RLIMIT_DATA`), 0 for none: the job's shared-memory block does not
                count.
        """
        if self.path is not None:
            with contextlib.suppress(OSError):
                (self.path / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setaffinity(0, processors)
        if not memory_bytes:
            return
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            memory_bytes = min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))

    def remove(self) -> None:
        """Remove the cgroup, if it is empty."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.rmdir()


def move_to(pid: int, processors: Collection[int]) -> None:
    """Have a running process compute on other processors, with all its threads and the processes that it started.

    Its group, its limits and its memory stay as they are; nothing is copied, and nothing stands still.

    Args:
        pid: Its id; nothing is done for one that has ended.
        processors: Numbers of the processors.
    """
    wanted = set(processors)
    moved = True
    while moved:  # a thread that begins meanwhile has the processors of the one that began it
        moved = False
        for thread in _threads(pid):
            with contextlib.suppress(OSError):
                if os.sched_getaffinity(thread) != wanted:
                    os.sched_setaffinity(thread, wanted)
                    moved = True


def _threads(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.append(int(task.name))
            for child in (task / "children").read_text().split():
                found += _threads(int(child))
    return found


def find_shares(
    membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS, autogroup: Path = _AUTOGROUP
) -> Shares:
    """Find the best way that this process may use.

    Args:
        membership: File that lists the cgroups of this process.
        cgroups: Mount point of the cgroup file system.
        autogroup: File that says whether sessions are groups of the scheduler.
    """
    groups = _groups(membership)
    for kind, below in groups.items():
        parent, weight = _controller(cgroups, kind, below)
        if _can_make(parent, weight):
            return Shares("cgroup", parent)
    own = next((below for kind, below in groups.items() if "cpu" in kind.split(",")), groups.get("", ""))
    try:
        sessions = (
            autogroup.read_text().strip() == "1" and not own
        )  # the kernel's rule: only in the root group
    except OSError:
        sessions = False
    return Shares("session" if sessions else "thread")


def _groups(membership: Path) -> dict[str, str]:
    """The cgroups of this process that may share processors: paths below the mount point, by their controllers."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return {}
    return {kind: path.lstrip("/") for _, kind, path in lines if not kind or "cpu" in kind.split(",")}


def _controller(cgroups: Path, kind: str, below: str) -> tuple[Path, str]:
    """The folder of a cgroup, and the file that its groups have if they share processors."""
    if kind:  # version 1
        return cgroups / kind / below, "cpu.shares"
    return cgroups / below, "cpu.weight"


def _can_make(parent: Path, weight: str) -> bool:
    """Whether a group with a share of the processors can be made there; tries it."""
    path = parent / f"{_PREFIX}{os.getpid()}-probe"
    try:
        path.mkdir()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        able = (path / weight).exists() and os.access(path / "cgroup.procs", os.W_OK)
        path.rmdir()
        return able
    return False
