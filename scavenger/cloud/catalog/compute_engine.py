"""What Compute Engine's machine types cost, from the descriptions of Google's SKUs.

Google sells a VM by its parts: vCPUs, memory, GPUs and local SSDs, each with a SKU for each family, region and kind. A
SKU names its family and part in words (`C4A Arm Instance Core running in Americas`), the API of machine types names
the parts of a type. Nothing links the two but those words, so they are read here, without a list of families: one that
Google adds tomorrow is read like the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, NamedTuple

from scavenger.cloud.gcp.names import custom_type
from scavenger.cloud.stock import CatalogEntry, Extras, MachineType, Place, RateKey, Rates, gpu_label
from scavenger.domain.cost import Price, TrafficPrice
from scavenger.errors import ConfigurationError

SOURCE = "Cloud Billing API"
_MONTH_H = 730.0
_USAGES = ("OnDemand", "Preemptible")
_PLACE = re.compile(r"(?: running)? in [A-Z].*")
_SPOT = re.compile(r"(?:spot )?preemptible | attached to (?:spot )?preemptible vms|^spot ")
_SLICE = re.compile(r"([a-z]\d\w*) .+ \(1 gpu slice\)")
"""A whole VM's share of one GPU: its vCPUs, memory and disks are in the price."""
_FAMILY = re.compile(r"[a-z]\d+[a-z]*\d*")
_UNITS = {"h": 1.0, "GiBy.h": 1.0, "GiBy.mo": 1.0 / _MONTH_H, "GiBy": 1.0}
_SENT = "(?:egress|data transfer out)"
_EXTRAS = {
    "disk": re.compile("balanced pd capacity"),
    "address": re.compile("external ip charge on a standard vm"),
    "spot_address": re.compile("external ip charge on a vm"),
    "zones": re.compile(f"network inter zone {_SENT}"),
    "regions": re.compile(f"network inter region {_SENT} from .+"),
    "internet": re.compile(f"network internet {_SENT} from .+"),
}
"""What SKUs say that are of no VM type, without place and kind; Google once said egress."""
_PARTS = {"core": "cpu", "ram": "ram"}
_PLAIN = {"instance", "predefined", "amd", "arm", "intel"}
"""Words of SKUs that do not tell one price from another."""
_OTHER = {"sole", "tenancy", "reserved", "commitment", "dws", "calendar", "premium", "suspended", "capacity"}
"""Words of SKUs that are not of a VM that is started and ended at will."""
_CALLED = {
    "": "n1",  # of custom types alone
    "compute optimized": "c2",
    "memory-optimized": "m1",
    "micro with burstable cpu": "f1",
    "small with 1 vcpu": "g1",
    "a3plus": "a3mega",
}
"""Families whose SKUs do not bear their names."""
_WHOLE = ("f1", "g1")
"""Charged as one piece."""
_CHARGED_CPUS = {"e2-micro": 0.25, "e2-small": 0.5, "e2-medium": 1.0}
"""Types with a share of a core, of which two vCPUs show."""
_SHARED_CORE = "shared core: its speed is not its own"
_SSD_GIB = 375.0
_OTHER_SSDS = re.compile(r"z\d.*|c4-\w+-288-lssd.*|.*-metal")
"""Types whose local SSDs have another size, which the API does not tell."""
_GPU_WORDS = {"nvidia", "tesla", "gpu", "pro"}


@dataclass(frozen=True, slots=True)
class GoogleType:
    """A machine type as the API of machine types tells it.

    Attributes:
        gpu: Google's name of its GPUs, such as `nvidia-h100-80gb`; empty where it has none.
        ssds: How many local SSDs belong to it.
    """

    name: str
    cpus: int
    memory_gib: float
    gpu: str = ""
    gpus: int = 0
    ssds: int = 0
    shared_core: bool = False
    arm: bool = False

    @property
    def machine(self) -> MachineType:
        """As the catalogue has it."""
        caveat = _SHARED_CORE if self.shared_core else "arm64" if self.arm else ""
        if self.gpu and not self.gpus:
            caveat = "a part of a GPU"
        label = gpu_label(self.gpu) if self.gpus else ""
        return MachineType("gcp", self.name, self.cpus, self.memory_gib, label, self.gpus, caveat)


_Part = tuple[str, str, float]
"""What, resource and amount of what is charged."""


class _Sku(NamedTuple):
    """What a SKU is of; `extra` words make it less plain than another of the same part."""

    what: str
    resource: str
    extra: int = 0


@dataclass(frozen=True)
class Tariff:
    """The rates of all parts in all regions, and what machine types cost by them."""

    rates: Rates

    @cached_property
    def _sold(self) -> frozenset[tuple[str, str]]:
        """(What, resource) of which there is a rate anywhere."""
        return frozenset((what, resource) for what, resource, _, _ in self.rates)

    def listing(self, kind: GoogleType, region: str) -> CatalogEntry:
        """A type with its prices in a region; a price is known only if that of every part is."""
        return self._priced(kind.machine, self._parts(kind), region)

    def custom(self, name: str, region: str) -> CatalogEntry | None:
        """A custom type such as `n2-custom-4-16384`; None where there is no such type."""
        try:
            kind = custom_type(name)
        except ConfigurationError:
            return None
        if kind is None:
            return None
        gib = kind.memory_mib / 1024
        plain_gib = min(gib, kind.plain_gib)
        family = f"{kind.family}_custom"
        if (family, "cpu") not in self._sold:
            family = kind.family  # charges its custom types like the others
        parts = [(family, "cpu", float(kind.cpus)), (family, "ram", plain_gib)]
        if gib > plain_gib:
            parts.append((f"{family}_extended", "ram", gib - plain_gib))
        return self._priced(MachineType("gcp", name, kind.cpus, gib), parts, region)

    def _priced(self, machine: MachineType, parts: list[_Part], region: str) -> CatalogEntry:
        on_demand, spot = (_sum(parts, region, self.rates, spot=spot) for spot in (False, True))
        return CatalogEntry(machine, region, on_demand, spot)

    def _parts(self, kind: GoogleType) -> list[_Part]:
        family = self._family(kind.name)
        if (family, "slice") in self._sold:
            return [(family, "slice", float(kind.gpus))]
        if family in _WHOLE:
            return [(family, "cpu", 1.0)]
        parts = [
            (family, "cpu", _CHARGED_CPUS.get(kind.name, float(kind.cpus))),
            (family, "ram", kind.memory_gib),
        ]
        if kind.gpu:
            parts.append((self._gpu(kind.gpu), "gpu", float(kind.gpus)))
        if kind.ssds:
            own = (family, "ssd") in self._sold
            size_gib = math.nan if _OTHER_SSDS.fullmatch(kind.name) else _SSD_GIB
            parts.append((family if own else "", "ssd", kind.ssds * size_gib))
        return parts

    def _family(self, name: str) -> str:
        """The family that a type is charged as: `m4ultramem224` for `m4-ultramem-224` where there is such a SKU."""
        first, _, rest = name.partition("-")
        words = rest.replace("-", "")
        longer = [
            family
            for family, resource in self._sold
            if resource in ("cpu", "slice")
            if family.startswith(first)
            and len(family) > len(first) + 2
            and words.startswith(family[len(first) :])
        ]
        return max(longer, key=len, default=first)

    def _gpu(self, name: str) -> str:
        """The GPU's name among the SKUs': the same words, or besides them only the size of its memory."""
        wanted = set(_gpu_words(name).split())
        fitting = [
            gpu
            for gpu, resource in self._sold
            if resource == "gpu" and wanted <= set(gpu.split())
            if all(re.fullmatch(r"\d+gb", word) for word in set(gpu.split()) - wanted)
        ]
        return min(fitting, key=len, default=name)


def _sum(parts: Iterable[_Part], region: str, rates: Rates, *, spot: bool) -> Price | None:
    found = [(amount, rates.get((what, resource, region, spot))) for what, resource, amount in parts]
    known = [(amount, rate) for amount, rate in found if rate is not None and not math.isnan(amount)]
    usd = math.fsum(amount * rate.usd_per_hour for amount, rate in known)
    if len(known) < len(found) or not usd > 0:
        return None
    oldest = min((rate for _, rate in known), key=lambda rate: rate.dated)
    return Price(usd, oldest.source, oldest.dated)


def read_skus(found: Iterable[Mapping[str, Any]], dated: date) -> tuple[Rates, dict[Place, Extras]]:
    """Rates and extras from SKUs; commitments, sole tenancy, other currencies and what costs 0 are left out.

    Of several SKUs of one part the plainest is taken, the one of fewest words; of two such, and of the tiers of one,
    the dearer, so that nothing costs more than was said.
    """
    rates: dict[RateKey, tuple[int, float]] = {}
    extras: dict[str, dict[str, float]] = {}
    for sku in found:
        try:
            category, description = sku["category"], sku["description"]
            if category["usageType"] not in _USAGES:
                continue
            expression = sku["pricingInfo"][-1]["pricingExpression"]
            usd = _UNITS[expression["usageUnit"]] * max(
                _usd(rate["unitPrice"]) for rate in expression["tieredRates"]
            )
            regions = sku["serviceRegions"]
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # commitments and fees, which have no such parts
        text = _PLACE.sub("", description).lower()
        # what a SKU says of itself: the spot VMs of A4 are of the usage `OnDemand`
        spot = category["usageType"] == "Preemptible" or _SPOT.search(text) is not None
        text = _SPOT.sub("", text)
        if not usd > 0:
            continue
        if extra := next((name for name, words in _EXTRAS.items() if words.fullmatch(text)), None):
            for region in regions:
                of = extras.setdefault(region, {})
                of[extra] = max(usd, of.get(extra, 0.0))
            continue
        part = _part(text, str(category.get("resourceGroup", "")))
        if part is None:
            continue
        for region in regions:
            key = (part.what, part.resource, region, spot)
            known = rates.get(key)
            if known is None or (part.extra, -usd) < (known[0], -known[1]):
                rates[key] = (part.extra, usd)
    priced = {key: Price(usd, SOURCE, dated) for key, (_, usd) in rates.items()}
    everywhere = extras.pop("global", {})
    places = sorted({*extras, *(region for _, _, region, _ in rates)})
    return priced, {
        ("gcp", region): _extras({**everywhere, **extras.get(region, {})}, dated) for region in places
    }


def _extras(usd: Mapping[str, float], dated: date) -> Extras:
    def hourly(name: str) -> Price | None:
        return Price(usd[name], SOURCE, dated) if name in usd else None

    def sent(name: str, how: str = "") -> TrafficPrice | None:
        return TrafficPrice(usd[name], SOURCE + how, dated) if name in usd else None

    dearest = ", to where it is dearest"
    return Extras(
        hourly("disk"),
        hourly("address"),
        hourly("spot_address"),
        sent("zones"),
        sent("regions", dearest),
        sent("internet", dearest),
    )


def _part(text: str, group: str) -> _Sku | None:
    """What a SKU is of, by its description without place and kind, in small letters."""
    if text == "ssd backed local storage":
        return _Sku("", "ssd")
    if match := _SLICE.fullmatch(text):
        return _Sku(match[1], "slice")
    words = text.split()
    if not words or _OTHER & set(words):
        return None
    if group == "GPU" or words[-1] == "gpu":
        return _Sku(_gpu_words(text), "gpu")
    if words[-2:] == ["local", "ssd"] and _FAMILY.fullmatch(words[0]):
        return _Sku(words[0], "ssd")
    resource = _PARTS.get(words[-1])
    if resource is not None:
        words = words[:-1]
    kinds = [kind for kind in ("custom", "extended") if kind in words]
    called = [word for word in words if word not in _PLAIN and word not in kinds]
    family = _CALLED.get(" ".join(called))
    if family in _WHOLE and resource is None:
        return _Sku(family, "cpu")
    if resource is None:
        return None
    if family is None or (family == "n1" and not kinds):
        if not (called and _FAMILY.match(called[0])):
            return None
        family = called[0]
    return _Sku("_".join((family, *kinds)), resource, max(0, len(called) - 1))


def _gpu_words(name: str) -> str:
    """The words of a GPU's name that tell it from others, in order of the alphabet."""
    words = {"mega" if word == "plus" else word for word in re.split(r"[\s-]+", name.lower())}
    return " ".join(sorted(words - _GPU_WORDS))


def _usd(price: Mapping[str, Any]) -> float:
    if price["currencyCode"] != "USD":
        raise ValueError("not in US dollars")
    return int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
