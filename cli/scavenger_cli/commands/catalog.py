"""`catalog`: machine types with their prices, and fetching new prices from the clouds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import typer
from rich.text import Text

from scavenger.api.catalog import (
    ANY_REGION,
    CatalogAnswer,
    ExtraDocument,
    MachineDocument,
    PriceDocument,
    show_catalog,
    wanted_of,
)
from scavenger.api.opening import open_source
from scavenger.api.values import plain
from scavenger.domain.cost import OLD_DAYS, SPOT_DAYS_MAX, Extra
from scavenger.errors import ConfigurationError, CredentialsError, ScavengerError
from scavenger.presentation.formatting import clean, money, moneys, plural, quantity
from scavenger_cli.leftovers import here_only
from scavenger_cli.options import Output, OutputOption
from scavenger_cli.ui import console, render

ROWS_MAX = 14
"""Rows shown: with header, sources and notes, they fill a screen of 24 lines."""


ProviderOption = Annotated[
    Literal["aws", "gcp"] | None, typer.Option(help="Only this cloud. Default: all clouds.")
]


def catalog(
    context: typer.Context,
    provider: ProviderOption = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="R", help="Region, or any. Default: us-central1 for gcp, us-east-1 for aws."),
    ] = None,
    vm: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this type. Repeat for several.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only types with this GPU, such as T4 or A100.")
    ] = None,
    cpus: Annotated[
        str | None, typer.Option(metavar="N", help="vCPUs: 4 means exactly 4, 4+ at least 4.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="GIB", help="Memory, GiB: 16 means exactly 16, 16+ at least 16.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include types that a job gets only by name: burstable, arm64, ...")
    ] = False,
    extras: Annotated[
        bool, typer.Option("--extras", help="Show prices of disks, public addresses and traffic instead.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show machine types of the clouds and their prices."""
    if context.invoked_subcommand is not None:
        return 0
    with open_source(None) as source:
        found = show_catalog(source, provider, region, vm, gpu, cpus, memory)
    if output.is_json:
        console.emit_json(plain(found))
    elif extras:
        _extras_table(found)
    elif not found.machines:
        where = " and ".join(_where(found))
        wanted = wanted_of(vm, gpu, cpus, memory)
        console.emit(Text(f"No machine type with {clean(wanted)} in {where} is in the catalogue."))
    else:
        _table(found, every=every or bool(vm), each_gpu=gpu is not None)
    ages = (
        [one.age_days for one in found.extras if one.age_days is not None]
        if extras
        else [price.age_days for one in found.machines for price in one.prices]
    )
    oldest = max(ages, default=0)
    if oldest > OLD_DAYS:
        console.note(
            f"some of these prices are {oldest} days old: `scavenger catalog refresh` fetches new ones"
        )
    return 0


def refresh(
    provider: ProviderOption = None,
    region: Annotated[
        list[str] | None,
        typer.Option(
            metavar="R",
            help="Region of the cloud that --provider names. Repeat for several; any: all that are known. Default: "
            "us-central1 for gcp, us-east-1 for aws.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Fetch current machine types and prices from the clouds; needs credentials."""
    from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS, PROVIDERS
    from scavenger.control.provisioning.price_refresh import refresh_prices
    from scavenger.control.provisioning.prices import cache_path, open_catalog

    here_only("catalog refresh")
    if region and provider is None:
        raise ConfigurationError("--region needs --provider: each cloud has regions of its own")
    failed: list[ScavengerError] = []
    done: dict[str, int] = {}
    for name in PROVIDERS if provider is None else (provider,):
        regions = tuple(region or ()) or (DEFAULT_REGIONS[name],)
        if ANY_REGION in regions:
            regions = open_catalog().regions(name)
        try:
            fetched = refresh_prices(name, regions)
        except ScavengerError as error:
            failed.append(error)
            continue
        failed += fetched.errors
        done[name] = sum(map(len, fetched.stock.listings.values()))
        if not output.is_json:
            dated = ", some prices older than today" if fetched.errors else " of today"
            console.emit(
                Text(
                    f"{name}: {plural(done[name], 'machine type')}{dated}, kept in {cache_path()}",
                    no_wrap=True,
                )
            )
    if any(isinstance(error, CredentialsError) for error in failed):
        console.note(
            "prices are read with an account: for AWS `aws configure` (or `aws sso login`) with the rights "
            "ec2:DescribeInstanceTypes, ec2:DescribeSpotPriceHistory and pricing:GetProducts, for Google Cloud `gcloud "
            "auth application-default login`; or write what you pay into prices.yaml (docs/costs.md)"
        )
    for other in failed[1:]:
        console.error(other)
    if failed:
        raise failed[0]
    if output.is_json:
        document = {"schema_version": console.SCHEMA_VERSION, "refreshed": done, "file": str(cache_path())}
        console.emit_json(document)
    return 0


def _where(answer: CatalogAnswer) -> list[str]:
    """The regions in words; where a cloud has several of them, their number."""
    of: dict[str, list[str]] = {}
    for one in answer.regions:
        of.setdefault(one.provider, []).append(one.region)
    return [
        f"{name}/{regions[0]}" if len(regions) == 1 else f"{plural(len(regions), 'region')} of {name}"
        for name, regions in of.items()
    ]


def _once(machines: Sequence[MachineDocument]) -> list[MachineDocument]:
    """Each type once: in the region that comes first."""
    first: dict[tuple[str, str], MachineDocument] = {}
    for one in machines:
        first.setdefault((one.provider, one.vm), one)
    return list(first.values())


def _table(answer: CatalogAnswer, *, every: bool, each_gpu: bool) -> None:
    anywhere = len(answer.regions) > len({one.provider for one in answer.regions})
    found: Sequence[MachineDocument] = _once(answer.machines) if anywhere else answer.machines
    special = sorted({one.caveat.partition(":")[0] for one in found if one.caveat})
    usual = [one for one in found if every or not one.caveat]
    rows = usual[:ROWS_MAX]
    sources = list(dict.fromkeys(str(price) for row in rows for price in row.prices))
    several = len({one.provider for one in answer.regions}) > 1
    columns: list[tuple[tuple[str, str], list[str]]] = [
        (("VM", "left"), [clean(r.vm) + ("*" if r.caveat else "") for r in rows]),
        (("cloud", "left"), [r.provider if several else "" for r in rows]),
        (("region", "left"), [r.region if anywhere else "" for r in rows]),
        (("vCPU", "right"), [str(r.cpus) for r in rows]),
        (("GiB", "right"), [quantity(r.memory_gib, 4) for r in rows]),
        (("GPUs", "left"), [_gpus(r) for r in rows]),
        (("per hour", "right"), _prices(r.on_demand for r in rows)),
        (("a GPU", "right"), moneys([_each_gpu(r) for r in rows]) if each_gpu else []),
        (("spot", "right"), _prices(r.spot for r in rows) if any(r.spot for r in rows) else []),
        (("taken", "right"), [r.interruption or "" for r in rows]),
        (("prices", "left"), [_references(r, sources) for r in rows]),
    ]
    kept = [(title, cells) for title, cells in columns if any(cells)]
    grid = render.table(*(title for title, _ in kept))
    for index in range(len(rows)):
        grid.add_row(*(cells[index] for _, cells in kept))
    console.emit(
        Text(
            ", ".join(_where(answer)) + (", each type where it is cheapest:" if anywhere else ":"),
            no_wrap=True,
        ),
        grid,
    )
    ages = {str(price): price.age_days for row in rows for price in row.prices}
    lines = _told(ages)
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


def _told(ages: Mapping[str, int]) -> list[str]:
    """The sources of prices, by number, with their age in days."""
    return [
        f"[{number}] {clean(source)} ({plural(days, 'day')} old)"
        for number, (source, days) in enumerate(ages.items(), 1)
    ]


def _extras_table(answer: CatalogAnswer) -> None:
    ages = {str(one): one.age_days for one in answer.extras if one.age_days is not None}
    sources = list(ages)
    regions = [f"{one.provider}/{one.region}" for one in answer.regions]
    grid = render.table(
        ("region", "left"), *((title, "right") for title in _EXTRAS.values()), ("prices", "left")
    )
    for region in regions:
        here = {one.extra: one for one in answer.extras if f"{one.provider}/{one.region}" == region}
        cells = ["unknown" if here[name].usd is None else _extra(here[name]) for name in _EXTRAS]
        numbers = dict.fromkeys(sources.index(str(here[name])) + 1 for name in _EXTRAS if str(here[name]))
        grid.add_row(region, *cells, " ".join(f"[{number}]" for number in numbers))
    lines = [
        "disk: a GiB and month; addresses: an hour; traffic to zones, regions, internet: a GiB",
        *_told(ages),
    ]
    if any(one.usd is None for one in answer.extras):
        lines.append("unknown: fetch the price with `scavenger catalog refresh`")
    console.emit(grid, *(Text(line) for line in lines))


_EXTRAS: Mapping[Extra, str] = {
    "disk": "disk",
    "address": "address",
    "spot_address": "spot's",
    "zones": "zones",
    "regions": "regions",
    "internet": "internet",
}
"""Titles of columns, by extra."""
_MONTH_H = 730.0


def _extra(one: ExtraDocument) -> str:
    usd = one.usd or 0.0
    return money(usd * _MONTH_H if one.unit == "GiB-hour" else usd)


def _prices(column: Iterable[PriceDocument | None]) -> list[str]:
    return moneys([None if price is None else price.usd_per_hour for price in column])


def _each_gpu(one: MachineDocument) -> float | None:
    price = one.on_demand or one.spot
    return None if price is None else price.usd_per_gpu_hour


def _gpus(one: MachineDocument) -> str:
    return f"{one.accelerators} {clean(one.accelerator)}" if one.accelerators else ""


def _references(one: MachineDocument, sources: Sequence[str]) -> str:
    numbers = dict.fromkeys(sources.index(str(price)) + 1 for price in one.prices)
    return " ".join(f"[{number}]" for number in numbers)
