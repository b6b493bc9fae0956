"""A tiny process that outlives the one that leads a job, and ends what that one left: `python -m scavenger.train.reaper`.

It reads `+GROUP` and `-GROUP` from standard input. At the end of the input, which comes when the leader ends in
whatever way, even by SIGKILL, it kills every process group still on its list: workers, and what their code started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
