"""What Google's SKUs are of, by their own words; and how far types come out at their price, by a second source.

    python -m pytest tests/cloud/test_catalog_skus.py -s

prints how many types of each family get a price from what Google's SKUs say, and how far that is from the list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from price_servers import sku
from scipy.optimize import nnls

from benchmarks.price_snapshot import google_type, rows
from scavenger.cloud.catalog.compute_engine import GoogleType, Tariff, read_skus
from scavenger.cloud.stock import RateKey, gpu_label

SECOND_SOURCE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "catalog"
needs_second_source = pytest.mark.skipif(
    not SECOND_SOURCE.is_dir(), reason="the second source of prices is not beside the checkout"
)
DAY = date(2026, 7, 16)
REGION = "us-central1"


def rates_of(*skus: dict[str, Any]) -> dict[RateKey, float]:
    return {key: price.usd_per_hour for key, price in read_skus(skus, DAY)[0].items()}


@pytest.mark.parametrize(
    ("description", "group", "what", "resource", "spot"),
    [
        ("N4 Instance Core running in Americas", "CPU", "n4", "cpu", False),
        ("Spot Preemptible C4A Arm Instance Ram running in Zurich", "RAM", "c4a", "ram", True),
        ("T2A Arm Instance Core running in Iowa", "CPU", "t2a", "cpu", False),
        ("N1 Predefined Instance Ram running in Americas", "N1Standard", "n1", "ram", False),
        ("Preemptible N1 Predefined Instance Core running in Americas", "N1Standard", "n1", "cpu", True),
        ("Custom Instance Core running in Americas", "CPU", "n1_custom", "cpu", False),
        ("N2D AMD Custom Extended Instance Ram running in Iowa", "RAM", "n2d_custom_extended", "ram", False),
        ("Compute optimized Core running in Americas", "CPU", "c2", "cpu", False),
        ("Compute optimized Instance Ram running in Americas", "RAM", "c2", "ram", False),
        ("Memory-optimized Instance Core running in Americas", "CPU", "m1", "cpu", False),
        ("M3 Memory-optimized Instance Core running in Americas", "CPU", "m3", "cpu", False),
        ("M4Ultramem224 Instance Core running in Americas", "CPU", "m4ultramem224", "cpu", False),
        ("Micro Instance with burstable CPU running in Americas", "F1Micro", "f1", "cpu", False),
        ("Spot Preemptible Small Instance with 1 VCPU running in Iowa", "G1Small", "g1", "cpu", True),
        ("A3Plus Instance Core running in Americas", "CPU", "a3mega", "cpu", False),
        ("Nvidia Tesla A100 80GB GPU running in Americas", "GPU", "80gb a100", "gpu", False),
        ("Nvidia H100 Mega 80GB GPU attached to Spot Preemptible VMs in Iowa", "GPU", "80gb h100 mega", "gpu", True),
        ("H200 141GB GPU running in Americas", "GPU", "141gb h200", "gpu", False),
        ("RTX 6000 96GB running in Oregon", "GPU", "6000 96gb rtx", "gpu", False),
        ("A4 Nvidia B200 (1 gpu slice) running in Americas", "GPU", "a4", "slice", False),
        ("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "GPU", "a4", "slice", True),
        ("C4 Instance Local SSD running in Americas", "LocalSSD", "c4", "ssd", False),
        ("SSD backed Local Storage attached to Spot Preemptible VMs in Zurich", "LocalSSD", "", "ssd", True),
    ],
)  # fmt: skip
def test_a_sku_says_in_words_what_it_is_of(
    description: str, group: str, what: str, resource: str, spot: bool
) -> None:
    """Also where its usage says otherwise: the spot VMs of A4 are of the usage `OnDemand`."""
    assert rates_of(sku(description, 1.0, group=group)) == {(what, resource, REGION, spot): 1.0}


@pytest.mark.parametrize(
    "description",
    [
        "N2 Sole Tenancy Instance Core running in Americas",
        "Reserved A3 Instance Core in Americas",
        "DWS Defined Duration A3 Instance Core running in Americas",
        "DWS Calendar Mode A4 Nvidia B200 (1 gpu slice) running in Americas",
        "Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Iowa",
        "Memory Optimized Upgrade Premium for Memory-optimized Instance Core running in Iowa",
        "Storage PD Capacity",
        "Network Internet Egress from Americas to Europe",
        "Instance Core",
    ],
)
def test_what_is_not_a_vm_started_at_will_is_left_out(description: str) -> None:
    assert rates_of(sku(description, 1.0)) == {}


def test_of_several_skus_of_a_part_the_plainest_counts_and_of_two_such_the_dearer() -> None:
    rates = rates_of(
        sku("N9 Instance Core with Turbo running in Americas", 9.0),
        sku("N9 Instance Core running in Americas", 1.0),
        sku("N9 AMD Instance Core running in Americas", 2.0),
        sku("N9 Turbo Instance Core running in Americas", 5.0),
    )
    assert rates == {("n9", "cpu", REGION, False): 2.0}


def test_the_longest_family_that_a_types_name_begins_with_is_its_own() -> None:
    names = ("A3", "A3Ultra", "A3Plus", "C4", "C4D", "M4", "M4Ultramem224")
    skus = [sku(f"{name} Instance Core running in Americas", 1.0 + i) for i, name in enumerate(names)]
    skus += [sku(f"{name} Instance Ram running in Americas", 1e-9, unit="GiBy.h") for name in names]
    tariff = Tariff(read_skus(skus, DAY)[0])

    def price(name: str) -> float:
        found = tariff.listing(GoogleType(name, 1, 1.0), REGION).on_demand
        return 0.0 if found is None else round(found.usd_per_hour)

    families = [*("a3-highgpu-8g", "a3-ultragpu-8g", "a3-megagpu-8g"), *("c4-deluxe-2", "c4d-standard-2")]
    families += ["m4-ultramem-112", "m4-ultramem-224"]
    assert [price(name) for name in families] == [1, 2, 3, 4, 5, 6, 7]
    assert price("c4x-standard-2") == 0


@pytest.mark.parametrize(
    ("name", "gib", "label"),
    [
        ("nvidia-tesla-a100", 0, "A100"),
        ("nvidia-a100-80gb", 0, "A100-80GB"),
        ("A100", 80, "A100-80GB"),
        ("nvidia-h100-mega-80gb", 0, "H100"),
        ("H100", 80, "H100"),
        ("nvidia-h200-141gb", 0, "H200"),
        ("RTX PRO Server 6000", 96, "RTX-PRO-6000"),
        ("nvidia-rtx-pro-6000", 0, "RTX-PRO-6000"),
        ("T4g", 16, "T4G"),
    ],
)
def test_a_gpu_has_one_label(name: str, gib: float, label: str) -> None:
    assert gpu_label(name, gib) == label


# Against a second source: docs/costs.md tells what came out.

Table = dict[str, list[tuple[dict[str, str], float | None]]]


def compared(skus: Iterator[dict[str, Any]], types: list[dict[str, str]]) -> Table:
    """By family: each type's row, and how far it is from its price; None where it gets none."""
    tariff = Tariff(read_skus(skus, DAY)[0])
    table: Table = defaultdict(list)
    for row in types:
        price = tariff.listing(google_type(row), row["region"]).on_demand
        off = None if price is None else price.usd_per_hour / float(row["price_hour"]) - 1
        table[row["instance_type"].partition("-")[0]].append((row, off))
    for family, found in sorted(table.items()):
        offs = [abs(off) for _, off in found if off is not None]
        near = sum(off < 0.005 for off in offs)
        print(
            f"{family:5} {len(offs):5} of {len(found):5} priced, {near:5} within 0.5 %, "
            f"at most {max(offs, default=0):.1%}"
        )
    return table


WORDS = {
    "micro instance": "Micro Instance with burstable CPU",
    "small instance": "Small Instance with 1 VCPU",
}


@needs_second_source
def test_skus_of_2025_make_the_prices_of_2026_but_where_google_has_changed_them() -> None:
    """Families of four regions changed; those that have no SKU in the table get no price."""
    found = list(rows(SECOND_SOURCE / "gcp_skus.csv"))
    skus = (
        sku(
            WORDS.get(row["description"], row["description"]) + f" running in {row['region'].title()}",
            float(row["price_hour"]),
            unit="GiBy.h" if row["resource"] == "ram" else "h",
            regions=(row["region"],),
        )
        for row in found
        if row["usage"] == "on_demand" and not row["family"].endswith(("_custom", "_extended"))
    )
    sold = {(row["family"], row["region"]) for row in found if row["usage"] == "on_demand"}
    types = [
        row
        for row in rows(SECOND_SOURCE / "gcp_vms.csv")
        if (row["instance_type"].partition("-")[0], row["region"]) in sold
    ]
    table = compared(skus, types)

    pairs = [pair for family in table.values() for pair in family]
    assert len(pairs) > 1500
    assert all(off is not None for _, off in pairs)
    changed = {row["region"] for row, off in pairs if off is not None and abs(off) >= 0.005}
    assert changed <= {"europe-west6", "us-west4", "asia-south1", "us-east4"}


SERIES = {
    "a2": "A2", "a3": "A3", "c2": "Compute optimized", "c2d": "C2D AMD", "c3": "C3", "c3d": "C3D", "c4": "C4",
    "c4a": "C4A Arm", "c4d": "C4D", "e2": "E2", "g2": "G2", "g4": "G4", "h3": "H3", "m1": "Memory-optimized",
    "m3": "M3 Memory-optimized", "n1": "N1 Predefined", "n2": "N2", "n2d": "N2D AMD", "n4": "N4", "n4a": "N4A",
    "n4d": "N4D", "t2a": "T2A Arm", "t2d": "T2D AMD",
}  # fmt: skip
"""How Google's SKUs name the families."""
GPUS = {
    "a100": "Nvidia Tesla A100 GPU",
    "a100-80gb": "Nvidia Tesla A100 80GB GPU",
    "h100-80gb": "Nvidia H100 80GB GPU",
    "h100-80gb-mega": "Nvidia H100 80GB Mega GPU",
    "l4": "Nvidia L4 GPU",
    "rtx6000": "RTX 6000 96GB",
}
USUAL = np.array([0.03, 0.004] + [3.0] * len(GPUS))
"""Dollars per hour."""
SHARES = {"e2-micro": 0.25, "e2-small": 0.5, "e2-medium": 1.0}
"""vCPUs that are charged for."""


def parts_of(row: dict[str, str]) -> list[float]:
    name = row["instance_type"]
    return [
        SHARES.get(name, float(row["vcpus"])),
        float(row["memory_gib"]),
        *(
            float(row["accelerator_count"]) * (row["accelerator"] == gpu) if row["accelerator"] else 0.0
            for gpu in GPUS
        ),
    ]


def solved(types: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """SKUs as Google words them, with those rates of a family and region that its types' prices are made of."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in types:
        first, second, *_ = row["instance_type"].split("-")
        groups["A3Plus" if (first, second) == ("a3", "megagpu") else SERIES[first], row["region"]].append(row)
    for (series, region), found in groups.items():
        usd = np.array([float(row["price_hour"]) for row in found])
        parts = np.array([parts_of(row) for row in found]) * USUAL / usd[:, None]
        # of the rates that make these prices, the smallest: those of a fixed shape could be any
        parts = np.vstack([parts, 1e-3 * np.eye(parts.shape[1])])
        rates, _ = nnls(parts, np.append(np.ones(len(usd)), np.zeros(parts.shape[1])))
        core, ram, *gpus = (max(float(rate), 1e-9) for rate in rates * USUAL)
        place, regions = f"running in {region.title()}", (region,)
        yield sku(f"{series} Instance Core {place}", core, regions=regions)
        yield sku(f"{series} Instance Ram {place}", ram, unit="GiBy.h", regions=regions)
        for words, usd_per_gpu in zip(GPUS.values(), gpus, strict=True):
            if usd_per_gpu > 1e-6:
                yield sku(f"{words} {place}", usd_per_gpu, group="GPU", regions=regions)


@needs_second_source
def test_types_of_every_family_come_out_at_their_price_from_the_rates_that_it_is_made_of() -> None:
    """Without types whose local SSDs are in the price, and those that are a part of a GPU."""
    types = [
        row
        for row in rows(SECOND_SOURCE / "gcp_vms.csv")
        if row["instance_type"].partition("-")[0] in SERIES
        and "lssd" not in row["instance_type"]
        and float(row["accelerator_count"] or 1) >= 1
        and row["instance_type"] not in ("f1-micro", "g1-small")
    ]
    table = compared(solved(types), types)

    assert set(table) == set(SERIES)
    pairs = [pair for family in table.values() for pair in family]
    assert len(pairs) > 9_000
    assert all(off is not None for _, off in pairs)
    assert sum(abs(off or 0.0) < 0.005 for _, off in pairs) / len(pairs) > 0.99
