"""The nodes of a pool as they are on record, and those that are drained: no job gets a share there, and jobs leave."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from scavenger.domain.infra import Infra
from scavenger.domain.intent import Intent
from scavenger.domain.pool import MACHINE, NodeState, Pool, PoolAllotment, PoolNode
from scavenger.errors import ConfigurationError, NotFoundError
from scavenger.store import Store


def nodes_of(store: Store, last: PoolAllotment) -> tuple[tuple[PoolNode, str], ...]:
    """The nodes of a pool, each with the id of the record whose VM is there; empty for none.

    Of rented VMs those are nodes that are there. This machine is one node, called `local`.
    """
    pool, drained = last.pool, last.drained
    if pool.vms is None:
        state: NodeState = "draining" if MACHINE in drained else "open"
        return ((PoolNode(MACHINE, "", pool.slots, pool.slots, 0.0, state, None), ""),)
    there = _there(store, pool)
    if pool.vms.owned:
        nodes = with_drained(last.nodes, drained, last.nodes, datetime.now(UTC))
        return tuple(
            (node, next((one.job_id for one in there if one.is_on((node.name,))), "")) for node in nodes
        )
    return tuple(
        (
            PoolNode(
                one.instance_id,
                one.request.vm,
                1,
                0,
                one.charges.usd_per_hour,
                "draining" if one.is_on(drained) else "open",
                one.times.launched_at or one.times.created_at,
                one.request.spot,
                pool.per_slot,
            ),
            one.job_id,
        )
        for one in there
        if one.state == "UP"
    )


def with_drained(
    nodes: Iterable[PoolNode], drained: Collection[str], before: Iterable[PoolNode], now: datetime
) -> tuple[PoolNode, ...]:
    """Nodes as they are seen, of which those that are open are `draining` if they are drained.

    Args:
        drained: Names of nodes.
        before: The nodes as they are on record.
    """
    since = {node.name: node.since for node in before if node.state == "draining"}

    def one(node: PoolNode) -> PoolNode:
        if node.state == "open" and node.name in drained:
            return replace(node, state="draining", since=since.get(node.name, now))
        if node.state == "draining" and node.name not in drained:
            return replace(node, state="open", since=now)
        return node

    return tuple(map(one, nodes))


def _there(store: Store, pool: Pool) -> tuple[Intent, ...]:
    """The VMs of a pool; none of a pool of this machine."""
    if pool.vms is None:
        return ()
    infra = Infra.parse(pool.vms.infra)
    return tuple(one for one in store.vms_of_pool(pool.name, infra.provider, infra.region) if one.instance_id)


def still_drained(store: Store, last: PoolAllotment) -> tuple[str, ...]:
    """The nodes that are drained, without VMs that are gone."""
    vms = last.pool.vms
    if vms is None or vms.owned or not last.drained:
        return last.drained
    there = _there(store, last.pool)
    return tuple(name for name in last.drained if any(one.is_on((name,)) for one in there))


def drain(store: Store, node: str, name: str | None, *, undo: bool) -> tuple[str, str]:
    """Drain a node, or let it have shares again; returns the name of its pool, and the id of the record that has it.

    Args:
        name: Of the pool; None for the one that has such a node.

    Raises:
        NotFoundError: No pool that was shared out has such a node.
        ConfigurationError: Several have.
    """
    with store.together():
        found, known = dict[str, str](), []
        pools = {one.pool.name: one for one in store.pools() if name in (None, one.pool.name)}
        for one in pools.values():
            nodes = {each.name: job_id for each, job_id in nodes_of(store, one)}
            known += [f"{each} in {one.pool.name}" for each in nodes]
            if node in nodes or node in one.drained:
                found[one.pool.name] = nodes.get(node, "")
        if not found:
            there = f"; there are {', '.join(known)}" if known else ""
            raise NotFoundError(f"no pool{f' {name}' if name else ''} has a node {node!r}{there}")
        if len(found) > 1:
            raise ConfigurationError(
                f"pools {' and '.join(found)} have a node {node!r} each: name one, --pool POOL"
            )
        [(pool, job_id)] = found.items()
        last = pools[pool]
        drained = {*last.drained, node} - ({node} if undo else set())
        if drained != set(last.drained):
            what = f"{node} is drained" if not undo else f"{node} is open again"
            number, now = last.number + 1, datetime.now(UTC)
            store.put_allotment(
                replace(last, number=number, moves=(what,), at=now, drained=tuple(sorted(drained)))
            )
    store.wake_servers()
    return pool, job_id
