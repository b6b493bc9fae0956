"""Leaders' VMs of other machines and other stores: found by their tags alone, and ended with what they have rented."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from scavenger.cloud.base import AdmittingProvider
from scavenger.control.provisioning.clean_up import Leftover, end_vms
from scavenger.domain.vm import VmSeen
from scavenger.errors import CloudError, ConfigurationError
from scavenger.policy.leaders import leader_state

REASONS = {
    "live": "its end was asked for",
    "overdue": "it should have ended itself",
    "off": "it is powered off",
}


@dataclass(frozen=True, slots=True)
class OtherLeader:
    """A leader's VM that this machine has no record of.

    Attributes:
        provider, region: Where it is.
        vm: Its tags tell the owner: the installation that has rented it.
        state: See `leader_state`.
        age_s: Since its launch; None if the cloud does not tell.
        cost_usd: What it has cost by its price on demand, with its disk and address; None if that is not known.
    """

    provider: str
    region: str
    vm: VmSeen
    state: Literal["live", "overdue", "off"]
    age_s: float | None
    cost_usd: float | None


def other_leaders(
    provider: AdmittingProvider,
    own: Collection[str],
    *,
    now: datetime,
    usd_per_hour: Callable[[str], float],
) -> tuple[OtherLeader, ...]:
    """Find the leaders' VMs of a region that are paid for and that others have rented.

    Args:
        provider: The cloud, in that region.
        own: Owners of which this machine has a record.
        now: The time of day.
        usd_per_hour: The price of a VM type with its extras; raises `ConfigurationError` if it is not known.

    Raises:
        CredentialsError, ThrottledError, CloudUnavailableError: The cloud does not list them.
    """
    found = []
    for vm in provider.list_leaders():
        if vm.state == "gone" or vm.tags.owner in own:
            continue
        age_s = None if vm.launched_at is None else max(0.0, (now - vm.launched_at).total_seconds())
        cost_usd = None
        if age_s is not None:
            with suppress(ConfigurationError):
                cost_usd = usd_per_hour(vm.vm) * age_s / 3600.0
        found.append(OtherLeader(provider.name, provider.region, vm, leader_state(vm, now), age_s, cost_usd))
    return tuple(found)


def end_other_leader(provider: AdmittingProvider, leader: OtherLeader) -> tuple[str, ...]:
    """End a leader's VM, all VMs of its owner and what belongs to them; returns a line for each that may be left."""
    owner, here = leader.vm.tags.owner, (leader.provider, leader.region)
    try:
        vms = {vm.instance_id: vm for vm in (leader.vm, *provider.list_owned(owner)) if vm.state != "gone"}
        reason = f"{REASONS[leader.state]}, of {owner}"
        lines = end_vms(provider, [Leftover(*here, vm, reason) for vm in vms.values()])
        if not lines:
            provider.remove_leftovers(owner)
    except CloudError as error:
        return (f"the leader's VM {leader.vm.instance_id} of {owner}, and what it has rented: {error}",)
    return tuple(lines)
