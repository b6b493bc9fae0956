"""Where the buckets of a job go by AutoPS, which the scheduler's `assign` is held against.

`assign_by_bucket` is Pseudocode 1 of AutoPS [1]_: bucket by bucket, each to the node that fits best among
those where no job would lose too much, and to a new node where none is left. Three things are stricter here:

- The free time of a cycle has to suffice for all steps that the job makes in it, not for one. Otherwise the
  load of a node could exceed its cycle, which constraint (1) of appendix C forbids.
- The loss of the job itself counts beside that of the others.
- Memory and bandwidth bound a node as well.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, section 3.3.1.
"""

from __future__ import annotations

from collections.abc import Collection

from scavenger.scheduler.pool import (
    AggregatorNode,
    JobLoad,
    JobOnNode,
    NodeLoad,
    NoRoom,
    Placement,
    PoolState,
)


def assign_by_bucket(pool: PoolState, load: JobLoad, *, avoid: Collection[str] = ()) -> Placement | NoRoom:
    """Assign the buckets of a new job one after the other, by Pseudocode 1 of AutoPS.

    Args:
        pool: Without the job.
        avoid: Nodes that get none of its buckets.
    """
    if not pool.types and not pool.nodes:
        return NoRoom("the pool has no node, and none can be started")
    rules, nodes = pool.rules, {node.node.name: node for node in pool.open_to(load.name, avoid)}
    started: list[AggregatorNode] = []
    chosen: list[str] = []
    for index, bucket in enumerate(load.buckets):

        def tried(node: NodeLoad, index: int = index) -> NodeLoad:
            here = [load.buckets[i] for i in range(index) if chosen[i] == node.node.name]
            tenant = JobOnNode.of(load.step_time_s, [*here, load.buckets[index]])
            return node.with_tenant(load.name, tenant, rules)

        fitting = [after for after in map(tried, nodes.values()) if after.within(rules)]
        if fitting:
            best = min(fitting, key=lambda after: (after.free_s, after.node.name))
        else:
            if rules.nodes_max is not None and len(pool.nodes) >= rules.nodes_max:
                return NoRoom(f"bucket {index} fits on none of {rules.nodes_max} nodes, the most allowed")
            fresh = [(type_, tried(NodeLoad(AggregatorNode("", type_)))) for type_ in pool.types]
            usable = [type_ for type_, after in fresh if after.within(rules)]
            if not usable:
                return NoRoom(f"bucket {index} of job {load.name} ({bucket}) fits on no type of node")
            pool, node = pool.started(min(usable, key=lambda type_: type_.price_usd_per_hour))
            started.append(node)
            best = tried(NodeLoad(node))
        nodes[best.node.name] = best
        chosen.append(best.node.name)
    assignment = tuple(chosen)
    return Placement(pool.with_job(load, assignment), assignment, tuple(started))
