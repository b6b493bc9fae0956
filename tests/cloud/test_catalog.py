"""The catalogue: machine types, prices, where they come from, and what is offered to the search."""

from __future__ import annotations

import csv
import math
from datetime import date
from pathlib import Path

import pytest

from scavenger.cloud.catalog.catalog import DEFAULT_REGIONS, Catalog
from scavenger.cloud.catalog.compute_engine import Tariff
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.cloud.stock import GIB, CatalogEntry, MachineType, Stock, VmRequirements
from scavenger.domain.cost import Price
from scavenger.domain.job import ResourcesSpec
from scavenger.domain.ranges import Amount
from scavenger.errors import ConfigurationError

SECOND_SOURCE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "catalog"
needs_second_source = pytest.mark.skipif(
    not SECOND_SOURCE.is_dir(), reason="the second source of prices is not beside the checkout"
)
DAY = date(2026, 11, 20)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(read_snapshot(), today=DAY)


def rows(name: str) -> list[dict[str, str]]:
    with (SECOND_SOURCE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_papers_vm_has_the_papers_price(catalog: Catalog) -> None:
    price = catalog.price("gcp", "us-central1", "e2-standard-4")

    assert price.usd_per_hour == pytest.approx(0.13402, rel=1e-4)
    assert str(price) == "Cloud Billing API by gcosts, 2026-07-16"


def test_no_known_price_is_zero_and_every_one_has_source_and_date(catalog: Catalog) -> None:
    count = 0
    for provider in DEFAULT_REGIONS:
        for region in catalog.regions(provider):
            for listing in catalog.listings(provider, region):
                for price in (listing.on_demand, listing.spot):
                    if price is not None:
                        assert price.usd_per_hour > 0
                        assert price.source
                        assert date(2025, 3, 1) < price.dated < DAY
                        count += 1
    assert count > 30_000


@pytest.mark.parametrize(
    ("vm", "gpu", "gpus", "usd"),
    [
        ("p4d.24xlarge", "A100", 8, 21.9576),
        ("p4de.24xlarge", "A100-80GB", 8, 27.4471),
        ("p5.48xlarge", "H100", 8, 55.04),
        ("p5.4xlarge", "H100", 1, 6.88),
        ("p5en.48xlarge", "H200", 8, 63.296),
        ("p6-b200.48xlarge", "B200", 8, 113.933),
        ("p6-b300.48xlarge", "B300", 8, 142.416),
        ("g7e.2xlarge", "RTX-PRO-6000", 1, 3.36312),
        ("m8i.xlarge", "", 0, 0.21168),
        ("m8a.xlarge", "", 0, 0.24344),
        ("r8i.xlarge", "", 0, 0.27784),
    ],
)
def test_the_snapshot_has_the_machines_of_today(
    catalog: Catalog, vm: str, gpu: str, gpus: int, usd: float
) -> None:
    listing = catalog.listing("aws", "us-east-1", vm)

    assert (listing.machine.accelerator, listing.machine.accelerators) == (gpu, gpus)
    assert listing.on_demand == Price(usd, "AWS price list by Karpenter", date(2026, 7, 20))


def test_a_price_that_is_known_to_be_wrong_is_not_in_the_snapshot(catalog: Catalog) -> None:
    """AWS lowered those of P4 and P5 in June 2025; of P5e and Trn2 no price is known."""
    for vm in ("p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge", "p5e.48xlarge"):
        assert catalog.listing("aws", "us-west-2", vm).on_demand is None
    trainium = catalog.listing("aws", "us-east-2", "trn2.48xlarge")
    assert (trainium.on_demand, trainium.machine.caveat) == (None, "accelerators that are not used")


def test_a_gpu_has_one_name_at_both_clouds(catalog: Catalog) -> None:
    google = {one.machine.name: one.machine for one in catalog.listings("gcp", "us-east4")}

    assert google["a3-highgpu-8g"].accelerator == google["a3-megagpu-8g"].accelerator == "H100"
    assert google["a2-ultragpu-1g"].accelerator == "A100-80GB"
    assert catalog.listing("gcp", "us-central1", "g4-standard-48").machine.accelerator == "RTX-PRO-6000"
    part = catalog.listing("gcp", "us-central1", "g4-standard-6").machine
    assert (part.accelerators, part.caveat) == (0, "a part of a GPU")


def test_a_spot_vm_is_never_dearer_than_one_on_demand(catalog: Catalog) -> None:
    both = [
        (listing.spot.usd_per_hour, listing.on_demand.usd_per_hour)
        for listing in catalog.listings("gcp", "us-central1")
        if listing.spot and listing.on_demand
    ]
    assert len(both) > 80
    assert all(spot < on_demand for spot, on_demand in both)


def test_listings_are_sorted_by_price_with_the_unknown_last(catalog: Catalog) -> None:
    prices = [
        listing.on_demand.usd_per_hour if listing.on_demand else math.inf
        for listing in catalog.listings("aws", "us-west-2")
    ]
    assert prices == sorted(prices)
    assert math.isinf(prices[-1])


def test_a_custom_type_costs_its_parts(catalog: Catalog) -> None:
    rates = catalog.rates("us-central1", "n2_custom")
    price = catalog.price("gcp", "us-central1", "n2-custom-4-16384")

    assert price.usd_per_hour == pytest.approx(4 * rates.usd_per_cpu_hour + 16 * rates.usd_per_gib_hour)
    extended = catalog.price("gcp", "us-central1", "n2-custom-4-40960-ext").usd_per_hour
    plain = catalog.price("gcp", "us-central1", "n2-custom-4-32768").usd_per_hour
    assert extended > plain + 8 * rates.usd_per_gib_hour  # memory above 8 GiB per vCPU is dearer


@pytest.mark.parametrize(
    "name",
    [
        "n2-custom-3-8192",
        "n2-custom-4-1000",
        "n2-custom-4-40960",
        "e2-custom-64-65536",
        "e2-custom-2-32768-ext",
    ],
)
def test_a_custom_type_that_google_does_not_sell_does_not_exist(name: str) -> None:
    assert Tariff({}).custom(name, "us-central1") is None


def test_a_rate_that_the_snapshot_gives_to_two_families_is_one_familys_only(catalog: Catalog) -> None:
    """In libcloud's table, `n1_custom` memory in us-central1 is the SKU of N2D's custom types."""
    catalog.rates("us-central1", "n2d_custom")
    with pytest.raises(ConfigurationError, match="no known rates of 'n1_custom'"):
        catalog.rates("us-central1", "n1_custom")
    with pytest.raises(ConfigurationError, match="custom-4-8192 in gcp/us-central1 is not known"):
        catalog.price("gcp", "us-central1", "custom-4-8192")


# Against the tables that it is made of.


@needs_second_source
def test_sizes_of_ec2_types_equal_the_second_source(catalog: Catalog) -> None:
    theirs = {
        r["instance_type"]: (int(r["vcpus"]), float(r["memory_gib"]), float(r["accelerator_count"] or 0))
        for r in rows("aws_vms.csv")
    }
    ours = {
        listing.machine.name: listing.machine
        for region in catalog.regions("aws")
        for listing in catalog.listings("aws", region)
    }
    common = sorted(set(ours) & set(theirs))
    differ = []
    for name in common:
        machine = ours[name]
        cpus, memory, gpus = theirs[name]
        same_gpus = machine.accelerators == gpus or machine.caveat == "accelerators that are not used"
        if machine.cpus != cpus or machine.memory_gib != pytest.approx(memory, abs=0.01) or not same_gpus:
            differ.append(name)

    assert len(common) > 1300
    assert differ == []


@needs_second_source
@pytest.mark.parametrize("table", ["aws_vms.csv", "gcp_vms.csv"])
def test_prices_are_those_of_the_tables_with_their_dates(catalog: Catalog, table: str) -> None:
    provider = table[:3]
    ours = {
        (listing.machine.name, region): listing.on_demand
        for region in catalog.regions(provider)
        for listing in catalog.listings(provider, region)
    }
    compared = 0
    for row in rows(table):
        price = ours.get((row["instance_type"], row["region"]))
        if price is not None:
            compared += 1
            assert price.usd_per_hour == pytest.approx(float(row["price_hour"]), rel=1e-9)
            assert price.dated.isoformat() == row["price_date"]
            assert row["price_basis"] == "corrected" or "corrected" not in price.source
    assert compared > 12_000


# Offers.


def small(*machines: tuple[MachineType, float | None, float | None], region: str = "r-1") -> Catalog:
    def price(usd: float | None) -> Price | None:
        return None if usd is None else Price(usd, "a list", DAY)

    table = {
        m.name: CatalogEntry(m, region, price(on_demand), price(spot)) for m, on_demand, spot in machines
    }
    return Catalog(Stock({("aws", region): table}), today=DAY)


PLAIN = MachineType("aws", "m9.xlarge", 4, 16.0)
LARGE = MachineType("aws", "m9.2xlarge", 8, 32.0)
GPUS = MachineType("aws", "g9.12xlarge", 48, 192.0, "T4", 4)
SLOW = MachineType("aws", "t9.xlarge", 4, 16.0, caveat="burstable")
UNKNOWN = MachineType("aws", "c9.xlarge", 4, 8.0)
SHOP = small(
    (PLAIN, 0.2, 0.05), (LARGE, 0.4, 0.3), (GPUS, 4.0, None), (SLOW, 0.1, 0.03), (UNKNOWN, None, None)
)


def test_an_offer_says_what_it_costs_by_whom_and_when() -> None:
    (offer,) = SHOP.offers("aws", "r-1", VmRequirements(vms=("m9.xlarge",)), spot=True)

    assert (offer.provider, offer.region, offer.vm, offer.spot) == ("aws", "r-1", "m9.xlarge", True)
    assert (offer.price_usd_per_hour, offer.price_source) == (0.05, "a list, 2026-11-20")
    assert (offer.cpus, offer.memory_bytes, offer.workers_per_vm) == (4, 16 * GIB, 1)


def test_a_vm_with_gpus_holds_a_worker_for_each() -> None:
    (offer,) = SHOP.offers("aws", "r-1", VmRequirements(accelerator="t4"))

    assert (offer.vm, offer.workers_per_vm) == ("g9.12xlarge", 4)


def test_a_spot_price_from_long_ago_is_shown_but_not_decided_by(catalog: Catalog) -> None:
    listing = catalog.listing("gcp", "us-central1", "e2-standard-4")
    assert listing.spot is not None
    with pytest.raises(
        ConfigurationError, match=r"spot price of e2-standard-4 .* days old, too old to decide by"
    ):
        catalog.price("gcp", "us-central1", "e2-standard-4", spot=True)
    with pytest.raises(ConfigurationError, match=r"no spot VM with cpus 4; .* no known price of late"):
        catalog.offers("gcp", "us-central1", VmRequirements(cpus=Amount(4)), spot=True)


def test_offers_are_what_was_asked_for_cheapest_first_and_steady() -> None:
    assert [o.vm for o in SHOP.offers("aws", "r-1")] == ["m9.xlarge", "m9.2xlarge", "g9.12xlarge"]
    wanted = VmRequirements.of(ResourcesSpec(cpus=Amount(8, or_more=True), memory=Amount(32)))
    assert [o.vm for o in SHOP.offers("aws", "r-1", wanted)] == ["m9.2xlarge"]
    named = VmRequirements.of(ResourcesSpec(any_of=("m9.xlarge", "t9.xlarge")))
    assert [o.vm for o in SHOP.offers("aws", "r-1", named)] == ["t9.xlarge", "m9.xlarge"]


@pytest.mark.parametrize(
    ("place", "wanted", "spot", "complaint"),
    [
        (
            ("aws", "r-1"),
            VmRequirements(vms=("c9.xlarge",)),
            False,
            "the price of c9.xlarge in aws/r-1 is not known: run",
        ),
        (
            ("aws", "r-1"),
            VmRequirements(vms=("g9.12xlarge",)),
            True,
            "the spot price of g9.12xlarge .* is not known",
        ),
        (
            ("aws", "r-1"),
            VmRequirements(vms=("m9.xlrge",)),
            False,
            "no VM type 'm9.xlrge' .*; did you mean 'm9.xlarge'",
        ),
        (("aws", "r-1"), VmRequirements(cpus=Amount(5)), False, "offers no VM with cpus 5$"),
        (
            ("aws", "r-1"),
            VmRequirements(memory=Amount(8)),
            False,
            "no VM with memory 8 GiB; 1 would do, but have no known",
        ),
        (("aws", "r-2"), None, False, "aws has no region 'r-2' .*; did you mean 'r-1'"),
        (("azure", "r-1"), None, False, "the catalogue has gcp, aws, not 'azure'"),
    ],
)
def test_what_cannot_be_offered_is_an_error_that_says_why(
    place: tuple[str, str], wanted: VmRequirements | None, spot: bool, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        SHOP.offers(*place, wanted, spot=spot)


def test_a_refreshed_region_is_all_there_is_of_it() -> None:
    """A type that the cloud does not list any more is not sold at its old price."""

    def stock(region: str, machine: MachineType, usd: float) -> Stock:
        entry = CatalogEntry(machine, region, Price(usd, "x", DAY))
        return Stock({("aws", region): {machine.name: entry}})

    merged = stock("r-1", PLAIN, 0.3).over(
        Stock({**stock("r-1", LARGE, 0.5).listings, **stock("r-2", LARGE, 0.6).listings})
    )
    catalog = Catalog(merged, today=DAY)

    assert [one.machine.name for one in catalog.listings("aws", "r-1")] == ["m9.xlarge"]
    assert [one.machine.name for one in catalog.listings("aws", "r-2")] == ["m9.2xlarge"]


@pytest.mark.parametrize(
    ("words", "bound"), [("<5%", 0.05), ("5-10%", 0.1), ("15-20%", 0.2), (">20%", None), ("", None)]
)
def test_a_bucket_without_upper_end_bounds_nothing(words: str, bound: float | None) -> None:
    assert CatalogEntry(PLAIN, "r-1", interruption=words).interrupted_monthly == bound


def test_a_boot_disk_on_compute_engine_is_a_balanced_one() -> None:
    price = Catalog(read_snapshot(), today=date(2026, 1, 1)).extras("gcp", "us-central1").disk

    assert price is not None
    assert price.usd_per_hour == pytest.approx(0.1 / 730, rel=0.05)
    assert "2.5 times a standard disk's" in price.source
