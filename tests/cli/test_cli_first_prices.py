"""The first command of a fresh installation: prices are fetched when a job needs them, and spot VMs are chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gcp_server import ComputeServer
from gcp_state import PROJECT, Clock
from price_servers import PriceServer, product, serve, sku
from scavenger_cli.main import main

from scavenger.cloud.catalog.refresh_aws import ADVISOR_VARIABLE
from scavenger.cloud.catalog.refresh_gcp import BILLING_VARIABLE
from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE
from scavenger.control.provisioning import price_refresh, prices
from scavenger.control.provisioning.price_refresh import REFRESH_VARIABLE

pytestmark = pytest.mark.slow

JOB = """
version: 1
name: digits
train: train:job
infra: {infra}
resources: {{vm: {vm}}}
spot: {spot}
search: {{workers: 1..4, batch_size: [64]}}
goal: {{max_epochs: 2}}
"""
AWS, GCP = ("aws/us-east-1", "m5.xlarge"), ("gcp/us-central1", "n2-standard-4")


@pytest.fixture(scope="module")
def compute() -> Iterator[ComputeServer]:
    with ComputeServer(Clock()) as server:
        server.more_types = [{"name": "n2-standard-4", "guestCpus": 4, "memoryMb": 16384}]
        yield server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compute: ComputeServer) -> Iterator[PriceServer]:
    """Both clouds' price APIs, with as many pages as Amazon has for a region."""
    others = [product(f"m5.{size}xlarge", 0.192, vcpu=str(4 * size)) for size in range(2, 12)]
    prices = PriceServer(
        products=[others] * 8 + [[product("m5.xlarge", 0.192)]],
        spot=[("m5.xlarge", f"us-east-1{zone}", "0.0700") for zone in "abcdef"],
        advisor={
            "ranges": [{"index": 1, "label": "5-10%"}],
            "spot_advisor": {"us-east-1": {"Linux": {"m5.xlarge": {"r": 1}}}},
        },
        skus=[
            [
                sku("N2 Instance Core running in Americas", 0.031611),
                sku("N2 Instance Ram running in Americas", 0.004237, unit="GiBy.h"),
                sku("Spot Preemptible N2 Instance Core running in Americas", 0.0075, usage="Preemptible"),
                sku(
                    "Spot Preemptible N2 Instance Ram running in Americas",
                    0.001,
                    usage="Preemptible",
                    unit="GiBy.h",
                ),
            ]
        ],
    )
    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    for name in (REFRESH_VARIABLE, "SCAVENGER_PRICES", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with serve(prices) as running:
        monkeypatch.setenv(ENDPOINT_VARIABLE, compute.endpoint)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        for name in (
            "AWS_ENDPOINT_URL_PRICING",
            "AWS_ENDPOINT_URL_EC2",
            ADVISOR_VARIABLE,
            BILLING_VARIABLE,
        ):
            monkeypatch.setenv(name, running.url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield running


def preview(
    folder: Path, capsys: pytest.CaptureFixture[str], place: tuple[str, str], spot: str = "auto"
) -> Any:
    """What `scavenger optimize --dry-run` shows of a job."""
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text(JOB.format(infra=place[0], vm=place[1], spot=spot))
    capsys.readouterr()
    assert main(["optimize", str(folder / "job.yaml"), "--dry-run", "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("place", [AWS, GCP], ids=["aws", "gcp"])
def test_spot_vms_are_chosen_by_the_first_command(
    server: PriceServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[str, str],
) -> None:
    monkeypatch.setattr(price_refresh, "SPOT_DAYS", 2)  # midnight may lie between the two commands
    first = preview(tmp_path, capsys, place)
    asked = len(server.asked)

    (offer,) = first["offers"]
    assert offer["spot"], first["notes"]
    assert first["notes"][0] == f"the prices of {place[0]} were refreshed"
    assert offer["price_usd_per_hour"] < first["aggregators"]["price_usd_per_hour"] / 2

    again = preview(tmp_path, capsys, place)  # by the cache
    assert (again["offers"], len(again["notes"]), len(server.asked)) == (first["offers"], 2, asked)


def test_offline_a_job_is_planned_with_the_prices_that_are_there_and_that_is_said(
    server: PriceServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refuse = 503
    auto = preview(tmp_path, capsys, AWS)
    assert not auto["offers"][0]["spot"]
    assert auto["notes"][0].startswith("the prices of aws/us-east-1 could not be refreshed: aws us-east-1")
    assert "no spot price of it from the last 62 days is known" in auto["notes"][1]

    always = preview(tmp_path, capsys, AWS, spot="always")
    assert always["offers"][0]["spot"]
    assert "the most that a spot VM costs" in always["offers"][0]["price_source"]
    assert not prices.cache_path().exists()


def test_nothing_is_fetched_for_prices_of_ones_own_or_where_that_is_switched_off(
    server: PriceServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text(
        "version: 1\nprices: [{provider: aws, vm: m5.xlarge, region: us-east-1, on_demand: 0.2, spot: 0.05}]\n"
    )
    monkeypatch.setenv("SCAVENGER_PRICES", str(own))
    assert preview(tmp_path, capsys, AWS)["offers"][0]["price_usd_per_hour"] == 0.05

    monkeypatch.delenv("SCAVENGER_PRICES")
    monkeypatch.setenv(REFRESH_VARIABLE, "never")
    preview(tmp_path, capsys, AWS)
    assert server.asked == []
