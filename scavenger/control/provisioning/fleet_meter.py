"""The cost meter of a job's VMs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from scavenger.control.provisioning.bill import counted_usd
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.item_meter import ItemMeter
from scavenger.domain.cost import Item
from scavenger.domain.intent import HEARD_LATE_S, Intent
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.slots import is_for_aggregators


class _Charged(NamedTuple):
    """What a VM was charged, and since when that is so."""

    billed_s: float
    since: float


class VmCostMeter(CostMeter):
    """Adds the costs charged by the reconciler, and each VM's rate since its last charge.

    A VM that is neither heard nor listed any more is not charged once it must have ended itself, and nothing is added
    after that.

    Args:
        inputs: Specification of the job's VMs, with the prices of VM types.
        clock: Seconds, monotonic.

    Attributes:
        items: Meters of all that the job pays for besides its VMs and their disks.
    """

    def __init__(self, inputs: FleetInputs, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._inputs, self._clock = inputs, clock
        self._intents: tuple[Intent, ...] = ()
        self._charged: dict[str, _Charged] = {}
        self._charged_usd = self._spent_usd = 0.0
        self.items: dict[Item, ItemMeter] = {}
        self._since = clock()
        self._is_final = False

    def look(self, intents: tuple[Intent, ...], *, final: bool = False) -> None:
        """Update from the store's records of the job's VMs; with `final`, all VMs have ended."""
        self._intents, self._is_final = intents, final
        now, before = self._clock(), self._charged
        self._charged = {
            one.id: known
            if (known := before.get(one.id)) is not None and known.billed_s == one.charges.billed_s
            else _Charged(one.charges.billed_s, now)
            for one in intents
        }
        self._charged_usd = counted_usd(intents) - self._inputs.before_usd
        if not final:  # VMs of an earlier attempt may be settled at less than was counted
            self._charged_usd = max(0.0, self._charged_usd)

    def spent_usd(self) -> float:
        """See `CostMeter.spent_usd`; it never decreases before the last VM has ended."""
        counted_usd = self._charged_usd + sum(meter.attempt.usd for meter in self.items.values())
        if self._is_final:
            return counted_usd
        for one in self._living:
            uncharged_s = min(self._charged_s_ago(one), one.uncharged_s_max)
            counted_usd += uncharged_s / 3600.0 * one.charges.usd_per_hour
        self._spent_usd = max(self._spent_usd, counted_usd)
        return self._spent_usd

    def usd_per_hour(self, joining: Mapping[str, int] | None = None) -> float:
        living = sum(one.charges.usd_per_hour for one in self._paid_for()) + self._inputs.leader_usd_per_hour
        living += self._pooled_usd_per_hour
        return living + sum(self._workers_usd_per_hour(vm, count) for vm, count in (joining or {}).items())

    def _workers_usd_per_hour(self, vm: str, workers: int) -> float:
        """Price of the VMs that so many workers need, as they are tried first."""
        return -(-workers // self._inputs.room[vm]) * self._inputs.options[vm][0].usd_per_hour

    def shared_usd_per_hour(self) -> float:
        """See `CostMeter.shared_usd_per_hour`: the aggregator VMs or the share of a pool, and the leader's VM."""
        living = self._paid_for()
        aggregators = sum(one.charges.usd_per_hour for one in living if is_for_aggregators(one.slot))
        return aggregators + self._inputs.leader_usd_per_hour + self._pooled_usd_per_hour

    def reserved_usd(self) -> float:
        return sum(intent.charges.reserved_usd for intent in self._paid_for())

    @property
    def _pooled_usd_per_hour(self) -> float:
        """Rate of the share of a pool, the mean of this attempt."""
        used_usd = self.items["share"].attempt.usd if "share" in self.items else 0.0
        return used_usd / max(1.0, self._clock() - self._since) * 3600.0

    @property
    def _living(self) -> list[Intent]:
        return [one for one in self._intents if one.state != "GONE" and one.asked]

    def _paid_for(self) -> list[Intent]:
        """The VMs that may be there: not those that must have ended themselves, so that their charges have ended."""
        return [
            one for one in self._living if self._charged_s_ago(one) <= max(HEARD_LATE_S, one.uncharged_s_max)
        ]

    def _charged_s_ago(self, intent: Intent) -> float:
        return max(0.0, self._clock() - self._charged[intent.id].since)
