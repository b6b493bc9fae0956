"""Refreshes the user's prices when a job meets some that are too old to plan with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from scavenger.cloud.catalog.catalog import PROVIDERS
from scavenger.cloud.catalog.refresh import refresh_catalog
from scavenger.cloud.stock import Fetched
from scavenger.control.provisioning.prices import cache_path, open_catalog
from scavenger.control.provisioning.providers import project_of
from scavenger.domain.cost import LIST_DAYS
from scavenger.domain.job import JobSpec
from scavenger.errors import ScavengerError

REFRESH_VARIABLE = "SCAVENGER_PRICE_REFRESH"
"""Environment variable; `never` keeps jobs from fetching prices, as on a machine without a way to the internet."""
SPOT_DAYS = 1
"""Age from which a job that may use spot VMs refreshes their prices; EC2's move by the hour, most of them little."""


def refresh_prices(
    provider: str,
    regions: Iterable[str],
    environment: Mapping[str, str] = os.environ,
    *,
    now: datetime | None = None,
) -> Fetched:
    """Fetch the machine types and prices of some regions into the user's cache; see `refresh_catalog`.

    Raises:
        ConfigurationError: If no project of Google Cloud is named, whose machine types could be asked for.
    """
    project = project_of(environment) if provider == "gcp" else ""
    return refresh_catalog(
        provider, regions, project=project, cache=cache_path(), now=now or datetime.now(UTC)
    )


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
        fetched = refresh_prices(provider, (region,), environment, now=now)
    except ScavengerError as error:
        return (f"the prices of {provider}/{region} could not be refreshed: {error}",)
    notes = [f"the prices of {provider}/{region} were refreshed"]
    notes += [f"not all of the prices could be refreshed: {error}" for error in fetched.errors]
    return tuple(notes)
