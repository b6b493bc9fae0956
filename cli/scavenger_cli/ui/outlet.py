"""A stream that never blocks its writer: unread text waits in a bounded queue, and a thread writes it."""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from typing import TextIO, cast

TEXTS_WAITING_MAX = 2_000
"""Longest queue of waiting texts; the oldest are dropped first."""
CHUNK_BYTES = select.PIPE_BUF
"""Bytes that a pipe that is ready accepts without blocking."""
_LOOK_S = 0.2


class Outlet(io.TextIOBase):
    """Writes to a file descriptor in a separate thread.

    A reader that stops reading, such as a full pipe or a paused terminal, does not delay the writer. Of the waiting
    texts about progress only the newest is kept; of all other texts, up to `TEXTS_WAITING_MAX` are kept.
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
        """Queue a text to be written; returns without waiting."""
        self._put(text, progress=False)
        return len(text)

    def write_progress(self, text: str) -> None:
        """Queue a text about progress, which replaces an older one that still waits."""
        self._put(text, progress=True)

    def drain(self, within_s: float) -> bool:
        """Wait at most `within_s` until everything is written; returns whether it is."""
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
    """The stream wrapped in an `Outlet`; or the stream itself if it has no file descriptor, so never blocks."""
    try:
        return cast(TextIO, Outlet(stream))
    except (OSError, ValueError):
        return stream


def has_room(stream: TextIO, within_s: float) -> bool:
    """Whether a line can be written without blocking, now or within `within_s`."""
    try:
        return bool(select.select([], [stream.fileno()], [], within_s)[1])
    except (OSError, ValueError):
        return True  # no file descriptor, or one whose own error will be reported when it is written to
