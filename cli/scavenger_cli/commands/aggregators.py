"""`aggregators`: the pool of aggregators that jobs share on this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.control.documents.pool import pool_document, share_of
from scavenger.presentation.formatting import clean, duration, plural, quantity, size, when
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.train.pool.protocol import NodeLoad, PoolLoad

__all__ = ["serve_pool", "show_pool"]

_SHARES = {
    "cgroup": "by a cgroup each",
    "session": "by the kernel's groups of sessions",
    "thread": "by threads, as this system allows no group for each",
}


def show_pool(*, as_json: bool) -> int:
    """Print the nodes of this machine's pool, the aggregators on them, and what each uses.

    Raises:
        TransientError: The pool's manager does not answer.
    """
    from scavenger.train.pool.connection import load_of
    from scavenger.train.pool.protocol import pool_folder

    load = load_of(pool_folder())
    if as_json:
        console.emit_json(pool_document(load))
    elif load is None:
        console.emit(Text("No pool is served on this machine: a job with `aggregation: shared` starts one."))
    else:
        _show(load, time.time())
    return 0


def serve_pool(*, nodes: int, cpus: int | None, memory_gib: float | None, tenants: int) -> int:
    """Serve the pool until Ctrl-C or SIGTERM.

    Raises:
        ConfigurationError: This machine is too small for these nodes.
        TransientError: A pool is served already.
    """
    from scavenger.train.pool.protocol import pool_folder
    from scavenger.train.pool.serving import PoolSize, pool_nodes, serve

    memory_bytes = None if memory_gib is None else int(memory_gib * 2**30)
    size_ = PoolSize(nodes, cpus, memory_bytes, tenants)
    for node in pool_nodes(size_):
        console.note(f"{node.name}: {plural(node.cpus, 'processor')}, {size(node.memory_bytes)} of memory")
    serve(pool_folder(), size_)
    return 0


def _show(load: PoolLoad, now_s: float) -> None:
    began = datetime.fromtimestamp(load.since, UTC)
    console.emit(
        Text(
            f"Pool of process {load.pid} since {when(began)}, room for {plural(load.free, 'aggregator')} more"
        )
    )
    grid = render.table(
        ("node", "left"),
        ("processors", "right"),
        ("busy", "right"),
        ("tenants", "right"),
        ("memory", "right"),
    )
    for node in load.nodes:
        memory = f"{size(node.memory_bytes)} of {size(node.node.memory_bytes)}"
        grid.add_row(clean(node.node.name), str(node.node.cpus), _busy(node), str(node.tenants), memory)
    console.emit("", grid)
    if not load.tenants:
        return
    cpus = {node.node.name: node.node.cpus for node in load.nodes}
    grid = render.table(
        ("job", "left"),
        ("name", "left"),
        ("process", "left"),
        ("node", "left"),
        ("share", "right"),
        ("cpu time", "right"),
        ("memory", "right"),
        ("for", "right"),
    )
    for tenant in load.tenants:
        grid.add_row(
            clean(tenant.job_id[:8]),
            clean(_short(tenant.job)),
            clean(tenant.name),
            clean(tenant.node),
            f"{share_of(tenant, cpus):.0%}",
            f"{quantity(tenant.cpu_s)} s",
            size(tenant.memory_bytes),
            duration(max(0.0, now_s - tenant.since)),
        )
    console.emit("", grid)
    note = f"share: of the node's processors, in the last 10 s; equal shares {_SHARES[load.shares]}"
    console.emit(Text(note))


def _short(name: str, most: int = 10) -> str:
    """A job's name, cut so that the table fits 80 columns."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _busy(node: NodeLoad) -> str:
    return f"{node.load_cpus / node.node.cpus:.0%}"
