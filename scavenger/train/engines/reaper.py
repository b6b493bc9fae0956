"""A tiny process that outlives the one that leads a job, and ends what that one left: `reaper.py TAG FOLDER GROUP...`.

It begins with the process groups that it is given, and reads `+GROUP` and `-GROUP` from standard input. At the end
of the input, which comes when the leader ends in whatever way, even by SIGKILL, it kills every process group still on
its list, and then whatever carries the engine's tag in its environment: workers, and what their code started, even
where that left its group. Last, it removes the folder, which holds their temporary files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

__all__ = ["VARIABLE", "kill_marked", "main"]

VARIABLE = "SCAVENGER_PROCESS"
"""Environment variable that every process of an engine, and so all that it starts, carries: `TAG.NAME`."""

_SWEEPS = 5
_SWEEP_S = 0.2


def kill_marked(mark: str, *, prefix: bool = False) -> int:
    """SIGKILL to every process whose mark is (with `prefix`: begins with) this one; returns how many.

    Does nothing where the system has no `/proc`: there, process groups must do.
    """
    wanted = f"{VARIABLE}={mark}".encode()
    killed = 0
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
                if wanted in variables or (prefix and any(v.startswith(wanted) for v in variables)):
                    os.kill(int(entry), signal.SIGKILL)
                    killed += 1
    return killed


def main() -> None:
    groups = {int(group) for group in sys.argv[3:]}
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(_SWEEPS if groups else 0):  # one that was being started has its mark only a moment later
        kill_marked(f"{sys.argv[1]}.", prefix=True)
        time.sleep(_SWEEP_S)
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
