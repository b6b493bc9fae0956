"""What VMs have cost, what is set aside for their end, and when a budget is reached."""

from __future__ import annotations

import math
from datetime import datetime

from scavenger.domain.intent import Desired, Intent, Past, Situation
from scavenger.policy.provisioning.memory import Memory, Terms

__all__ = ["Account", "charges", "money", "reserve_usd"]


def money(usd: float) -> str:
    """`$0.25`."""
    return f"${usd:.2f}"


def reserve_usd(price_usd_per_hour: float, drain_s: float, terms: Terms) -> float:
    """What is set aside for one VM: its price for as long as it may take to end it."""
    return price_usd_per_hour * terms.reserved_s(drain_s) / 3600.0


class Account:
    """One job's money as it stands.

    Attributes:
        committed_usd: Spent, and set aside for what it takes to end the VMs that there are.
        rate_usd_per_hour: Of all VMs that there are.
    """

    def __init__(self, situation: Situation, job_id: str, terms: Terms) -> None:
        living = [intent for intent in situation.intents if intent.job_id == job_id]
        self.committed_usd = situation.past.get(job_id, Past()).spent_usd
        self.committed_usd += sum(one.spent_usd + one.reserved_usd for one in living)
        self.rate_usd_per_hour = sum(intent.price_usd_per_hour for intent in living)
        self._look_s = terms.look_s

    def tick_usd(self, more_usd_per_hour: float = 0.0) -> float:
        """What the VMs cost until the next look, and those that are started now."""
        return (self.rate_usd_per_hour + more_usd_per_hour) * self._look_s / 3600.0

    def is_near(self, desired: Desired) -> bool:
        """Whether the budget is reached before the next look, with the time to save the job still set aside."""
        return self.committed_usd + self.tick_usd() > desired.budget_usd

    def is_over(self, desired: Desired) -> bool:
        """Whether what is set aside is needed to end the VMs: there is no time left."""
        drain_usd = self.rate_usd_per_hour * desired.drain_s / 3600.0
        return self.committed_usd - drain_usd + self.tick_usd() > desired.budget_usd


def charges(
    situation: Situation, memory: Memory, now_s: float, wall: datetime, life_s: float
) -> dict[str, tuple[float, float]]:
    """What every VM that may be paid for has cost since it was last charged: (seconds, dollars) to add, by intent.

    Between two looks of one process the monotonic clock tells. For the time when nobody looked, the clock on the wall
    does, unless it says what cannot be: nobody renewed the VM, so it lived at most `life_s`; that is charged then.
    The price is the present one where the job names it.
    """
    prices = {
        (desired.job_id, *place.key): place.price_usd_per_hour
        for desired in situation.desired
        for place in desired.all_places
    }
    added: dict[str, tuple[float, float]] = {}
    for intent in situation.intents:
        before_s = memory.charged_s.get(intent.id)
        if not intent.asked:
            continue
        seconds = now_s - before_s if before_s is not None else _unattended_s(intent, wall, life_s)
        price = prices.get((intent.job_id, *intent.place.key), intent.price_usd_per_hour)
        added[intent.id] = (seconds, price * seconds / 3600.0)
    return added


def _unattended_s(intent: Intent, wall: datetime, life_s: float) -> float:
    if intent.charged_at is None:
        return life_s
    gap_s = (wall - intent.charged_at).total_seconds()
    return gap_s if math.isfinite(gap_s) and 0.0 <= gap_s <= life_s else life_s
