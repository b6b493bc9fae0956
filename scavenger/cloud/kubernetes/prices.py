"""Sizes of pods with their prices, as `scavenger.cloud.catalog.catalog.Catalog` has VM types.

A cluster sells nothing: what a pod costs is what its share of the nodes costs, by the prices of a CPU, a GiB and a GPU
in the user's settings. A price that nobody has written there is an error where it is needed, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from scavenger.cloud.catalog.types import GIB, Listing, MachineType, Wanted
from scavenger.cloud.kubernetes.shapes import PodShape
from scavenger.domain.configuration import Offer
from scavenger.domain.cost import Price
from scavenger.domain.vm_settings import KubernetesSettings
from scavenger.errors import ConfigurationError

__all__ = ["PodCatalog"]

_GIB_PER_CPU = 2
"""Memory of a pod for which the job file asks for none."""
_CPUS = 4
_SOURCE = "prices of a CPU, a GiB and a GPU in the settings"


class PodCatalog:
    """The sizes of pods that a job may ask for; there are as many as it can name.

    Args:
        settings: What they cost.
        region: Of the offers: the cluster.
        today: Of the prices, which do not age.
    """

    def __init__(self, settings: KubernetesSettings, region: str, *, today: date) -> None:
        self._settings, self._region, self._today = settings, region, today

    def listing(self, provider: str, region: str, vm: str) -> Listing:
        """One size, with its prices.

        Raises:
            ConfigurationError: If the name is none of a size.
        """
        shape = PodShape.parse(vm)
        gpu = "GPU" if shape.gpus else ""
        machine = MachineType("kubernetes", str(shape), shape.cpus, shape.memory_gib, gpu, shape.gpus)
        on_demand, percent = self._usd_per_hour(shape), self._settings.spot_percent
        spot = None if on_demand is None or percent is None else on_demand * percent / 100
        return Listing(machine, self._region, self._price(on_demand), self._price(spot))

    def price(self, provider: str, region: str, vm: str, *, spot: bool = False) -> Price:
        """What a pod of a size costs in an hour.

        Raises:
            ConfigurationError: If that is not known; the message says which setting is missing.
        """
        price = self.listing(provider, region, vm).price(spot=spot)
        if price is None:
            known = self._usd_per_hour(PodShape.parse(vm)) is not None
            missing = "spot_percent" if spot and known else "usd_per_cpu_hour and usd_per_gib_hour"
            raise ConfigurationError(
                f"what a pod of {vm} costs is not known: set {missing} under [kubernetes] in the settings file, "
                "or with infra in the job file",
                key="infra",
            )
        return price

    def offers(
        self, provider: str, region: str, wanted: Wanted | None = None, *, spot: bool = False
    ) -> tuple[Offer, ...]:
        """The sizes that are named, or the one that is asked for by its amounts.

        Raises:
            ConfigurationError: If a price is not known, or a GPU is asked for by its name.
        """
        wanted = wanted or Wanted()
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

    def disk_price(self, provider: str, region: str) -> Price | None:
        """See `Catalog.disk_price`: a pod's disk is its node's."""
        return None

    def age_days(self, provider: str, region: str, *, spot: bool) -> int | None:
        """See `Catalog.age_days`; None if there is no such price."""
        known = self._settings.usd_per_cpu_hour is not None and (
            not spot or self._settings.spot_percent is not None
        )
        return 0 if known else None

    def _usd_per_hour(self, shape: PodShape) -> float | None:
        """Price on demand, `cpus c + memory m + gpus g`; None if one of them is not known."""
        settings = self._settings
        parts = [(shape.cpus, settings.usd_per_cpu_hour), (shape.memory_gib, settings.usd_per_gib_hour)]
        parts += [(shape.gpus, settings.usd_per_gpu_hour)] if shape.gpus else []
        total = 0.0
        for amount, usd in parts:
            if usd is None:
                return None
            total += amount * usd
        return total

    def _price(self, usd_per_hour: float | None) -> Price | None:
        return None if usd_per_hour is None else Price(usd_per_hour, _SOURCE, self._today)


def _asked(wanted: Wanted) -> PodShape:
    """The smallest size that will do."""
    cpus = max(1, int(_CPUS if wanted.cpus is None else wanted.cpus.value))
    memory_gib = cpus * _GIB_PER_CPU if wanted.memory is None else wanted.memory.value
    return PodShape(cpus, memory_gib)
