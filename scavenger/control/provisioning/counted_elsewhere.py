"""What of a job's cost is not that of its VMs."""

from __future__ import annotations

from scavenger.control.provisioning.leader_meter import recorded_leader
from scavenger.control.provisioning.traffic_counter import recorded_traffic
from scavenger.control.training.aggregation_share import recorded_share
from scavenger.store import Store


def counted_elsewhere_usd(store: Store, job_id: str) -> float:
    """What all attempts of a job have cost besides its VMs: traffic, the leader's VM, and a share of a pool."""
    leader = recorded_leader(store, job_id)
    led_usd = 0.0 if leader is None else leader.usd
    return recorded_traffic(store, job_id).usd + led_usd + recorded_share(store, job_id).usd
