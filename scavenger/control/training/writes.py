"""Writes to the store that a running job does not wait for: done in order, and again while the store does not serve."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from scavenger.errors import ConfigurationError, StoreBusyError, StoreReadOnlyError, StoreUnavailableError

__all__ = ["EVENTS_WAITING_MAX", "Outage", "Writes"]

EVENTS_WAITING_MAX = 1_000
"""Events that wait at most; the oldest go first, as in the store itself."""
FIRST_RETRY_S, LAST_RETRY_S = 0.25, 10.0
"""Between two tries: doubled from one to the other."""
STUCK_S = 30.0
"""A write that has taken this long tells of a store that does not answer."""

_HEALED_BY_TIME = (
    StoreBusyError,
    StoreReadOnlyError,
    StoreUnavailableError,
    ConfigurationError,  # the store was replaced by one without the job
)


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which the store does not serve.

    Attributes:
        since: Clock reading of the first write that was refused.
        cause: One line.
    """

    since: float
    cause: str


class Writes:
    """A queue of writes, and the thread that does them.

    A write that the store refuses for now is tried again, with growing pauses, before any later one: what is in the
    store is at every moment a beginning of what was asked for. A server that ends between a commit and its answer
    makes a write be done twice.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[tuple[Callable[[], object], bool]] = deque()
        self._events = 0
        self._thread: threading.Thread | None = None
        self._ending = self._hurried = False
        self._began: float | None = None
        self._refused: Outage | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._serve, name="store-writes", daemon=True)
        self._thread.start()

    def add(self, write: Callable[[], object], *, event: bool = False) -> None:
        """Have a write done after those before it; never waits.

        Args:
            event: It may be left out when very many wait.
        """
        with self._changed:
            self._queue.append((write, event))
            self._events += event
            if self._events > EVENTS_WAITING_MAX:
                self._forget_oldest_event()
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """How many writes wait, the one that is being done included."""
        return len(self._queue)

    @property
    def outage(self) -> Outage | None:
        """The store does not serve; None where it does."""
        with self._changed:
            if self._refused is None and self._began is not None and self._clock() - self._began > STUCK_S:
                return Outage(self._began, "the store does not answer")
            return self._refused

    def check(self) -> None:
        """Raise what a write has failed with that no later try can do."""
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def settle(self, within_s: float) -> bool:
        """Wait until all is written, at most for a time; returns whether it is."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._queue, within_s)

    def stop(self) -> None:
        """End the thread; what is still waiting is given up."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    # ---- the thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        pause_s = FIRST_RETRY_S
        while (first := self._next()) is not None:
            failure: BaseException | None = None
            refusal = ""
            try:
                first[0]()
            except _HEALED_BY_TIME as error:
                refusal = str(error)
            except BaseException as error:  # noqa: BLE001 - raised again on the thread that drives the job
                failure = error
            with self._changed:
                began, self._began = self._began, None
                if refusal:
                    since = self._refused.since if self._refused else began or self._clock()
                    self._refused = Outage(since, refusal)
                    self._changed.wait_for(lambda: self._ending or self._hurried, pause_s)
                    # whoever begins to wait for all to be written has it tried at once, and often again
                    pause_s = FIRST_RETRY_S if self._hurried else min(2.0 * pause_s, LAST_RETRY_S)
                    self._hurried = False
                    continue
                self._refused, self._failure, pause_s = None, failure or self._failure, FIRST_RETRY_S
                if self._queue and self._queue[0] is first:
                    self._drop(0)
                self._changed.notify_all()

    def _next(self) -> tuple[Callable[[], object], bool] | None:
        """The first that waits, once there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or bool(self._queue))
            if self._ending:
                return None
            self._began = self._clock()
            return self._queue[0]

    def _drop(self, index: int) -> None:
        self._events -= self._queue[index][1]
        del self._queue[index]

    def _forget_oldest_event(self) -> None:
        """All but the one that is being done."""
        for index, (_, event) in enumerate(self._queue):
            if event and index:
                self._drop(index)
                return
