"""EC2's prices as Amazon gives them now: the price list, spot prices, and how often spot VMs are interrupted."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from scavenger.cloud.catalog.ec2 import ec2_machine
from scavenger.cloud.catalog.types import CatalogEntry, Fetched, Stock
from scavenger.domain.cost import Price
from scavenger.errors import CloudError, CloudUnavailableError, ConfigurationError

ADVISOR_URL = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
"""What Amazon's page "Spot Instance Advisor" shows; public."""
ADVISOR_VARIABLE = "SCAVENGER_SPOT_ADVISOR"
"""Where to read it instead: for tests."""
_ADVISOR_MAX_BYTES = 64 * 2**20
_CONNECT_S = 5
_TIMEOUT_S = 30
_PRICING_REGION = "us-east-1"
"""Where the price list is served, for all regions."""
_FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
"""What tells the price of a plain Linux VM from those with software, dedicated or reserved."""
_DISK = {"volumeApiName": "gp3"}
"""The kind of disk that VMs boot from."""
_MONTH_H = 730.0


Answer = TypeVar("Answer")


def fetch_aws(
    regions: Iterable[str],
    *,
    now: datetime,
    known: Stock = Stock(),  # noqa: B008 - a value
    environment: Mapping[str, str] = os.environ,
) -> Fetched:
    """All types of some regions with on-demand and spot prices and interruptions, as far as they can be had.

    Credentials are boto3's; they must allow `pricing:GetProducts` and `ec2:DescribeSpotPriceHistory`.

    Args:
        known: What is known already: it stays where a source gives nothing.
        environment: Where `SCAVENGER_SPOT_ADVISOR` is looked up.

    Raises:
        ConfigurationError: If boto3 is not installed, or there is no such region.
        CredentialsError, ThrottledError, CloudUnavailableError: If no region has list prices or spot prices.
    """
    try:
        from boto3.session import Session
        from botocore.config import Config
    except ImportError as error:
        raise ConfigurationError("refreshing AWS needs boto3: pip install 'scavenger-ml[aws]'") from error
    config = Config(connect_timeout=_CONNECT_S, read_timeout=_TIMEOUT_S, retries={"mode": "standard"})
    session = Session()
    errors: list[CloudError] = []

    def tried(source: Callable[[], Answer]) -> Answer | None:
        try:
            return source()
        except CloudError as error:
            errors.append(error)
            return None

    ec2: dict[str, dict[str, CatalogEntry]] = {}
    disks: dict[tuple[str, str], Price] = {}
    for region in regions:
        listings = tried(partial(_listings, session, config, region, now))
        spot = tried(partial(_spot_prices, session, config, region, now))
        if listings is not None or spot is not None:
            ec2[region] = merged(known.ec2.get(region, {}), listings, spot)
        if listings is not None and (disk := tried(partial(_disk_price, session, config, region, now))):
            disks["aws", region] = disk
    if not ec2:
        raise errors[0]
    advisor = tried(lambda: _read_advisor(environment.get(ADVISOR_VARIABLE) or ADVISOR_URL))
    if advisor is not None:
        ec2 = {
            region: {
                name: replace(listing, interruption=_interruption(advisor, region, name))
                for name, listing in listings.items()
            }
            for region, listings in ec2.items()
        }
    return Fetched(Stock(ec2=ec2, disks=disks), tuple(errors))


def _listings(session: Any, config: Any, region: str, now: datetime) -> dict[str, CatalogEntry]:
    with _our_errors(region):
        pricing = session.client("pricing", region_name=_PRICING_REGION, config=config)
        listings = parse_price_list(price_list(pricing, region), region, now)
    if not listings:
        raise ConfigurationError(f"AWS's price list has nothing for a region '{region}'")
    return listings


def _disk_price(session: Any, config: Any, region: str, now: datetime) -> Price | None:
    with _our_errors(region):
        pricing = session.client("pricing", region_name=_PRICING_REGION, config=config)
        return parse_disk_price(price_list(pricing, region, _DISK), region, now)


def _spot_prices(session: Any, config: Any, region: str, now: datetime) -> dict[str, Price]:
    with _our_errors(region):
        return price_history(session.client("ec2", region_name=region, config=config), now)


def merged(
    known: Mapping[str, CatalogEntry],
    listings: Mapping[str, CatalogEntry] | None,
    spot: Mapping[str, Price] | None,
) -> dict[str, CatalogEntry]:
    """The types of the new price list, or those that are known if there is none; with what is known of the rest."""
    merged = {}
    for name, listing in (known if listings is None else listings).items():
        before = known.get(name, listing)
        merged[name] = replace(
            listing,
            spot=before.spot if spot is None else spot.get(name),
            interruption=before.interruption,
        )
    return merged


def price_list(
    pricing: Any, region: str, filters: Mapping[str, str] = _FILTERS
) -> Iterator[Mapping[str, Any]]:
    """Products in a region, of plain Linux VMs or as told, each a document of product and terms."""
    wanted = [
        {"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in (*filters.items(), ("regionCode", region))
    ]
    for page in pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=wanted):
        if "PriceList" not in page:
            raise CloudUnavailableError(f"aws {region}: what answers is not AWS's price list")
        for text in page["PriceList"]:
            yield json.loads(text)


def parse_price_list(
    products: Iterable[Mapping[str, Any]], region: str, now: datetime
) -> dict[str, CatalogEntry]:
    """Types with their on-demand prices, by name.

    What a filter let through that is not a plain Linux VM is left out, as are prices of 0. Of two prices of one type
    the higher is taken, so that nothing costs more than was said.
    """
    found: dict[str, CatalogEntry] = {}
    for document in products:
        try:
            attributes = document["product"]["attributes"]
            name = attributes["instanceType"]
            plain = all(attributes[key] == value for key, value in _FILTERS.items())
            memory = float(attributes["memory"].removesuffix(" GiB").replace(",", ""))
            rates = [
                float(dimension["pricePerUnit"]["USD"])
                for term in document["terms"]["OnDemand"].values()
                for dimension in term["priceDimensions"].values()
                if dimension["unit"] == "Hrs"
            ]
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # a product without hourly price or size: nothing that a job could run on
        machine = ec2_machine(name, attributes, memory_gib=memory)
        usd = max(rates, default=0.0)
        if machine is None or not plain or attributes.get("regionCode") != region or not usd > 0:
            continue
        known = found.get(name)
        if known is None or (known.on_demand is not None and known.on_demand.usd_per_hour < usd):
            found[name] = CatalogEntry(machine, region, on_demand=Price(usd, "AWS price list", now.date()))
    return found


def parse_disk_price(products: Iterable[Mapping[str, Any]], region: str, now: datetime) -> Price | None:
    """Price of one GiB of a boot disk in an hour, the highest found; None if there is none."""
    rates = [0.0]
    for document in products:
        try:
            attributes = document["product"]["attributes"]
            if attributes["volumeApiName"] == _DISK["volumeApiName"] and attributes["regionCode"] == region:
                rates += [
                    float(dimension["pricePerUnit"]["USD"])
                    for term in document["terms"]["OnDemand"].values()
                    for dimension in term["priceDimensions"].values()
                    if dimension["unit"] == "GB-Mo"
                ]
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # no disk
    return Price(max(rates) / _MONTH_H, "AWS price list, gp3", now.date()) if max(rates) > 0 else None


def price_history(client: Any, now: datetime) -> dict[str, Price]:
    """Spot prices of plain Linux VMs now, by type: that of the dearest zone, as a VM may land in any."""
    prices: dict[str, Price] = {}
    pages = client.get_paginator("describe_spot_price_history").paginate(
        StartTime=now.astimezone(UTC), ProductDescriptions=["Linux/UNIX"]
    )
    for page in pages:
        for seen in page["SpotPriceHistory"]:
            name, usd = seen["InstanceType"], float(seen["SpotPrice"])
            if usd > 0 and (name not in prices or prices[name].usd_per_hour < usd):
                prices[name] = Price(usd, "AWS spot price, dearest zone", now.date())
    return prices


def _read_advisor(url: str) -> Mapping[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - not a user's address
            document: Mapping[str, Any] = json.loads(answer.read(_ADVISOR_MAX_BYTES))
        labels = {bucket["index"]: bucket["label"] for bucket in document["ranges"]}
        return {"labels": labels, "regions": document["spot_advisor"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CloudUnavailableError(f"{url}: interruption rates cannot be read: {error}") from error


def _interruption(advisor: Mapping[str, Any], region: str, name: str) -> str:
    entry = advisor["regions"].get(region, {}).get("Linux", {}).get(name, {})
    return str(advisor["labels"].get(entry.get("r"), ""))


@contextmanager
def _our_errors(region: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    from scavenger.cloud.aws.errors import translated

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise translated(error, region=region) from error
    except ResponseParserError as error:  # a proxy's own page
        raise CloudUnavailableError(f"aws {region}: what answers is not AWS") from error
