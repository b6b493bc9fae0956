"""Writes that nobody waits for: events, and the budgets of disruptions.

They are done one after the other by a thread of its own, so the jobs' pods and `status` come first where the API server
is busy. What waits has a key: a write that replaces one that was not done yet takes its place.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from scavenger.errors import ScavengerError

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
_CLOSE_S = 3.0


class Behind:
    """Does writes behind the others. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, Callable[[], object]] = OrderedDict()
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._work, name="behind", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, key: Hashable, write: Callable[[], object]) -> None:
        """Have something written, in place of what waits with the same key. The oldest is dropped if too much waits."""
        with self._changed:
            self._waiting[key] = write
            if len(self._waiting) > WAITING_MAX:
                self._waiting.popitem(last=False)
                log.warning("too much waits to be written: an event or a budget is left out")
            self._changed.notify()

    def close(self) -> None:
        """Do what waits, for a moment."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.ident:
            self._thread.join(_CLOSE_S)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over)
            return self._waiting.popitem(last=False)[1] if self._waiting else None

    def _work(self) -> None:
        while (write := self._next()) is not None:
            try:
                write()
            except ScavengerError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("internal fault")
