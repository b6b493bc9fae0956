"""Prices without a network: what a release carries, or else apache-libcloud in its package.

libcloud's own modules are not imported (they load an HTTP client): its two data files are read.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scavenger.cloud.catalog.cache import read_cache
from scavenger.cloud.catalog.ec2 import ec2_machine, mend
from scavenger.cloud.catalog.types import CatalogEntry, RateKey, Stock
from scavenger.domain.cost import Price
from scavenger.errors import ConfigurationError

RELEASED = Path(__file__).with_name("prices.json")
"""The public table of the day of a release (`make release`); not in the repository."""
_RESOURCES = ("cpu", "ram")
_USAGES = {"on_demand": False, "preemptible": True}
_BALANCED_OVER_STANDARD = 2.5
"""Google lists $0.10 and $0.04 per GiB and month in us-central1; other regions' prices have about the same ratio."""
_MENDED = {
    "": "",
    "corrected": ", corrected from a dedicated VM's",
    "derived": ", derived from others of its family",
    "unchecked": ", unchecked",
}


@cache
def read_snapshot() -> Stock:
    """The snapshot, mended; read once in a process.

    Raises:
        ConfigurationError: If the package is not there or holds something else.
    """
    if RELEASED.is_file():
        return read_cache(RELEASED)
    folder = _folder()
    try:
        document = json.loads((folder / "data" / "pricing.json").read_text("utf-8"))
        return stock_of(document, f"libcloud {version('apache-libcloud')}")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder}: the price tables of apache-libcloud cannot be read ({type(error).__name__}: {error}); "
            "install apache-libcloud 3.9"
        ) from error


def stock_of(document: Any, source: str) -> Stock:
    """The prices of a table of libcloud's form, mended.

    Args:
        document: The table, as JSON has it.
        source: Its name, for the sources of prices.

    Raises:
        ConfigurationError: If the package is not there.
        ValueError: If it is no such table.
    """
    types = _ec2_types(_folder())
    try:
        dated = datetime.fromtimestamp(document["updated"], UTC).date()
        compute = document["compute"]
        return Stock(
            ec2=_ec2(compute["ec2_linux"], types, source, dated),
            rates=_gce_rates(compute["gce_instances"], source, dated),
            disks=_gce_disks(compute["gce_disks"], source, dated),
        )
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _folder() -> Path:
    spec = importlib.util.find_spec("libcloud")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "the prices are in apache-libcloud, which is not installed: pip install apache-libcloud"
        )
    return Path(spec.submodule_search_locations[0])


def _ec2_types(folder: Path) -> Mapping[str, Any]:
    path = folder / "compute" / "constants" / "ec2_instance_types.py"
    spec = importlib.util.spec_from_file_location("scavenger_ec2_instance_types", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    types: Mapping[str, Any] = module.INSTANCE_TYPES
    return types


def _ec2(
    table: Mapping[str, Mapping[str, float]], types: Mapping[str, Any], source: str, dated: date
) -> dict[str, dict[str, CatalogEntry]]:
    machines = {
        name: machine
        for name, type_ in types.items()
        if (machine := ec2_machine(name, type_["extra"], memory_gib=type_["ram"] / 1024)) is not None
    }
    regions: dict[str, dict[str, CatalogEntry]] = {}
    for (name, region), (usd, how) in mend(table).items():
        if name in machines:
            price = Price(usd, source + _MENDED[how], dated)
            regions.setdefault(region, {})[name] = CatalogEntry(machines[name], region, on_demand=price)
    return regions


def _gce_rates(families: Mapping[str, Any], source: str, dated: date) -> dict[RateKey, Price]:
    """Rates per vCPU and GiB.

    libcloud finds a rate by words in its description, so that a family whose words are part of another's may get
    the other's rate (`custom instance core` is in `n2 custom instance core`). A rate that two families claim, by its
    SKU, belongs to the one of more words; the other's is not known.
    """
    claims: dict[tuple[str, str, bool], int] = {}
    for family, resource, region, usage, sku in _skus(families):
        words = len(families[family][resource]["description"].split())
        claim = (sku["sku"], region, usage)
        claims[claim] = max(claims.get(claim, 0), words)
    return {
        (family, resource, region, usage): Price(float(sku["price"]), source, dated)
        for family, resource, region, usage, sku in _skus(families)
        if len(families[family][resource]["description"].split()) == claims[sku["sku"], region, usage]
    }


def _skus(families: Mapping[str, Any]) -> list[tuple[str, str, str, bool, Mapping[str, Any]]]:
    """(family, resource, region, spot, SKU) of all that have a price; libcloud writes 0 for none."""
    return [
        (family, resource, region, usage, sku)
        for family, resources in families.items()
        for resource in _RESOURCES
        for name, usage in _USAGES.items()
        for region, sku in resources.get(resource, {}).get(name, {}).items()
        if sku["price"] > 0
    ]


def _gce_disks(disks: Mapping[str, Any], source: str, dated: date) -> dict[tuple[str, str], Price]:
    """Prices of balanced disks, which VMs boot from; the snapshot has only those of standard disks."""
    source = f"{source}, {_BALANCED_OVER_STANDARD:g} times a standard disk's"
    return {
        ("gcp", region): Price(_BALANCED_OVER_STANDARD * float(sku["price"]), source, dated)
        for region, sku in disks["Standard"]["on_demand"].items()
        if sku["price"] > 0
    }
