"""Compute Engine's rates as Google gives them now, from the Cloud Billing API."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from scavenger.cloud.catalog.types import Fetched, RateKey, Stock
from scavenger.domain.cost import Price
from scavenger.errors import (
    CloudError,
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
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
_MONTH_H = 730.0
_SOURCE = "Cloud Billing API"

_KIND = re.compile(r"(?:Spot )?(?:Preemptible )?(?P<what>.+?)(?: running)? in .+")
_PARTS = re.compile(r"(?P<group>.+) (?P<part>core|ram)")
_GROUPS = {
    "n1 predefined instance": ("n1",),
    "e2 instance": ("e2", "e2_custom"),
    "e2 custom instance": ("e2_custom",),
    "n2 instance": ("n2",),
    "n2d amd instance": ("n2d",),
    "compute optimized": ("c2",),
    "compute optimized instance": ("c2",),
    "c2d amd instance": ("c2d",),
    "c3 instance": ("c3",),
    "t2d amd instance": ("t2d",),
    "memory-optimized instance": ("m1",),
    "a2 instance": ("a2",),
    "g2 instance": ("g2",),
    "custom instance": ("n1_custom",),
    "n2 custom instance": ("n2_custom",),
    "n2d amd custom instance": ("n2d_custom",),
    "custom extended instance": ("n1_custom_extended",),
    "n2 custom extended instance": ("n2_custom_extended",),
    "n2d amd custom extended instance": ("n2d_custom_extended",),
}
"""Google's words for a family, without place and part. E2 charges its custom types like the others."""
_WHOLES = {
    "micro instance with burstable cpu": ("f1", "cpu"),
    "small instance with 1 vcpu": ("g1", "cpu"),
    "nvidia tesla a100 gpu": ("A100", "gpu"),
    "nvidia tesla a100 80gb gpu": ("A100-80GB", "gpu"),
    "nvidia l4 gpu": ("L4", "gpu"),
}
_UNITS = {"cpu": "h", "gpu": "h", "ram": "GiBy.h"}
_USAGES = {"OnDemand": False, "Preemptible": True}


def fetch_gcp(*, now: datetime, environment: Mapping[str, str] = os.environ) -> Fetched:
    """The rates of all regions, with the application default credentials.

    Args:
        now: Dates them.
        environment: Where `SCAVENGER_GCP_BILLING_ENDPOINT` is looked up.

    Raises:
        ConfigurationError: If Google's client library is not installed.
        CredentialsError, ThrottledError, CloudUnavailableError: As the names say.
    """
    try:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession

        from scavenger.cloud.gcp.errors import translated_errors
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
            return Fetched(parse_skus(skus(session, url or BILLING_URL), now))


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


def parse_skus(found: Iterable[Mapping[str, Any]], now: datetime) -> Stock:
    """Rates and disks from SKUs; commitments, sole tenancy, other currencies and what costs 0 are left out.

    Of two rates of one kind the higher is taken, so that nothing costs more than was said.

    Raises:
        CloudUnavailableError: If there is no rate at all in what was found.
    """
    rates: dict[RateKey, Price] = {}
    disks: dict[tuple[str, str], Price] = {}
    for sku in found:
        try:
            spot = _USAGES[sku["category"]["usageType"]]
            expression = sku["pricingInfo"][-1]["pricingExpression"]
            unit, usd = (
                expression["usageUnit"],
                max(_usd(rate["unitPrice"]) for rate in expression["tieredRates"]),
            )
            match = _KIND.fullmatch(sku["description"])
            what = (match["what"] if match else sku["description"]).lower()
            regions = sku["serviceRegions"]
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # commitments and fees, which have no such parts
        if not usd > 0:
            continue
        if what == "balanced pd capacity" and unit == "GiBy.mo" and not spot:
            for region in regions:
                disks["gcp", region] = Price(usd / _MONTH_H, _SOURCE, now.date())
        for family, resource in _kinds(what):
            for region in regions if unit == _UNITS[resource] else ():
                key = family, resource, region, spot
                if key not in rates or rates[key].usd_per_hour < usd:
                    rates[key] = Price(usd, _SOURCE, now.date())
    if not rates:
        raise CloudUnavailableError("Google Cloud's price list has no rate of a known machine family")
    return Stock(rates=rates, disks=disks)


def _kinds(what: str) -> tuple[tuple[str, str], ...]:
    if what in _WHOLES:
        return (_WHOLES[what],)
    match = _PARTS.fullmatch(what)
    if match is None:
        return ()
    return tuple(
        (family, {"core": "cpu", "ram": "ram"}[match["part"]]) for family in _GROUPS.get(match["group"], ())
    )


def _usd(price: Mapping[str, Any]) -> float:
    if price["currencyCode"] != "USD":
        raise ValueError("not in US dollars")
    return int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
