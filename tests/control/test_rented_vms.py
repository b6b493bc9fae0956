"""What a job rents: the address that VMs need, and what quotas leave of a search."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeProvider

from scavenger.api.preview import preview_of, preview_rows
from scavenger.cloud.boot.boot import PACKAGE_VARIABLE
from scavenger.cloud.boot.package import own_package
from scavenger.cloud.catalog.cache import write_cache
from scavenger.cloud.quotas import vms_left
from scavenger.cloud.stock import CatalogEntry, MachineType, Stock
from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.leading.start import LeaderStart, check_start
from scavenger.control.places.launching import ADDRESS_VARIABLE, GPU_VMS, UNPROVEN_VARIABLE, address_of
from scavenger.control.places.needs import Kind
from scavenger.control.places.vms import RentedVms
from scavenger.control.provisioning.leader_meter import LEADER_VARIABLE
from scavenger.control.provisioning.prices import cache_path
from scavenger.control.service.submitting import new_submission
from scavenger.control.settings import SETTINGS_VARIABLE
from scavenger.domain.cost import Price
from scavenger.domain.job import JobSpec
from scavenger.domain.vm import Quota, VmPackage
from scavenger.errors import (
    CloudError,
    CloudUnavailableError,
    ConfigurationError,
    NotSupportedError,
    QuotaError,
    ThrottledError,
)
from scavenger.presentation.formatting import money
from scavenger.train.transport.messages.values import Manifest, TensorSpec

STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
STANDARD_SPOT = "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"


def renting(
    quotas: tuple[Quota, ...], *, environment: Mapping[str, str] | None = None, **sections: Any
) -> RentedVms:
    job = JobSpec.model_validate(
        {
            "version": 1,
            "name": "tiny",
            "train": "train:job",
            "goal": {"max_epochs": 2},
            "infra": "aws/us-east-1",
            "resources": {"any_of": ["c5.large", "c5.2xlarge"]},
            "search": {"workers": "1..8", "batch_size": [64]},
            **sections,
        }
    )

    class Limited(FakeProvider):
        def quotas(self) -> tuple[Quota, ...]:
            return quotas

    found = RentedVms(job, environment or {})
    found.__dict__["provider"] = Limited(name=job.infra.provider, region=job.infra.region)
    return found


def test_a_loop_rents_no_aggregators_and_is_not_led_from_outside_the_clouds_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = renting(()).job
    loop = RentedVms(job, {}, kind=Kind.LOOP)
    assert loop.aggregators is None
    assert any("no VM is rented for aggregators" in note for note in loop.notes)
    keras = RentedVms(job, {})
    assert keras.aggregators is not None

    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    loop.check()
    # of a machine behind a router, which a test is not
    monkeypatch.setattr("scavenger.control.places.vms.address_of", lambda environment: ("8.8.8.8", 4000))
    keras.check()
    with pytest.raises(NotSupportedError, match="leader: vm"):
        loop.check()


def test_without_an_address_vms_cannot_come_and_with_a_strangers_neither() -> None:
    with pytest.raises(ConfigurationError, match=ADDRESS_VARIABLE):
        address_of({})
    with pytest.raises(ConfigurationError, match="not this machine's own"):
        address_of({ADDRESS_VARIABLE: "192.0.2.77"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        before = f"127.0.0.1:{taken.getsockname()[1] - 1}"
        with pytest.raises(ConfigurationError, match="VMs cannot join there"):
            address_of({ADDRESS_VARIABLE: before})
    for text in ("127.0.0.1:x", "127.0.0.1:99999999", "127.0.0.1:", "no.such.host.invalid"):
        with pytest.raises(ConfigurationError, match=ADDRESS_VARIABLE):
            address_of({ADDRESS_VARIABLE: text})

    assert address_of({ADDRESS_VARIABLE: "127.0.0.1"}) == ("127.0.0.1", 0)
    assert address_of({ADDRESS_VARIABLE: "localhost:0"}) == ("127.0.0.1", 0)
    # as behind a router that passes ports on
    free = _first_of_two_free_ports()
    assert address_of({ADDRESS_VARIABLE: f"192.0.2.77:{free}"}) == ("192.0.2.77", free)


def _first_of_two_free_ports() -> int:
    while True:
        with socket.socket() as one, socket.socket() as next_one, contextlib.suppress(OSError):
            one.bind(("", 0))
            port: int = one.getsockname()[1]
            next_one.bind(("", port + 1))
            return port


GPU_JOB: dict[str, Any] = {"resources": {"accelerators": "T4"}, "search": {"workers": 1, "batch_size": [64]}}


@pytest.mark.parametrize("resources", [{"accelerators": "T4"}, {"any_of": ["c5.large", "g4dn.16xlarge"]}])
def test_vms_with_gpus_are_rented_only_if_the_user_agrees_to_what_was_never_tried(
    resources: dict[str, Any],
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"g4dn.* has GPUs, .*; set SCAVENGER_UNPROVEN=gpu-vms"
    ) as refusal:
        renting((), resources=resources)

    assert refusal.value.key == "resources"
    agreed = renting((), resources=resources, environment={"SCAVENGER_UNPROVEN": "gpu-vms"})
    assert any(offer.vm.startswith("g4dn") for offer in agreed.space.offers)


def gpus(tmp_path: Path, days: int, *, own: bool = False, **more: Any) -> RentedVms:
    """A job on a GPU whose price on demand was refreshed so many days ago, or is the user's own."""
    dated = datetime.now(UTC).date() - timedelta(days=days)
    machine = MachineType("aws", "g4dn.xlarge", 4, 16.0, "T4", 1)
    small = MachineType("aws", "c5.large", 2, 4.0)
    listed = {
        one.name: CatalogEntry(one, "us-east-1", Price(usd, "AWS price list", dated))
        for one, usd in ((machine, 0.526), (small, 0.085))
    }
    write_cache(cache_path(), Stock({("aws", "us-east-1"): listed}))
    environment = {"SCAVENGER_UNPROVEN": "gpu-vms", **more.pop("environment", {})}
    if own:
        (tmp_path / "prices.yaml").write_text(
            "version: 1\nprices: [{provider: aws, vm: g4dn.xlarge, on_demand: 0.5}]\n"
        )
        os.utime(tmp_path / "prices.yaml", (0, 0))
        environment["SCAVENGER_PRICES"] = str(tmp_path / "prices.yaml")
    return renting((), environment=environment, resources={"vm": "g4dn.xlarge"}, **more)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_gpu_by_a_price_older_than_90_days_is_refused_where_nobody_is_asked_and_says_what_to_do(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    gpus(own_cache, 90).check()

    old = gpus(own_cache, 91)
    dated = (datetime.now(UTC) - timedelta(days=91)).date().isoformat()
    words = f"the price of g4dn.xlarge, $0.526 an hour, is 91 days old (AWS price list, {dated})"
    assert old.old_prices == words
    prepared = PreparedJob(own_cache / "job.yaml", own_cache, old)
    for refusing in (old.check, old.check_prices, lambda: new_submission(prepared)):
        with pytest.raises(ConfigurationError, match=r"limits\.price_age: the price of g4dn") as refusal:
            refusing()
        assert words in str(refusal.value)
        for way in ("catalog refresh --provider aws", "prices.yaml", "limits: {price_age: 121d}"):
            assert way in str(refusal.value)
    assert words in dict(preview_rows(prepared, run=True, yes=False))["prices"]
    assert preview_of(prepared, run=True, yes=False).refused is not None

    accepted = old.with_old_prices()
    accepted.check()
    assert accepted.job.limits.price_age == 121 * 86_400.0
    assert new_submission(replace(prepared, place=accepted)).spec["limits"] == {"price_age": 121 * 86_400.0}
    assert old.old_prices, "the place itself stays as it was"


def test_prices_of_ones_own_a_higher_limit_and_a_leader_that_was_rented_already_ask_nothing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    gpus(own_cache, 400, own=True).check()
    gpus(own_cache, 120, limits={"price_age": "120d"}).check()
    gpus(own_cache, 120, environment={LEADER_VARIABLE: "c5.large 0.25 0"}).check()
    strict = gpus(own_cache, 8, limits={"price_age": "7d"})
    assert strict.old_prices
    assert strict.with_old_prices().old_prices == ""


@pytest.mark.parametrize(
    ("sections", "disk_gib"),
    [({}, 20), ({"resources": {"vm": "c5.large", "disk": 64}}, 64), (GPU_JOB, 100)],
)
def test_disks_are_as_large_as_the_job_file_says_or_as_an_image_needs(
    sections: dict[str, Any], disk_gib: int
) -> None:
    found = renting((), environment={"SCAVENGER_UNPROVEN": "gpu-vms"}, **sections)
    trainer: Any = SimpleNamespace(setup_s=0.0, ready_on=lambda vm: 0)

    assert found.costs.terms(trainer).shared.disk_gib == disk_gib


def test_where_quotas_leave_room_the_search_is_whole() -> None:
    space, notes = renting((Quota(STANDARD, "us-east-1", 1000, 0),)).within_quotas()
    assert (len(space.offers), space.workers, notes) == (2, tuple(range(1, 9)), ())
    assert renting(()).within_quotas()[0] == space


def test_clusters_that_a_quota_does_not_allow_are_left_out_and_said() -> None:
    # 4 of 16 vCPUs are used: five of c5.large beside the aggregators' VM, or one c5.2xlarge
    space, notes = renting((Quota(STANDARD, "us-east-1", 16, 4),)).within_quotas()
    assert (space.workers, [offer.vm for offer in space.offers]) == ((1, 2, 3, 4, 5), ["c5.large"])
    assert [note.partition(" leaves")[2] for note in notes] == [
        " room for 5 workers on c5.large: larger clusters are left out",
        " room for 1 worker on c5.2xlarge: c5.2xlarge is left out",
    ]


def test_clusters_are_no_larger_than_the_quota_of_their_gpus() -> None:
    l4s = Quota("NVIDIA_L4_GPUS", "us-central1", 8, 3)
    place: dict[str, Any] = {
        "environment": {UNPROVEN_VARIABLE: GPU_VMS},
        "infra": "gcp/us-central1",
        "resources": {"vm": "g2-standard-24"},
    }
    space, notes = renting((l4s,), **place).within_quotas()

    assert space.workers == (1, 2, 3, 4)
    assert notes[0].startswith("quota NVIDIA_L4_GPUS in us-central1 (3 of 8 used) leaves room for 4 workers")
    with pytest.raises(QuotaError, match="GPUS_ALL_REGIONS"):
        renting((l4s, Quota("GPUS_ALL_REGIONS", "us-central1", 1, 0)), **place).within_quotas()


def test_every_aggregator_vm_takes_its_part_of_a_quota_and_is_paid_for() -> None:
    elastic = {"aggregators": 5, "aggregator_vms": 2}
    found = renting((Quota(STANDARD, "us-east-1", 16, 4),), elastic=elastic)
    trainer: Any = SimpleNamespace(setup_s=0.0, ready_on=lambda vm: 0)

    assert found.within_quotas()[0].workers == (1, 2, 3, 4)
    assert found.costs.terms(trainer).shared.aggregators == 2


@pytest.mark.parametrize(("aggregators", "vms"), [(1, 1), (2, 2), (3, 2)])
def test_the_memory_of_aggregator_vms_limits_the_model(aggregators: int, vms: int) -> None:
    mib = 2**20
    tensors = tuple(TensorSpec(f"w{i}", (25 * mib,), "float32", "trainable") for i in range(6))  # 600 MiB
    manifest = Manifest(tensors, (), json.dumps({"class_name": "Adam", "config": {}}), "", 0, 1, 0, 1, ())
    found = renting((), elastic={"aggregators": aggregators, "aggregator_vms": vms}).costs.of_model(manifest)

    # c5.large has 4 GiB, one of which is not for the model; of three equal shards, one VM has two
    share = {1: 1.0, 2: 0.5, 3: 2 / 3}[aggregators]
    assert found.largest_share == pytest.approx(share, rel=0.02)
    assert (found.lack() == "") == (9.25 * 600 * share <= 3072)
    assert found.vm_bytes_per_s == 1.25e9


def test_a_quota_that_allows_nothing_ends_the_job_before_a_vm_is_asked_for() -> None:
    with pytest.raises(QuotaError, match="leaves room for 0 workers") as found:
        renting((Quota(STANDARD, "us-east-1", 2, 0),)).within_quotas()
    assert found.value.quota == STANDARD
    assert found.value.exit_code == 7


def test_a_spot_quota_of_nothing_is_no_end_where_on_demand_vms_will_do(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("version: 1\nprices: [{provider: aws, region: us-east-1, vm: c5.large, spot: $0.01}]\n")
    quotas = (Quota(STANDARD, "us-east-1", 1000, 0), Quota(STANDARD_SPOT, "us-east-1", 0, 0))
    one = {"resources": {"vm": "c5.large"}}
    for spot, limited in (("auto", False), ("always", True)):
        found = renting(quotas, environment={"SCAVENGER_PRICES": str(prices)}, spot=spot, **one)
        assert found.space.offers[0].spot
        if limited:
            with pytest.raises(QuotaError):
                found.within_quotas()
        else:
            assert found.within_quotas() == (found.space, ())


def test_vms_install_this_code_with_what_the_job_reads_unless_the_user_names_a_package(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("from scavenger.sdk import ParquetFiles\n")
    named = {PACKAGE_VARIABLE: "scavenger-ml==0.1.0"}
    bucket = {"checkpoint": {"path": "s3://bucket/checkpoints"}}

    assert renting(()).package(tmp_path) == own_package(["keras", "parquet"])
    assert renting((), **bucket).package(tmp_path) == own_package(["aws", "keras", "parquet"])
    assert renting((), environment=named).package(tmp_path) == VmPackage(requirement="scavenger-ml==0.1.0")


@pytest.mark.parametrize(
    ("error", "patience_s"),
    [(ThrottledError("too many calls"), 300.0), (CloudUnavailableError("no answer"), 60.0)],
)
def test_a_cloud_that_throttles_or_is_silent_at_the_start_is_asked_again_for_some_minutes(
    error: CloudError, patience_s: float
) -> None:
    found, waits, warnings = renting(()), [0.0], list[str]()
    found.questions.pause, found.questions.warn = waits.append, warnings.append
    answers = iter([*[error] * 9, ()])

    def quotas() -> tuple[Quota, ...]:
        answer = next(answers)
        if isinstance(answer, CloudError):
            raise answer
        return answer

    found.__dict__["provider"] = SimpleNamespace(name="aws", quotas=quotas)
    try:
        assert found.within_quotas() == (found.space, ())
    except CloudUnavailableError:  # nine silences are longer than it waits
        assert sum(waits) == pytest.approx(patience_s)
    assert warnings == [f"{error}; tried again for up to {patience_s / 60:g} min"]

    answers = iter([error] * 1000)
    waits.clear()
    with pytest.raises(type(error)):
        found.within_quotas()
    assert sum(waits) == pytest.approx(patience_s)


@pytest.mark.parametrize(
    ("provider", "quota", "vm", "cpus", "spot", "left"),
    [
        ("aws", Quota(STANDARD, "r", 10, 3), "m5.xlarge", 4, False, 1),
        ("aws", Quota(STANDARD, "r", 10, 3), "m5.xlarge", 4, True, None),
        ("aws", Quota(STANDARD_SPOT, "r", 10, 3), "m5.xlarge", 4, True, 1),
        ("aws", Quota(STANDARD, "r", 10, 3), "g4dn.xlarge", 4, False, None),
        ("gcp", Quota("CPUS", "r", 24, 4), "e2-standard-4", 4, False, 5),
        ("gcp", Quota("CPUS", "r", 24, 40), "e2-standard-4", 4, False, 0),
        ("gcp", Quota("N2_CPUS", "r", 8, 0), "n2-standard-4", 4, False, 2),
        ("gcp", Quota("N2_CPUS", "r", 8, 0), "n2d-standard-4", 4, False, None),
        ("gcp", Quota("PREEMPTIBLE_CPUS", "r", 8, 0), "n2-standard-4", 4, True, 2),
        ("gcp", Quota("PREEMPTIBLE_CPUS", "r", 0, 0), "n2-standard-4", 4, True, None),
        ("gcp", Quota("INSTANCES", "r", 8, 5), "n2-standard-4", 4, True, 3),
        ("gcp", Quota("IN_USE_ADDRESSES", "r", 1, 1), "n2-standard-4", 4, False, None),
        ("gcp", Quota("NVIDIA_L4_GPUS", "r", 4, 1), "g2-standard-24", 24, False, 1),
        ("gcp", Quota("NVIDIA_L4_GPUS", "r", 4, 1), "g2-standard-24", 24, True, None),
        ("gcp", Quota("NVIDIA_L4_GPUS", "r", 4, 1, spot_too=True), "g2-standard-24", 24, True, 1),
        ("gcp", Quota("NVIDIA_L4_GPUS", "r", 0, 0), "a2-highgpu-1g", 12, False, None),
        ("gcp", Quota("PREEMPTIBLE_NVIDIA_A100_GPUS", "r", 16, 0), "a2-highgpu-4g", 48, True, 4),
        ("gcp", Quota("PREEMPTIBLE_NVIDIA_A100_GPUS", "r", 0, 0), "a2-highgpu-4g", 48, True, None),
        ("gcp", Quota("GPUS_ALL_REGIONS", "r", 0, 0), "g2-standard-4", 4, False, 0),
        ("gcp", Quota("GPUS_ALL_REGIONS", "r", 0, 0), "n2-standard-4", 4, False, None),
    ],
)
def test_what_a_quota_leaves(
    provider: str, quota: Quota, vm: str, cpus: int, spot: bool, left: int | None
) -> None:
    found = vms_left(provider, [Quota("NETWORKS", "r", 0, 0), quota], vm, cpus, spot=spot)
    assert (None if found is None else found[0]) == left


def test_a_leaders_vm_is_in_the_table_with_its_price_and_in_the_curve_of_its_job(tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text("")
    found = renting((), environment={SETTINGS_VARIABLE: str(settings)})
    assert found.leader is not None
    assert found.leader.offer.cpus == 2
    assert found.leader.usd_per_hour == pytest.approx(
        found.leader.offer.price_usd_per_hour + found.costs.extras().usd_per_hour
    )
    assert found.costs.extras().address_usd_per_hour == 0.005
    prepared = PreparedJob(Path("job.yaml"), tmp_path, found)
    rows = dict(preview_rows(prepared, run=True, yes=True))
    assert found.leader.offer.vm in rows["leader"]
    assert f"{money(found.leader.usd_per_hour)} an hour" in rows["leader"]
    assert "public address, since" in rows["leader"]
    assert ADDRESS_VARIABLE in rows["leader"]

    with pytest.raises(ConfigurationError, match="leader_profile"):
        _ = found.leader_placement
    settings.write_text('[aws]\nleader_profile = "scavenger-leader"\ninstance_profile = "scavenger-vms"\n')
    with settings.open("a") as file:
        file.write("public_address = false\n")
    found = renting((), environment={SETTINGS_VARIABLE: str(settings)})
    assert found.leader is not None
    found.__dict__["provider"] = FakeProvider(name="aws", types=(found.leader.offer.vm,))
    options, template = found.leader_placement
    assert {(one.vm, one.spot) for one in options} == {(found.leader.offer.vm, False)}
    assert {one.extras for one in options} == {found.costs.extras()}
    assert found.costs.extras().address_usd_per_hour == 0.0
    assert template.settings.identity == "scavenger-leader"


def test_a_budget_that_the_leader_may_use_up_after_the_job_is_refused(tmp_path: Path) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text('[aws]\nleader_profile = "scavenger-leader"\ninstance_profile = "scavenger-vms"\n')

    def start(budget: str) -> LeaderStart:
        found = renting(
            (),
            environment={SETTINGS_VARIABLE: str(settings)},
            constraints={"budget": budget},
            limits={"leader": "10h"},
        )
        return LeaderStart(PreparedJob(Path("job.yaml"), tmp_path, found))

    enough = start("$20")
    assert enough.prepared.place.leader is not None
    assert enough.aside_usd == pytest.approx(10.0 * enough.prepared.place.leader.usd_per_hour)
    rows = list(preview_rows(enough.prepared, run=True, yes=True))
    assert any("set aside" in words for _, words in rows)
    with pytest.raises(ConfigurationError, match="leaves nothing"):
        check_start(start("$0.5"))


def test_with_an_address_nothing_more_is_rented_and_on_a_leaders_vm_its_price_is_known() -> None:
    assert renting((), environment={ADDRESS_VARIABLE: "10.0.0.4"}).leader is None
    assert renting((), leader="here").leader is None
    there = renting((), environment={ADDRESS_VARIABLE: "10.0.0.4", LEADER_VARIABLE: "c5.large 0.25 0"})
    terms = there.costs.terms(SimpleNamespace(setup_s=1.0, ready_on=lambda vm: 0))  # type: ignore[arg-type]
    assert terms.shared.usd_per_leader_hour == 0.25
    assert terms.shared.usd_per_hour > 0.25
