"""Makes the prices that a release carries, from lists that say where each price comes from.

    python -m benchmarks.price_snapshot ../shared/data/catalog [path/to/libcloud/data/pricing.json]
    python -m benchmarks.price_snapshot ~/.cache/scavenger/prices.json

The first makes the snapshot anew: machine types and offers of EC2 from moto's copy of `DescribeInstanceTypes` and
`DescribeInstanceTypeOfferings`, prices from the tables in the folder, Compute Engine's disks from libcloud's table, or,
where that is not given, as they are in the snapshot that is there; addresses and traffic from `extra_prices.csv`.
The second lays refreshed prices over the snapshot that is there. What is not known is left out: a type without a known
price is listed without one.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scavenger.cloud.catalog.cache import read_cache, write_cache
from scavenger.cloud.catalog.compute_engine import GoogleType
from scavenger.cloud.catalog.ec2 import ec2_machine
from scavenger.cloud.catalog.snapshot import SNAPSHOT
from scavenger.cloud.stock import CatalogEntry, Extras, Place, RateKey, Stock
from scavenger.domain.cost import Price, TrafficPrice

_AWS_SOURCES = {
    ("us-east-1", "list"): "AWS price list by Karpenter",
    ("", "list"): "libcloud 3.9.1",
    ("", "corrected"): "libcloud 3.9.1, corrected from a dedicated VM's",
}
"""By region and how a price was come by; imputed ones are left out."""
_LOWERED = ("p4d", "p4de", "p5", "p5en")
"""Families whose prices AWS lowered in June 2025: older ones are known to be wrong."""
_LOWERED_ON = date(2025, 6, 5)
_NO_REGION = ("us-west-2-lax-1",)  # a local zone
_GOOGLE_SOURCE = "Cloud Billing API by gcosts"
_GOOGLE_GPUS = {
    "a100": "nvidia-tesla-a100",
    "a100-80gb": "nvidia-a100-80gb",
    "h100-80gb": "nvidia-h100-80gb",
    "h100-80gb-mega": "nvidia-h100-mega-80gb",
    "l4": "nvidia-l4",
    "rtx6000": "nvidia-rtx-pro-6000",
}
_SHARED_CORES = ("e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small")
_EXTRAS = Path(__file__).with_name("extra_prices.csv")
"""Dollars for an hour of an address and for a GiB of traffic; of all regions where none is named."""
_BALANCED_OVER_STANDARD = 2.5
"""Google lists $0.10 and $0.04 per GiB and month in us-central1; other regions' prices have about the same ratio."""


def rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a table."""
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def google_type(row: dict[str, str]) -> GoogleType:
    """A type of Compute Engine from a row of `gcp_vms.csv`, without its local SSDs."""
    return GoogleType(
        row["instance_type"],
        int(row["vcpus"]),
        float(row["memory_gib"]),
        gpu=_GOOGLE_GPUS.get(row["accelerator"], ""),
        gpus=int(float(row["accelerator_count"] or 0)),
        shared_core=row["instance_type"] in _SHARED_CORES,
        arm=row["arch"] == "arm64",
    )


def _google(folder: Path) -> Iterator[CatalogEntry]:
    for row in rows(folder / "gcp_vms.csv"):
        if row["instance_type"].startswith("custom-"):
            continue
        dated = date.fromisoformat(row["price_date"])
        on_demand, spot = (
            Price(float(row[column]), _GOOGLE_SOURCE, dated) if row[column] else None
            for column in ("price_hour", "spot_price_hour")
        )
        yield CatalogEntry(google_type(row).machine, row["region"], on_demand, spot)


def _rates(folder: Path) -> dict[RateKey, Price]:
    """Rates per vCPU and GiB, for custom types.

    libcloud finds a SKU by words of its description, so that a family whose words are part of another's may get the
    other's (`custom instance core` is in `n2 custom instance core`): a SKU belongs to the family of most words.
    """
    table = list(rows(folder / "gcp_skus.csv"))
    words: dict[tuple[str, str], int] = {}
    for row in table:
        claim = row["sku"], row["region"]
        words[claim] = max(words.get(claim, 0), len(row["description"].split()))
    return {
        (row["family"], row["resource"], row["region"], row["usage"] == "preemptible"): Price(
            float(row["price_hour"]), "libcloud 3.9.1", date.fromisoformat(row["price_date"])
        )
        for row in table
        if len(row["description"].split()) == words[row["sku"], row["region"]]
    }


def _amazon(folder: Path) -> Iterator[CatalogEntry]:
    spec = find_spec("moto")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    resources = Path(spec.submodule_search_locations[0]) / "ec2" / "resources"
    kinds = _packed(resources / "instance_types.json.gz")
    machines = {kind["InstanceType"]: ec2_machine(kind) for kind in kinds.values()}
    prices: dict[tuple[str, str], Price] = {}
    for row in rows(folder / "aws_vms.csv"):
        vm, region, basis = row["instance_type"], row["region"], row["price_basis"]
        source = _AWS_SOURCES.get((region, basis)) or _AWS_SOURCES.get(("", basis))
        dated = date.fromisoformat(row["price_date"])
        lowered = vm.partition(".")[0] in _LOWERED and dated < _LOWERED_ON
        if source and vm in machines and region not in _NO_REGION and not lowered:
            prices[region, vm] = Price(float(row["price_hour"]), source, dated)
    offered = {
        (offer["Location"], offer["InstanceType"])
        for path in (resources / "instance_type_offerings" / "region").iterdir()
        for offer in _packed(path)
    }
    for region, vm in sorted({*prices, *offered}):
        if vm in machines:
            yield CatalogEntry(machines[vm], region, prices.get((region, vm)))


def _packed(path: Path) -> Any:
    with gzip.open(path) as file:
        return json.load(file)


def _disks(table: Path | None) -> dict[Place, Price]:
    """Of one GiB in an hour; from libcloud's table, or those of the snapshot that is there."""
    if table is None:
        known = {place: extras.disk for place, extras in read_cache(SNAPSHOT).extras.items()}
        return {place: disk for place, disk in known.items() if disk is not None}
    document = json.loads(table.read_text("utf-8"))
    dated = datetime.fromtimestamp(document["updated"], UTC).date()
    source = f"libcloud 3.9.1, {_BALANCED_OVER_STANDARD:g} times a standard disk's"
    return {
        # without digits that only a division has made
        ("gcp", region): Price(float(f"{_BALANCED_OVER_STANDARD * float(sku['price']):.9g}"), source, dated)
        for region, sku in document["compute"]["gce_disks"]["Standard"]["on_demand"].items()
        if sku["price"] > 0
    }


def _extras(places: Iterable[Place], disks: Mapping[Place, Price]) -> dict[Place, Extras]:
    told: dict[Place, dict[str, Any]] = {}
    for row in rows(_EXTRAS):
        kind = Price if "address" in row["extra"] else TrafficPrice
        price = kind(float(row["usd"]), row["source"], date.fromisoformat(row["dated"]))
        told.setdefault((row["provider"], row["region"]), {})[row["extra"]] = price
    return {
        place: Extras(disks.get(place), **{**told.get((place[0], ""), {}), **told.get(place, {})})
        for place in places
    }


def snapshot_of(folder: Path, table: Path | None) -> Stock:
    """The prices of the tables in the folder and of the extras' table, and the disks of libcloud's."""
    listings: dict[Place, dict[str, CatalogEntry]] = {}
    for entry in (*_google(folder), *_amazon(folder)):
        place = (entry.machine.provider, entry.region)
        listings.setdefault(place, {})[entry.machine.name] = entry
    return Stock(listings, _rates(folder), _extras(listings, _disks(table)))


def main(arguments: list[str]) -> None:
    """Write the snapshot and say what it has."""
    first, *more = (Path(argument) for argument in arguments)
    if first.is_dir():
        stock = snapshot_of(first, more[0] if more else None)
    else:
        stock = read_cache(first).over(read_cache(SNAPSHOT))
    write_cache(SNAPSHOT, stock)
    for provider in ("aws", "gcp"):
        found = [
            entry
            for (name, _), listed in stock.listings.items()
            if name == provider
            for entry in listed.values()
        ]
        types, priced = {entry.machine for entry in found}, [entry for entry in found if entry.on_demand]
        spot = sum(entry.spot is not None for entry in found)
        print(
            f"{provider}: {len(types)} types; {len(found)} offers, {len(priced)} with a price, {spot} with a spot price"
        )
        print(
            "  without any price:",
            *sorted({m.name for m in types} - {entry.machine.name for entry in priced}),
        )
    print(f"{SNAPSHOT}: {SNAPSHOT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
