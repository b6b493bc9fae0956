"""EC2's machine types and prices as Amazon gives them now, with how often spot VMs are interrupted."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from scavenger.cloud.catalog.ec2 import ec2_machine
from scavenger.cloud.stock import CatalogEntry, Extras, Fetched, MachineType, Place, Stock
from scavenger.domain.cost import Price, TrafficPrice
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
_ADDRESS = {"group": "VPCPublicIPv4Address"}
"""What the price list has of public addresses; of VMs are those whose usage type is `InUseAddress`."""
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

    Credentials are boto3's; they must allow `ec2:DescribeInstanceTypes`, `ec2:DescribeSpotPriceHistory` and
    `pricing:GetProducts`.

    Args:
        known: What is known already: it stays where a source gives nothing.
        environment: Where `SCAVENGER_SPOT_ADVISOR` is looked up.

    Raises:
        ConfigurationError: If boto3 is not installed, or there is no such region.
        CredentialsError, ThrottledError, CloudUnavailableError: If no region has types or prices.
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

    listings: dict[Place, dict[str, CatalogEntry]] = {}
    extras: dict[Place, Extras] = {}
    for region in regions:
        place = ("aws", region)
        prices = tried(partial(_list_prices, session, config, region, now))
        machines = tried(partial(_machines, session, config, region))
        spot = tried(partial(_spot_prices, session, config, region, now))
        if any(source is not None for source in (machines, prices, spot)):
            listings[place] = merged(known.listings.get(place, {}), machines, prices, spot, region)
        if prices is not None and (found := tried(partial(_extras, session, config, region, now))):
            extras[place] = found
    if not listings:
        raise errors[0]
    advisor = tried(lambda: _read_advisor(environment.get(ADVISOR_VARIABLE) or ADVISOR_URL))
    if advisor is not None:
        for (_, region), listed in listings.items():
            for name, listing in listed.items():
                listed[name] = replace(listing, interruption=_interruption(advisor, region, name))
    return Fetched(Stock(listings, extras=extras), tuple(errors))


def _machines(session: Any, config: Any, region: str) -> dict[str, MachineType]:
    found: dict[str, MachineType] = {}
    with _our_errors(region):
        client = session.client("ec2", region_name=region, config=config)
        for page in client.get_paginator("describe_instance_types").paginate():
            found.update(
                (machine.name, machine) for machine in map(ec2_machine, page.get("InstanceTypes", ()))
            )
    if not found:
        raise CloudUnavailableError(f"aws {region}: what answers lists no machine types")
    return found


def _list_prices(session: Any, config: Any, region: str, now: datetime) -> dict[str, Price]:
    with _our_errors(region):
        pricing = session.client("pricing", region_name=_PRICING_REGION, config=config)
        prices = parse_price_list(price_list(pricing, region, _FILTERS), region, now)
    if not prices:
        raise ConfigurationError(f"AWS's price list has nothing for a region '{region}'")
    return prices


def _extras(session: Any, config: Any, region: str, now: datetime) -> Extras:
    with _our_errors(region):
        pricing = session.client("pricing", region_name=_PRICING_REGION, config=config)
        return parse_extras(
            price_list(pricing, region, _DISK),
            price_list(pricing, region, _ADDRESS, service="AmazonVPC"),
            list(price_list(pricing, region, {}, service="AWSDataTransfer", of="fromRegionCode")),
            region,
            now,
        )


def _spot_prices(session: Any, config: Any, region: str, now: datetime) -> dict[str, Price]:
    with _our_errors(region):
        return price_history(session.client("ec2", region_name=region, config=config), now)


def merged(
    known: Mapping[str, CatalogEntry],
    machines: Mapping[str, MachineType] | None,
    prices: Mapping[str, Price] | None,
    spot: Mapping[str, Price] | None,
    region: str,
) -> dict[str, CatalogEntry]:
    """The types that are sold, with their prices; of a source that gave nothing, what is known."""
    machines = {name: listing.machine for name, listing in known.items()} if machines is None else machines
    merged = {}
    for name, machine in machines.items():
        before = known.get(name, CatalogEntry(machine, region))
        merged[name] = CatalogEntry(
            machine,
            region,
            before.on_demand if prices is None else prices.get(name),
            before.spot if spot is None else spot.get(name),
            before.interruption,
        )
    return merged


def price_list(
    pricing: Any,
    region: str,
    filters: Mapping[str, str],
    *,
    service: str = "AmazonEC2",
    of: str = "regionCode",
) -> Iterator[Mapping[str, Any]]:
    """Products of a service in a region, each a document of product and terms; `of` is their region's attribute."""
    wanted = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in (*filters.items(), (of, region))]
    for page in pricing.get_paginator("get_products").paginate(ServiceCode=service, Filters=wanted):
        if "PriceList" not in page:
            raise CloudUnavailableError(f"aws {region}: what answers is not AWS's price list")
        for text in page["PriceList"]:
            yield json.loads(text)


def parse_price_list(products: Iterable[Mapping[str, Any]], region: str, now: datetime) -> dict[str, Price]:
    """On-demand prices by type.

    What a filter let through that is not a plain Linux VM is left out, as are prices of 0. Of two prices of one type
    the higher is taken, so that nothing costs more than was said.
    """
    found: dict[str, float] = {}
    for attributes, usd in _rates(products, {**_FILTERS, "regionCode": region}, "Hrs"):
        if name := attributes.get("instanceType"):
            found[name] = max(usd, found.get(name, 0.0))
    return {name: Price(usd, "AWS price list", now.date()) for name, usd in found.items() if usd > 0}


def parse_extras(
    disks: Iterable[Mapping[str, Any]],
    addresses: Iterable[Mapping[str, Any]],
    traffic: Sequence[Mapping[str, Any]],
    region: str,
    now: datetime,
) -> Extras:
    """What a region charges for besides VMs, the highest found of each: of tiers the first, of regions the dearest.

    Traffic between zones is charged to the sending and to the receiving VM.
    """
    dated, of, sent = now.date(), {"regionCode": region}, {"fromRegionCode": region}
    disk = _highest(disks, {**_DISK, **of}, "GB-Mo")
    address = _highest(addresses, {**_ADDRESS, **of}, "Hrs", "PublicIPv4:InUseAddress")
    within = _highest(traffic, {**sent, "transferType": "IntraRegion"}, "GB", "DataTransfer-Regional-Bytes")
    far = {**sent, "transferType": "InterRegion Outbound", "toLocationType": "AWS Region"}
    regions = _highest(traffic, far, "GB", "AWS-Out-Bytes")
    out = {**sent, "transferType": "AWS Outbound", "toLocation": "External"}
    internet = _highest(traffic, out, "GB", "DataTransfer-Out-Bytes")
    public = Price(address, "AWS price list, public IPv4", dated) if address else None
    return Extras(
        Price(disk / _MONTH_H, "AWS price list, gp3", dated) if disk else None,
        public,
        public,
        TrafficPrice(2.0 * within, "AWS price list, out of a zone and in", dated) if within else None,
        TrafficPrice(regions, "AWS price list, dearest region", dated) if regions else None,
        TrafficPrice(internet, "AWS price list, first tier", dated) if internet else None,
    )


def _highest(
    products: Iterable[Mapping[str, Any]], wanted: Mapping[str, str], unit: str, usage: str = ""
) -> float:
    """The highest price of what has these attributes and such a usage type; 0 if there is none."""
    found = _rates(products, wanted, unit)
    return max((usd for one, usd in found if one.get("usagetype", "").endswith(usage)), default=0.0)


def _rates(
    products: Iterable[Mapping[str, Any]], wanted: Mapping[str, str], unit: str
) -> Iterator[tuple[Mapping[str, str], float]]:
    """(Attributes, dollars for a unit) of the products that have these attributes."""
    for document in products:
        try:
            attributes = document["product"]["attributes"]
            if all(attributes[key] == value for key, value in wanted.items()):
                for term in document["terms"]["OnDemand"].values():
                    for dimension in term["priceDimensions"].values():
                        if dimension["unit"] == unit:
                            yield attributes, float(dimension["pricePerUnit"]["USD"])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # nothing that a job could run on, or no price in dollars


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
