"""Logs of processes: secrets are masked before they are written, and no log grows without bound."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from scavenger.masking import StreamMask
from scavenger.private_files import private_opener
from scavenger.train.transport.messages.values import ProcessConfiguration

LOG_BYTES_MAX = 16 << 20
"""Size to which a log is truncated."""
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


@contextlib.contextmanager
def log_of(config: ProcessConfiguration, log: Path) -> Iterator[tuple[int, MaskedLog | None]]:
    """A descriptor for the output of a process, for as long as it is being started."""
    if not config.secrets:
        with open(log, "ab", opener=private_opener) as output:
            yield output.fileno(), None
        return
    masked = MaskedLog(log, config.secrets.values())
    try:
        yield masked.writing, masked
    finally:
        os.close(masked.writing)


def cap_log(log: Path) -> None:
    """Truncate a log to its last `LOG_BYTES_MAX` bytes; its writer appends, so it goes on after them."""
    with contextlib.suppress(OSError):
        size = log.stat().st_size
        if size > LOG_BYTES_MAX:
            with log.open("rb+") as file:
                file.seek(size - LOG_BYTES_MAX)
                tail = file.read()
                file.seek(0)
                file.write(tail)
                file.truncate()
