"""Which process a record means, so that no other process is ever taken for it: not one that has its pid later, in
another container or after another boot.

A pid means a process only within one boot and one process namespace, and there only together with the time of its
start. Clocks are not compared: the start is in ticks since the boot.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

PLACE_VARIABLE = "SCAVENGER_PLACE"
"""Place of this process and of all that it starts, in a container that has it alone; see `Birth.place`."""

Fate = Literal["alive", "dead", "unseen"]
"""What has become of a process; `unseen` if that cannot be told from here."""

_FIRST_NAMESPACE = "4026531836"
"""Inode of the process namespace that a kernel begins with: a machine's own, of no container."""
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True, slots=True)
class Birth:
    """Which process it is, among all that have its pid somewhere or at another time.

    Attributes:
        place: What one boot, or one container, has at a time: a machine, or a folder that its processes have locked.
            Empty if nothing is known to be so.
        boot: Id of the kernel's boot.
        namespace: Inode of the process namespace. It may be used again when all of its processes have ended.
        ticks: Start of the process since the boot, in ticks of the clock.
    """

    place: str
    boot: str
    namespace: str
    ticks: int

    def __str__(self) -> str:
        return f"{self.place}.{self.boot}.{self.namespace}.{self.ticks}"

    @classmethod
    def parse(cls, text: str) -> Birth | None:
        """Read what `str` writes; None if it is something else, such as a record of an earlier version."""
        parts = text.split(".")
        if len(parts) != 4 or not all(parts[1:]) or not parts[3].isdecimal():
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]))


def birth_of_this_process() -> Birth | None:
    """The birth of the calling process; None where the kernel does not tell."""
    pid = os.getpid()
    ticks = _start_of(pid)
    try:
        if os.readlink("/proc/self") != str(pid) or not isinstance(ticks, int):
            return None  # /proc shows another namespace
        namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
        boot = _boot()
    except OSError:
        return None
    place = os.environ.get(PLACE_VARIABLE) or (_machine() if namespace == _FIRST_NAMESPACE else "")
    return Birth(place.replace(".", "-"), boot, namespace, ticks)


def fate_of(pid: int, birth: Birth, here: Birth | None) -> Fate:
    """What has become of a process.

    Args:
        pid: As it was in its own namespace.
        birth: Its own.
        here: Of the calling process.
    """
    if here is None:
        return "unseen"
    if (birth.boot, birth.namespace) != (here.boot, here.namespace):
        return "dead" if birth.place and birth.place == here.place else "unseen"
    started = _start_of(pid)
    return started if isinstance(started, str) else "alive" if started == birth.ticks else "dead"


def _start_of(pid: int) -> int | Literal["dead", "unseen"]:
    """Start of a process of this namespace, ticks since the boot.

    By one read, as a list shows up to 200 live jobs.

    References:
        .. [1] proc_pid_stat(5): fields 3 and 22, which follow the name in parentheses.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except ProcessLookupError:
        return "dead"
    except OSError:
        return "unseen" if _is_there(pid) else "dead"
    fields = stat[stat.rindex(b")") + 2 :].split()
    return "dead" if fields[0] in (b"Z", b"X") else int(fields[19])


def _is_there(pid: int) -> bool:
    """Whether there is a process of this pid, as one that `/proc` hides from other accounts."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def _machine() -> str:
    """This machine's own name for itself, as the places of its processes; empty if it has none."""
    try:
        text = _MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    return hashlib.sha256(b"scavenger " + text).hexdigest()[:32] if text else ""
