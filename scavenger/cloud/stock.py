"""Machine types and their prices, as providers tell them and the catalogue holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from scavenger.domain.cost import Price, TrafficPrice
from scavenger.domain.job import ResourcesSpec
from scavenger.domain.ranges import Amount
from scavenger.errors import ScavengerError

GIB = 2**30

RateKey = tuple[str, str, str, bool]
"""What it is of (family such as `n2`, `n2_custom`, `n2_custom_extended`; GPU), resource, region, spot."""
Rates = Mapping[RateKey, Price]
"""Of one vCPU, GiB or GPU of Compute Engine."""
Place = tuple[str, str]
"""Provider and region."""

_GPU_MAKERS = {"NVIDIA", "TESLA", "GPU", "SERVER", "MEGA", "AMD"}
"""Words of GPUs' names that tell nothing about their speed."""
_GPU_MEMORY = re.compile(r"[0-9]+GB")
_BOUNDED = re.compile(r"<([0-9]+)%|[0-9]+-([0-9]+)%")


@dataclass(frozen=True, slots=True)
class MachineType:
    """What a VM type is made of, wherever it is.

    Attributes:
        cpus: vCPUs.
        accelerator: Name of its GPUs such as `T4`; empty where it has none.
        accelerators: How many GPUs.
        caveat: Why it is offered only to who names it; empty for a type like any other.
        network_gbits: Bandwidth of its network, gigabits per second, at most: EC2's types with "up to" have it for a
            while only, and how much they keep is not in the price list. None if unknown, as for Compute Engine.
    """

    provider: str
    name: str
    cpus: int
    memory_gib: float
    accelerator: str = ""
    accelerators: int = 0
    caveat: str = ""
    network_gbits: float | None = None

    @property
    def family(self) -> str:
        """`m5` of `m5.xlarge`, `n2` of `n2-standard-4`, `n1` of `custom-4-8192`."""
        family = self.name.partition("." if "." in self.name else "-")[0]
        return "n1" if family == "custom" else family


def gpu_label(name: str, memory_gib: float = 0.0) -> str:
    """One name for a GPU at all clouds: `H100` for `nvidia-h100-80gb`, `RTX-PRO-6000` for `RTX PRO Server 6000`.

    The memory is named where one GPU is sold with two sizes: `A100-80GB`, and `A100` with 40 GB.
    """
    words = [word for word in re.split(r"[\s-]+", name.upper()) if word not in _GPU_MAKERS]
    plain = "-".join(word for word in words if not _GPU_MEMORY.fullmatch(word))
    return "A100-80GB" if plain == "A100" and ("80GB" in words or memory_gib >= 80) else plain


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A machine type in a region, with what is known of its prices.

    Attributes:
        on_demand, spot: None where no price is known.
        interruption: How many of its spot VMs were interrupted in the last month, in the cloud's words such as `5-10%`;
            empty where it does not tell.
    """

    machine: MachineType
    region: str
    on_demand: Price | None = None
    spot: Price | None = None
    interruption: str = ""

    @property
    def interrupted_monthly(self) -> float | None:
        """Upper bound of the fraction of spot VMs interrupted in a month; None where there is none, as for `>20%`."""
        match = _BOUNDED.fullmatch(self.interruption)
        return int(match[1] or match[2]) / 100 if match else None

    def price(self, *, spot: bool) -> Price | None:
        """Of the one kind or the other; None where it is not known."""
        return self.spot if spot else self.on_demand


@dataclass(frozen=True, slots=True)
class Extras:
    """What a region charges for besides the types of its VMs; None where a price is not known.

    Attributes:
        disk: One GiB of a VM's boot disk in an hour: `gp3` on EC2, a balanced one on Compute Engine.
        address, spot_address: The public IPv4 address of a VM, on demand and spot.
        zones: Traffic to another zone of the region, sent once, whoever of the two VMs is charged.
        regions, internet: Traffic to another region and to the internet, to where it is dearest.
    """

    disk: Price | None = None
    address: Price | None = None
    spot_address: Price | None = None
    zones: TrafficPrice | None = None
    regions: TrafficPrice | None = None
    internet: TrafficPrice | None = None

    def over(self, older: Extras) -> Extras:
        """These prices, and of the older ones those that are not known here."""
        return Extras(
            *(getattr(self, one.name) or getattr(older, one.name) for one in fields(Extras)),
        )


@dataclass(frozen=True, slots=True)
class VmRequirements:
    """What a VM must be; a field that is None or empty asks for nothing.

    Attributes:
        vms: One of these names, with all their caveats.
        accelerator: Name of its GPUs, in any case of letters.
    """

    vms: tuple[str, ...] = ()
    cpus: Amount | None = None
    memory: Amount | None = None
    accelerator: str | None = None

    @classmethod
    def of(cls, resources: ResourcesSpec | None) -> VmRequirements:
        """As a job file says it."""
        return cls() if resources is None else cls(resources.vms, resources.cpus, resources.memory)

    def admits(self, machine: MachineType) -> bool:
        """Whether a machine type will do, caveats aside."""
        return (
            (not self.vms or machine.name in self.vms)
            and (self.cpus is None or self.cpus.admits(machine.cpus))
            and (self.memory is None or self.memory.admits(machine.memory_gib))
            and (self.accelerator is None or self.accelerator.lower() == machine.accelerator.lower())
        )

    def __str__(self) -> str:
        asked = {
            "vm": " or ".join(self.vms),
            "cpus": self.cpus,
            "memory": self.memory and f"{self.memory} GiB",
            "GPU": self.accelerator,
        }
        return ", ".join(f"{name} {value}" for name, value in asked.items() if value) or "anything"


@dataclass(frozen=True, slots=True)
class Stock:
    """All that one source tells.

    Attributes:
        listings: Machine types by place and name.
        rates: Of the parts of Compute Engine's types, for its custom types.
        extras: By place.
    """

    listings: Mapping[Place, Mapping[str, CatalogEntry]] = field(default_factory=dict)
    rates: Rates = field(default_factory=dict)
    extras: Mapping[Place, Extras] = field(default_factory=dict)

    def over(self, older: Stock) -> Stock:
        """This, and of the older one what this does not tell: all types of a region, each extra, and all rates or none.

        A refreshed region is complete: what it does not list is not sold there, and no older price stands in for it.
        """
        extras = {place: own.over(older.extras.get(place, Extras())) for place, own in self.extras.items()}
        return Stock(
            {**older.listings, **self.listings}, self.rates or older.rates, {**older.extras, **extras}
        )


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a cloud's price sources gave.

    Attributes:
        stock: The prices; what a source did not give is as it was known before, with its own source and date.
        errors: Of the sources that gave nothing.
    """

    stock: Stock
    errors: tuple[ScavengerError, ...] = ()
