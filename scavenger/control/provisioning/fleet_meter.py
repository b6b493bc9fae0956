"""The cost meter of a job's VMs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from scavenger.control.provisioning.bill import counted_usd
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.item_meter import ItemMeter
from scavenger.domain.cost import Item
from scavenger.domain.intent import Intent
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.slots import is_for_aggregators


class VmCostMeter(CostMeter):
    """Adds the costs charged by the reconciler and the present rate since then.

    Args:
        inputs: Specification of the job's VMs, with the prices of disks and VM types.
        clock: Seconds, monotonic.

    Attributes:
        items: Meters of all that the job pays for besides its VMs and their disks.
    """

    def __init__(self, inputs: FleetInputs, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._inputs, self._clock = inputs, clock
        self._disk_usd_per_hour = inputs.spec.disk_usd_per_hour
        self._prices = {offer.vm: offer.price_usd_per_hour for offer in inputs.offers}
        self._intents: tuple[Intent, ...] = ()
        self._charged_usd, self._charged_at_s = 0.0, clock()
        self._spent_usd = 0.0
        self.items: dict[Item, ItemMeter] = {}
        self._since = clock()
        self._is_final = False

    def look(self, intents: tuple[Intent, ...], *, final: bool = False) -> None:
        """Update from the store's records of the job's VMs; with `final`, all VMs have ended."""
        self._intents, self._is_final = intents, final
        charged_usd = counted_usd(intents, self._disk_usd_per_hour) - self._inputs.before_usd
        if not final:  # VMs of an earlier attempt may be settled at less than was counted
            charged_usd = max(0.0, charged_usd)
        if charged_usd != self._charged_usd:
            self._charged_usd, self._charged_at_s = charged_usd, self._clock()

    def spent_usd(self) -> float:
        """See `CostMeter.spent_usd`; it never decreases before the last VM has ended."""
        counted_usd = self._charged_usd + sum(meter.attempt.usd for meter in self.items.values())
        if self._is_final:
            return counted_usd
        since_s = max(0.0, self._clock() - self._charged_at_s)
        now_usd = counted_usd + sum(map(self._rate, self._paid_for())) * since_s / 3600.0
        self._spent_usd = max(self._spent_usd, now_usd)
        return self._spent_usd

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        living = sum(map(self._rate, self._paid_for())) + self._inputs.leader_usd_per_hour
        living += self._pooled_usd_per_hour
        return living + sum(count * self._prices[vm] for vm, count in (joining or {}).items())

    def shared_usd_per_hour(self) -> float:
        """See `CostMeter.shared_usd_per_hour`: the aggregator VMs or the share of a pool, and the leader's VM."""
        aggregators = sum(self._rate(one) for one in self._paid_for() if is_for_aggregators(one.slot))
        return aggregators + self._inputs.leader_usd_per_hour + self._pooled_usd_per_hour

    def reserved_usd(self) -> float:
        return sum(intent.charges.reserved_usd for intent in self._paid_for())

    @property
    def _pooled_usd_per_hour(self) -> float:
        """Rate of the share of a pool, the mean of this attempt."""
        used_usd = self.items["share"].attempt.usd if "share" in self.items else 0.0
        return used_usd / max(1.0, self._clock() - self._since) * 3600.0

    def _rate(self, intent: Intent) -> float:
        return intent.charges.price_usd_per_hour + self._disk_usd_per_hour

    def _paid_for(self) -> list[Intent]:
        return [one for one in self._intents if one.state != "GONE" and one.asked]
