"""VMs that a pool rents in virtual time: they start, are used, stay idle for a while and end, and cost all along."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from scavenger.scheduler.jobs.renting import Rental, Rented, Renting, idle_ended

MONTH_S = 30 * 86_400.0
"""After which a budget is whole again."""


@dataclass(frozen=True, slots=True)
class VmsUsed:
    """What the VMs of a run came to.

    Attributes:
        usd: What they cost, from the request of each to its end, those that were idle at the end included.
        vm_s: So many seconds they were there.
        started: How many were rented.
        at_once: Most of them at a time.
    """

    usd: float
    vm_s: float
    started: int
    at_once: int


class VirtualVms:
    """The VMs of a pool. All are alike, so that numbers say which is which: whoever was used last is used first."""

    def __init__(self, rental: Rental) -> None:
        self._rental = rental
        self._ready_s: list[float] = []
        self._idle_since: list[float] = []
        self._used = self._started = self._at_once = 0
        self._vm_s = self._month_usd = 0.0
        self._month = 0

    @property
    def up(self) -> int:
        """Those that have started."""
        return self._used + len(self._idle_since)

    @property
    def there(self) -> int:
        """Those that are paid for."""
        return self.up + len(self._ready_s)

    @property
    def seen(self) -> Rented:
        """What is decided on."""
        return Rented(self.up, len(self._ready_s), self._left_usd)

    @property
    def _left_usd(self) -> float:
        return self._rental.budget_usd - self._month_usd

    def next_s(self, now_s: float, wanted: int) -> float:
        """When something happens by itself: a VM has started, is idle for too long, or cannot be paid any more."""
        rental = self._rental
        times = [now_s + rental.fewer_s(self._left_usd, self.there)]
        if rental.budget_usd < inf:
            times.append((self._month + 1) * MONTH_S)
        times += self._ready_s[:1]
        if self._idle_since and self.there > wanted:
            times.append(self._idle_since[0] + rental.idle_s)
        return min(times)

    def advance(self, now_s: float, for_s: float) -> None:
        """So many seconds have passed, and it is now so late."""
        self._vm_s += self.there * for_s
        self._month_usd += self.there * for_s * self._rental.usd_per_s
        if (month := int(now_s / MONTH_S)) > self._month:
            self._month, self._month_usd = month, 0.0
        while self._ready_s and self._ready_s[0] <= now_s:
            self._idle_since.append(self._ready_s.pop(0))

    def take(self, now_s: float, renting: Renting) -> None:
        """Do what was decided."""
        used = int(renting.allotment.shares.slots.sum())
        for _ in range(used, self._used):
            self._idle_since.append(now_s)
        for _ in range(self._used, used):
            self._idle_since.pop()
        self._used = used
        while self.there > renting.most and self._ready_s:
            self._ready_s.pop()
        over = sum(since + self._rental.idle_s <= now_s for since in self._idle_since)
        del self._idle_since[: idle_ended(len(self._idle_since), over, self.there, renting)]
        for _ in range(renting.wanted - self.there):
            self._ready_s.append(now_s + self._rental.start_s)
            self._started += 1
        self._at_once = max(self._at_once, self.there)

    def used(self, now_s: float) -> VmsUsed:
        """What they came to, once the last job has ended."""
        idle_s = sum(max(0.0, since + self._rental.idle_s - now_s) for since in self._idle_since)
        vm_s = self._vm_s + idle_s
        return VmsUsed(vm_s * self._rental.usd_per_s, vm_s, self._started, self._at_once)
