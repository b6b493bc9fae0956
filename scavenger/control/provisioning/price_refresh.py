"""Refreshes the user's prices: on request, and when a job meets prices that are too old to plan with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime

from scavenger.cloud.catalog.cache import read_cache, write_cache
from scavenger.cloud.catalog.catalog import LIST_DAYS, PROVIDERS
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.cloud.catalog.types import Fetched, Listing, Stock
from scavenger.control.provisioning.prices import cache_path, open_catalog
from scavenger.domain.job import JobSpec
from scavenger.errors import CloudUnavailableError, ConfigurationError, CredentialsError, ScavengerError

__all__ = ["REFRESH_VARIABLE", "refresh_catalog", "refresh_if_old"]

REFRESH_VARIABLE = "SCAVENGER_PRICE_REFRESH"
"""Environment variable; `never` keeps jobs from fetching prices, as on a machine without a way to the internet."""
SPOT_DAYS = 1
"""Age from which a job that may use spot VMs refreshes their prices; EC2's move by the hour, most of them little."""


def refresh_catalog(provider: str, regions: Iterable[str], *, now: datetime) -> Fetched:
    """Fetch the current prices of a cloud and save them; without an account, those of the public table if newer.

    Args:
        provider: `gcp` (all its regions come at once) or `aws`.
        regions: Regions of AWS to fetch.

    Returns:
        The fetched prices, and the errors of sources that gave nothing; what these gave earlier is kept.

    Raises:
        CloudError, ConfigurationError: See `fetch_aws` and `fetch_gcp`; earlier prices are kept.
    """
    cached = read_cache(cache_path())
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
    write_cache(cache_path(), fetched.stock.over(cached))
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


def _newest(listings: Iterable[Listing]) -> date:
    return max((one.on_demand.dated for one in listings if one.on_demand is not None), default=date.min)


def refresh_if_old(
    job: JobSpec, environment: Mapping[str, str] = os.environ, *, now: datetime | None = None
) -> tuple[str, ...]:
    """Refresh the prices of the job's region if they are too old to plan with; a failure leaves them as they are.

    Nothing is fetched if the user's own prices cover the VM types that the job names.

    Returns:
        Messages for the user.

    Raises:
        ConfigurationError: If the known prices cannot be read.
    """
    now = now or datetime.now(UTC)
    provider, region = job.infra.provider, job.infra.region
    if provider not in PROVIDERS:
        return ()  # its prices are the user's settings
    catalog = open_catalog(environment, today=now.date())
    vms = () if job.resources is None else job.resources.vms
    kinds = (False,) if job.spot == "never" else (False, True)
    if environment.get(REFRESH_VARIABLE) == "never" or (
        vms and all(catalog.is_own(provider, region, vm, spot=spot) for vm in vms for spot in kinds)
    ):
        return ()
    age_days = catalog.age_days(provider, region, spot=kinds[-1])
    if age_days is not None and age_days < (LIST_DAYS if job.spot == "never" else SPOT_DAYS):
        return ()
    try:
        fetched = refresh_catalog(provider, (region,), now=now)
    except ScavengerError as error:
        return (f"the prices of {provider}/{region} could not be refreshed: {error}",)
    notes = [f"the prices of {provider}/{region} were refreshed"]
    notes += [f"not all of the prices could be refreshed: {error}" for error in fetched.errors]
    return tuple(notes)
