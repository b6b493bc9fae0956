"""Machine types with their prices, and what regions charge for besides, as `scavenger catalog` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from scavenger.api.calls import Local, call
from scavenger.api.forms import Word
from scavenger.api.values import Answer, gathered
from scavenger.control.provisioning.prices import open_catalog
from scavenger.domain.cost import Extra
from scavenger.domain.forms import did_you_mean, shown
from scavenger.domain.ranges import Amount, CpuAmount, MemoryAmount
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.cloud.catalog.catalog import Catalog
    from scavenger.cloud.stock import CatalogEntry, VmRequirements
    from scavenger.domain.cost import Price, TrafficPrice


ANY_REGION = "any"
"""In place of a region: all regions of a cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDocument:
    """An hourly price.

    Attributes:
        usd_per_gpu_hour: The same for each GPU; null for a type without GPUs.
        source: Where it comes from.
        dated: The day that it is of.
    """

    usd_per_hour: float
    usd_per_gpu_hour: float | None
    source: str
    dated: date
    age_days: int

    def __str__(self) -> str:
        return f"{self.source}, {self.dated.isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDocument:
    """A machine type in a region, with its prices.

    Attributes:
        vm: Its name.
        accelerator: Name of its GPUs such as `T4`.
        accelerators: How many GPUs.
        interruption: How many of its spot VMs were interrupted in the last month, in the cloud's words such as `5-10%`.
        caveat: Why it is offered only to who names it.
    """

    provider: str
    region: str
    vm: str
    cpus: int
    memory_gib: float
    accelerator: str | None
    accelerators: int
    on_demand: PriceDocument | None
    spot: PriceDocument | None
    interruption: str | None
    caveat: str | None

    @property
    def prices(self) -> list[PriceDocument]:
        """Those that are known."""
        return [price for price in (self.on_demand, self.spot) if price is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraDocument:
    """What a region charges for besides machine types.

    Attributes:
        extra: `disk` of a VM, public `address` of a VM on demand or spot (`spot_address`), or traffic to other `zones`,
            other `regions` or the `internet`.
        usd: Price of one unit; null if it is not known, as are its source and day.
        unit: An hour of one GiB of disk, an hour of an address, or a GiB that is sent.
    """

    provider: str
    region: str
    extra: Extra
    usd: float | None
    unit: Literal["GiB-hour", "hour", "GiB"]
    source: str | None
    dated: date | None
    age_days: int | None

    def __str__(self) -> str:
        return "" if self.dated is None else f"{self.source}, {self.dated.isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDocument:
    """A region of a cloud."""

    provider: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAnswer(Answer):
    """Machine types, cheapest first.

    Attributes:
        today: The day from which ages of prices count.
        regions: Where they are.
        extras: What these regions charge for besides.
    """

    today: date
    regions: tuple[RegionDocument, ...]
    machines: tuple[MachineDocument, ...]
    extras: tuple[ExtraDocument, ...]


@call("get", "catalog", tag="prices", summary="Machine types")
def show_catalog(
    _: Local,
    provider: Literal["aws", "gcp"] | None = None,
    region: Word = None,
    vm: Annotated[list[Annotated[str, Field(max_length=64)]] | None, Field(max_length=20)] = None,
    gpu: Word = None,
    cpus: Annotated[str | None, Field(max_length=16, description="As `4` or `4+`.")] = None,
    memory: Annotated[str | None, Field(max_length=16, description="GiB, as `16` or `16+`.")] = None,
) -> CatalogAnswer:
    """Machine types with their prices and the age and source of each price, cheapest first, by GPU if one is named.

    The region `any` stands for all regions.
    """
    wanted, today = wanted_of(vm, gpu, cpus, memory), datetime.now(UTC).date()
    catalog = open_catalog(today=today)
    places = _places(catalog, provider, region, wanted)
    found = [listing for place in places for listing in catalog.listings(*place, wanted)]
    for name in wanted.vms:
        if name not in {listing.machine.name for listing in found}:
            raise ConfigurationError(_why_not(catalog, places, name, wanted))
    return CatalogAnswer(
        today=today,
        regions=tuple(RegionDocument(provider=cloud, region=at) for cloud, at in places),
        machines=tuple(
            _machine(listing, today) for listing in sorted(found, key=partial(_by_price, each_gpu=bool(gpu)))
        ),
        extras=tuple(one for place in places for one in _extras(catalog, place, today)),
    )


def wanted_of(
    vm: Sequence[str] | None, gpu: str | None, cpus: str | None, memory: str | None
) -> VmRequirements:
    """What machine types must have.

    Raises:
        ConfigurationError: If an amount cannot be read.
    """
    from scavenger.cloud.stock import VmRequirements

    return VmRequirements(
        tuple(vm or ()),
        _amount("--cpus", cpus, TypeAdapter(CpuAmount)),
        _amount("--memory", memory, TypeAdapter(MemoryAmount)),
        gpu,
    )


def _amount(option: str, text: str | None, form: TypeAdapter[Amount]) -> Amount | None:
    if text is None:
        return None
    value: object = text
    if text.isascii() and text.replace(".", "", 1).isdigit():
        value = float(text) if "." in text else int(text)
    try:
        return form.validate_python(value)
    except ValidationError as error:
        raise ConfigurationError(f"{option} {error.errors()[0]['msg']}") from error


def _why_not(catalog: Catalog, places: Sequence[tuple[str, str]], vm: str, wanted: VmRequirements) -> str:
    known = {listing.machine.name for place in places for listing in catalog.listings(*place)}
    if vm in known:
        return f"{vm} does not have {replace(wanted, vms=())}"
    where = " and ".join("/".join(place) for place in places)
    return f"there is no VM type {shown(vm)} in {where}{did_you_mean(vm, known)}"


def _places(
    catalog: Catalog, provider: str | None, region: str | None, wanted: VmRequirements
) -> list[tuple[str, str]]:
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS, PROVIDERS

    providers = (provider,) if provider else PROVIDERS
    if region == ANY_REGION:
        return [(name, at) for name in providers for at in catalog.regions(name)]
    if region is None:
        places = [(provider, DEFAULT_REGIONS[provider]) for provider in providers]
        if len(places) > 1 and wanted.vms:  # the name of a type shows its cloud
            named = replace(wanted, cpus=None, memory=None, accelerator=None)
            return [place for place in places if any(catalog.listings(*place, named))] or places
        return places
    places = [(p, region) for p in providers if region in catalog.regions(p)]
    if not places:
        known_regions = [known for provider in providers for known in catalog.regions(provider)]
        hint = did_you_mean(region, known_regions)
        raise ConfigurationError(
            f"--region: {' and '.join(providers)} have no {shown(region)} in the catalogue{hint}"
        )
    return places


def _by_price(listing: CatalogEntry, *, each_gpu: bool) -> tuple[float, float, str, str]:
    """On demand, then as a spot VM; what has one price alone goes by that."""
    machine, shares = listing.machine, max(1, listing.machine.accelerators) if each_gpu else 1
    on_demand, spot = (
        float("inf") if price is None else price.usd_per_hour / shares
        for price in (listing.on_demand or listing.spot, listing.spot)
    )
    return on_demand, spot, machine.name, listing.region


def _machine(listing: CatalogEntry, today: date) -> MachineDocument:
    machine = listing.machine
    return gathered(
        MachineDocument,
        listing,
        machine,
        vm=machine.name,
        accelerator=machine.accelerator or None,
        on_demand=_price(listing.on_demand, machine.accelerators, today),
        spot=_price(listing.spot, machine.accelerators, today),
        interruption=listing.interruption or None,
        caveat=machine.caveat or None,
    )


def _extras(catalog: Catalog, place: tuple[str, str], today: date) -> Iterator[ExtraDocument]:
    found = catalog.extras(*place)
    for extra, unit in _UNITS.items():
        price: Price | TrafficPrice | None = getattr(found, extra)
        yield ExtraDocument(
            provider=place[0],
            region=place[1],
            extra=extra,
            usd=None if price is None else price.usd,
            unit=unit,
            source=None if price is None else price.source,
            dated=None if price is None else price.dated,
            age_days=None if price is None else price.age_days(today),
        )


_UNITS: Mapping[Extra, Literal["GiB-hour", "hour", "GiB"]] = {
    "disk": "GiB-hour",
    "address": "hour",
    "spot_address": "hour",
    "zones": "GiB",
    "regions": "GiB",
    "internet": "GiB",
}


def _price(price: Price | None, gpus: int, today: date) -> PriceDocument | None:
    if price is None:
        return None
    each = price.usd_per_hour / gpus if gpus else None
    return gathered(PriceDocument, price, usd_per_gpu_hour=each, age_days=price.age_days(today))
