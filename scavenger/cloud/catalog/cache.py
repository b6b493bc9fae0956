"""Prices on disk: one JSON file, written whole or not at all; with `.gz` in its name, compressed."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec

from scavenger.cloud.stock import CatalogEntry, Extras, MachineType, Place, Stock
from scavenger.domain.cost import Extra, Price, TrafficPrice
from scavenger.errors import ConfigurationError

CACHE_MAX_BYTES = 64 * 2**20
"""All regions of both clouds take about 2 MiB; more is no file of ours."""


class _Price(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    usd: float
    source: int
    """Index among the file's sources, as most prices share theirs."""


class _Listing(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    machine: int
    """Index among the file's machines, which are the same in all regions."""
    on_demand: _Price | None = None
    spot: _Price | None = None
    interruption: str = ""


class _Region(msgspec.Struct, forbid_unknown_fields=True):
    provider: str
    region: str
    listings: list[_Listing]
    extras: dict[Extra, _Price]


class _Rate(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    what: str
    resource: str
    region: str
    spot: bool
    price: _Price


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema_version: Literal[3]
    sources: list[tuple[str, date]]
    machines: list[MachineType]
    regions: list[_Region]
    rates: list[_Rate]


_OF: Mapping[Extra, Any] = {
    "disk": Price,
    "address": Price,
    "spot_address": Price,
    "zones": TrafficPrice,
    "regions": TrafficPrice,
    "internet": TrafficPrice,
}
"""What each extra is priced by: the hour, or what is sent."""


def read_cache(path: Path) -> Stock:
    """What was written; an empty stock where nothing was.

    Raises:
        ConfigurationError: If the file cannot be read or is not one that `write_cache` wrote.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            raw = stream.read(CACHE_MAX_BYTES + 1)
        if len(raw) > CACHE_MAX_BYTES:
            raise ValueError(f"larger than {CACHE_MAX_BYTES >> 20} MiB")
        return _stock_of(msgspec.json.decode(raw, type=_File))
    except FileNotFoundError:
        return Stock()
    except (OSError, EOFError, IndexError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise ConfigurationError(
            f"{path}: refreshed prices cannot be read ({error}); remove the file, or refresh again"
        ) from error


def _stock_of(file: _File) -> Stock:
    def price(told: _Price | None) -> Price | None:
        if told is not None and told.usd <= 0:
            raise ValueError(f"no cloud rents for {told.usd} dollars")
        return None if told is None else Price(told.usd, *file.sources[told.source])

    listings: dict[Place, dict[str, CatalogEntry]] = {}
    for one in file.regions:
        listings[one.provider, one.region] = {
            (machine := file.machines[listing.machine]).name: CatalogEntry(
                machine, one.region, price(listing.on_demand), price(listing.spot), listing.interruption
            )
            for listing in one.listings
        }
    extras = {
        (one.provider, one.region): Extras(
            **{name: _OF[name](told.usd, *file.sources[told.source]) for name, told in one.extras.items()}
        )
        for one in file.regions
        if one.extras
    }
    rates = {
        (rate.what, rate.resource, rate.region, rate.spot): found
        for rate in file.rates
        if (found := price(rate.price)) is not None
    }
    return Stock({place: found for place, found in listings.items() if found}, rates, extras)


def _file_of(stock: Stock) -> _File:
    sources: dict[tuple[str, date], int] = {}
    machines: dict[MachineType, int] = {}

    def price(known: Price | TrafficPrice | None) -> _Price | None:
        if known is None:
            return None
        return _Price(known.usd, sources.setdefault((known.source, known.dated), len(sources)))

    def rows(listings: Iterable[CatalogEntry]) -> list[_Listing]:
        return [
            _Listing(
                machines.setdefault(one.machine, len(machines)),
                price(one.on_demand),
                price(one.spot),
                one.interruption,
            )
            for one in listings
        ]

    regions = [
        _Region(
            *place,
            rows(stock.listings.get(place, {}).values()),
            {
                name: told
                for name in _OF
                if (told := price(getattr(stock.extras.get(place), name, None))) is not None
            },
        )
        for place in sorted({*stock.listings, *stock.extras})
    ]
    rates = [_Rate(*key, told) for key, known in stock.rates.items() if (told := price(known)) is not None]
    return _File(3, list(sources), list(machines), regions, rates)


def write_cache(path: Path, stock: Stock) -> None:
    """Replace the file: a crash leaves the old one or the new one.

    Raises:
        ConfigurationError: If it cannot be written.
    """
    raw = msgspec.json.encode(_file_of(stock))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as stream:
                stream.write(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from error
