"""Machine types with their prices, as `scavenger catalog` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from scavenger.api.values import SCHEMA_VERSION
from scavenger.control.provisioning.prices import open_catalog
from scavenger.domain.forms import did_you_mean, shown
from scavenger.domain.ranges import Amount, CpuAmount, MemoryAmount
from scavenger.errors import ConfigurationError

if TYPE_CHECKING:
    from scavenger.cloud.catalog.catalog import Catalog
    from scavenger.cloud.catalog.types import Listing, Wanted
    from scavenger.domain.cost import Price


@dataclass(frozen=True, slots=True)
class Asked:
    """Which machine types are asked for; see the options of `scavenger catalog`."""

    provider: str | None = None
    region: str | None = None
    vms: tuple[str, ...] = ()
    gpu: str | None = None
    cpus: str | None = None
    memory: str | None = None
    every: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Machine types, cheapest first.

    Attributes:
        places: Where they are, as (provider, region).
        wanted: What they have.
        today: The day from which the ages of prices count.
    """

    places: tuple[tuple[str, str], ...]
    wanted: Wanted
    listings: tuple[Listing, ...]
    today: date


def find_machines(asked: Asked, *, today: date | None = None) -> Found:
    """Look up machine types in the catalogue.

    Raises:
        ConfigurationError: If there is no such region, type or amount, or a price file is not valid.
    """
    wanted = wanted_of(asked)
    today = today or datetime.now(UTC).date()
    catalog = open_catalog(today=today)
    places = _places(catalog, asked)
    found = [listing for place in places for listing in catalog.listings(*place, wanted)]
    for vm in asked.vms:
        if vm not in {listing.machine.name for listing in found}:
            raise ConfigurationError(_why_not(catalog, places, vm, wanted))
    return Found(tuple(places), wanted, tuple(sorted(found, key=_by_price)), today)


def catalog_document(found: Found) -> dict[str, Any]:
    """Machine types with their prices, and the age and source of each price."""
    return {
        "schema_version": SCHEMA_VERSION,
        "today": found.today.isoformat(),
        "regions": [{"provider": provider, "region": region} for provider, region in found.places],
        "machines": [_document(listing, found.today) for listing in found.listings],
    }


def wanted_of(asked: Asked) -> Wanted:
    """What machine types must have.

    Raises:
        ConfigurationError: If an amount cannot be read.
    """
    from scavenger.cloud.catalog.types import Wanted

    return Wanted(
        asked.vms,
        _amount("--cpus", asked.cpus, TypeAdapter(CpuAmount)),
        _amount("--memory", asked.memory, TypeAdapter(MemoryAmount)),
        asked.gpu,
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


def _why_not(catalog: Catalog, places: Sequence[tuple[str, str]], vm: str, wanted: Wanted) -> str:
    known = {listing.machine.name for place in places for listing in catalog.listings(*place)}
    if vm in known:
        return f"{vm} does not have {replace(wanted, vms=())}"
    where = " and ".join("/".join(place) for place in places)
    return f"there is no VM type {shown(vm)} in {where}{did_you_mean(vm, known)}"


def _places(catalog: Catalog, asked: Asked) -> list[tuple[str, str]]:
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS, PROVIDERS

    providers = (asked.provider,) if asked.provider else PROVIDERS
    if asked.region is None:
        places = [(provider, DEFAULT_REGIONS[provider]) for provider in providers]
        if len(places) > 1 and asked.vms:  # the name of a type shows its cloud
            known = [p for p in places if any(catalog.listings(*p, wanted_of(Asked(vms=asked.vms))))]
            return known or places
        return places
    places = [(p, asked.region) for p in providers if asked.region in catalog.regions(p)]
    if not places:
        known_regions = [region for provider in providers for region in catalog.regions(provider)]
        hint = did_you_mean(asked.region, known_regions)
        raise ConfigurationError(
            f"--region: {' and '.join(providers)} have no {shown(asked.region)} in the catalogue{hint}"
        )
    return places


def _by_price(listing: Listing) -> tuple[float, str]:
    price = listing.on_demand or listing.spot
    return (price.usd_per_hour if price else float("inf"), listing.machine.name)


def prices_of(listing: Listing) -> list[Price]:
    return [price for price in (listing.on_demand, listing.spot) if price is not None]


def _document(listing: Listing, today: date) -> dict[str, Any]:
    machine = listing.machine
    return {
        "provider": machine.provider,
        "region": listing.region,
        "vm": machine.name,
        "cpus": machine.cpus,
        "memory_gib": machine.memory_gib,
        "accelerator": machine.accelerator or None,
        "accelerators": machine.accelerators,
        "on_demand": _price_document(listing.on_demand, today),
        "spot": _price_document(listing.spot, today),
        "interruption": listing.interruption or None,
        "caveat": machine.caveat or None,
    }


def _price_document(price: Price | None, today: date) -> dict[str, Any] | None:
    if price is None:
        return None
    return {
        "usd_per_hour": price.usd_per_hour,
        "source": price.source,
        "dated": price.dated.isoformat(),
        "age_days": price.age_days(today),
    }
