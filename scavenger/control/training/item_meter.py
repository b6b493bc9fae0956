"""Meters what a job uses of one item of its cost, for its bill and for every budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from scavenger.domain.cost import Item, LedgerEntry
from scavenger.store import Store

RECORD_S = 60.0
"""Interval of what is recorded."""


class ItemMeter:
    """What one attempt of a job has used of an item; the ledger gets that of all attempts.

    Args:
        store: Its ledger has what earlier attempts have used.
        item: The item.
        clock: Monotonic seconds.

    Attributes:
        before: What earlier attempts have used.
        attempt: What this one has used, as noted last.
    """

    def __init__(
        self, store: Store, job_id: str, item: Item, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._job_id, self._item, self._clock = store, job_id, item, clock
        self.before = self._recorded = store.entry(job_id, item)
        self.attempt = LedgerEntry()
        self._recorded_at = -math.inf
        self._first: tuple[int, float] | None = None  # a step, and what had been used for starting until then

    @property
    def total(self) -> LedgerEntry:
        """What all attempts have used."""
        return self.before + self.attempt

    def note(self, used: LedgerEntry, step: int | None = None) -> None:
        """Note what this attempt has used by now.

        Args:
            step: The last step; None before the first one of this attempt, or while there is no new one.
        """
        self.attempt = used
        if step is not None and self._first is None:
            self._first = step, used.usd

    def note_total(self, used: LedgerEntry) -> None:
        """Note what all attempts have used by now; where that is less than before, this one has used nothing."""
        quantity, usd = used.quantity - self.before.quantity, used.usd - self.before.usd
        self.attempt = LedgerEntry(max(0.0, quantity), max(0.0, usd), used.basis)

    def usd_per_step(self, step: int) -> float | None:
        """What a step has cost since the first one of this attempt; None before the second.

        Args:
            step: The last step.
        """
        if self._first is None or step <= self._first[0]:
            return None
        return (self.attempt.usd - self._first[1]) / (step - self._first[0])

    def record(self, *, at_once: bool = False) -> None:
        """Record what all attempts have used, about once a minute if it grows.

        Raises:
            StoreBusyError, StoreReadOnlyError, StoreUnavailableError: It is recorded the next time.
        """
        total, now = self.total, self._clock()
        if total == self._recorded or not (at_once or now - self._recorded_at >= RECORD_S):
            return
        self._store.note(self._job_id, self._item, total.quantity, total.usd, total.basis)
        self._recorded, self._recorded_at = total, now
