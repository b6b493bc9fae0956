"""How many aggregator VMs a job rents when its file leaves that open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aws_server import VCPUS, AwsServer

from scavenger.control.jobs.prepared import PreparedJob, prepare_job
from scavenger.control.places.launching import ADDRESS_VARIABLE
from scavenger.control.places.vms import RentedVms
from scavenger.control.provisioning.model_size import model_size, record_size, recorded_size
from scavenger.control.search.model_library import ModelLibrary, check_models_exist
from scavenger.domain.configuration import Configuration
from scavenger.domain.fingerprint import BESIDE_WORKERS, Fingerprint, hardware_of_vms, place_of_hardware
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement, Profile
from scavenger.errors import ConfigurationError, QuotaError
from scavenger.models.aggregation import OWN_BYTES, ModelSize, held_models
from scavenger.models.job_model import JobModel
from scavenger.store import Store
from scavenger.train.transport.messages.values import Manifest, TensorSpec

pytestmark = pytest.mark.slow

VM, PLACE = "c5.xlarge", "aws/us-east-1"
EVEN = tuple(1.0 / vms for vms in range(1, 17))
SMALL = ModelSize(1e6, 2, EVEN)
JOB = Fingerprint("a" * 64, 1000, "Adam:1", 6400, 64, "", VM, PLACE)


@pytest.fixture(scope="module")
def started() -> Iterator[AwsServer]:
    server = AwsServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def account(started: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    """The account whose quotas are asked, with room for 32 VMs."""
    started.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", started.url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return started


def job(tmp_path: Path, **sections: Any) -> PreparedJob:
    (tmp_path / "train.py").touch()
    spec = JobSpec.model_validate(
        {
            "version": 1,
            "name": "tiny",
            "train": "train:job",
            "goal": {"max_epochs": 20},
            "infra": PLACE,
            "leader": "here",
            "objective": "cost",
            "resources": {"any_of": [VM]},
            "search": {"workers": "1..8", "batch_size": [64, 512]},
            **sections,
        }
    )
    return prepare_job(spec, tmp_path / "job.yaml")


def measured(link_s: float, share: float = 1.0) -> tuple[Measurement, ...]:
    """Steps that compute for a second per 64 samples, and wait for the longer of both ends' links."""
    found = []
    for k, b in ((1, 64), (1, 512), (2, 512), (4, 512), (8, 512), (8, 64)):
        compute_s, sync_s = b / k / 64.0, link_s * max(k * share, 1.0)
        found.append(
            Measurement(Configuration(VM, k, b), 20, compute_s + sync_s, 0.0, compute_s, sync_s, 1.5, 1e5, 1)
        )
    return tuple(found)


def ran(
    store: Store, *, size: ModelSize = SMALL, link_s: float | None = None, vms: int = 1, **changes: Any
) -> None:
    """An earlier run of the job, which has measured steps with links of such a speed."""
    spec = {"train": "train:job"} | changes
    record = store.create_job("tiny", spec=spec, job_file="job.yaml")
    fingerprint = replace(JOB, hardware=hardware_of_vms(PLACE, vms))
    store.update_job(record.id, fingerprint=fingerprint)
    record_size(store, record.id, size)
    if link_s is None:
        return
    space = job(Path(store.path or "").parent).place.space
    profile = Profile(measured(link_s, size.share(vms)), 6400)
    model = JobModel.fit(profile, space=space, epochs_hint=None, max_epochs=20, fixed_epochs=True)
    library = ModelLibrary.read(store, fingerprint, write=lambda write: write(), warn=pytest.fail)
    library.keep(model, record.id, measurements=6)


def number(prepared: PreparedJob) -> int:
    vms = prepared.job.elastic.aggregator_vms
    assert vms != "auto"
    assert isinstance(prepared.place, RentedVms)
    if vms == "workers":
        assert prepared.job.elastic.known_aggregator_vms == prepared.place.costs.aggregator_vms == 1
        assert prepared.job.elastic.aggregators == 1 + prepared.job.worker_counts[-1]
        vms = BESIDE_WORKERS
    else:
        assert prepared.place.costs.planned_terms(vms).shared.aggregators == vms
        assert prepared.job.elastic.aggregators >= vms
    assert prepared.place.hardware == hardware_of_vms(PLACE, vms)
    return vms


def test_a_first_run_has_one_and_says_why(store: Store, tmp_path: Path) -> None:
    first = job(tmp_path).settled(store)

    assert number(first) == 1
    assert any("no earlier run" in note for note in first.place.notes)


def test_what_the_file_says_holds(store: Store, tmp_path: Path) -> None:
    ran(store, link_s=5.0)
    said = job(tmp_path, elastic={"aggregators": 4, "aggregator_vms": 3})

    assert said.settled(store) is said
    again = job(tmp_path).settled(store)
    assert again.settled(store) is again, "what was chosen is not chosen again"


def test_a_job_that_rents_none_is_left_alone(store: Store, tmp_path: Path) -> None:
    here = job(tmp_path, infra="local", resources=None)

    assert here.settled(store) is here


def test_more_are_rented_where_the_links_of_one_are_what_steps_wait_for(store: Store, tmp_path: Path) -> None:
    ran(store, link_s=2.0)
    by_time = job(tmp_path, objective="time").settled(store)

    assert number(by_time) > 2
    (why,) = (note for note in by_time.place.notes if "aggregator VM" in note)
    assert "no step with" in why
    assert "with 1 " in why


def within(account: AwsServer, vms: int) -> None:
    account.vcpus_max = vms * VCPUS[VM]


def reason(prepared: PreparedJob) -> str:
    (why,) = (note for note in prepared.place.notes if "aggregator VM" in note)
    return why


def place(prepared: PreparedJob) -> RentedVms:
    assert isinstance(prepared.place, RentedVms)
    return prepared.place


@pytest.mark.parametrize("vms", [1, 2, 3, 16])
def test_no_number_is_chosen_that_quotas_refuse_and_what_was_better_is_named(
    store: Store, tmp_path: Path, account: AwsServer, vms: int
) -> None:
    ran(store, link_s=2.0)
    free = number(job(tmp_path, objective="time", spot="always").settled(store))
    assert 1 < free < BESIDE_WORKERS
    within(account, vms)
    found = job(tmp_path, objective="time", spot="always").settled(store)

    assert number(found) <= free
    assert number(found) <= vms
    if number(found) != free:
        quota = "quota Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances in us-east-1"
        assert f"not {free} aggregator VMs, as {quota} (0 of {4 * vms} used) leaves room for" in reason(found)
    else:
        assert "quota" not in reason(found)


def test_aggregators_are_beside_the_workers_where_links_are_what_steps_wait_for(
    store: Store, tmp_path: Path, account: AwsServer
) -> None:
    """And where that was measured, but not where a spot VM would take a part of the model with it."""
    ran(store, link_s=2.0)
    assert number(job(tmp_path, objective="time").settled(store)) < BESIDE_WORKERS
    ran(store, link_s=2.0, vms=BESIDE_WORKERS)
    within(account, 9)
    found = job(tmp_path, objective="time").settled(store)

    assert number(found) == BESIDE_WORKERS
    assert place(found).within_quotas()[0].workers[-1] == 8
    assert re.search("aggregators beside the workers: .*, with 1 aggregator VM ", reason(found))
    assert number(found.settled(store)) == BESIDE_WORKERS
    assert number(job(tmp_path, objective="time", spot="always").settled(store)) < BESIDE_WORKERS


def test_aggregators_are_beside_the_workers_where_the_file_says_so(store: Store, tmp_path: Path) -> None:
    said = job(tmp_path, elastic={"aggregator_vms": "workers"}).settled(store)

    assert number(said) == BESIDE_WORKERS
    assert said.settled(store) is said


def test_workers_are_not_given_up_for_aggregators_that_gain_less(
    store: Store, tmp_path: Path, account: AwsServer
) -> None:
    """Eight workers with two aggregator VMs are faster than seven with three, though slower than eight with three."""
    gib = job(tmp_path).place.space.offers[0].memory_bytes
    large = ModelSize(1.5 * (gib - OWN_BYTES) / held_models(2), 2, EVEN)  # two VMs hold it, and not one
    ran(store, size=large, link_s=0.02)
    assert number(job(tmp_path, objective="time").settled(store)) > 2
    ran(store, size=large, link_s=0.006)
    within(account, 10)
    found = job(tmp_path, objective="time").settled(store)

    assert number(found) == 2
    assert place(found).within_quotas()[0].workers[-1] == 8


def test_the_vm_that_will_lead_the_job_has_its_part_of_the_quota(
    store: Store, tmp_path: Path, account: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(store, link_s=2.0)
    within(account, 3)
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    led = job(tmp_path, objective="time", leader="vm").settled(store)

    assert number(led) == 1
    permitted, _ = place(led).permitted(ahead=True)
    room = permitted.room(2).space  # the leader's VM is smaller than a worker's
    assert room is None


def test_a_cloud_that_does_not_tell_its_quotas_is_no_reason_for_another_number(
    store: Store, tmp_path: Path, account: AwsServer
) -> None:
    ran(store, link_s=2.0)
    free = number(job(tmp_path, objective="time").settled(store))
    account.failing = 100
    found = job(tmp_path, objective="time").settled(store)

    assert number(found) == free
    assert "what quotas allow is not known" in reason(found)


def test_a_number_that_memory_needs_and_quotas_refuse_ends_the_job_with_both(
    store: Store, tmp_path: Path, account: AwsServer
) -> None:
    gib = job(tmp_path).place.space.offers[0].memory_bytes
    ran(store, size=ModelSize(2.5 * (gib - OWN_BYTES) / held_models(2), 2, EVEN), link_s=0.001)
    within(account, 2)
    found = job(tmp_path).settled(store)

    assert number(found) == 3
    words = r"leaves room for 2 of 3 aggregator VMs c5\.xlarge"
    with pytest.raises(QuotaError, match=words):
        place(found).within_quotas()
    assert re.search(words, reason(found))


def test_none_are_added_where_steps_compute(store: Store, tmp_path: Path) -> None:
    ran(store, link_s=0.001)

    assert {number(job(tmp_path, objective=by).settled(store)) for by in ("time", "cost", "knee")} == {1}


def test_a_budget_that_further_vms_would_break_is_kept(store: Store, tmp_path: Path) -> None:
    ran(store, link_s=2.0)
    free = job(tmp_path, objective="time").settled(store)
    cheapest = job(tmp_path, objective="cost").settled(store)

    assert number(cheapest) < number(free)
    tight = job(tmp_path, objective="time", constraints={"budget": "$0.001"}).settled(store)
    assert number(tight) == 1


def test_as_many_as_hold_the_model_are_rented_whatever_they_gain(store: Store, tmp_path: Path) -> None:
    gib = job(tmp_path).place.space.offers[0].memory_bytes
    large = 2.5 * (gib - OWN_BYTES) / held_models(2)
    ran(store, size=ModelSize(large, 2, EVEN))
    assert number(job(tmp_path).settled(store)) == 3

    ran(store, size=ModelSize(large, 2, EVEN), link_s=0.001)
    assert number(job(tmp_path).settled(store)) == 3

    ran(store, size=ModelSize(large, 2, (1.0,) * 16))
    with pytest.raises(ConfigurationError, match="would not hold"):
        job(tmp_path).settled(store)


def test_a_model_that_cannot_be_divided_gets_one(store: Store, tmp_path: Path) -> None:
    ran(store, size=ModelSize(1e6, 2, (1.0,) * 16), link_s=2.0)

    assert number(job(tmp_path, objective="time").settled(store)) == 1


def test_a_run_of_other_code_tells_nothing(store: Store, tmp_path: Path) -> None:
    ran(store, link_s=2.0, train="other:job")

    assert number(job(tmp_path, objective="time").settled(store)) == 1


def test_what_was_measured_with_a_number_counts_for_it(store: Store, tmp_path: Path) -> None:
    """By steps with one VM, four would pay; steps with four show that they gain nothing."""
    ran(store, link_s=2.0)
    before = number(job(tmp_path, objective="time").settled(store))
    for vms in range(2, 17):
        ran(store, link_s=2.0 / EVEN[vms - 1], vms=vms)  # the same time whatever the share
    after = number(job(tmp_path, objective="time").settled(store))

    assert before > after == 1


def test_a_stored_model_of_another_number_serves_the_next_run(store: Store, tmp_path: Path) -> None:
    ran(store, link_s=2.0)
    two = replace(JOB, hardware=hardware_of_vms(PLACE, 2))
    library = ModelLibrary.read(store, two, write=lambda write: write(), warn=pytest.fail)
    assert library.same is None

    found = library.of_other_vms(SMALL)
    assert found is not None
    model, before, now = found
    assert (before, now) == (1, 2)
    own = ModelLibrary.read(store, JOB, write=lambda write: write(), warn=pytest.fail).same
    assert own is not None
    assert own.vms[0].parallel.with_share(1.0, 0.5) == model.vms[0].parallel
    space = job(tmp_path).place.space
    check_models_exist(store, "none", space, hardware=two.hardware)
    with pytest.raises(ConfigurationError):
        check_models_exist(store, "none", space, hardware="aws/eu-west-1")
    elsewhere = replace(JOB, hardware=hardware_of_vms("aws/eu-west-1", 2))
    abroad = ModelLibrary.read(store, elsewhere, write=lambda write: write(), warn=pytest.fail)
    assert abroad.of_other_vms(SMALL) is None


def test_the_size_of_a_model_is_read_as_it_was_recorded(store: Store) -> None:
    tensors = tuple(TensorSpec(f"w{n}", (1024, 256), "float32", "trainable") for n in range(8))
    manifest = Manifest(
        tensors=tensors,
        metrics=(),
        optimizer='{"class_name": "Adam", "config": {}}',
        architecture="a" * 64,
        parameters=1,
        dataset_size=1,
        validation_size=0,
        sample_bytes=1,
        metric_names=(),
    )
    tiny = msgspec.structs.replace(manifest, tensors=(TensorSpec("w", (2, 2), "float32", "trainable"),))
    assert model_size(tiny, 1).shares[0] == 1.0, "whatever its memory is rounded up to"
    found = model_size(manifest, 1)
    record = store.create_job("tiny", spec={}, job_file="job.yaml")
    assert recorded_size(store, record.id) is None
    record_size(store, record.id, found)

    assert recorded_size(store, record.id) == found
    assert found.shares[0] == 1.0
    assert found.shares[1] == pytest.approx(0.5, abs=0.15)
    assert all(0.0 < share <= 1.0 for share in found.shares)
    assert found.copies == 2
    store.add_event(record.id, "model", "", data={"shares": [2.0]}, replacing=True)
    assert recorded_size(store, record.id) is None


@pytest.mark.parametrize("vms", [1, 2, 16, BESIDE_WORKERS])
def test_hardware_tells_place_and_number(vms: int) -> None:
    assert place_of_hardware(hardware_of_vms(PLACE, vms)) == (PLACE, vms)
