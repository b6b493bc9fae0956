"""Keeps what other libraries write away from the terminal, while a job runs in the process of the command.

C++ writes to descriptors 1 and 2, and Python's `logging`, `warnings` and the libraries that print write to streams on
them. So both descriptors lead to the job's log meanwhile, and Scavenger writes to a copy of what they led to.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from scavenger import logs
from scavenger.private_files import make_private_folder, private_opener

LOG = "command.log"
"""The file in the folder of a job's logs; there is none if nothing was written."""


class Apart:
    """The standard streams while a job runs.

    Attributes:
        own: Where Scavenger's own words go: standard error, as it was.
    """

    def __init__(self) -> None:
        self.own: TextIO = sys.stderr
        self._kept: dict[int, int] = {}
        self._path: Path | None = None
        self._sink: BinaryIO | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep apart what is written by others, in a file without a name until `move` is called."""
        streams = {
            number: stream for number, stream in ((1, sys.stdout), (2, sys.stderr)) if _is(stream, number)
        }
        if not streams:
            yield
            return
        self._kept = {number: os.dup(number) for number in streams}
        if 2 in streams:
            # the copy stays open: what nobody has read in time is still written to it
            self.own = open(  # noqa: SIM115
                self._kept[2], "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors, closefd=False
            )
        with suppress(OSError):  # no room: the lines are shown, then
            self._sink = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
        self._lead()
        logs.show_others(sys.stderr)
        try:
            yield
        finally:
            self._lead_back()
            self._close()

    def move(self, folder: Path) -> None:
        """Have the lines in a log of a job from now on, and those that are there already.

        Args:
            folder: Of the job's logs.
        """
        if self._sink is None or self._path is not None:
            return
        with suppress(OSError):
            make_private_folder(folder)
            log = open(folder / LOG, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
            before, self._sink, self._path = self._sink, log, folder / LOG
            self._lead()  # first, so that nothing is written to the other one once it has been read
            with before:
                before.seek(0)
                log.write(before.read())

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """While a question is asked, the standard streams are as they were."""
        self._lead_back()
        try:
            yield
        finally:
            self._lead()

    def _lead(self) -> None:
        _flush()  # where it was written to
        if self._sink is not None:
            for number in self._kept:
                os.dup2(self._sink.fileno(), number)

    def _lead_back(self) -> None:
        _flush()
        for number, fd in self._kept.items():
            os.dup2(fd, number)

    def _close(self) -> None:
        if self._sink is None:
            return
        empty = os.fstat(self._sink.fileno()).st_size == 0
        self._sink.close()
        self._sink = None
        if empty and self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def _is(stream: TextIO | None, number: int) -> bool:
    """Whether a stream writes to a descriptor."""
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError):
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
