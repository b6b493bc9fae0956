"""Asking the clouds for their prices, against servers on this machine; and keeping what they said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from gcp_server import ComputeServer
from gcp_state import PROJECT, Clock
from price_servers import PriceServer, address, disk, kind, product, serve, sku, traffic

from scavenger.cloud.catalog.cache import read_cache, write_cache
from scavenger.cloud.catalog.catalog import Catalog
from scavenger.cloud.catalog.refresh_aws import ADVISOR_VARIABLE, fetch_aws
from scavenger.cloud.catalog.refresh_gcp import BILLING_VARIABLE, fetch_gcp
from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE
from scavenger.cloud.stock import CatalogEntry, Extras, Fetched, MachineType, Stock
from scavenger.domain.cost import Price, TrafficPrice
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    ScavengerError,
    ThrottledError,
)

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = NOW.date()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PriceServer]:
    with serve(PriceServer()) as running:
        for name in ("PRICING", "EC2"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{name}", running.url)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(tmp_path / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(ADVISOR_VARIABLE, running.url)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        yield running


ADVISOR = {
    "ranges": [{"index": 0, "label": "<5%", "max": 5}, {"index": 4, "label": ">20%", "max": 100}],
    "spot_advisor": {
        "us-east-1": {"Linux": {"m5.xlarge": {"r": 0, "s": 60}, "g4dn.xlarge": {"r": 4, "s": 10}}}
    },
}


def test_amazons_prices_are_those_of_plain_linux_vms(server: PriceServer) -> None:
    server.products = [
        [
            product("m5.xlarge", 0.192),
            product("m5.xlarge", 0.204, tenancy="Dedicated"),
            product("m5.2xlarge", 0.0, vcpu="8", memory="32 GiB"),
            product("m5.4xlarge", 0.9, operatingSystem="Windows"),
            product("r5.xlarge", 0.252, regionCode="us-west-2"),
            "{}",
        ],
        [
            product("g4dn.xlarge", 0.526),
            product("u9.xlarge", 40.0, memory="1,024 GiB"),
            product("t3.xlarge", 0.1664),
        ],
    ]
    inferentia = {"neuronDevices": [{"count": 1, "name": "Inferentia2"}]}
    server.kinds = [
        kind("m5.xlarge"),
        kind("m5.2xlarge", 8, 32.0),
        kind("g4dn.xlarge", gpu="T4", gpus=1),
        kind("u9.xlarge", gib=1024.0),
        kind("t3.xlarge"),
        kind("g6f.large", gpu="L4", gpus=0),
        kind("inf2.xlarge", neuronInfo=inferentia),
        kind("p9.48xlarge", 192, 2048.0, gpu="X100", gpus=8, gpu_gib=300),
    ]
    server.spot = [
        ("m5.xlarge", "us-east-1a", "0.0700"),
        ("m5.xlarge", "us-east-1b", "0.0900"),
        ("m5.xlarge", "us-east-1c", "0.0800"),
    ]
    server.advisor = ADVISOR
    stock = fetch_aws(["us-east-1"], now=NOW).stock
    assert stock.extras == {("aws", "us-east-1"): Extras()}, "what the price list does not have is not known"
    types = stock.listings["aws", "us-east-1"]

    priced = sorted(name for name, one in types.items() if one.on_demand)
    assert priced == ["g4dn.xlarge", "m5.xlarge", "t3.xlarge", "u9.xlarge"]
    assert len(types) == len(server.kinds)
    plain = types["m5.xlarge"]
    assert plain.on_demand == Price(0.192, "AWS price list", DAY)
    assert plain.spot == Price(0.09, "AWS spot price, dearest zone", DAY)
    assert (plain.interruption, plain.interrupted_monthly) == ("<5%", 0.05)
    gpu = types["g4dn.xlarge"]
    assert (gpu.machine.accelerator, gpu.machine.accelerators, gpu.spot) == ("T4", 1, None)
    assert (gpu.interruption, gpu.interrupted_monthly) == (">20%", None)
    assert types["u9.xlarge"].machine.memory_gib == 1024.0
    assert types["t3.xlarge"].machine.caveat.startswith("burstable")
    new = types["p9.48xlarge"]  # no list of ours knows it
    assert (new.machine.accelerator, new.machine.accelerators, new.on_demand) == ("X100", 8, None)
    assert plain.machine.network_gbits == 12.5
    for name in ("g6f.large", "inf2.xlarge"):
        assert types[name].machine.caveat == "accelerators that are not used"

    first = next(question for question in server.asked if "ServiceCode" in question)
    assert {item["Field"]: item["Value"] for item in first["Filters"]} == {
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "regionCode": "us-east-1",
    }


def test_amazons_extras_are_what_its_price_list_says_the_dearest_of_each(server: PriceServer) -> None:
    server.products, server.advisor = [[product("m5.xlarge", 0.192)]], ADVISOR
    server.extras = {
        "AmazonEC2": [disk(0.08), disk(0.005, unit="IOPS-Mo"), disk(0.1, regionCode="us-west-2"), "{}"],
        "AmazonVPC": [
            address(0.005),
            address(0.008, usage="USE1-PublicIPv4:ContiguousBlock"),
            address(0.009, region="us-west-2", usage="USW2-PublicIPv4:InUseAddress"),
        ],
        "AWSDataTransfer": [
            traffic("IntraRegion", "DataTransfer-Regional-Bytes", 0.01),
            traffic("IntraRegion", "USE1-DataTransfer-xAZ-Out-Bytes", 0.0),
            traffic("InterRegion Outbound", "USE1-USE2-AWS-Out-Bytes", 0.01, toLocationType="AWS Region"),
            traffic("InterRegion Outbound", "USE1-EU-AWS-Out-Bytes", 0.02, toLocationType="AWS Region"),
            traffic("InterRegion Outbound", "USE1-LAX1-AWS-Out-Bytes", 0.2, toLocationType="AWS Local Zone"),
            traffic("InterRegion Inbound", "USE1-EU-AWS-In-Bytes", 0.3, toLocationType="AWS Region"),
            traffic("AWS Outbound", "DataTransfer-Out-Bytes", 0.09, 0.085, 0.05, toLocation="External"),
            traffic("AWS Outbound", "EU-DataTransfer-Out-Bytes", 0.4, fromRegionCode="eu-west-1"),
        ],
    }
    fetched = fetch_aws(["us-east-1"], now=NOW)

    public = Price(0.005, "AWS price list, public IPv4", DAY)
    assert fetched.errors == ()
    assert fetched.stock.extras["aws", "us-east-1"] == Extras(
        disk=Price(0.08 / 730.0, "AWS price list, gp3", DAY),
        address=public,
        spot_address=public,
        zones=TrafficPrice(0.02, "AWS price list, out of a zone and in", DAY),
        regions=TrafficPrice(0.02, "AWS price list, dearest region", DAY),
        internet=TrafficPrice(0.09, "AWS price list, first tier", DAY),
    )
    of_traffic = next(one for one in server.asked if one.get("ServiceCode") == "AWSDataTransfer")
    assert [(one["Field"], one["Value"]) for one in of_traffic["Filters"]] == [
        ("fromRegionCode", "us-east-1")
    ]


def test_an_extra_that_is_not_told_anew_stays_with_its_own_date() -> None:
    place, old = ("aws", "us-east-1"), Price(0.005, "list", EARLIER)
    newer = Stock(extras={place: Extras(zones=TrafficPrice(0.03, "AWS price list", DAY))})
    older = Stock(extras={place: Extras(address=old, zones=TrafficPrice(0.02, "list", EARLIER))})

    assert newer.over(older).extras == {
        place: Extras(address=old, zones=TrafficPrice(0.03, "AWS price list", DAY))
    }
    assert Stock().over(older).extras == older.extras


SKUS = [
    [
        sku("N2 Instance Core running in Americas", 0.031611, regions=("us-central1", "us-east1")),
        sku(
            "N2 Instance Ram running in Americas",
            0.004237,
            unit="GiBy.h",
            regions=("us-central1", "us-east1"),
        ),
        sku("Spot Preemptible N2 Instance Core running in Americas", 0.0075, usage="Preemptible"),
        sku(
            "Spot Preemptible N2 Instance Ram running in Americas", 0.001, usage="Preemptible", unit="GiBy.h"
        ),
        sku("Commitment v1: N2 Cpu in Americas for 1 Year", 0.02, usage="Commit1Yr"),
        sku("N2 Sole Tenancy Instance Core running in Americas", 0.04),
        sku("N2 Instance Core running in Zurich", 0.05, currency="CHF", regions=("europe-west6",)),
    ],
    [
        sku("G2 Instance Core running in Americas", 0.025),
        sku("G2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
        sku("Nvidia L4 GPU running in Americas", 0.56, group="GPU"),
        sku("A9 Instance Core running in Americas", 0.03),
        sku("A9 Instance Ram running in Americas", 0.002, unit="GiBy.h"),
        sku("X100 300GB GPU running in Americas", 11.0, group="GPU"),
        sku("X100 300GB GPU attached to Spot Preemptible VMs running in Americas", 4.0, group="GPU"),
        sku("SSD backed Local Storage", 0.08, unit="GiBy.mo"),
        sku("Storage PD Capacity", 0.04, unit="GiBy.mo"),
        sku("Balanced PD Capacity", 0.1, unit="GiBy.mo"),
        sku("Balanced PD Capacity in Frankfurt", 0.12, unit="GiBy.mo", regions=("europe-west3",)),
        sku("External IP Charge on a Standard VM", 0.005, regions=("global",)),
        sku("External IP Charge on a Spot Preemptible VM", 0.0025, regions=("global",), usage="Preemptible"),
        sku("Static Ip Charge", 0.01),
        sku("Network Inter Zone Data Transfer Out", 0.01, unit="GiBy"),
        sku("Network Inter Zone Data Transfer In", 0.5, unit="GiBy"),
        sku("Network Inter Region Data Transfer Out from Americas to Virginia", 0.02, unit="GiBy"),
        sku("Network Inter Region Data Transfer Out from Americas to Sydney", 0.1, unit="GiBy"),
        sku("Network Internet Data Transfer Out from Americas to Americas", 0.12, unit="GiBy"),
        sku("Network Internet Data Transfer Out from Americas to China", 0.23, unit="GiBy"),
        sku("Network Data Transfer Out via Carrier Peering Network - Americas Based", 0.9, unit="GiBy"),
        sku("E2 Instance Core running in Americas", 0.0),
        {"description": "a fee"},
    ],
]


def machine_type(
    name: str, cpus: int, gib: float, gpu: str = "", gpus: int = 0, ssds: int = 0
) -> dict[str, Any]:
    """A type as Compute Engine lists it."""
    accelerators = [{"guestAcceleratorType": gpu, "guestAcceleratorCount": gpus}]
    return {
        "kind": "compute#machineType",
        "name": name,
        "guestCpus": cpus,
        "memoryMb": int(gib * 1024),
        "isSharedCpu": False,
        "architecture": "X86_64",
        **({"accelerators": accelerators} if gpu else {}),
        **({"bundledLocalSsds": {"partitionCount": ssds, "defaultInterface": "NVME"}} if ssds else {}),
    }


@pytest.fixture
def compute(compute: ComputeServer) -> Iterator[ComputeServer]:
    compute.reset(Clock())
    compute.more_types = [
        machine_type("n2-standard-4", 4, 16),
        machine_type("g2-standard-24", 24, 96, "nvidia-l4", 2),
        machine_type("a9-megagpu-8g", 200, 2000, "nvidia-x100-300gb", 8, ssds=16),
        machine_type("k1-new-8", 8, 32),
    ]
    yield compute
    assert compute.faults_of_ours == []


def fetch_google(
    server: PriceServer, compute: ComputeServer, *regions: str, project: str = PROJECT
) -> Fetched:
    environment = {BILLING_VARIABLE: server.url, ENDPOINT_VARIABLE: compute.endpoint}
    return fetch_gcp(regions or ("us-central1",), project=project, now=NOW, environment=environment)


def test_googles_types_cost_what_its_skus_say_of_their_parts(
    server: PriceServer, compute: ComputeServer
) -> None:
    server.skus = SKUS
    stock = fetch_google(server, compute).stock
    catalog = Catalog(stock, today=DAY)

    assert catalog.regions("gcp") == ("us-central1",)
    n2 = catalog.price("gcp", "us-central1", "n2-standard-4")
    assert n2.usd_per_hour == pytest.approx(4 * 0.031611 + 16 * 0.004237)
    assert (n2.source, n2.dated) == ("Cloud Billing API", DAY)
    spot = catalog.price("gcp", "us-central1", "n2-standard-4", spot=True)
    assert spot.usd_per_hour == pytest.approx(4 * 0.0075 + 16 * 0.001)
    gpu = catalog.price("gcp", "us-central1", "g2-standard-24")
    assert gpu.usd_per_hour == pytest.approx(24 * 0.025 + 96 * 0.003 + 2 * 0.56)
    dearest = "Cloud Billing API, to where it is dearest"
    assert catalog.extras("gcp", "us-central1") == Extras(
        disk=Price(0.1 / 730, "Cloud Billing API", DAY),
        address=Price(0.005, "Cloud Billing API", DAY),
        spot_address=Price(0.0025, "Cloud Billing API", DAY),
        zones=TrafficPrice(0.01, "Cloud Billing API", DAY),
        regions=TrafficPrice(0.1, dearest, DAY),
        internet=TrafficPrice(0.23, dearest, DAY),
    )
    far = catalog.extras("gcp", "europe-west3")
    assert (far.disk, far.address, far.zones) == (
        Price(0.12 / 730, "Cloud Billing API", DAY),
        Price(0.005, "Cloud Billing API", DAY),
        None,
    )
    assert [question.get("pageToken") for question in server.asked] == [None, "1"]
    assert server.asked[0]["path"] == "/v1/services/6F81-5844-456A/skus"
    assert compute.calls["machineTypes.list"] >= 3  # zones


def test_a_family_that_nobody_has_heard_of_is_priced_like_the_others(
    server: PriceServer, compute: ComputeServer
) -> None:
    server.skus = SKUS
    found = fetch_google(server, compute).stock.listings["gcp", "us-central1"]

    new = found["a9-megagpu-8g"]
    assert (new.machine.accelerator, new.machine.accelerators) == ("X100", 8)
    assert new.on_demand is not None
    ssds = 16 * 375 * 0.08 / 730
    assert new.on_demand.usd_per_hour == pytest.approx(200 * 0.03 + 2000 * 0.002 + 8 * 11.0 + ssds)
    assert new.spot is None  # no spot price of its vCPUs
    for name in ("k1-new-8", "e2-standard-4"):  # no SKU, or one of 0 dollars
        assert (found[name].on_demand, found[name].spot) == (None, None)


def test_of_several_regions_those_that_answer_are_refreshed(
    server: PriceServer, compute: ComputeServer
) -> None:
    server.skus = SKUS
    fetched = fetch_google(server, compute, "us-central1", "mars-north1", "europe-west4")

    assert sorted(region for _, region in fetched.stock.listings) == ["europe-west4", "us-central1"]
    assert [str(error) for error in fetched.errors] == ["Google Cloud has no region 'mars-north1'"]
    assert fetched.stock.listings["gcp", "europe-west4"]["n2-standard-4"].on_demand is None


def test_a_project_that_may_not_be_asked_for_machine_types_is_told(
    server: PriceServer, compute: ComputeServer
) -> None:
    server.skus = SKUS
    with pytest.raises(ScavengerError, match="us-central1"):
        fetch_google(server, compute, project="not-mine")


@pytest.mark.parametrize(
    ("status", "error"), [(403, CredentialsError), (429, ThrottledError), (503, CloudUnavailableError)]
)
def test_google_refusing_is_an_error_of_its_kind(
    server: PriceServer, compute: ComputeServer, status: int, error: type[Exception]
) -> None:
    server.skus, server.refuse = SKUS, status
    with pytest.raises(error, match=r"Google Cloud .*: no"):
        fetch_google(server, compute)


def test_an_answer_without_any_rate_is_no_answer(server: PriceServer, compute: ComputeServer) -> None:
    server.skus = [[sku("Something new running in Americas", 1.0)]]
    with pytest.raises(CloudUnavailableError, match="no rate of a machine family"):
        fetch_google(server, compute)


EARLIER = date(2026, 1, 5)
KNOWN = Stock(
    {
        ("aws", "us-east-1"): {
            "m5.xlarge": CatalogEntry(
                MachineType("aws", "m5.xlarge", 4, 16.0),
                "us-east-1",
                Price(0.2, "list", EARLIER),
                Price(0.1, "spot", EARLIER),
                "5-10%",
            )
        }
    }
)


@pytest.mark.parametrize(
    ("refused", "on_demand", "spot", "interruption"),
    [
        ("types", ("AWS price list", DAY), ("AWS spot price, dearest zone", DAY), "<5%"),
        ("pricing", ("list", EARLIER), ("AWS spot price, dearest zone", DAY), "<5%"),
        ("ec2", ("AWS price list", DAY), ("spot", EARLIER), "<5%"),
        ("advisor", ("AWS price list", DAY), ("AWS spot price, dearest zone", DAY), "5-10%"),
    ],
)
def test_of_a_source_that_gives_nothing_what_is_known_stays_and_the_others_count(
    server: PriceServer,
    refused: str,
    on_demand: tuple[str, date],
    spot: tuple[str, date],
    interruption: str,
) -> None:
    server.products = [[product("m5.xlarge", 0.192)]]
    server.spot, server.advisor = [("m5.xlarge", "us-east-1a", "0.0700")], ADVISOR
    server.refuse, server.refused = 403, (refused,)
    fetched = fetch_aws(["us-east-1"], now=NOW, known=KNOWN)

    (found,) = fetched.stock.listings["aws", "us-east-1"].values()
    assert found.on_demand is not None
    assert found.spot is not None
    assert (found.on_demand.source, found.on_demand.dated) == on_demand
    assert (found.spot.source, found.spot.dated) == spot
    assert found.interruption == interruption
    assert len(fetched.errors) == 1


def test_amazon_refusing_credentials_says_what_to_do(server: PriceServer) -> None:
    server.products, server.refuse = [[]], 400
    with pytest.raises(
        CredentialsError,
        match=r"aws us-east-1: no access \(AccessDeniedException: no\); check the credentials",
    ):
        fetch_aws(["us-east-1"], now=NOW)


def test_a_page_that_is_not_amazons_is_no_answer(
    server: PriceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "aws", lambda target, body: ("text/html", b"<p>Log in to the internet"))
    with pytest.raises(CloudUnavailableError, match="what answers is not AWS"):
        fetch_aws(["us-east-1"], now=NOW)


def test_a_region_without_products_does_not_exist(server: PriceServer) -> None:
    server.products = [[]]
    with pytest.raises(ConfigurationError, match="nothing for a region 'us-east-9'"):
        fetch_aws(["us-east-9"], now=NOW)


def test_without_credentials_amazon_is_not_asked(
    server: PriceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CredentialsError, match="Unable to locate credentials"):
        fetch_aws(["us-east-1"], now=NOW)
    assert server.asked == []


def test_without_credentials_google_is_not_asked(
    server: PriceServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(CredentialsError, match="no valid credentials of Google Cloud; `gcloud auth"):
        fetch_gcp(["us-central1"], project=PROJECT, now=NOW, environment={})
    assert server.asked == []


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: fetch_aws(["us-east-1"], now=NOW),
        lambda: fetch_gcp(["us-central1"], project=PROJECT, now=NOW, environment={BILLING_VARIABLE: NOWHERE}),
    ],
    ids=["aws", "gcp"],
)
def test_a_cloud_that_cannot_be_reached_is_said_to_give_no_answer(
    monkeypatch: pytest.MonkeyPatch, server: PriceServer, ask: Callable[[], Fetched]
) -> None:
    for name in ("AWS_ENDPOINT_URL_PRICING", "AWS_ENDPOINT_URL_EC2", ADVISOR_VARIABLE):
        monkeypatch.setenv(name, NOWHERE)
    with pytest.raises(CloudUnavailableError, match="no answer"):
        ask()


STOCK = Stock(
    {
        ("aws", "us-east-1"): {
            "m5.xlarge": CatalogEntry(
                MachineType("aws", "m5.xlarge", 4, 16.0), "us-east-1", Price(0.192, "x", DAY), None, "<5%"
            )
        }
    },
    rates={("n2", "cpu", "us-central1", True): Price(0.01, "y", date(2026, 2, 1))},
    extras={
        ("gcp", "us-central1"): Extras(Price(0.00005, "z", DAY), zones=TrafficPrice(0.01, "x", DAY)),
        ("aws", "us-east-1"): Extras(spot_address=Price(0.005, "z", DAY)),
    },
)


@pytest.mark.parametrize("name", ["prices.json", "prices.json.gz"])
def test_what_is_kept_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cache" / name
    assert read_cache(path) == Stock()
    write_cache(path, STOCK)

    assert read_cache(path) == STOCK
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_a_failed_write_leaves_the_old_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prices.json"
    write_cache(path, STOCK)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigurationError, match=r"prices\.json: cannot be written: No space left"):
        write_cache(path, Stock())
    assert read_cache(path) == STOCK
    assert [file.name for file in tmp_path.iterdir()] == ["prices.json"]


@pytest.mark.parametrize("usd", [0, -0.1, "cheap", None])
def test_kept_prices_that_were_tampered_with_are_refused(tmp_path: Path, usd: object) -> None:
    path = tmp_path / "prices.json"
    write_cache(path, STOCK)
    document = json.loads(path.read_text())
    document["rates"][0][4][0] = usd  # its price, dollars
    path.write_text(json.dumps(document))

    with pytest.raises(
        ConfigurationError, match=r"prices\.json: refreshed prices cannot be read .*remove the file"
    ):
        read_cache(path)
