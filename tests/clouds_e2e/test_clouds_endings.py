"""However a job on a cloud ends: the right exit code, one line that says why, no VM left and none paid for twice."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from cloud_jobs import CloudJob, CloudOutcome, MakeJob, assert_nothing_left, paid_usd
from nested import built
from real_jobs import marked
from rented import Rented
from waiting import wait_for

from scavenger.domain.intent import FleetSpec
from scavenger.errors import CleanupError
from scavenger.policy.provisioning.config import ProvisioningConfig
from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.root]

FOR_EVER = {"metric": "val_loss", "target": 1e-9, "max_epochs": 100_000, "epochs_hint": 2}
SHORT = {"metric": "val_loss", "max_epochs": 3}
NAME = "digits-cnn"
ONE = {"workers": 1, "batch_size": [32]}
RESERVED_S = ProvisioningConfig(visibility_s=60.0).reserved_s(
    built(
        FleetSpec,
        job_id="",
        provider="",
        region="",
        slots=(),
        options=(),
        vms_max=0,
        budget_usd=0.0,
        run_max_s=1.0,
    ).drain_s
)
"""For how long a VM is paid for, at worst, from the decision to end it."""
QUICK: dict[str, Any] = {"search": ONE, "objective": "time", "profile": {"steps": 8}, "tiny": True}


# ---- what the cloud refuses --------------------------------------------------------------------------------


def test_without_a_right_to_anything_no_vm_is_had_and_the_job_says_so(
    cloud: Rented, make_job: MakeJob
) -> None:
    cloud.deny()
    job = make_job(goal=SHORT, **QUICK)

    outcome = job.ended(job.start())

    assert outcome.code == 7, outcome.stderr
    assert cloud.region in outcome.error
    assert cloud.vms() == ()
    assert [one for one in job.intents() if one.state != "GONE"] == []


def test_a_quota_that_has_no_room_for_a_worker_ends_the_job_before_anything_is_paid_for(
    cloud: Rented, make_job: MakeJob
) -> None:
    cloud.limit_vcpus(2)
    job = make_job(goal=SHORT, **QUICK)

    outcome = job.ended(job.start())

    assert outcome.code == 7, outcome.stderr
    assert "quota" in outcome.error.lower()
    assert cloud.vms() == ()
    assert_nothing_left(job)


@pytest.mark.long
def test_a_quota_with_room_for_one_worker_of_two_trains_with_one(cloud: Rented, make_job: MakeJob) -> None:
    cloud.limit_vcpus(4)
    job = make_job(goal=SHORT, **{**QUICK, "search": {"workers": "1..2", "batch_size": [32]}})

    outcome = job.ended(job.start())

    assert outcome.code == 0, outcome.stderr
    assert len(cloud.vms()) == 2
    assert "quota" in outcome.stderr.lower()
    assert_nothing_left(job)


@pytest.mark.long
def test_where_a_zone_is_sold_out_the_vms_are_had_in_the_next(cloud: Rented, make_job: MakeJob) -> None:
    cloud.sell_out(f"{cloud.region}{'' if cloud.name == 'aws' else '-'}a")
    job = make_job(goal=SHORT, **QUICK)

    outcome = job.ended(job.start())

    assert outcome.code == 0, outcome.stderr
    assert len({vm.zone for vm in cloud.vms()}) == 1
    assert_nothing_left(job)


# ---- limits and people -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_budget_is_held_with_what_was_learnt_saved(cloud: Rented, make_job: MakeJob) -> None:
    """The hint is far too low, so the choice looks feasible. Most of the budget is set aside for the VMs' end."""
    hourly = 36.0
    prices = dict.fromkeys((cloud.small, cloud.large), (hourly, hourly))
    budget_usd = 2 * hourly / 3600.0 * (RESERVED_S + 75.0)
    job = make_job(prices=prices, goal=FOR_EVER, constraints={"budget": budget_usd}, **QUICK)

    outcome = job.ended(job.start())

    assert outcome.code == 5, outcome.stderr
    assert "budget" in outcome.error
    assert outcome.report["job"]["state"] == "stopped"
    assert outcome.report["model_path"]
    assert paid_usd(job) <= budget_usd
    assert_nothing_left(job)
    billed_usd = job.ask("cost", outcome.job_id).report["job"]["actual_usd"]
    assert outcome.report["actual"]["cost_usd"] == pytest.approx(billed_usd, rel=0.02)
    assert job.ask("status", outcome.job_id).report["job"]["cost_usd"] == pytest.approx(billed_usd)


@pytest.mark.long
def test_an_interrupt_ends_a_job_in_order_with_its_vms(cloud: Rented, make_job: MakeJob) -> None:
    job = make_job(goal=FOR_EVER, **QUICK)
    driver = job.start()
    try:
        wait_for(job.workers_vms, driver)
        driver.send_signal(signal.SIGINT)
        outcome = job.ended(driver, 60.0)
    finally:
        driver.kill()

    assert outcome.code == 130, outcome.stderr
    assert outcome.report["job"]["state"] == "interrupted"
    assert_nothing_left(job)


# ---- the leader dies ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_vms_of_a_killed_leader_are_ended_by_gc_and_the_job_is_resumed_on_new_ones(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = make_job(goal=FOR_EVER, checkpoint={"path": "./checkpoints", "every": "1s"}, **QUICK)
    driver = job.start()
    try:
        wait_for(lambda: _has_checkpoint(job), driver)
    finally:
        driver.kill()
        driver.communicate()
    assert [vm for vm in cloud.vms() if vm.alive]

    _collect(job)
    first = {vm.id for vm in cloud.vms()}
    second = job.begin("resume", NAME, "--yes", "-o", "json")
    try:
        wait_for(lambda: [vm for vm in job.workers_vms() if vm.id not in first], second)
        second.send_signal(signal.SIGINT)
        outcome = job.ended(second, 60.0)
    finally:
        second.kill()

    assert outcome.code == 130, outcome.stderr
    assert_nothing_left(job)
    cost = job.ask("cost", outcome.job_id).report["job"]
    assert {one["instance_id"] for one in cost["vms"]} == {vm.id for vm in cloud.vms()}


@pytest.mark.long
def test_a_leader_that_sleeps_until_its_vms_have_ended_goes_on_from_its_newest_checkpoint(
    cloud: Rented, make_job: MakeJob
) -> None:
    """As a laptop that is closed for longer than VMs wait for it: they are gone when it wakes up."""
    job = make_job(goal=FOR_EVER, checkpoint={"path": "./checkpoints", "every": "1s"}, **QUICK)
    driver = job.start()
    try:
        wait_for(lambda: _has_checkpoint(job), driver)
        first = {vm.id for vm in cloud.vms()}
        processes = marked(job.mark)
        for process in processes:
            process.suspend()
        for vm in cloud.vms():
            cloud.machine(vm.id).run("systemctl", "poweroff")
            assert cloud.machine(vm.id).over.wait(60)
        for process in processes:
            process.resume()
        wait_for(lambda: [vm for vm in job.workers_vms() if vm.id not in first], driver)
        driver.send_signal(signal.SIGINT)
        outcome = job.ended(driver, 60.0)
    finally:
        driver.kill()

    assert outcome.code == 130, outcome.stderr
    steps = [int(step) for step in re.findall(r"the job continues from step (\d+)", outcome.stderr)]
    assert steps, outcome.stderr
    assert min(steps) > 0
    assert_nothing_left(job)


@pytest.mark.long
def test_a_launch_that_was_not_answered_when_the_leader_died_comes_to_one_vm_that_gc_ends(
    cloud: Rented, make_job: MakeJob
) -> None:
    cloud.lose_launches(1)
    job = make_job(goal=FOR_EVER, **QUICK)
    driver = job.start()
    try:
        wait_for(cloud.vms, driver)
    finally:
        driver.kill()
        driver.communicate()

    settled = _collect(job)

    again = job.ended(job.change(goal=SHORT).start())
    assert again.code == 0, again.stderr
    if settled:
        assert_nothing_left(job)
    tokens = [vm.token for vm in cloud.vms()]
    assert len(set(tokens)) == len(tokens)
    assert [vm for vm in cloud.vms() if vm.alive] == []


def _collect(job: CloudJob) -> bool:
    """End what a killed leader has left; False where one of its launches may still come to a VM, which `gc` says.

    So it is where the leader was killed after it had written down that it would ask, and before it did.
    """
    outcome: CloudOutcome = job.ask("gc", "--yes")
    assert [vm for vm in job.cloud.vms() if vm.alive] == []
    if outcome.code == CleanupError.exit_code:
        assert "launched recently and not listed yet" in outcome.stderr
        return False
    assert outcome.code == 0, outcome.stderr
    assert_nothing_left(job)
    return True


def _has_checkpoint(job: CloudJob) -> bool:
    with Store.open(job.store) as store:
        return any(one.checkpoint for one in store.running_jobs(job.file))


# ---- two at once -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_two_jobs_of_a_store_have_their_own_vms_also_when_the_one_that_acts_for_both_ends_first(
    cloud: Rented, make_job: MakeJob
) -> None:
    one, other = make_job("one", goal=FOR_EVER, **QUICK), make_job("other", goal=FOR_EVER, **QUICK)
    first = one.start()
    try:
        wait_for(one.workers_vms, first)
        second = other.start()
        try:
            (vm,) = wait_for(other.workers_vms, second)
            assert vm.id not in {each.id for each in one.workers_vms()}
            first.send_signal(signal.SIGINT)
            assert one.ended(first, 60.0).code == 130
            assert [each.id for each in other.workers_vms()] == [vm.id]
            cloud.machine(vm.id).kill()
            wait_for(lambda: [each for each in other.workers_vms() if each.id != vm.id], second)
            second.send_signal(signal.SIGINT)
            outcome = other.ended(second, 60.0)
        finally:
            second.kill()
    finally:
        first.kill()

    assert outcome.code == 130, outcome.stderr
    assert_nothing_left(other)
