"""`catalog`: machine types with their prices, and fetching new prices from the clouds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from scavenger.api.catalog import CatalogAnswer, MachineDocument, PriceDocument, show_catalog, wanted_of
from scavenger.api.opening import open_source
from scavenger.api.values import plain
from scavenger.errors import ConfigurationError, CredentialsError, ScavengerError
from scavenger.presentation.formatting import clean, money, plural, quantity
from scavenger_cli.ui import console, render

ROWS_MAX = 14
"""Rows shown: with header, sources and notes, they fill a screen of 24 lines."""
OLD_DAYS = 90
"""Age from which a note suggests a refresh: Google's spot prices may change monthly, list prices a few times a year."""


def show(asked: Mapping[str, Any], *, every: bool, as_json: bool) -> int:
    """Print the matching types, cheapest first.

    Args:
        asked: As of `show_catalog`.
        every: Whether types with a caveat are shown, too.

    Raises:
        ConfigurationError: If there is no such region, type or amount, or a price file is not valid.
    """
    with open_source(None) as source:
        found = show_catalog(source, **asked)
    if as_json:
        console.emit_json(plain(found))
    elif not found.machines:
        where = " and ".join(f"{one.provider}/{one.region}" for one in found.regions)
        wanted = wanted_of(*(asked[name] for name in ("vm", "gpu", "cpus", "memory")))
        console.emit(Text(f"No machine type with {clean(wanted)} in {where} is in the catalogue."))
    else:
        _table(found, every=every or bool(asked["vm"]))
    oldest = max((price.age_days for one in found.machines for price in one.prices), default=0)
    if oldest > OLD_DAYS:
        console.note(
            f"some of these prices are {oldest} days old: `scavenger catalog refresh` fetches new ones"
        )
    return 0


def refresh(provider: str | None, regions: tuple[str, ...], *, as_json: bool) -> int:
    """Fetch the prices of one cloud or all; if a source does not answer, the others are fetched all the same.

    Raises:
        ScavengerError: The error of the first source that did not answer, raised after the others were fetched.
    """
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS, PROVIDERS
    from scavenger.cloud.catalog.refresh import BY_REGION, refresh_catalog
    from scavenger.control.provisioning.prices import cache_path

    if regions and provider not in BY_REGION:
        raise ConfigurationError(
            "--region is only for --provider aws: gcp sends the prices of all regions at once"
        )
    failed: list[ScavengerError] = []
    done: dict[str, int] = {}
    for name in (provider,) if provider else PROVIDERS:
        try:
            fetched = refresh_catalog(
                name, regions or (DEFAULT_REGIONS[name],), cache=cache_path(), now=datetime.now(UTC)
            )
        except ScavengerError as error:
            failed.append(error)
            continue
        stock = fetched.stock
        failed += fetched.errors
        done[name] = sum(map(len, stock.ec2.values())) + len(stock.rates)
        if not as_json:
            what = plural(done[name], "machine type") if name in BY_REGION else plural(done[name], "rate")
            dated = ", some prices older than today" if fetched.errors else " of today"
            console.emit(Text(f"{name}: {what}{dated}, kept in {cache_path()}", no_wrap=True))
    if any(isinstance(error, CredentialsError) for error in failed):
        console.note(
            "prices are read with an account: for AWS `aws configure` (or `aws sso login`) with the rights "
            "pricing:GetProducts and ec2:DescribeSpotPriceHistory, for Google Cloud `gcloud auth application-default "
            "login`; or write what you pay into prices.yaml (docs/costs.md)"
        )
    for other in failed[1:]:
        console.error(other)
    if failed:
        raise failed[0]
    if as_json:
        document = {"schema_version": console.SCHEMA_VERSION, "refreshed": done, "file": str(cache_path())}
        console.emit_json(document)
    return 0


def _table(answer: CatalogAnswer, *, every: bool) -> None:
    from scavenger.cloud.catalog.catalog import SPOT_DAYS_MAX

    found = answer.machines
    special = sorted({one.caveat.partition(":")[0] for one in found if one.caveat})
    usual = [one for one in found if every or not one.caveat]
    rows = usual[:ROWS_MAX]
    sources = list(dict.fromkeys(str(price) for row in rows for price in row.prices))
    several = len(answer.regions) > 1
    columns: list[tuple[tuple[str, str], list[str]]] = [
        (("VM", "left"), [clean(r.vm) + ("*" if r.caveat else "") for r in rows]),
        (("cloud", "left"), [r.provider if several else "" for r in rows]),
        (("vCPU", "right"), [str(r.cpus) for r in rows]),
        (("GiB", "right"), [quantity(r.memory_gib, 4) for r in rows]),
        (("GPUs", "left"), [_gpus(r) for r in rows]),
        (("per hour", "right"), [_money(r.on_demand) for r in rows]),
        (("spot", "right"), [_money(r.spot) for r in rows] if any(r.spot for r in rows) else []),
        (("taken", "right"), [r.interruption or "" for r in rows]),
        (("prices", "left"), [_references(r, sources) for r in rows]),
    ]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    grid = render.table(*(title for title, _ in kept))
    for index in range(len(rows)):
        grid.add_row(*(cells[index] for _, cells in kept))
    console.emit(
        Text(", ".join(f"{one.provider}/{one.region}" for one in answer.regions) + ":", no_wrap=True), grid
    )
    ages = {str(price): price.age_days for row in rows for price in row.prices}
    lines = [
        f"[{number}] {clean(source)} ({plural(ages[source], 'day')} old)"
        for number, source in enumerate(sources, 1)
    ]
    if any(not row.prices for row in rows):
        lines.append(
            "unknown: fetch the price with `scavenger catalog refresh`, or write it into prices.yaml"
        )
    if any(row.spot and row.spot.age_days > SPOT_DAYS_MAX for row in rows):
        lines.append(f"no job is planned with a spot price that is more than {SPOT_DAYS_MAX} days old")
    if any(row.interruption for row in rows):
        lines.append("taken: spot VMs interrupted within a month")
    if special:
        words = "* only for jobs that name it" if every else f"{len(found) - len(usual):,} more with --all"
        lines.append(f"{words}: {', '.join(special)}")
    if len(usual) > len(rows):
        lines.append(f"and {len(usual) - len(rows):,} more: narrow it with --cpus, --memory, --gpu")
    console.emit(*(Text(line) for line in lines))


def _money(price: PriceDocument | None) -> str:
    return "unknown" if price is None else money(price.usd_per_hour)


def _gpus(one: MachineDocument) -> str:
    return f"{one.accelerators} {clean(one.accelerator)}" if one.accelerators else ""


def _references(one: MachineDocument, sources: Sequence[str]) -> str:
    numbers = dict.fromkeys(sources.index(str(price)) + 1 for price in one.prices)
    return " ".join(f"[{number}]" for number in numbers)
