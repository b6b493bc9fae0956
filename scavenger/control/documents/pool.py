"""The pool of aggregators of this machine, as `scavenger aggregators` shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scavenger.cloud.local import LocalCloud
from scavenger.control.documents.plain import SCHEMA_VERSION
from scavenger.errors import ConfigurationError
from scavenger.train.pool.protocol import JobUse, NodeLoad, PoolLoad, RentalLoad, TenantLoad, pool_folder


def share_of(tenant: TenantLoad, cpus: dict[str, int]) -> float:
    """Part of its node's processors that a tenant uses."""
    return tenant.load_cpus / cpus[tenant.node]


def cost_of(job: JobUse, usd_per_cpu_hour: float) -> float:
    """What a job's tenants cost, US dollars: at the prices of their nodes, or at that of this machine's processors."""
    return job.cpu_s / 3600.0 * usd_per_cpu_hour if job.usd is None else job.usd


def state_of(node: NodeLoad) -> str:
    """Whether a node is in use, in words."""
    if node.drained and node.tenants > node.pinned:
        return "draining"
    return "drained" if node.drained else "in use" if node.tenants else "empty"


@dataclass(frozen=True, slots=True)
class SeenPool:
    """The pool of a machine.

    Attributes:
        load: None if none is served.
        usd_per_cpu_hour: Price of a processor, for what jobs cost.
        price_source: Where that price comes from.
    """

    load: PoolLoad | None
    usd_per_cpu_hour: float
    price_source: str


def see_pool() -> SeenPool:
    """Ask the manager of this machine's pool.

    Raises:
        TransientError: It does not answer.
        ConfigurationError: If the price of a processor that the environment sets is none.
    """
    from scavenger.train.pool.connection import load_of

    return SeenPool(load_of(pool_folder()), *LocalCloud().cpu_price())


def drained(node: str, *, undo: bool) -> dict[str, Any]:
    """Have all aggregators moved off a node of this machine's pool, or let it have some again; what was done.

    Raises:
        ConfigurationError: No pool is served, it has no such node, or the others have no room.
        TransientError: The pool's manager does not answer.
    """
    from scavenger.train.pool.connection import drain

    found = drain(pool_folder(), node, undo=undo)
    if found is None:
        raise ConfigurationError("no pool is served on this machine")
    if found.error:
        raise ConfigurationError(found.error)
    done = {"node": node, "drained": not undo, "moved": found.moved, "later": found.later}
    return {"schema_version": SCHEMA_VERSION, **done}


def pool_document(seen: SeenPool) -> dict[str, Any]:
    """The nodes of the pool, its jobs and its tenants; null if none is served."""
    load, price = seen.load, (seen.usd_per_cpu_hour, seen.price_source)
    return {"schema_version": SCHEMA_VERSION, "pool": None if load is None else _document(load, price)}


def _document(load: PoolLoad, price: tuple[float, str]) -> dict[str, Any]:
    cpus = {node.node.name: node.node.cpus for node in load.nodes}
    return {
        "pid": load.pid,
        "since": _at(load.since),
        "shares": load.shares,
        "tenant_memory_bytes": load.tenant_memory_bytes,
        "free": load.free,
        "usd_per_cpu_hour": price[0],
        "price_source": price[1],
        "nodes": [
            {
                "name": one.node.name,
                "state": state_of(one).replace(" ", "_"),
                "processors": list(one.node.processors),
                "memory_bytes": one.node.memory_bytes,
                "tenants_max": one.node.tenants_max,
                "tenants": one.tenants,
                "load_cpus": one.load_cpus,
                "planned": one.planned,
                "used_bytes": one.memory_bytes,
                "machine": one.node.machine or None,
                "place": one.node.place or None,
                "pinned": one.pinned,
                "usd_per_hour": one.node.usd_per_hour if one.node.place else None,
                "idle_usd": one.idle_usd if one.node.place else None,
            }
            for one in load.nodes
        ],
        "address": load.address or None,
        "expected": list(load.expected),
        "rental": None if load.rental is None else _rental(load.rental),
        "jobs": [
            {
                "id": one.id,
                "name": one.name,
                "alone_s": one.alone_s,
                "step_s": one.step_s,
                "loss": one.loss,
                "cpu_s": one.cpu_s,
                "cost_usd": cost_of(one, price[0]),
            }
            for one in load.jobs
        ],
        "tenants": [
            {
                "job": {"id": one.job_id, "name": one.job},
                "process": one.name,
                "pid": one.pid,
                "node": one.node,
                "since": _at(one.since),
                "share": share_of(one, cpus),
                "load_cpus": one.load_cpus,
                "cpu_s": one.cpu_s,
                "memory_bytes": one.memory_bytes,
            }
            for one in load.tenants
        ],
        "changes": [
            {"at": _at(one.at), "what": one.what, "reason": one.reason, "in_use": one.in_use}
            for one in load.changes
        ],
    }


def _rental(rental: RentalLoad) -> dict[str, Any]:
    return {
        "place": rental.place,
        "vm": rental.machine,
        "usd_per_hour": rental.usd_per_hour,
        "nodes_max": rental.nodes_max,
        "idle_s": rental.idle_s,
        "since": {name: _at(since) for name, since in rental.since.items()},
        "free": rental.free,
        "cost_usd": rental.spent_usd,
        "idle_usd": rental.idle_usd,
        "shortage": rental.shortage or None,
    }


def _at(since: float) -> str:
    return datetime.fromtimestamp(since, UTC).isoformat()
