"""`scavenger catalog`."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from scavenger_cli.main import main

from scavenger.cloud.stock import CatalogEntry, Fetched, MachineType, Stock
from scavenger.control.provisioning import prices
from scavenger.domain.cost import Price
from scavenger.errors import CloudUnavailableError, CredentialsError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SCAVENGER_PRICES", raising=False)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["catalog", *words]) == code
    out, err = capsys.readouterr()
    return out, err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    return dict(json.loads(told(capsys, *words, "-o", "json")[0]))


def _days(later: str, earlier: str) -> int:
    return (date.fromisoformat(later) - date.fromisoformat(earlier)).days


def test_the_catalogue_is_one_screen_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--all"], ["--cpus", "64+"], ["--region", "any", "--gpu", "A100"]):
        out, _ = told(capsys, *words)
        lines = out.splitlines()
        assert len(lines) <= 24
        assert all(len(line) <= 80 for line in lines)
    out, err = told(capsys)
    assert "more: narrow it with --cpus" in out
    assert "[1] Cloud Billing API by gcosts" in out
    assert "days old: `scavenger catalog refresh`" in err


def test_types_are_sorted_by_price_and_say_all_of_each_price(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--provider", "gcp", "--cpus", "4", "--memory", "16")
    machines = found["machines"]
    priced = [m["on_demand"]["usd_per_hour"] for m in machines if m["on_demand"]]

    assert found["schema_version"] == 1
    assert found["regions"] == [{"provider": "gcp", "region": "us-central1"}]
    assert priced == sorted(priced)
    assert machines[0]["vm"] == "e2-standard-4"
    price = machines[0]["on_demand"]
    assert price["usd_per_hour"] == pytest.approx(0.13402, rel=1e-4)
    assert price["source"] == "Cloud Billing API by gcosts"
    assert price["age_days"] == _days(found["today"], price["dated"]) > 0
    assert all((m["cpus"], m["memory_gib"]) == (4, 16.0) for m in machines)


def test_any_region_is_all_of_them_and_gpus_are_sorted_by_the_price_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--gpu", "T4", "--region", "any", "--provider", "aws")["machines"]
    each = [one["on_demand"]["usd_per_hour"] / one["accelerators"] for one in found if one["on_demand"]]
    assert each == sorted(each)
    assert len({one["region"] for one in found}) > 10

    out, _ = told(capsys, "--gpu", "T4", "--region", "any")
    rows = [line.split() for line in out.splitlines() if line.startswith("g4dn.")]
    assert rows[0][0] == found[0]["vm"]
    assert found[0]["region"] in rows[0]
    assert len(rows) == len({row[0] for row in rows}), "each type stands once, where it is cheapest"


def test_h100s_of_both_clouds_are_sorted_by_the_price_of_one_on_demand_then_as_spot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--gpu", "H100", "--region", "any")["machines"]
    priced = [one for one in found if one["on_demand"]]
    each = [
        (
            one["on_demand"]["usd_per_gpu_hour"],
            one["spot"]["usd_per_gpu_hour"] if one["spot"] else float("inf"),
        )
        for one in priced
    ]
    assert each == sorted(each)
    assert {one["provider"] for one in priced} == {"aws", "gcp"}
    for one in priced:
        assert one["on_demand"]["usd_per_gpu_hour"] * one["accelerators"] == pytest.approx(
            one["on_demand"]["usd_per_hour"]
        )
    assert found[len(priced) :] == [one for one in found if not one["on_demand"]], "the unknown come last"


def test_gpus_are_found_by_name_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    machines = document(capsys, "--gpu", "t4")["machines"]

    assert {machine["accelerator"] for machine in machines} == {"T4"}
    assert machines[0]["vm"] == "g4dn.xlarge"


def test_a_type_is_shown_by_name_custom_ones_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = told(capsys, "--vm", "n2-custom-4-16384", "--vm", "e2-micro")

    assert "n2-custom-4-16384" in out
    assert "e2-micro*" in out
    assert "gcp/us-central1:" in out


def test_an_unknown_price_is_shown_as_unknown_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = told(capsys, "--gpu", "H200", "--region", "us-west-2")

    assert "unknown: fetch the price with `scavenger catalog refresh`" in out
    assert "$0" not in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["--cpus", "many"],
            "--cpus must be a number of processors: 4 (exactly) or 4+ (at least), not 'many'",
        ),
        (["--memory", "0"], "--memory must be above 0"),
        (["--region", "us-east-7"], "have no 'us-east-7' in the catalogue; did you mean 'us-east-"),
        (["--provider", "gcp", "--region", "us-east-1"], "gcp have no 'us-east-1'"),
        (
            ["--vm", "m5.xlarg"],
            "no VM type 'm5.xlarg' in gcp/us-central1 and aws/us-east-1; did you mean 'm5.xlarge'",
        ),
        (["--vm", "m5.large", "--cpus", "4"], "m5.large does not have cpus 4"),
        (["refresh", "--region", "us-east-1"], "--region needs --provider"),
    ],
)
def test_what_cannot_be_looked_up_is_the_users_error(
    capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    out, err = told(capsys, *words, code=2)

    assert out.strip() == ""
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_a_region_is_looked_up_in_whatever_cloud_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "--region", "eu-west-1")["regions"] == [
        {"provider": "aws", "region": "eu-west-1"}
    ]


def test_own_prices_come_from_the_configuration_folder_or_the_variable(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "config" / "scavenger"
    folder.mkdir(parents=True)
    text = "version: 1\nprices:\n- {provider: aws, vm: m5.xlarge, on_demand: %s}\n"
    (folder / "prices.yaml").write_text(text % "0.1")
    (home / "mine.yaml").write_text(text % "0.05")

    def price() -> tuple[float, str]:
        (machine,) = document(capsys, "--vm", "m5.xlarge")["machines"]
        return machine["on_demand"]["usd_per_hour"], machine["on_demand"]["source"]

    assert price() == (0.1, "price file prices.yaml")
    monkeypatch.setenv("SCAVENGER_PRICES", str(home / "mine.yaml"))
    assert price() == (0.05, "price file mine.yaml")
    (home / "mine.yaml").write_text(text % "0")
    _, err = told(capsys, "--vm", "m5.xlarge", code=2)
    assert "mine.yaml:3:34: prices[0].on_demand must be above $0" in err
    monkeypatch.setenv("SCAVENGER_PRICES", str(home / "none.yaml"))
    assert "none.yaml: the price file cannot be read: No such file" in told(capsys, code=2)[1]


def fetched(regions: object, now: datetime, known: Stock) -> Fetched:
    """What AWS answers: prices of the day on which they are asked for."""
    machine = CatalogEntry(
        MachineType("aws", "m5.xlarge", 4, 16.0),
        "us-east-1",
        Price(0.19, "AWS price list", now.date()),
        Price(0.07, "AWS spot price, dearest zone", now.date()),
        "5-10%",
    )
    return Fetched(Stock({("aws", "us-east-1"): {"m5.xlarge": machine}}))


def test_refreshed_prices_are_used_from_then_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr("scavenger.cloud.catalog.refresh_aws.fetch_aws", fetched)
    out, _ = told(capsys, "refresh", "--provider", "aws")
    assert "aws: 1 machine type of today" in out

    out, err = told(capsys, "--provider", "aws")
    assert "5-10%" in out
    assert "AWS price list" in out
    assert err == ""
    found = document(capsys, "--provider", "aws")
    (machine,) = found["machines"]
    assert machine["spot"]["usd_per_hour"] == 0.07
    assert machine["spot"]["age_days"] == _days(found["today"], machine["spot"]["dated"]) <= 1


def test_a_cloud_that_does_not_answer_does_not_keep_the_other_from_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")

    def refuse(regions: object, *, project: str, now: datetime) -> Fetched:
        assert project == "a-project"
        raise CredentialsError("no credentials: log in")

    monkeypatch.setattr("scavenger.cloud.catalog.refresh_gcp.fetch_gcp", refuse)
    monkeypatch.setattr("scavenger.cloud.catalog.refresh_aws.fetch_aws", fetched)
    out, err = told(capsys, "refresh", code=7)

    assert "aws: 1 machine type" in out
    hint, error = err.splitlines()
    assert error == "scavenger: error: no credentials: log in"
    assert "`aws configure`" in hint
    assert "`gcloud auth application-default login`" in hint
    assert "prices.yaml" in hint
    assert prices.cache_path().is_file()


def test_a_failed_refresh_keeps_what_was_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scavenger.cloud.catalog.refresh_aws.fetch_aws", fetched)
    told(capsys, "refresh", "--provider", "aws")
    before = prices.cache_path().read_bytes()

    def fail(regions: object, now: datetime, known: Stock) -> Fetched:
        raise CloudUnavailableError("no answer")

    monkeypatch.setattr("scavenger.cloud.catalog.refresh_aws.fetch_aws", fail)
    _, err = told(capsys, "refresh", "--provider", "aws", code=7)
    assert "no answer" in err
    assert prices.cache_path().read_bytes() == before


def test_extras_are_disks_addresses_and_traffic_each_with_its_source_or_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--extras")
    told_of = {(one["provider"], one["extra"]): one for one in found["extras"]}

    assert set(told_of) == {
        (provider, extra)
        for provider in ("aws", "gcp")
        for extra in ("disk", "address", "spot_address", "zones", "regions", "internet")
    }
    for one in found["extras"]:
        known = (one["source"], one["dated"], one["age_days"])
        assert (one["usd"] is None and known == (None, None, None)) or (one["usd"] > 0 and all(known))
    address = told_of["gcp", "spot_address"]
    assert (address["usd"], address["unit"]) == (0.0025, "hour")
    assert address["age_days"] == _days(found["today"], address["dated"])

    out, _ = told(capsys, "--extras")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if "/" in line.split()[0]}
    assert rows["gcp/us-central1"][1:5] == ["$0.101", "$0.005", "$0.0025", "$0.01"]
    assert rows["aws/us-east-1"][1] == "unknown"
    assert told_of["gcp", "zones"]["source"] in out
    assert "unknown: fetch the price with" in out


def test_what_is_not_known_of_any_region_is_not_told_as_free(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = told(capsys, "--extras", "--region", "eu-west-1")

    assert "$0 " not in out
    assert out.splitlines()[1].split().count("unknown") == 3, "disk, other regions, the internet"
