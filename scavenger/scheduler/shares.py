"""Whose node it is: the share of a shared node's price that each job bears.

Of each node's price a job bears

    price x use_j / (sum of the uses of all jobs there)

which is what it uses, and of the idle rest a part in proportion: the idle rest is there for those who are
there, and a job that uses twice as much keeps twice as much of the node from others. A node has processors,
memory and a network, and the scarcest of them is why no other job fits. So a job's *use* is the greatest of
its shares of the three, its dominant share [1]_, when it runs as fast as alone.

So a job alone on a node bears its whole price, as it would on a node of its own, and no job bears more of a node
because another one joins it. A node without jobs is nobody's use: all jobs of the pool bear it, in
proportion to what they bear otherwise.

References:
    .. [1] Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

from __future__ import annotations

from collections.abc import Mapping

from scavenger.scheduler.pool import NodeLoad, Pool

__all__ = ["node_shares", "pool_shares"]


def node_shares(load: NodeLoad) -> dict[str, float]:
    """The share of a node's price that each of its jobs bears: they sum to 1, or there is no job."""
    uses = {job: _use(load, job) for job in load.tenants}
    total = sum(uses.values())
    if total <= 0.0:  # nobody needs anything of it; each is there
        return {job: 1.0 / len(uses) for job in uses}
    return {job: use / total for job, use in uses.items()}


def pool_shares(pool: Pool) -> Mapping[str, float]:
    """USD per hour that each job bears of the pool: they sum to its price, or there is no job."""
    borne = dict.fromkeys(pool.jobs, 0.0)
    for load in pool.nodes.values():
        for job, share in node_shares(load).items():
            borne[job] += share * load.node.type.price_usd_per_hour
    used = sum(borne.values())
    if used > 0.0:
        return {job: usd * pool.price_usd_per_hour / used for job, usd in borne.items()}
    return {job: pool.price_usd_per_hour / len(borne) for job in borne}


def _use(load: NodeLoad, job: str) -> float:
    """The greatest of the job's shares of the node's processor time, memory and bandwidth."""
    tenant, type_ = load.tenants[job], load.node.type
    return max(
        tenant.execution_s / tenant.step_time_s / type_.cores,
        tenant.memory_bytes / type_.memory_bytes,
        tenant.traffic_bytes / tenant.step_time_s / type_.bandwidth_bytes_per_s,
    )
