"""Refreshed prices on disk: one JSON file, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from scavenger.cloud.catalog.types import CatalogEntry, Stock
from scavenger.domain.cost import Price
from scavenger.errors import ConfigurationError

CACHE_MAX_BYTES = 64 * 2**20
"""All regions of both clouds take about 10 MiB; more is no file of ours."""


@dataclass(frozen=True, slots=True)
class _Rate:
    family: str
    resource: str
    region: str
    spot: bool
    price: Price


@dataclass(frozen=True, slots=True)
class _Disk:
    provider: str
    region: str
    price: Price


@dataclass(frozen=True, slots=True)
class _File:
    schema_version: Literal[1]
    ec2: list[CatalogEntry]
    rates: list[_Rate]
    disks: list[_Disk]


def read_cache(path: Path) -> Stock:
    """What was refreshed; an empty stock where nothing was.

    Raises:
        ConfigurationError: If the file cannot be read or is not one that `write_cache` wrote.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(CACHE_MAX_BYTES + 1)
        if len(raw) > CACHE_MAX_BYTES:
            raise ValueError(f"larger than {CACHE_MAX_BYTES >> 20} MiB")
        file = msgspec.json.decode(raw, type=_File)
    except FileNotFoundError:
        return Stock()
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise ConfigurationError(
            f"{path}: refreshed prices cannot be read ({error}); remove the file, or refresh again"
        ) from error
    ec2: dict[str, dict[str, CatalogEntry]] = {}
    for listing in file.ec2:
        ec2.setdefault(listing.region, {})[listing.machine.name] = listing
    return Stock(
        ec2=ec2,
        rates={(rate.family, rate.resource, rate.region, rate.spot): rate.price for rate in file.rates},
        disks={(disk.provider, disk.region): disk.price for disk in file.disks},
    )


def write_cache(path: Path, stock: Stock) -> None:
    """Replace the file: a crash leaves the old one or the new one.

    Raises:
        ConfigurationError: If it cannot be written.
    """
    file = _File(
        1,
        [listing for types in stock.ec2.values() for listing in types.values()],
        [_Rate(*key, price) for key, price in stock.rates.items()],
        [_Disk(*key, price) for key, price in stock.disks.items()],
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as stream:
                stream.write(msgspec.json.encode(file))
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}") from error
