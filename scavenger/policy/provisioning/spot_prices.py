"""What spot VMs are metered at: their price as the cloud tells it, which is read again each hour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from scavenger.domain.intent import Intent
from scavenger.policy.provisioning.actions import Alarm

SPOT_PRICES = ("spot prices",)
"""Key of the time in which they are not read again."""
READ_AGAIN_S = 3600.0
_TOLD_FROM = 0.01
"""Smallest change that is told, relative to the price before."""

SpotPrices = Mapping[tuple[str, str], float]
"""US dollars per hour, by VM type and zone."""


def spot_types(intents: Iterable[Intent]) -> frozenset[str]:
    """The types of spot VMs that run."""
    return frozenset(one.request.vm for one in intents if one.request.spot and one.state == "UP")


def metered_usd_per_hour(intent: Intent, named_usd: float, read: SpotPrices) -> float:
    """What a VM is metered at: of a spot VM what was read, though no more than it may cost.

    Args:
        intent: The VM.
        named_usd: Its price as the job names it.
        read: Prices as they were read; others are as named.
    """
    if not intent.request.spot:
        return named_usd
    present_usd = read.get((intent.request.vm, intent.request.zone), named_usd)
    most_usd = intent.request.usd_per_hour_max
    return min(present_usd, math.inf if most_usd is None else most_usd)


def price_changes(intents: Iterable[Intent], before: SpotPrices, now: SpotPrices) -> list[Alarm]:
    """What a user should know of prices that have changed: once for each VM type and zone.

    Args:
        intents: VMs; only spot VMs that run matter.
        before: Prices as they were read before.
        now: Prices as they are read now.
    """
    found: dict[str, Alarm] = {}
    for one in intents:
        if not one.request.spot or one.state != "UP":
            continue
        named_usd = one.charges.price_usd_per_hour
        was, is_ = (metered_usd_per_hour(one, named_usd, prices) for prices in (before, now))
        if abs(is_ - was) > _TOLD_FROM * was:
            vm, zone = one.request.vm, one.request.zone
            message = (
                f"the price of a spot VM {vm} in {zone} is ${is_:.4f} an hour now, not ${was:.4f}: it is metered so "
                "from now on"
            )
            found[f"{vm} {zone}"] = Alarm("spot_price", f"{vm} {zone} {is_:.6f}", message)
    return list(found.values())
