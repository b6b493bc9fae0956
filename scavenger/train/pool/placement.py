"""Which node of the pool a new tenant gets; pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Node(msgspec.Struct, frozen=True):
    """Processors and memory of a machine that aggregators may use.

    Attributes:
        name: Its name in the pool.
        processors: Numbers of its processors; nodes may share some.
        tenants_max: Tenants that it takes at most.
        place: Which jobs may use it, as their job files name it by `infra`; empty for nodes of the manager's own
            machine, whose tenants share their jobs' memory.
        machine: Address of its machine; empty for the manager's own.
        usd_per_hour: Price of the whole node, US dollars; 0 if nobody has said one.
        bytes_per_s: What its network carries, in each direction; 0 if that is not known, or it needs none.
    """

    name: str
    processors: tuple[int, ...]
    memory_bytes: int
    tenants_max: int
    place: str = ""
    machine: str = ""
    usd_per_hour: float = 0.0
    bytes_per_s: int = 0

    @property
    def cpus(self) -> int:
        """The number of its processors."""
        return len(self.processors)

    @property
    def usd_per_cpu_s(self) -> float:
        """Price of a second of one of its processors."""
        return self.usd_per_hour / self.cpus / 3600.0

    @property
    def tenant_bytes(self) -> int:
        """Private memory that a tenant may use: all together then stay within the node's."""
        return self.memory_bytes // self.tenants_max


class NodeUse(msgspec.Struct, frozen=True):
    """What the tenants of a node use: processors, on average over the last seconds, and how many tenants there are."""

    node: Node
    load_cpus: float
    tenants: int


def choose_node(uses: Sequence[NodeUse]) -> Node | None:
    """Choose the node for one more tenant: the least loaded by measured processor time, of equals the emptiest.

    Returns:
        None if no node takes another tenant.
    """
    open_ = [use for use in uses if use.tenants < use.node.tenants_max]
    if not open_:
        return None
    # a tenth of a processor is within what a measurement varies by
    return min(
        open_, key=lambda use: (round(use.load_cpus / use.node.cpus, 1), use.tenants / use.node.cpus)
    ).node


def machine_nodes(
    processors: Sequence[int], memory_bytes: int, *, nodes: int, cpus: int, tenants_max: int
) -> tuple[Node, ...]:
    """Cut nodes out of a machine, the last processors first, since other programs tend to start on the first.

    Args:
        processors: Numbers of the machine's usable processors.
        memory_bytes: Memory of each node.
        nodes: How many nodes; they share processors only if there are too few.
        cpus: Processors of each node.
        tenants_max: Tenants that each node takes at most.

    Raises:
        ValueError: If the machine has fewer than `cpus` processors, or a number is not positive.
    """
    if min(nodes, cpus, tenants_max, memory_bytes) < 1:
        raise ValueError("a pool needs at least one node, with a processor, some memory and a tenant")
    if cpus > len(processors):
        raise ValueError(f"a node cannot have {cpus} of this machine's {len(processors)} processors")
    turned = list(reversed(processors))
    return tuple(
        Node(
            name=f"node-{index}",
            processors=tuple(sorted(turned[(index * cpus + i) % len(turned)] for i in range(cpus))),
            memory_bytes=memory_bytes,
            tenants_max=tenants_max,
        )
        for index in range(nodes)
    )
