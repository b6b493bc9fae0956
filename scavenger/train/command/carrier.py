"""Carries the command's folder of checkpoints between a worker's machine and the job's storage, while others go on.

A host asks for one thing at a time, which a thread does: to have the folder as a checkpoint has it, or to store it.
What the program told of last is stored next; a checkpoint that was overtaken by a newer one is left out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from scavenger.errors import ScavengerError
from scavenger.train.checkpoints.files import open_files
from scavenger.train.checkpoints.format import DamagedError
from scavenger.train.command import messages as cm
from scavenger.train.command.stored_folder import StoredFolder, TornError

_TELL_S = 1.0
_QUIET_S = 2.0
"""How long no file may have changed before the folder of a program that does not report is stored."""


class _GivenUpError(Exception):
    """Nobody waits for it any more."""


class Carrier:
    """The folder of one process, which is removed at the end.

    Args:
        send: Sends a message to the leader.
    """

    def __init__(self, send: Callable[[cm.CommandMessage], None]) -> None:
        self._send = send
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="carrier")
        self._stored: StoredFolder | None = None
        self._carried = ("", "")
        self._order: cm.StartProgram | None = None
        self._given_up = threading.Event()
        self._moved = False
        self._told_at = 0.0
        self._fetching: Future[None] | None = None
        self._pushing: Future[cm.Stored] | None = None
        self._number, self._pushed, self._told_ns = 0, 0, 0
        self._last: bool | None = None

    def begin(self, order: cm.StartProgram) -> None:
        """Have the folder as the order says; `ready` tells when."""
        self._give_up()
        self._order, self._number, self._pushed, self._last = order, 0, 0, None
        self._pushed_s = time.monotonic()
        if not order.storage:
            self._fetching = None
            return
        if self._stored is None or self._carried != (order.folder, order.storage):
            self._carried = order.folder, order.storage
            self._stored = StoredFolder(Path(order.folder), open_files(order.storage), self._note)
        self._fetching = self._thread.submit(self._stored.fetch, order.files)

    def ready(self) -> bool:
        """Whether the folder is as it was ordered.

        Raises:
            OSError, ValueError, ScavengerError, DamagedError: If it cannot be.
        """
        if self._fetching is None:
            return True
        if not self._fetching.done():
            self._tell()
            return False
        done, self._fetching = self._fetching, None
        done.result()
        return True

    def told(self, records: list[cm.Record]) -> None:
        """Note what the program told: its checkpoints are stored."""
        told = sum(record.kind == "checkpoint" for record in records)
        if told:
            self._number, self._told_ns = self._number + told, time.time_ns()

    def end(self, *, store: bool) -> None:
        """The program has ended; what it left is stored if it ended by itself."""
        if self._last is None:
            self._last = store

    @property
    def _carries(self) -> bool:
        return self._order is not None and bool(self._order.storage)

    def look(self) -> bool:
        """Store what is to be stored; whether nothing is left to do, once the program has ended."""
        if not self._carries:
            return True
        if self._pushing is not None:
            if not self._pushing.done():
                self._tell()
                return False
            done, self._pushing = self._pushing, None
            self._send(done.result())
        if self._last is not None:
            if self._last:
                self._last = False
                self._push(last=True)
            elif self._number > self._pushed:
                self._push(last=False)  # of a program that died afterwards
            return self._pushing is None
        if self._number > self._pushed:
            self._push(last=False)
        elif self._is_due():
            self._told_ns = time.time_ns() - int(_QUIET_S * 1e9)
            self._push(last=False)
        return False

    def _is_due(self) -> bool:
        """Whether the folder of a program that does not report is to be stored."""
        order = self._order
        assert order is not None
        due_s = self._pushed_s + (order.carry_every_s or float("inf"))
        return bool(order.log) and time.monotonic() >= due_s

    def _push(self, *, last: bool) -> None:
        assert self._order is not None
        self._pushed, self._pushed_s = self._number, time.monotonic()
        until_ns = None if last else self._told_ns
        self._pushing = self._thread.submit(
            self._store, self._order.attempt, self._number, until_ns, last=last
        )

    def _store(self, attempt: int, number: int, until_ns: int | None, *, last: bool) -> cm.Stored:
        """Store the folder; runs in the thread."""
        assert self._stored is not None
        problem = ""
        try:
            return cm.Stored(attempt, number, last, self._stored.push(until_ns=until_ns))
        except TornError as error:
            problem = f"{error}; have the program write under another name, and rename"
        except (OSError, ScavengerError, DamagedError, _GivenUpError) as error:
            problem = f"it could not be stored: {error}"
        return cm.Stored(attempt, number, last, {}, problem[:2000])

    def _note(self) -> None:
        if self._given_up.is_set():
            raise _GivenUpError("nobody waits for it")
        self._moved = True

    def _tell(self) -> None:
        """Tell the leader now and then that something is carried, while it moves."""
        if self._moved and time.monotonic() - self._told_at > _TELL_S and self._order is not None:
            self._moved, self._told_at = False, time.monotonic()
            self._send(cm.Carrying(self._order.attempt))

    def _give_up(self) -> None:
        """End what is under way."""
        self._given_up.set()
        for future in (self._fetching, self._pushing):
            if future is not None:
                with contextlib.suppress(Exception):
                    future.result()
        self._fetching = self._pushing = None
        self._given_up.clear()

    def close(self) -> None:
        """End what is under way, and the thread; remove the folder."""
        self._give_up()
        self._thread.shutdown(wait=True)
        if self._stored is not None:
            self._stored.remove()
