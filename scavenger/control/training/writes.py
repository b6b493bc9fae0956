"""Asynchronous writes of a running job to the store: in order, retried while the store is unavailable."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

from scavenger.errors import ConfigurationError, StoreBusyError, StoreReadOnlyError, StoreUnavailableError

EVENTS_WAITING_MAX = 1_000
"""Maximum number of queued events; the oldest are dropped first, as in the store itself."""
FIRST_RETRY_S, LAST_RETRY_S = 0.25, 10.0
"""Shortest and longest pause between two tries; doubled after each."""
STUCK_S = 30.0
"""A transaction that takes this long counts as an outage of the store."""
TOGETHER_MAX = 50
"""Maximum number of writes in one transaction."""

_HEALED_BY_TIME = (
    StoreBusyError,
    StoreReadOnlyError,
    StoreUnavailableError,
    ConfigurationError,  # the store was replaced by one without the job
)


@dataclass(frozen=True, slots=True)
class Outage:
    """A period in which the store is unavailable.

    Attributes:
        since: Clock reading of the first failed write.
        cause: Reason in one line.
        contended: Whether another process holds the store: processes that share one wait for each other.
    """

    since: float
    cause: str
    contended: bool = False


class Writes:
    """A queue of writes with the thread that executes them.

    Writes that wait are executed in one transaction, so that a slow disk does not hold up the later ones. If one fails
    temporarily, all of them are retried, with growing pauses, before any later one, so that the store always holds
    a prefix of the requested writes. If the server fails between a commit and its answer, writes are executed twice.

    Args:
        together: Makes one transaction of the writes within its block.
    """

    def __init__(
        self,
        together: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._together, self._clock = together, clock
        self._changed = threading.Condition()
        self._queue: deque[tuple[Callable[[], object], bool]] = deque()
        self._events = self._taken = 0
        self._thread: threading.Thread | None = None
        self._ending = self._hurried = False
        self._began: float | None = None
        self._refused: Outage | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._serve, name="store-writes", daemon=True)
        self._thread.start()

    def add(self, write: Callable[[], object], *, event: bool = False) -> None:
        """Queue a write; returns at once.

        Args:
            event: Whether the write may be dropped when too many are queued.
        """
        with self._changed:
            self._queue.append((write, event))
            self._events += event
            if self._events > EVENTS_WAITING_MAX:
                self._forget_oldest_event()
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """Number of queued writes, including those in progress."""
        return len(self._queue)

    @property
    def outage(self) -> Outage | None:
        """The current outage of the store; None if the store is available."""
        with self._changed:
            if self._refused is None and self._began is not None and self._clock() - self._began > STUCK_S:
                return Outage(self._began, "the store does not answer")
            return self._refused

    def check(self) -> None:
        """Raise the error of a write that failed permanently, if there is one."""
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def settle(self, within_s: float) -> bool:
        """Wait until the queue is empty, at most `within_s` seconds; returns whether it is."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._queue, within_s)

    def stop(self) -> None:
        """End the thread; queued writes are discarded."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    # ---- the thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        pause_s = FIRST_RETRY_S
        while writes := self._next():
            failure: BaseException | None = None
            refusal, contended = "", False
            try:
                failure = self._execute(writes)
            except _HEALED_BY_TIME as error:
                refusal, contended = str(error), isinstance(error, StoreBusyError)
            except BaseException as error:  # noqa: BLE001 - raised again on the job's thread
                failure = error
            with self._changed:
                began, self._began = self._began, None
                if refusal:
                    since = self._refused.since if self._refused else began or self._clock()
                    self._refused = Outage(since, refusal, contended)
                    self._changed.wait_for(lambda: self._ending or self._hurried, pause_s)
                    # a caller that waits in `settle` gets a retry at once, and then more frequent ones
                    pause_s = FIRST_RETRY_S if self._hurried else min(2.0 * pause_s, LAST_RETRY_S)
                    self._hurried = False
                    continue
                self._refused, self._failure, pause_s = None, failure or self._failure, FIRST_RETRY_S
                for _ in writes:
                    self._drop(0)
                self._taken = 0
                self._changed.notify_all()

    def _execute(self, writes: Sequence[Callable[[], object]]) -> BaseException | None:
        """Execute writes in one transaction; returns the error of the first that failed permanently, if any did."""
        failure: BaseException | None = None
        with self._together():
            for write in writes:
                try:
                    write()
                except _HEALED_BY_TIME:
                    raise
                except BaseException as error:  # noqa: BLE001 - raised again on the job's thread
                    failure = failure or error
        return failure

    def _next(self) -> tuple[Callable[[], object], ...]:
        """Wait for queued writes; returns none when the thread must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or bool(self._queue))
            if self._ending:
                return ()
            self._began = self._clock()
            self._taken = min(len(self._queue), TOGETHER_MAX)
            return tuple(write for write, _ in islice(self._queue, self._taken))

    def _drop(self, index: int) -> None:
        self._events -= self._queue[index][1]
        del self._queue[index]

    def _forget_oldest_event(self) -> None:
        """Drop the oldest queued event that is not in progress."""
        for index, (_, event) in enumerate(self._queue):
            if event and index >= max(self._taken, 1):
                self._drop(index)
                return
