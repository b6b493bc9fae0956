"""What a process and everything that it has started use of their machine, from the kernel's counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class TreeUse:
    """The use of a process with those that it has started, and those that they have started.

    Attributes:
        cpu_s: Processor time, also of those that have ended, seconds.
        waited_s: Time for which their threads were ready, but waited for a processor, of those that live, seconds.
        memory_bytes: Private resident memory.
    """

    cpu_s: float = 0.0
    waited_s: float = 0.0
    memory_bytes: int = 0


def tree_use(pid: int) -> TreeUse:
    """Look at a process, unless it has ended.

    Args:
        pid: Its id.
    """
    cpu_s, waited_s, memory_bytes = 0.0, 0.0, 0
    for one in _tree(pid):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(one)
            times, memory = process.cpu_times(), process.memory_info()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            memory_bytes += max(0, memory.rss - memory.shared)
            waited_s += waited_s_of(one)
    return TreeUse(cpu_s, waited_s, memory_bytes)


def waited_s_of(pid: int) -> float:
    """Time that a process's threads waited in the queues of processors, seconds; 0 where the kernel does not count."""
    waited_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            waited_ns += int(thread.read_text().split()[1])
    return waited_ns / 1e9


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
