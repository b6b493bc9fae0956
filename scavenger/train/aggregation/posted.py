"""Messages that other threads of an aggregator pass to the one that waits for sockets."""

from __future__ import annotations

import contextlib
import os
import queue

from scavenger.train.transport.messages import Message


class Posted:
    """A queue with a descriptor that is readable when something was put in."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def put(self, message: Message) -> None:
        """Pass a message on."""
        self._queue.put(message)
        self.wake()

    def wake(self) -> None:
        """Wake the thread that waits, if it still does."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._fd, 1)

    def take(self) -> list[Message]:
        """Return what was put in."""
        with contextlib.suppress(OSError):
            os.eventfd_read(self._fd)
        found: list[Message] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._queue.get_nowait())
        return found

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)
        self._fd = -1
