"""The user's price catalogue: the snapshot, refreshed prices, and the price file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path

from platformdirs import user_cache_path, user_config_path
from pydantic import ValidationError

from scavenger.cloud.adapters import adapter_of
from scavenger.cloud.catalog.cache import read_cache
from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.catalog.prices import Discount, OwnPrice, OwnPrices, PriceFile
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.control.job_file.yaml_loader import YamlNode, load_yaml
from scavenger.control.provisioning.providers import opening_of
from scavenger.domain.forms import FAULT, did_you_mean, shown
from scavenger.domain.vm_settings import CloudSettings
from scavenger.errors import JobFileError

PRICES_VARIABLE = "SCAVENGER_PRICES"
"""Path of a price file, instead of `prices.yaml` in the user's configuration folder."""


def cache_path() -> Path:
    """Path of the refreshed prices."""
    return user_cache_path("scavenger") / "prices.json"


def open_catalog(environment: Mapping[str, str] = os.environ, *, today: date | None = None) -> Catalog:
    """Open the catalogue with the user's refreshed prices and price file.

    Args:
        environment: Environment variables; `SCAVENGER_PRICES` may name a price file.
        today: Date by which the age of prices is computed; by default the current date.

    Raises:
        ConfigurationError: If the price file, the refreshed prices or the snapshot cannot be read.
    """
    named = environment.get(PRICES_VARIABLE)
    path = Path(named) if named else user_config_path("scavenger") / "prices.yaml"
    own = load_price_file(path) if named or path.exists() else None
    stock = read_cache(cache_path()).over(read_snapshot())
    return Catalog(stock, own, today=today or datetime.now(UTC).date())


def catalog_of(
    provider: str, region: str, environment: Mapping[str, str], settings: CloudSettings | None = None
) -> Catalog:
    """The catalogue for a region: what its provider tells itself, or else the user's; see `open_catalog`.

    Args:
        settings: See `opening_of`.

    Raises:
        ConfigurationError: As `open_catalog`, or if what the provider needs is not set.
        CloudError: If the provider does not tell.
    """
    stock = adapter_of(provider).stock
    if stock is None:
        return open_catalog(environment)
    return Catalog(stock(opening_of(provider, region, environment, settings)), today=datetime.now(UTC).date())


def load_price_file(path: Path) -> OwnPrices:
    """Read a price file.

    Raises:
        JobFileError: If it cannot be read or is invalid; one line with path, line and column.
    """
    try:
        text = path.read_text("utf-8")
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise JobFileError(f"the price file cannot be read: {reason}", path=str(path)) from error
    return OwnPrices(parse_price_file(text, path=str(path)), f"price file {path.name}", changed)


def parse_price_file(text: str, *, path: str) -> PriceFile:
    """Parse the text of a price file.

    Raises:
        JobFileError: As `load_price_file`; names the first fault and the number of other faults.
    """
    root = load_yaml(text, path=path)
    try:
        return PriceFile.model_validate(root.plain())
    except ValidationError as error:
        faults = error.errors(include_url=False)
    # A misspelled key makes the correct key missing: report the misspelled one.
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    loc = tuple(part for part in first["loc"])
    if first["type"] == FAULT:
        loc += tuple(first["ctx"]["at"])
    words = _words(first["type"], str(first["msg"]), loc, first["input"])
    line, column = _place(root, loc)
    others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    raise JobFileError(f"{key or 'the file'} {words}{others}", path=path, line=line, column=column)


def _words(kind: str, message: str, loc: tuple[str | int, ...], value: object) -> str:
    if kind == FAULT:
        return message
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return f"is not a key of the price file{did_you_mean(str(loc[-1]), _KEYS)}"
    return f"cannot be {shown(value)}: {message[:1].lower()}{message[1:]}"


def _place(root: YamlNode, loc: tuple[str | int, ...]) -> tuple[int, int]:
    """Line and column of a location, or of the nearest enclosing value in the file."""
    node, place = root, (root.line, root.column)
    for part in loc:
        if isinstance(node.value, dict) and part in node.value:
            place = node.keys[str(part)]
            node = node.value[str(part)]
        elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            place = node.line, node.column
        else:
            break
    return place


_KEYS = (*PriceFile.model_fields, *OwnPrice.model_fields, *Discount.model_fields)
