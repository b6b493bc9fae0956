"""`catalog`: machine types with their prices, and fetching new prices from the clouds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from rich.text import Text

from scavenger.domain.forms import did_you_mean, shown
from scavenger.domain.ranges import Amount, CpuAmount, MemoryAmount
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger_cli.ui import console, render
from scavenger_cli.ui.formatting import clean, money, plural, quantity

if TYPE_CHECKING:
    from scavenger.cloud.catalog.catalog import Catalog
    from scavenger.cloud.catalog.types import Listing, Wanted
    from scavenger.domain.cost import Price

__all__ = ["Asked", "refresh", "show"]

ROWS_MAX = 14
"""Rows shown: with header, sources and notes, they fill a screen of 24 lines."""
OLD_DAYS = 90
"""Age from which a note suggests a refresh: Google's spot prices may change monthly, list prices a few times a year."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    provider: str | None = None
    region: str | None = None
    vms: tuple[str, ...] = ()
    gpu: str | None = None
    cpus: str | None = None
    memory: str | None = None
    every: bool = False


def show(asked: Asked, *, as_json: bool, today: date | None = None) -> int:
    """Print the matching types, cheapest first.

    Raises:
        ConfigurationError: If there is no such region, type or amount, or a price file is not valid.
    """
    from scavenger.control.provisioning.prices import open_catalog

    wanted = _wanted(asked)
    today = today or datetime.now(UTC).date()
    catalog = open_catalog(today=today)
    places = _places(catalog, asked)
    found = [listing for place in places for listing in catalog.listings(*place, wanted)]
    for vm in asked.vms:
        if vm not in {listing.machine.name for listing in found}:
            raise ConfigurationError(_why_not(catalog, places, vm, wanted))
    found.sort(key=_by_price)
    if as_json:
        regions = [{"provider": provider, "region": region} for provider, region in places]
        machines = [_document(listing, today) for listing in found]
        console.emit_json(
            {"schema_version": console.SCHEMA_VERSION, "regions": regions, "machines": machines}
        )
    elif not found:
        where = " and ".join("/".join(place) for place in places)
        console.emit(Text(f"No machine type with {clean(wanted)} in {where} is in the catalogue."))
    else:
        _table(places, found, today, every=asked.every or bool(asked.vms))
    ages = [price.age_days(today) for listing in found for price in _prices(listing)]
    if max(ages, default=0) > OLD_DAYS:
        console.note(
            f"some of these prices are {max(ages)} days old: `scavenger catalog refresh` fetches new ones"
        )
    return 0


def refresh(provider: str | None, regions: tuple[str, ...], *, as_json: bool) -> int:
    """Fetch the prices of one cloud or all; if a source does not answer, the others are fetched all the same.

    Raises:
        ScavengerError: The error of the first source that did not answer, raised after the others were fetched.
    """
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS, PROVIDERS
    from scavenger.control.provisioning.price_refresh import refresh_catalog
    from scavenger.control.provisioning.prices import cache_path

    if regions and provider != "aws":
        raise ConfigurationError(
            "--region is only for --provider aws: gcp sends the prices of all regions at once"
        )
    failed: list[ScavengerError] = []
    done: dict[str, int] = {}
    for name in (provider,) if provider else PROVIDERS:
        try:
            fetched = refresh_catalog(name, regions or (DEFAULT_REGIONS[name],), now=datetime.now(UTC))
        except ScavengerError as error:
            failed.append(error)
            continue
        stock = fetched.stock
        failed += fetched.errors
        done[name] = sum(map(len, stock.ec2.values())) + len(stock.rates)
        if not as_json:
            what = plural(done[name], "machine type") if name == "aws" else plural(done[name], "rate")
            dated = ", some prices older than today" if fetched.errors else " of today"
            console.emit(Text(f"{name}: {what}{dated}, kept in {cache_path()}", no_wrap=True))
    for other in failed[1:]:
        console.error(other)
    if failed:
        raise failed[0]
    if as_json:
        document = {"schema_version": console.SCHEMA_VERSION, "refreshed": done, "file": str(cache_path())}
        console.emit_json(document)
    return 0


def _wanted(asked: Asked) -> Wanted:
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
            known = [p for p in places if any(catalog.listings(*p, _wanted(Asked(vms=asked.vms))))]
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


def _prices(listing: Listing) -> list[Price]:
    return [price for price in (listing.on_demand, listing.spot) if price is not None]


def _table(places: Sequence[tuple[str, str]], found: Sequence[Listing], today: date, *, every: bool) -> None:
    from scavenger.cloud.catalog.catalog import SPOT_DAYS_MAX

    special = sorted({one.machine.caveat.partition(":")[0] for one in found if one.machine.caveat})
    usual = [one for one in found if every or not one.machine.caveat]
    rows = usual[:ROWS_MAX]
    sources = list(dict.fromkeys(str(price) for listing in rows for price in _prices(listing)))
    several = len(places) > 1
    columns: list[tuple[tuple[str, str], list[str]]] = [
        (("VM", "left"), [clean(r.machine.name) + ("*" if r.machine.caveat else "") for r in rows]),
        (("cloud", "left"), [r.machine.provider if several else "" for r in rows]),
        (("vCPU", "right"), [str(r.machine.cpus) for r in rows]),
        (("GiB", "right"), [quantity(r.machine.memory_gib, 4) for r in rows]),
        (("GPUs", "left"), [_gpus(r) for r in rows]),
        (("per hour", "right"), [_money(r.on_demand) for r in rows]),
        (("spot", "right"), [_money(r.spot) for r in rows] if any(r.spot for r in rows) else []),
        (("taken", "right"), [r.interruption for r in rows]),
        (("prices", "left"), [_references(r, sources) for r in rows]),
    ]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    grid = render.table(*(title for title, _ in kept))
    for index in range(len(rows)):
        grid.add_row(*(cells[index] for _, cells in kept))
    console.emit(Text(", ".join("/".join(place) for place in places) + ":", no_wrap=True), grid)
    lines = [
        f"[{number}] {clean(source)} ({plural(_age(rows, source, today), 'day')} old)"
        for number, source in enumerate(sources, 1)
    ]
    if any(_prices(row) == [] for row in rows):
        lines.append(
            "unknown: fetch the price with `scavenger catalog refresh`, or write it into prices.yaml"
        )
    if any(row.spot and row.spot.age_days(today) > SPOT_DAYS_MAX for row in rows):
        lines.append(f"no job is planned with a spot price that is more than {SPOT_DAYS_MAX} days old")
    if any(row.interruption for row in rows):
        lines.append("taken: spot VMs interrupted within a month")
    if special:
        words = "* only for jobs that name it" if every else f"{len(found) - len(usual):,} more with --all"
        lines.append(f"{words}: {', '.join(special)}")
    if len(usual) > len(rows):
        lines.append(f"and {len(usual) - len(rows):,} more: narrow it with --cpus, --memory, --gpu")
    console.emit(*(Text(line) for line in lines))


def _money(price: Price | None) -> str:
    return "unknown" if price is None else money(price.usd_per_hour)


def _gpus(listing: Listing) -> str:
    machine = listing.machine
    return f"{machine.accelerators} {clean(machine.accelerator)}" if machine.accelerators else ""


def _references(listing: Listing, sources: Sequence[str]) -> str:
    numbers = dict.fromkeys(sources.index(str(price)) + 1 for price in _prices(listing))
    return " ".join(f"[{number}]" for number in numbers)


def _age(rows: Sequence[Listing], source: str, today: date) -> int:
    return next(p.age_days(today) for row in rows for p in _prices(row) if str(p) == source)


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
