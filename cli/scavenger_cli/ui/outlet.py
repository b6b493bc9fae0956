"""A stream that never holds its writer up: what nobody reads waits in a bounded queue, and a thread writes it."""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from typing import TextIO, cast

__all__ = ["TEXTS_WAITING_MAX", "Outlet", "has_room", "unblocked"]

TEXTS_WAITING_MAX = 2_000
"""Texts that wait at most; the oldest go first."""
CHUNK_BYTES = select.PIPE_BUF
"""What a pipe that is ready takes without blocking."""
_LOOK_S = 0.2


class Outlet(io.TextIOBase):
    """Writes to a file descriptor by a thread of its own.

    A reader that stops reading, as a pipe nobody empties or a terminal that is paused, costs the writer nothing. Of the
    texts about progress that wait, only the newest is kept; all others are, up to `TEXTS_WAITING_MAX`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._fd = stream, stream.fileno()
        self._encoding, self._how = stream.encoding or "utf-8", stream.errors or "replace"
        self._changed = threading.Condition()
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._busy = self._gone = False
        self._thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Have a text written; returns at once."""
        self._put(text, progress=False)
        return len(text)

    def write_progress(self, text: str) -> None:
        """Have a text written unless a newer one comes first."""
        self._put(text, progress=True)

    def drain(self, within_s: float) -> bool:
        """Wait until all is written, at most for a time; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._gone or not (self._queue or self._busy), within_s)

    def _put(self, text: str, *, progress: bool) -> None:
        data = text.encode(self._encoding, self._how)
        with self._changed:
            if self._gone or not data:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="display-writer", daemon=True)
                self._thread.start()
            if progress:
                self._queue = deque(entry for entry in self._queue if not entry[1])
            elif len(self._queue) >= TEXTS_WAITING_MAX:
                self._queue.popleft()
            self._queue.append((data, progress))
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._queue))
                data, _ = self._queue.popleft()
                self._busy = True
            try:
                while data:
                    if select.select([], [self._fd], [], _LOOK_S)[1]:
                        data = data[os.write(self._fd, data[:CHUNK_BYTES]) :]
            except (OSError, ValueError):  # the reader or the terminal is gone
                with self._changed:
                    self._gone = True
                    self._queue.clear()
                    self._changed.notify_all()
                return


def unblocked(stream: TextIO) -> TextIO:
    """The stream behind an outlet; itself where it is no file of the system's, and so never blocks."""
    try:
        return cast(TextIO, Outlet(stream))
    except (OSError, ValueError):
        return stream


def has_room(stream: TextIO, within_s: float) -> bool:
    """Whether a line can be written without blocking, or can within a time."""
    try:
        return bool(select.select([], [stream.fileno()], [], within_s)[1])
    except (OSError, ValueError):
        return True  # no file of the system's, or one that will say itself what is wrong
