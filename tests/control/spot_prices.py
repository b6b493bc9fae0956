"""A few of EC2's types in us-east-1, with list prices of 2026-07-20 and the Spot Advisor's figures of 2025-07-28.

Of the Spot Advisor only savings are published, so that a spot price is the list price less the saving.
"""

from __future__ import annotations

from datetime import date

from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.stock import CatalogEntry, Extras, MachineType, Stock
from scavenger.domain.cost import Price, TrafficPrice

REGION = "us-east-1"
TODAY = date(2026, 7, 20)
LIST, ADVISOR = "AWS price list", "AWS Spot Advisor"
DISK_USD_PER_GIB_HOUR = 0.08 / 730
"""gp3."""

_TYPES = (
    ("c5.large", 2, 4.0, 0, 0.085, 0.03485, "<5%"),
    ("c5.xlarge", 4, 8.0, 0, 0.17, 0.0748, "<5%"),
    ("c5.2xlarge", 8, 16.0, 0, 0.34, 0.1496, "5-10%"),
    ("m5.xlarge", 4, 16.0, 0, 0.192, 0.06528, ">20%"),
    ("g4dn.xlarge", 4, 16.0, 1, 0.526, 0.18936, "15-20%"),
    ("g4dn.2xlarge", 8, 32.0, 1, 0.752, 0.29328, ">20%"),
    ("g4dn.12xlarge", 48, 192.0, 4, 3.912, None, ""),
    ("t3.xlarge", 4, 16.0, 0, 0.1664, 0.0616, "<5%"),
    ("c5.4xlarge", 16, 32.0, 0, 0.68, 0.2788, "5-10%"),
)


def listing(
    vm: str, cpus: int, memory_gib: float, gpus: int, usd: float, spot_usd: float | None, taken: str
) -> CatalogEntry:
    caveat = "burstable: slows down when its credits are used up" if vm.startswith("t3") else ""
    return CatalogEntry(
        MachineType("aws", vm, cpus, memory_gib, "T4" if gpus else "", gpus, caveat),
        REGION,
        Price(usd, LIST, TODAY),
        None if spot_usd is None else Price(spot_usd, ADVISOR, TODAY),
        taken,
    )


def catalog(*more: CatalogEntry, today: date = TODAY) -> Catalog:
    """These types, and whatever else is given."""
    machines = {one.machine.name: one for one in (*(listing(*row) for row in _TYPES), *more)}
    address = Price(0.005, LIST, TODAY)
    extras = Extras(
        Price(DISK_USD_PER_GIB_HOUR, LIST, TODAY), address, address, TrafficPrice(0.02, LIST, TODAY)
    )
    return Catalog(Stock({("aws", REGION): machines}, {}, {("aws", REGION): extras}), today=today)
