"""Sizes of pods with their prices, as `scavenger.cloud.catalog.catalog.Catalog` has VM types.

A cluster sells nothing: what a pod costs is its share of what a node costs. That is known from the settings, for pools
of nodes by their labels or for a CPU, a GiB and a GPU of any node, or else from a label of the nodes. A price that
nobody has written is an error where it is needed, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date

from scavenger.cloud.kubernetes.nodes import KubernetesNode, share_of
from scavenger.cloud.kubernetes.shapes import GPU_RESOURCE, PodShape
from scavenger.cloud.stock import GIB, CatalogEntry, Extras, MachineType, VmRequirements
from scavenger.domain.configuration import Offer
from scavenger.domain.cost import Price
from scavenger.domain.vm_settings import KubernetesSettings, NodePool
from scavenger.errors import ConfigurationError

_GIB_PER_CPU = 2
"""Memory of a pod for which the job file asks for none."""
_CPUS = 4
DEFAULT_SIZE = str(PodShape(_CPUS, _CPUS * _GIB_PER_CPU))
"""Of pods for which the job file asks for nothing."""
_BY_AMOUNT = "prices of a CPU, a GiB and a GPU in the settings"
_NODE_USD_MAX = 1000.0

NodesOf = Callable[[bool], Sequence[KubernetesNode]]
"""Reads the nodes on which pods may be that may be interrupted, or that may not."""


class PodCatalog:
    """The sizes of pods that a job may ask for; there are as many as it can name.

    Args:
        settings: What they cost.
        region: Of the offers: the cluster.
        today: Of the prices, which do not age.
        nodes: Reads the cluster's nodes, if a price depends on them; None if there is no cluster to ask.
    """

    def __init__(
        self, settings: KubernetesSettings, region: str, *, today: date, nodes: NodesOf | None = None
    ) -> None:
        self._settings, self._region, self._today, self._nodes = settings, region, today, nodes
        self._known: dict[tuple[PodShape, bool], Price | None] = {}

    def listing(self, provider: str, region: str, vm: str) -> CatalogEntry:
        """One size, with its prices.

        Raises:
            ConfigurationError: If the name is none of a size, or a price that a node bears cannot be read.
            CloudError: If a price is a node's, and the cluster does not tell.
        """
        shape = PodShape.parse(vm)
        gpu = "GPU" if shape.gpus else ""
        machine = MachineType("kubernetes", str(shape), shape.cpus, shape.memory_gib, gpu, shape.gpus)
        spot = self._price(shape, spot=True) if self._settings.spot_labels else None
        return CatalogEntry(machine, self._region, self._price(shape, spot=False), spot)

    def price(self, provider: str, region: str, vm: str, *, spot: bool = False) -> Price:
        """What a pod of a size costs in an hour.

        Raises:
            ConfigurationError: If that is not known; the message says which setting is missing.
            CloudError: As `listing`.
        """
        price = self._price(PodShape.parse(vm), spot=spot)
        if price is None:
            known = self._settings.usd_per_cpu_hour is not None and spot
            missing = "spot_percent" if known else "usd_per_cpu_hour and usd_per_gib_hour"
            raise ConfigurationError(
                f"what a pod of {vm} costs is not known: set {missing} under [kubernetes] in the settings file, "
                f"or with infra in the job file, or label nodes with {self._settings.price_label}",
                key="infra",
            )
        return price

    def offers(
        self, provider: str, region: str, wanted: VmRequirements | None = None, *, spot: bool = False
    ) -> tuple[Offer, ...]:
        """The sizes that are named, or the one that is asked for by its amounts.

        Raises:
            ConfigurationError: If a price is not known, or a GPU is asked for by its name.
            CloudError: As `listing`.
        """
        wanted = wanted or VmRequirements()
        if wanted.accelerator:
            raise ConfigurationError(
                f"resources: accelerators: {wanted.accelerator}: on Kubernetes, name the size of the pods, as "
                "vm: 8cpu-64gib-1gpu, and the nodes by kubernetes.node_labels in the settings",
                key="resources",
            )
        names: Sequence[str] = wanted.vms or (str(_asked(wanted)),)
        found = []
        for name in names:
            price, machine = (
                self.price(provider, region, name, spot=spot),
                self.listing(provider, region, name).machine,
            )
            found.append(
                Offer(
                    provider="kubernetes",
                    region=self._region,
                    vm=machine.name,
                    price_usd_per_hour=price.usd_per_hour,
                    price_source=str(price),
                    cpus=machine.cpus,
                    memory_bytes=int(machine.memory_gib * GIB),
                    spot=spot,
                    workers_per_vm=max(1, machine.accelerators),
                )
            )
        return tuple(sorted(found, key=lambda offer: (offer.price_usd_per_hour, offer.vm)))

    def extras(self, provider: str, region: str) -> Extras:
        """See `Catalog.extras`: a pod's disk is its node's, and the cluster's network has no price list."""
        return Extras()

    def age_days(self, provider: str, region: str, *, spot: bool) -> int | None:
        """See `Catalog.age_days`; None if there is no such price."""
        settings = self._settings
        by_amount = settings.usd_per_cpu_hour is not None and (not spot or settings.spot_percent is not None)
        of_nodes = bool(settings.pools) or settings.usd_per_cpu_hour is None
        return 0 if by_amount or of_nodes else None

    def _price(self, shape: PodShape, *, spot: bool) -> Price | None:
        """Price of a pod: the highest of what it may cost on a node that has room for it; None if one is not known."""
        if (shape, spot) not in self._known:
            self._known[shape, spot] = self._found(shape, spot=spot)
        return self._known[shape, spot]

    def _found(self, shape: PodShape, *, spot: bool) -> Price | None:
        by_amount, settings = self._by_amount(shape, spot=spot), self._settings
        if by_amount is not None and not settings.pools:
            return by_amount
        nodes = () if self._nodes is None else self._nodes(spot)
        prices = [
            self._of_node(shape, node, by_amount)
            for node in nodes
            if share_of(shape, node.allocatable) <= 1.0
        ]
        prices += self._of_pools(shape, spot=spot)
        if nodes and not prices and by_amount is None:
            raise ConfigurationError(
                f"no node that the job's pods may be on has room for {shape}, even if it were empty",
                key="resources",
            )
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return max(known, key=lambda price: price.usd_per_hour, default=by_amount)

    def _of_node(self, shape: PodShape, node: KubernetesNode, by_amount: Price | None) -> Price | None:
        share = share_of(shape, node.allocatable)
        for name, pool in self._settings.pools.items():
            if pool.labels.items() <= node.labels.items():
                return self._dated(share * pool.usd_per_hour, f"price of the pool {name} in the settings")
        if by_amount is not None:
            return by_amount
        usd_per_hour = usd_of_node(node, self._settings.price_label)
        if usd_per_hour is None:
            return None
        return self._dated(share * usd_per_hour, f"{self._settings.price_label} of nodes such as {node.name}")

    def _of_pools(self, shape: PodShape, *, spot: bool) -> Iterator[Price]:
        """Prices on nodes of pools that say what a node has, and may have none now."""
        spot_labels = self._settings.spot_labels.items()
        for name, pool in self._settings.pools.items():
            takes_back = bool(spot_labels) and spot_labels <= pool.labels.items()
            has = _amounts(pool)
            if takes_back == spot and has is not None and (share := share_of(shape, has)) <= 1.0:
                yield self._dated(share * pool.usd_per_hour, f"price of the pool {name} in the settings")

    def _by_amount(self, shape: PodShape, *, spot: bool) -> Price | None:
        """Price `cpus c + memory m + gpus g`, of which spot nodes cost a part; None if one of them is not known."""
        settings = self._settings
        parts = [(shape.cpus, settings.usd_per_cpu_hour), (shape.memory_gib, settings.usd_per_gib_hour)]
        parts += [(shape.gpus, settings.usd_per_gpu_hour)] if shape.gpus else []
        percent = settings.spot_percent if spot else 100.0
        total = 0.0
        for amount, usd in parts:
            if usd is None or percent is None:
                return None
            total += amount * usd * percent / 100.0
        return self._dated(total, _BY_AMOUNT)

    def _dated(self, usd_per_hour: float, source: str) -> Price:
        return Price(usd_per_hour, source, self._today)


def usd_of_node(node: KubernetesNode, label: str) -> float | None:
    """What a node costs in an hour by its label, or else by its annotation; None if it has neither.

    Raises:
        ConfigurationError: If that is no price.
    """
    text = node.labels.get(label) or node.annotations.get(label)
    if text is None:
        return None
    try:
        usd = float(text)
    except ValueError:
        usd = math.nan
    if not 0.0 < usd <= _NODE_USD_MAX:
        raise ConfigurationError(
            f"{label}={text[:40]!r} of node {node.name} is no price: write US dollars above 0 and at most "
            f"{_NODE_USD_MAX:g}, as {label}=0.38",
            key="infra",
        )
    return usd


def _amounts(pool: NodePool) -> dict[str, str] | None:
    """What a node of a pool has, as the API writes it; None if the settings do not say."""
    if pool.cpus is None or pool.memory is None:
        return None
    gpus = {GPU_RESOURCE: f"{pool.gpus:g}"} if pool.gpus else {}
    return {"cpu": f"{pool.cpus * 1000:.0f}m", "memory": f"{pool.memory * 1024:.0f}Mi", **gpus}


def _asked(wanted: VmRequirements) -> PodShape:
    """The smallest size that will do."""
    cpus = max(1, int(_CPUS if wanted.cpus is None else wanted.cpus.value))
    memory_gib = cpus * _GIB_PER_CPU if wanted.memory is None else wanted.memory.value
    return PodShape(cpus, memory_gib)
