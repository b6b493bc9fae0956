"""Refreshes the prices of a cloud, from its own source or from the public table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path

from scavenger.cloud.catalog.cache import read_cache, write_cache
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.cloud.catalog.types import CatalogEntry, Fetched, Stock
from scavenger.errors import CloudUnavailableError, ConfigurationError, CredentialsError

BY_REGION = frozenset({"aws"})
"""Clouds that are asked region by region for machine types; the others send the rates of all regions at once."""


def refresh_catalog(provider: str, regions: Iterable[str], *, cache: Path, now: datetime) -> Fetched:
    """Fetch the current prices of a cloud and save them; without an account, those of the public table if newer.

    Args:
        provider: `gcp` (all its regions come at once) or `aws`.
        regions: Regions of AWS to fetch.
        cache: The file with the refreshed prices.

    Returns:
        The fetched prices, and the errors of sources that gave nothing; what these gave earlier is kept.

    Raises:
        CloudError, ConfigurationError: See `fetch_aws` and `fetch_gcp`; earlier prices are kept.
    """
    cached = read_cache(cache)
    known = cached.over(read_snapshot())
    try:
        if provider == "aws":
            from scavenger.cloud.catalog.refresh_aws import fetch_aws

            fetched = fetch_aws(regions, now=now, known=known)
        else:
            from scavenger.cloud.catalog.refresh_gcp import fetch_gcp

            fetched = fetch_gcp(now=now)
    except CredentialsError as error:
        fetched = _public(provider, known, error)
    write_cache(cache, fetched.stock.over(cached))
    return fetched


def _public(provider: str, known: Stock, error: CredentialsError) -> Fetched:
    """What the public table has that is newer than what is known.

    Raises:
        CredentialsError: The one that is given, if the table cannot be had or has nothing newer.
    """
    from scavenger.cloud.catalog.public import fetch_public
    from scavenger.cloud.catalog.refresh_aws import merged

    try:
        table = fetch_public()
    except (CloudUnavailableError, ConfigurationError) as unavailable:
        raise CredentialsError(f"{error}; {unavailable}") from error
    if provider == "aws":
        regions = {
            region: merged(known.ec2.get(region, {}), listings, None)
            for region, listings in table.ec2.items()
            if _newest(listings.values()) > _newest(known.ec2.get(region, {}).values())
        }
        stock, dates = Stock(ec2=regions), [_newest(listings.values()) for listings in regions.values()]
    else:
        dates = [price.dated for price in table.rates.values()]
        if max(dates, default=date.min) <= max(
            (price.dated for price in known.rates.values()), default=date.min
        ):
            dates = []
        disks = {key: price for key, price in table.disks.items() if key[0] == "gcp"}
        stock = Stock(rates=table.rates, disks=disks)
    if not dates:
        raise CredentialsError(f"{error}; the public price table has nothing newer") from error
    told = (
        f"{error}; list prices are those of the public table of {max(dates)}, which has no spot prices of EC2"
    )
    return Fetched(stock, (CredentialsError(told),))


def _newest(listings: Iterable[CatalogEntry]) -> date:
    return max((one.on_demand.dated for one in listings if one.on_demand is not None), default=date.min)
