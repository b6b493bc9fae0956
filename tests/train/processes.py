"""Looking at processes from outside."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable

import psutil
from warm_servers import warm_pid

_WITHIN_S = 5.0
_VARIABLE, _RUN = "SCAVENGER_TEST_RUN", uuid.uuid4().hex
os.environ[_VARIABLE] = _RUN  # whatever these tests start, however it leaves them, can be told by it


def eventually(condition: Callable[[], bool], *, within_s: float = _WITHIN_S) -> bool:
    """Whether something comes true in time; for what other processes do, of which nobody tells us."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process still runs; one that nobody has collected yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def ours() -> set[int]:
    """Ids of every living process that these tests started, or that such a process started; not of the warm one."""
    found = {child.pid for child in psutil.Process().children(recursive=True) if alive(child.pid)}
    for process in psutil.process_iter():
        try:
            if process.environ().get(_VARIABLE) == _RUN and alive(process.pid):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found - {warm_pid()}
