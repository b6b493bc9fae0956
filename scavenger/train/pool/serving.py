"""Serves the pool of this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from scavenger import logs
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.train.pool.machines import Listen, Machines
from scavenger.train.pool.manager import Manager
from scavenger.train.pool.placement import Node, machine_nodes
from scavenger.train.pool.rental import NodeSource, RentedNodes
from scavenger.train.pool.shares import find_shares

TENANTS_MAX = 8
"""Tenants of a node: with more, each would have less than an eighth of its processors and memory."""

_CPUS_MAX = 4
"""Processors of a node by default: an aggregator may use as many at once, and the pool grows by so many."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The part of this machine that a pool takes.

    Attributes:
        nodes: Number of nodes, which are in use as far as they are needed; None: as many as half of the machine's
            processors suffice for. 0: none, all are other machines.
        cpus: Processors of each; None: half of the machine's among all nodes, at least one and at most four each.
        memory_bytes: Memory of each; None: half of the machine's among all nodes.
        tenants_max: Tenants that each takes at most.
    """

    nodes: int | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    tenants_max: int = TENANTS_MAX


def pool_nodes(size: PoolSize) -> tuple[Node, ...]:
    """Cut the nodes out of this machine.

    Raises:
        ConfigurationError: If the machine is too small.
    """
    if size.nodes == 0:
        return ()
    processors, memory = sorted(os.sched_getaffinity(0)), psutil.virtual_memory().total
    half = max(1, len(processors) // 2)
    cpus = min(_CPUS_MAX, max(1, half // (size.nodes or 1))) if size.cpus is None else size.cpus
    nodes = max(1, half // cpus) if size.nodes is None else size.nodes
    memory_bytes = memory // (2 * nodes) if size.memory_bytes is None else size.memory_bytes
    if nodes * memory_bytes > memory:
        raise ConfigurationError(
            f"{nodes} nodes of {memory_bytes / 2**30:.3g} GiB are more than this machine's "
            f"{memory / 2**30:.3g} GiB"
        )
    try:
        return machine_nodes(processors, memory_bytes, nodes=nodes, cpus=cpus, tenants_max=size.tenants_max)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def serve(
    folder: Path,
    size: PoolSize = PoolSize(),
    *,
    listen: Listen | None = None,
    source: NodeSource | None = None,
    idle_s: float | None = None,
) -> None:
    """Serve until a signal ends it, or there has been no job for `idle_s` seconds.

    Args:
        folder: See `protocol.pool_folder`.
        size: The part of this machine that the pool takes.
        listen: Where other machines may join; None: nowhere.
        source: Rents nodes, which join there; None: none are rented.
        idle_s: None: however long there is no job.

    Raises:
        ConfigurationError: If the machine is too small, the folder cannot be used, or `listen` cannot be listened at.
        TransientError: If a pool is served already.
        ScavengerError: If no nodes can be rented.
    """
    logs.set_up("pool", logs.read_settings())
    nodes = pool_nodes(size)
    package, verified = (b"", False) if source is None else (source.package, source.verified)
    machines = None if listen is None else Machines.open(listen, package=package, verified=verified)
    rental = None if source is None or machines is None else RentedNodes(source, machines)
    try:
        manager = Manager.open(folder, nodes, find_shares(), machines=machines, rental=rental, idle_s=idle_s)
    except ScavengerError:
        if machines is not None:
            machines.close()
        raise
    try:
        manager.run()
    finally:
        manager.close()
