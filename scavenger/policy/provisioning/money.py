"""The cost of VMs, the reserve for ending them, and when a budget is reached."""

from __future__ import annotations

import math
from datetime import datetime

from scavenger.domain.intent import HEARD_LATE_S, FleetSpec, Intent, IntentHistory, RegionSnapshot
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.policy.provisioning.memory import Memory
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.policy.provisioning.spot_prices import metered_usd_per_hour


def money(usd: float) -> str:
    """Format US dollars, such as `$0.25`."""
    return f"${usd:.2f}"


def reserve_usd(usd_per_hour: float, drain_s: float, config: ProvisioningConfig) -> float:
    """The reserve for one VM with its extras: its cost for the longest time that ending it may take."""
    return usd_per_hour * config.reserved_s(drain_s) / 3600.0


class Account:
    """Cost and reserves of one job.

    Attributes:
        committed_usd: Cost so far, and the reserve for ending the present VMs.
        rate_usd_per_hour: Price of all present VMs, with their extras.
    """

    def __init__(self, situation: RegionSnapshot, job_id: str, config: ProvisioningConfig) -> None:
        living = [intent for intent in situation.intents if intent.job_id == job_id]
        self.committed_usd = situation.past.get(job_id, IntentHistory()).spent_usd
        self.committed_usd += sum(one.charges.cost_usd + one.charges.reserved_usd for one in living)
        self.rate_usd_per_hour = sum(intent.charges.usd_per_hour for intent in living)
        self._look_s = config.look.interval_s

    def tick_usd(self, more_usd_per_hour: float = 0.0) -> float:
        """Cost of the VMs until the next look, including those that are started now."""
        return (self.rate_usd_per_hour + more_usd_per_hour) * self._look_s / 3600.0

    def is_near(self, spec: FleetSpec) -> bool:
        """Whether the budget, less the reserve for saving the job, is reached before the next look."""
        return self.committed_usd + self.tick_usd() > spec.budget_usd

    def is_over(self, spec: FleetSpec) -> bool:
        """Whether the reserve for ending the VMs would be used, so that they must end now."""
        drain_usd = self.rate_usd_per_hour * spec.drain_s / 3600.0
        return self.committed_usd - drain_usd + self.tick_usd() > spec.budget_usd


def charges(
    situation: RegionSnapshot, memory: Memory, now_s: float, wall: datetime, life_s: float
) -> dict[str, tuple[float, float]]:
    """Cost of every billable VM since it was last charged: (seconds, dollars) to add, by intent.

    The time between two looks of one process is taken from the monotonic clock, the time without a process from the
    wall clock. If the latter is implausible, `life_s` is charged: a VM that was not renewed ran at most that long.
    One that was neither listed nor heard for longer has ended itself: what it may have cost is counted by then, also
    if this process does not know for how long it has been silent.
    The price is the present one where the job names it, and of spot VMs as it was read last.
    """
    prices = {
        (spec.job_id, *option.key): option.price_usd_per_hour
        for spec in situation.fleets
        for option in spec.all_options
    }
    added: dict[str, tuple[float, float]] = {}
    for intent in situation.intents:
        before_s = memory.charged_s.get(intent.id)
        if not intent.asked or (intent.state == "PLAN" and intent.id in memory.queued):
            continue
        if intent.slot != LEADER_SLOT and memory.unseen_s(intent) > life_s + HEARD_LATE_S:
            continue
        seconds = now_s - before_s if before_s is not None else _unattended_s(intent, wall, life_s)
        if intent.instance_id and intent.slot != LEADER_SLOT and not memory.was_listed(intent):
            seconds = min(seconds, intent.uncharged_s_max)
        price = prices.get((intent.job_id, *intent.option.key), intent.charges.price_usd_per_hour)
        price = metered_usd_per_hour(intent, price, memory.spot_usd)
        added[intent.id] = (seconds, price * seconds / 3600.0)
    return added


def _unattended_s(intent: Intent, wall: datetime, life_s: float) -> float:
    if intent.charges.charged_at is None:
        return life_s
    gap_s = (wall - intent.charges.charged_at).total_seconds()
    return gap_s if math.isfinite(gap_s) and 0.0 <= gap_s <= life_s else life_s
