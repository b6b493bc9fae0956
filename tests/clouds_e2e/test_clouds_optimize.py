"""`scavenger optimize` on a cloud, from profiling to the bill, through the end of a spot VM."""

from __future__ import annotations

from typing import Any

import pytest
from audits import AUDIT_FILE, verify_audit
from cloud_jobs import CloudJob, CloudOutcome, MakeJob, assert_nothing_left, paid_usd
from rented import Rented, RentedVm
from waiting import wait_for

from scavenger.control.provisioning.model_size import record_size, recorded_size
from scavenger.models.aggregation import OWN_BYTES, ModelSize, held_models
from scavenger.policy.provisioning.slots import aggregator_slot
from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.root]

TRAINED = 800
"""Samples of the training data."""
HASTE = "/haste"
"""A file on each VM, from which on samples take no time."""
NOTICE_S = 20.0
"""Before a spot VM ends; clouds give 30 s or more, and a busy machine takes some of them."""
CLOCKS_S = 2.5
"""AWS tells when a VM began and ended in whole seconds."""
ADDRESS_USD_PER_HOUR = {
    ("aws", False): 0.005,
    ("aws", True): 0.005,
    ("gcp", False): 0.005,
    ("gcp", True): 0.0025,
}
"""By cloud, and whether the VM is a spot VM."""
DIGITS: dict[str, Any] = {
    "spot": "always",
    "search": {"strategy": "auto", "workers": 2, "batch_size": {"min": 32, "max": 64}},
    "goal": {"metric": "val_accuracy", "target": 0.97, "max_epochs": 60, "epochs_hint": 10},
    "profile": {"steps": 12, "max_time": "2m"},
}
# Two workers from the start: on a machine that is shared, a search may find that one is as fast. Samples that are
# waited for keep the target far away, at no processor's cost, until a lost worker's successor has joined.
WAITING: dict[str, Any] = {
    **DIGITS,
    "goal": {"metric": "val_loss", "target": 0.19, "max_epochs": 400, "epochs_hint": 40},
    "tiny": True,
    "code": {
        "sleep_s": 0.0,
        "in_sample": f"if not os.path.exists({HASTE!r}): time.sleep(0.015)",
        "samples": TRAINED,
    },
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cloud", ["aws", pytest.param("gcp", marks=pytest.mark.long)], indirect=True)
def test_a_job_searches_trains_through_a_spot_interruption_and_leaves_nothing_but_its_bill(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = make_job(**WAITING)
    driver = job.start("--audit")
    try:
        vms = wait_for(lambda: job.phase() == "running" and job.workers_vms(), driver, within_s=300.0)
        taken = vms[0].id
        cloud.interrupt(taken, in_s=NOTICE_S)
        for vm in wait_for(lambda: _two_without(job, taken), driver, within_s=300.0):
            cloud.machine(vm.id).run("touch", HASTE)
        outcome = job.ended(driver, within_s=450.0)
    finally:
        driver.kill()

    assert outcome.code == 0, outcome.stderr
    report = outcome.report
    assert report["job"]["state"] == "succeeded"
    assert report["metric"]["value"] <= WAITING["goal"]["target"]
    assert len(report["search"]["profiled"]) >= 2
    assert report["choice"]["vm"] == cloud.small
    assert_nothing_left(job)
    assert {(vm.vm, vm.spot) for vm in cloud.vms()} == {(cloud.small, False), (cloud.small, True)}
    assert sum(not vm.spot for vm in cloud.vms()) == 1
    assert verify_audit(job.folder / ".scavenger" / outcome.job_id / AUDIT_FILE, TRAINED) == []
    _left_in_order_and_was_replaced(job, outcome)
    _bill_is_the_clouds(job, outcome)


def _two_without(job: CloudJob, taken: str) -> list[RentedVm]:
    """The VMs of its workers, once there are two again; empty before."""
    vms = [vm for vm in job.workers_vms() if vm.id != taken]
    return vms if len(vms) == 2 else []


def _left_in_order_and_was_replaced(job: CloudJob, outcome: CloudOutcome) -> None:
    """The worker heard of its VM's end before it came; its successor was in a later view."""
    with Store.open(job.store) as store:
        events = store.events(outcome.job_id)
    told = [(event.data["process"], event.data["state"]) for event in events if event.kind == "worker"]
    ((worker, _),) = [each for each in told if each[1] == "preempted"]
    assert (worker, "leaving") in told
    assert not [each for each in told if each[1] in ("lost", "failed")]
    preempted = told.index((worker, "preempted"))
    ready = [name for name, state in told[preempted:] if state == "ready"]
    assert len(ready) == 1
    views = [event.data["workers"] for event in events if event.kind == "view"]
    assert views[views.index(1) :][:2] == [1, 2], views


def _bill_is_the_clouds(job: CloudJob, outcome: CloudOutcome) -> None:
    """What the report says was paid is what the cloud will bill, and `scavenger cost` says it of each VM."""
    report = outcome.report
    cost = job.ask("cost", outcome.job_id).report["job"]
    vms = {vm.id: vm for vm in job.cloud.vms()}
    assert {one["instance_id"] for one in cost["vms"]} == set(vms)
    for one in cost["vms"]:
        vm = vms[one["instance_id"]]
        rate = job.prices[vm.vm][vm.spot] / 3600.0
        assert abs(one["usd"] - paid_usd(job, vm.token)) <= CLOCKS_S * rate, (one, vm)
        hourly = ADDRESS_USD_PER_HOUR[job.cloud.name, vm.spot]
        assert one["address_usd"] == pytest.approx(one["billed_s"] / 3600.0 * hourly)
    extras = sum((one["disk_usd"] or 0.0) + one["address_usd"] for one in cost["vms"])
    assert cost["actual_usd"] == pytest.approx(sum(one["usd"] for one in cost["vms"]) + extras)
    assert report["actual"]["cost_usd"] == pytest.approx(cost["actual_usd"], rel=0.02)
    assert cost["predicted"]["cost_usd"] == pytest.approx(report["predicted"]["cost_usd"])
    assert report["predicted"]["time_s"] > 0


@pytest.mark.long
@pytest.mark.parametrize("cloud", ["gcp"], indirect=True)
def test_workers_of_a_type_that_was_not_chosen_are_gone_while_the_job_runs(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = make_job(
        **{
            **DIGITS,
            "spot": "auto",
            # longer than a VM with nothing to do is kept
            "goal": {**DIGITS["goal"], "target": 0.9999, "max_epochs": 40},
            "search": {"strategy": "full", "workers": 1, "batch_size": [32]},
            "resources": {"any_of": [cloud.small, cloud.large]},
        },
    )
    driver = job.start()
    try:
        wait_for(lambda: job.phase() == "running", driver)
        (used,) = wait_for(lambda: _alone(cloud), driver, within_s=30.0)
        outcome = job.ended(driver)
    finally:
        driver.kill()

    assert outcome.code == 0, outcome.stderr
    assert {vm.vm for vm in cloud.vms() if vm.spot} == {cloud.small, cloud.large}
    assert used.vm == outcome.report["choice"]["vm"]
    assert_nothing_left(job)


def _alone(cloud: Rented) -> list[Any]:
    """The only worker's VM that lives; none while there is another."""
    alive = [vm for vm in cloud.vms() if vm.alive and vm.spot]
    return alive if len(alive) == 1 else []


@pytest.mark.long
@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_aggregators_on_two_vms_train_through_the_loss_of_one_and_each_vm_is_billed_its_life(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = make_job(
        tiny=True,
        search={"workers": 2, "batch_size": [32]},
        objective="time",
        profile={"steps": 8},
        goal={"metric": "val_loss", "max_epochs": 60},
        elastic={"aggregators": 2, "aggregator_vms": 2},
        checkpoint={"path": "./checkpoints", "every_steps": 25},
    )
    second = aggregator_slot(1)

    def of_second(generation: int) -> list[str]:
        """The instance that has joined as the second aggregator VM, of this generation."""
        return [
            one.instance_id
            for one in job.intents()
            if (one.slot, one.generation) == (second, generation) and one.acks
        ]

    driver = job.start("--audit")
    try:
        wait_for(lambda: job.phase() == "running" and job.workers_vms(), driver, within_s=300.0)
        cloud.machine(of_second(0)[0]).kill()
        wait_for(lambda: of_second(1), driver)
        outcome = job.ended(driver)
    finally:
        driver.kill()

    assert outcome.code == 0, outcome.stderr
    assert outcome.report["actual"]["epochs"] == 60
    assert_nothing_left(job)
    cost = job.ask("cost", outcome.job_id).report["job"]
    aggregators = [one for one in cost["vms"] if one["role"] == "aggregator"]
    assert len(aggregators) == 3
    assert len({one["billed_s"] for one in aggregators}) == 3
    tokens = {vm.id: vm.token for vm in cloud.vms()}
    for one in cost["vms"]:
        rate = job.prices[one["vm"]][one["spot"]] / 3600.0
        assert abs(one["usd"] - paid_usd(job, tokens[one["instance_id"]])) <= CLOCKS_S * rate
    (item,) = (item for item in cost["estimate"]["items"] if item["name"] == "aggregators")
    assert item["how"].startswith("2 VMs on demand x ")


@pytest.mark.long
@pytest.mark.timeout(540)
@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_job_has_as_many_aggregator_vms_as_its_last_run_showed_that_it_needs(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = make_job(
        tiny=True,
        search={"workers": 1, "batch_size": [32]},
        objective="time",
        profile={"steps": 8},
        goal={"metric": "val_loss", "max_epochs": 10},
    )
    first = job.ended(job.start())
    assert first.code == 0, first.stderr
    assert sum(not vm.spot for vm in cloud.vms()) == 2, "one for the aggregators, and one for the worker"
    with Store.open(job.store) as store:
        size = recorded_size(store, first.job_id)
        assert size is not None
        assert size.shares[0] == 1.0 >= size.shares[1]
        room = 4.0 * 2**30 - OWN_BYTES  # of a c5.large
        too_large = 1.5 * room / held_models(size.copies)
        record_size(store, first.job_id, ModelSize(too_large, size.copies, (1.0, 0.5)))

    second = job.ended(job.start())

    assert second.code == 0, second.stderr
    assert second.report["actual"]["epochs"] == 10
    assert_nothing_left(job)
    bill = job.ask("cost", second.job_id).report["job"]["vms"]
    assert [one["role"] for one in bill].count("aggregator") == 2
    with Store.open(job.store) as store:
        said = " ".join(event.message for event in store.events(second.job_id, limit=500))
        assert store.job(second.job_id).spec["elastic"] == {"aggregator_vms": 2, "aggregators": 2}
    assert "fewer would not hold the model" in said
    assert "the stored model is from a run with 1 aggregator VM" in said
