"""The pool of aggregators of this machine, as `scavenger aggregators` shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from scavenger.control.documents.plain import SCHEMA_VERSION

if TYPE_CHECKING:
    from scavenger.train.pool.protocol import PoolLoad, TenantLoad

__all__ = ["pool_document", "share_of"]


def share_of(tenant: TenantLoad, cpus: dict[str, int]) -> float:
    """Part of its node's processors that a tenant uses."""
    return tenant.load_cpus / cpus[tenant.node]


def pool_document(load: PoolLoad | None) -> dict[str, Any]:
    """The nodes of the pool and its tenants; null if none is served."""
    return {"schema_version": SCHEMA_VERSION, "pool": None if load is None else _document(load)}


def _document(load: PoolLoad) -> dict[str, Any]:
    cpus = {node.node.name: node.node.cpus for node in load.nodes}
    return {
        "pid": load.pid,
        "since": datetime.fromtimestamp(load.since, UTC).isoformat(),
        "shares": load.shares,
        "tenant_memory_bytes": load.tenant_memory_bytes,
        "free": load.free,
        "nodes": [
            {
                "name": one.node.name,
                "processors": list(one.node.processors),
                "memory_bytes": one.node.memory_bytes,
                "tenants_max": one.node.tenants_max,
                "tenants": one.tenants,
                "load_cpus": one.load_cpus,
                "used_bytes": one.memory_bytes,
            }
            for one in load.nodes
        ],
        "tenants": [
            {
                "job": {"id": one.job_id, "name": one.job},
                "process": one.name,
                "pid": one.pid,
                "node": one.node,
                "since": datetime.fromtimestamp(one.since, UTC).isoformat(),
                "share": share_of(one, cpus),
                "load_cpus": one.load_cpus,
                "cpu_s": one.cpu_s,
                "memory_bytes": one.memory_bytes,
            }
            for one in load.tenants
        ],
    }
