"""A leader's VM that cannot be ended is said, stays on record, and is ended by the next sweep."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1")
pytest.importorskip("googleapiclient")

from gcp_server import ComputeServer
from gcp_state import EPOCH, PROJECT, REGION, Clock
from scavenger_cli.commands import gc
from scavenger_cli.commands import leader as commands
from scavenger_cli.options import Output

from scavenger.cloud.gcp.names import ENDPOINT_VARIABLE
from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.leading.seats import seat_of
from scavenger.control.leading.vm_seat import LeaderVmSpec, VmSeat
from scavenger.control.provisioning.providers import open_provider
from scavenger.domain.intent import PlacementOption
from scavenger.domain.vm import LaunchTemplate, VmSettings
from scavenger.errors import ConfigurationError
from scavenger.policy.provisioning.config import LookLimits, ProvisioningConfig
from scavenger.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def compute(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputeServer]:
    for pause in ("logins._POLL_S", "provider._POLL_FIRST_S"):
        monkeypatch.setattr(f"scavenger.cloud.gcp.{pause}", 0.01)
    with ComputeServer(clock, page_max=500) as server:
        server.on_call = lambda: clock.advance(5.0)
        yield server
        assert server.faults_of_ours == []


@pytest.fixture
def environment(compute: ComputeServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    environment = {ENDPOINT_VARIABLE: compute.endpoint, "GOOGLE_CLOUD_PROJECT": PROJECT}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'scavenger.db'}"


@pytest.fixture
def books(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


@pytest.fixture
def leaders(books: Store) -> Leaders:
    return Leaders.beside(books)


def rented(leaders: Leaders, environment: dict[str, str]) -> LeaderRecord:
    """The record of a leader whose VM there is."""
    provider: Any = open_provider("gcp", REGION, environment)
    record = LeaderRecord("0a1b2c3d", "digits", "job.yaml", "gcp", REGION, "ssh-ed25519 AAAA", "/out")
    leaders.put(record)
    settings = VmSettings(logins_from=("203.0.113.7/32",))
    option = PlacementOption("e2-standard-2", "us-central1-a", False, 0.07)
    with leaders.open_store(record) as store:
        store.create_job("digits", spec={}, job_file="job.yaml", job_id=record.id)
    seat = VmSeat(
        leaders,
        record,
        inform=lambda line: None,
        provider=provider,
        config=ProvisioningConfig(provider.visibility_s, look=LookLimits(interval_s=0.05)),
        sleep=lambda seconds: None,
    )
    template = LaunchTemplate(3600.0, settings=settings)
    seat.rent(LeaderVmSpec((option,), template, "#!/bin/sh\ntrue", wait_max_s=60.0), lambda seen: True)
    return leaders.change(record, job_id="ffff-1")


def session(
    leaders: Leaders, record: LeaderRecord, environment: dict[str, str], said: list[str]
) -> LeaderSession:
    options = {"environment": environment, "sleep": lambda seconds: None}
    return LeaderSession(seat_of(leaders, record, inform=said.append, **options))


def test_a_vm_that_the_cloud_does_not_end_is_said_and_remembered_until_a_sweep_ends_it(
    compute: ComputeServer,
    leaders: Leaders,
    books: Store,
    url: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = rented(leaders, environment)
    monkeypatch.setattr("scavenger.control.provisioning.clean_up.POLL_S", 0.01)
    compute.faults.denied = True

    (line,) = session(leaders, record, environment, []).end(books)

    assert "job digits in gcp/us-central1" in line
    (kept,) = leaders.all()
    assert kept == replace(record, ending=True)
    assert gc.gc(yes=True, store_url=url) == 8
    assert "cannot be checked" in capsys.readouterr().err
    compute.faults.denied = False
    assert commands.list_leaders(url) == 0
    assert "there, to be ended" in capsys.readouterr().out

    assert gc.gc(yes=True, store_url=url) == 0

    assert "its end had" in capsys.readouterr().out
    assert compute.project.alive() == []
    assert set(compute.project.firewalls) == {"default-allow-ssh"}
    (kept,) = leaders.all()
    assert session(leaders, kept, environment, []).end(books) == ()
    assert list(leaders.all()) == []
    assert books.entry("ffff-1", "leader").usd >= 0.07 / 60.0, "a minute is the least that a VM costs"
    assert sum(books.spending(EPOCH).spent.values()) == books.entry("ffff-1", "leader").usd


def test_a_vm_that_the_cloud_does_not_list_yet_is_ended(
    compute: ComputeServer, leaders: Leaders, books: Store, environment: dict[str, str]
) -> None:
    record = rented(leaders, environment)
    compute.project.hidden_s = 1e6

    assert session(leaders, record, environment, []).end(books) == ()

    assert compute.project.alive() == []
    assert list(leaders.all()) == []


def test_a_vm_is_ended_though_its_record_cannot_be_changed(
    compute: ComputeServer,
    leaders: Leaders,
    books: Store,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, said = rented(leaders, environment), list[str]()
    with leaders.open_store(record) as store:
        store.finish_job(record.id, state="stopped", report=None, exit_code=None)

    def no_room(self: Leaders, record: LeaderRecord) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Leaders, "put", no_room)

    assert session(leaders, record, environment, said).end(books) == ()

    assert compute.project.alive() == []
    assert "No space left" in said[0]


# From another machine


def found_by(
    url: str, capsys: pytest.CaptureFixture[str], *, other: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """What another machine's sweep of the region tells; it ends what it may."""
    capsys.readouterr()
    code = gc.gc([f"gcp/{REGION}"], yes=True, other=list(other), store_url=url, output=Output.JSON)
    assert code == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["other_leaders"]
    return rows


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("scavenger.control.provisioning.clean_up.POLL_S", 0.01)
    return f"sqlite:///{tmp_path / 'elsewhere' / 'scavenger.db'}"


def test_another_machine_sees_a_live_leader_with_owner_age_and_cost_and_ends_it_only_if_asked(
    compute: ComputeServer,
    leaders: Leaders,
    environment: dict[str, str],
    elsewhere: str,
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock.advance((datetime.now(UTC) - timedelta(hours=0.5) - EPOCH).total_seconds() - clock())
    record = rented(leaders, environment)
    with leaders.open_store(record) as store:
        owner = store.installation()
    (machine,) = compute.project.alive()
    age_s = (datetime.now(UTC) - EPOCH).total_seconds() - machine.created_at

    (row,) = found_by(elsewhere, capsys)

    assert (row["instance_id"], row["owner"], row["state"]) == (str(machine.id), owner, "live")
    assert row["age_s"] == pytest.approx(age_s, abs=60.0)
    extras_usd = (
        0.005 + 20 * 0.1 / 730
    )  # its address, and its disk, whose price in the snapshot is about that
    assert row["cost_usd"] == pytest.approx((0.067 + extras_usd) * row["age_s"] / 3600.0, rel=0.03)
    assert compute.project.alive() == [machine]
    with pytest.raises(ConfigurationError, match="--leader 42"):
        found_by(elsewhere, capsys, other=("42",))

    found_by(elsewhere, capsys, other=(str(machine.id),))

    assert compute.project.alive() == []
    assert set(compute.project.firewalls) == {"default-allow-ssh"}


@pytest.mark.parametrize("what", ["overdue", "off"])
def test_another_machine_ends_a_leader_whose_time_is_over_with_what_it_has_rented(
    what: str,
    compute: ComputeServer,
    leaders: Leaders,
    url: str,
    environment: dict[str, str],
    elsewhere: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = rented(leaders, environment)
    provider = open_provider("gcp", REGION, environment)
    with leaders.open_store(record) as store:
        (intent,) = store.intents()
    tags = replace(intent.request.tags, token=str(uuid.uuid4()), slot=1)
    provider.launch(replace(intent.request, tags=tags, template=LaunchTemplate(3600.0)))
    machine, _ = compute.project.alive()
    if what == "off":
        machine.off_at = machine.up_at
    assert not [one for one in found_by(url, capsys) if one["to_end"]], (
        "the machine that has rented it is not another"
    )

    (row,) = found_by(elsewhere, capsys)  # the server's clock is long past

    assert (row["state"], row["to_end"]) == (what, True)
    assert compute.project.alive() == []
