"""Looking at processes from outside."""

from __future__ import annotations

import contextlib
import os
import uuid

import psutil
from warm_servers import warm_pid

_WITHIN_S = 5.0
_VARIABLE, _RUN = "SCAVENGER_TEST_RUN", uuid.uuid4().hex
os.environ[_VARIABLE] = _RUN  # whatever these tests start, however it leaves them, can be told by it


def alive(pid: int) -> bool:
    """Whether a process still runs; one that nobody has collected yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def ours() -> set[int]:
    """Ids of every living process that these tests started, or that such a process started; not of the warm one."""
    found = {child.pid for child in psutil.Process().children(recursive=True)}
    mine = f"{_VARIABLE}={_RUN}".encode()
    for pid in psutil.pids():
        # all that psutil reads of each would be most of what a short test costs
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if mine in file.read():
                found.add(pid)
    return {pid for pid in found if alive(pid)} - {warm_pid(), os.getpid()}
