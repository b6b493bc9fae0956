"""Compute Engine's machine types and prices as Google gives them now, from its API and the Cloud Billing API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from scavenger.cloud.catalog.compute_engine import GoogleType, Tariff, read_skus
from scavenger.cloud.stock import CatalogEntry, Fetched, Place, Stock
from scavenger.errors import (
    CloudError,
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    ScavengerError,
    ThrottledError,
)

BILLING_URL = "https://cloudbilling.googleapis.com"
BILLING_VARIABLE = "SCAVENGER_GCP_BILLING_ENDPOINT"
"""Where to ask in Google's place, without credentials: for tests."""
_COMPUTE_ENGINE = "6F81-5844-456A"
"""The service's public id."""
_SCOPE = "https://www.googleapis.com/auth/cloud-billing.readonly"
_PAGE = 5000
_TIMEOUT_S = 60


def fetch_gcp(
    regions: Iterable[str],
    *,
    project: str,
    now: datetime,
    environment: Mapping[str, str] = os.environ,
) -> Fetched:
    """All types of some regions with their prices, and the rates of all regions.

    Credentials are the application default ones.

    Args:
        project: Whose machine types are asked for; it must allow `compute.machineTypes.list` and `compute.zones.list`.
        now: Dates the prices.
        environment: Where `SCAVENGER_GCP_BILLING_ENDPOINT` is looked up.

    Raises:
        ConfigurationError: If Google's client library is not installed, or there is no such region.
        CredentialsError, ThrottledError, CloudUnavailableError: As the names say.
    """
    try:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession

        from scavenger.cloud.gcp.errors import translated_errors
        from scavenger.cloud.gcp.machine_types import machine_types
        from scavenger.cloud.gcp.provider import GcpProvider
    except ImportError as error:
        raise ConfigurationError(
            "refreshing Google Cloud needs its library: pip install 'scavenger-ml[gcp]'"
        ) from error
    with translated_errors("reading Google Cloud's price list", region="global", location="global"):
        url = environment.get(BILLING_VARIABLE, "")
        credentials: Any = (
            AnonymousCredentials()  # type: ignore[no-untyped-call]
            if url
            else google.auth.default(scopes=[_SCOPE])[0]
        )
        with AuthorizedSession(credentials) as session:  # type: ignore[no-untyped-call]
            rates, extras = read_skus(skus(session, url or BILLING_URL), now.date())
    if not rates:
        raise CloudUnavailableError("Google Cloud's price list has no rate of a machine family")
    tariff = Tariff(rates)
    listings: dict[Place, dict[str, CatalogEntry]] = {}
    errors: list[ScavengerError] = []
    for region in regions:
        try:
            kinds = machine_types(GcpProvider(project, region, environment=environment))
        except ScavengerError as error:
            errors.append(error)
            continue
        listings["gcp", region] = {kind.name: tariff.listing(_type_of(kind), region) for kind in kinds}
    if not listings:
        raise errors[0]
    return Fetched(Stock(listings, rates, extras), tuple(errors))


def _type_of(kind: Any) -> GoogleType:
    gpu = kind.accelerators[0] if kind.accelerators else None
    return GoogleType(
        kind.name,
        kind.guest_cpus,
        kind.memory_mb / 1024,
        gpu=gpu.guest_accelerator_type if gpu else "",
        gpus=gpu.guest_accelerator_count if gpu else 0,
        ssds=kind.bundled_local_ssds.partition_count,
        shared_core=kind.is_shared_cpu,
        arm=kind.architecture == "ARM64",
    )


def skus(session: Any, url: str) -> Iterator[Mapping[str, Any]]:
    """Every SKU of Compute Engine, page after page.

    Raises:
        CredentialsError, ThrottledError, CloudUnavailableError: As the names say.
    """
    token = ""
    while True:
        answer = session.get(
            f"{url}/v1/services/{_COMPUTE_ENGINE}/skus",
            params={"pageSize": _PAGE, **({"pageToken": token} if token else {})},
            timeout=_TIMEOUT_S,
        )
        _check(answer)
        try:
            page = answer.json()
            yield from page["skus"]
            token = page.get("nextPageToken", "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CloudUnavailableError(
                f"Google Cloud's price list is not what it should be: {error!r}"
            ) from error
        if not token:
            return


def _check(answer: Any) -> None:
    if answer.status_code == 200:
        return
    try:
        words = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        words = answer.reason
    said = f"{answer.status_code}: {words}"
    if answer.status_code in (401, 403):
        raise CredentialsError(
            f"Google Cloud refuses these credentials ({said}); `gcloud auth application-default login` makes others"
        )
    if answer.status_code == 429:
        raise ThrottledError(f"Google Cloud was asked too often ({said}); try again in a minute")
    if answer.status_code >= 500:
        raise CloudUnavailableError(f"Google Cloud failed ({said}); try again")
    raise CloudError(f"Google Cloud refused to list its prices ({said})")
