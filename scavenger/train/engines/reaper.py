"""Small process that outlives a job's leader and kills what it left running: `reaper.py TAG FOLDER... GROUP...`.

Lines `+GROUP` and `-GROUP` on standard input add to and remove from the process groups that the arguments list. The
input ends when the leader ends in whatever way, even by SIGKILL. Then this process kills every group on its list, and
every process that carries the engine's tag in its environment: workers, and what their code started, even if that
left the group. Last, it removes the folders, with their temporary files and sockets; their paths are absolute.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

VARIABLE = "SCAVENGER_PROCESS"
"""Environment variable that every process of an engine, and so all that it starts, carries: `TAG.NAME`."""

_SWEEPS = 5
_SWEEP_S = 0.2


def kill_marked(mark: str, *, prefix: bool = False) -> int:
    """Kill every process whose marker equals (with `prefix`: begins with) this one; return their number.

    Does nothing on systems without `/proc`, where only process groups are killed.
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
    """Run the reaper with the arguments of the command line."""
    folders = [argument for argument in sys.argv[2:] if argument.startswith("/")]
    groups = {int(argument) for argument in sys.argv[2:] if not argument.startswith("/")}
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(
        _SWEEPS if groups else 0
    ):  # a process that is just starting has its marker only a moment later
        kill_marked(f"{sys.argv[1]}.", prefix=True)
        time.sleep(_SWEEP_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
