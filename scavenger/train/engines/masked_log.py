"""Logs of processes that have secrets: what they print is masked before it is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path

from scavenger.masking import StreamMask
from scavenger.private_files import private_opener

_READ_BYTES = 1 << 16


class MaskedLog:
    """A pipe for the output of a process, and a thread that appends what comes out of it to a log.

    Args:
        log: The file.
        secrets: The values that are never written.

    Attributes:
        writing: Descriptor for the process; whoever starts it closes this one then.
    """

    def __init__(self, log: Path, secrets: Collection[str]) -> None:
        self._mask = StreamMask(secrets)
        self._log = log
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._copy, name=f"log-{log.stem}", daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Wait until all is written that the process has printed; what has left it unseen may print on."""
        self._thread.join(within_s)

    def _copy(self) -> None:
        with (
            open(self._reading, "rb", buffering=0) as pipe,
            open(self._log, "ab", buffering=0, opener=private_opener) as file,
        ):
            while data := pipe.read(_READ_BYTES):
                _write(file.fileno(), self._mask.feed(data))
            _write(file.fileno(), self._mask.end())


def _write(fd: int, data: bytes) -> None:
    """Write what there is room for: a process must not wait because the disk of its log is full."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return
