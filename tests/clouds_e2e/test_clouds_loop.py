"""A training loop of the user's own on rented VMs: no aggregator VM, an interrupted worker, and the bill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from audits import AUDIT_FILE, verify_audit
from cloud_jobs import CloudJob, assert_nothing_left, paid_usd
from rented import Rented
from test_e2e_loop import _MODULE, SHARD, SHARDS
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.long]

MakeJob = Callable[..., CloudJob]
NOTICE_S = 8.0
EPOCHS = 150


@pytest.mark.parametrize("cloud", ["aws", "gcp"], indirect=True)
def test_a_loop_trains_on_vms_through_a_spot_interruption_and_the_loss_of_a_vm(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = _job(make_job)
    driver = job.start("--audit")
    try:
        first, second = wait_for(lambda: _both(job), driver)
        cloud.interrupt(first.id, in_s=NOTICE_S)
        wait_for(lambda: [vm for vm in _both(job) if vm.id not in (first.id, second.id)], driver)
        cloud.machine(second.id).kill()
        outcome = job.ended(driver)
    finally:
        driver.kill()

    assert outcome.code in (0, 4), outcome.stderr
    report = outcome.report
    assert report["job"]["state"] in ("succeeded", "target_missed")
    assert report["actual"]["epochs"] == pytest.approx(EPOCHS)
    assert {vm.spot for vm in cloud.vms()} == {True}  # none for aggregators, which would be on demand
    assert len(cloud.vms()) >= 4
    assert verify_audit(job.folder / ".scavenger" / outcome.job_id / AUDIT_FILE, SHARDS * SHARD) == []
    vms = job.ask("cost", outcome.job_id).report["job"]["vms"]  # their disks are apart
    assert sum(one["usd"] for one in vms) == pytest.approx(paid_usd(job), rel=0.1)
    assert_nothing_left(job)


def _job(make_job: MakeJob) -> CloudJob:
    job = make_job(
        spot="always",
        search={"workers": 2, "batch_size": [32], "strategy": "full"},
        goal={"metric": "val_error", "target": 1e-9, "max_epochs": EPOCHS, "epochs_hint": 10},
        profile={"steps": 5},
        elastic={"policy": "fixed"},
    )
    (job.folder / "train.py").write_text(_MODULE)
    return job


def _both(job: CloudJob) -> list[Any]:
    vms = job.workers_vms() if job.phase() == "running" else []
    return vms if len(vms) == 2 else []
