"""The reaper of an engine, as the engine sees it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping

from scavenger.train.engines import reaper

_WATCH_S = 1.0
"""How often it is looked after, seconds."""


class Reaper:
    """Ends the process groups of an engine, and deletes its folders, once the engine is gone; see `reaper`.

    Args:
        tag: Marks all processes of the engine.
        folders: The engine's folders, with the descriptors of their locks.
    """

    def __init__(self, tag: str, folders: Mapping[str, int]) -> None:
        self._tag, self._folders = tag, folders
        self._groups: set[int] = set()
        self._watched_at = 0.0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                reaper.__file__,
                self._tag,
                *self._folders,
                *map(str, self._groups.copy()),
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(self._folders.values()),
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def watch(self, now: float) -> bool:
        """Continue it if it was stopped, and replace it by another if it has ended; returns False if it is too soon."""
        if now - self._watched_at < _WATCH_S:
            return False
        self._watched_at = now
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            return True
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process = self._start()
        return True

    def add(self, group: int) -> None:
        """Have it end a process group, too."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Have it leave out a process group, which has ended."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Have it end, after all that is left."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(line.encode())
            pipe.flush()
