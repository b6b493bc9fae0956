"""Callers by their tokens, kept for a moment: each request has one, and a browser's page makes several."""

from __future__ import annotations

import time
from collections.abc import Callable

from scavenger.domain.access import Caller, token_digest
from scavenger.store import Store

KEPT_S = 1.0
"""How long a caller is kept, seconds: so long may a token be valid after another process has revoked it."""
KEPT_MAX = 1_000


class Callers:
    """Who has a token, as the store had it at most `KEPT_S` ago; what is not valid is asked again each time.

    Args:
        store: Holds users and tokens.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._kept: dict[str, tuple[float, Caller]] = {}
        self._epoch = 0

    def kept(self, token: str) -> Caller | None:
        """Who has this token, as long as that is kept: the store is not asked."""
        found = self._kept.get(token_digest(token))
        return found[1] if found is not None and self._clock() - found[0] < KEPT_S else None

    def find(self, token: str) -> Caller | None:
        """Who has this token; None if nobody has, or it has expired."""
        if (known := self.kept(token)) is not None:
            return known
        digest, now, epoch = token_digest(token), self._clock(), self._epoch
        caller = self._store.caller(token)
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        if caller is not None and epoch == self._epoch:  # nothing was revoked while the store was asked
            self._kept[digest] = (now, caller)
        return caller

    def forget(self) -> None:
        """Ask the store again, as after a user or token was changed."""
        self._epoch += 1
        self._kept.clear()
