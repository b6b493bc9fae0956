"""A command on rented VMs: searched over two sizes, a VM is killed, checkpoints are carried, and the bill is right."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from cloud_jobs import CloudJob, assert_nothing_left, paid_usd
from command_program import EPOCHS, PROGRAM, RUN, STEPS
from machines import AGENT, unavailable
from rented import AwsRented, Rented, rented
from waiting import wait_for

from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(420)]

MakeJob = Callable[..., CloudJob]
_SECTIONS: dict[str, Any] = {
    "search": {"workers": [1, 2], "batch_size": [32], "strategy": "full"},
    "goal": {"metric": "val_error", "target": 1e-9, "max_epochs": EPOCHS, "epochs_hint": 10},
    "checkpoint": {"path": "./saved", "every_steps": 40},
    "objective": "time",
    "profile": {"steps": 5},
    "elastic": {"policy": "fixed"},
}


@pytest.mark.parametrize("cloud", ["aws", "gcp"], indirect=True)
def test_a_command_trains_on_vms_through_the_loss_of_one_and_is_billed(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = _job(make_job)
    driver = job.start()
    try:
        first, second = wait_for(lambda: _both(job), driver)
        wait_for(lambda: _checkpoint(job), driver)
        cloud.machine(second.id).kill()
        wait_for(lambda: [vm for vm in _both(job) if vm.id not in (first.id, second.id)], driver)
        outcome = job.ended(driver)
    finally:
        driver.kill()

    assert outcome.code in (0, 4), outcome.stderr
    report = outcome.report
    assert report["job"]["state"] in ("succeeded", "target_missed")
    journal = [json.loads(line) for line in Path(report["measurements_path"]).read_text().splitlines()]
    assert {line["configuration"]["workers"] for line in journal if line["kind"] == "measurement"} == {1, 2}
    # each step counts once, and the program's own count of samples is the job's: nothing was repeated or left out in it
    assert report["steps"] == STEPS * EPOCHS
    state = json.loads(Path(report["model_path"]).read_text())
    assert (state["epoch"], state["samples"]) == (EPOCHS, 640 * EPOCHS)
    assert state["error"] == pytest.approx(10.0 * 0.99 ** (STEPS * EPOCHS))
    parts = [Path(report["model_path"]).resolve().with_name(f"part-{rank}.bin") for rank in range(2)]
    assert parts[0].read_bytes() == parts[1].read_bytes()
    stored = list(job.folder.glob("saved/*/command-files/*"))
    assert (
        0 < len(stored) <= 4 * 4
    )  # of two checkpoints, and what the next could have named: not of all twenty
    assert len(cloud.vms()) >= 3
    vms = job.ask("cost", outcome.job_id).report["job"]["vms"]
    assert sum(one["usd"] for one in vms) == pytest.approx(paid_usd(job), rel=0.1)
    assert_nothing_left(job)


def test_checkpoints_are_carried_through_an_object_store_with_the_identity_of_the_vms(tmp_path: Path) -> None:
    """A VM is killed, then the command itself: the group goes on from the bucket each time."""
    if reason := unavailable():
        pytest.skip(reason)
    with rented("aws") as cloud:
        assert isinstance(cloud, AwsRented)
        agent = AGENT.replace("export ", f"export AWS_ENDPOINT_URL={cloud.server.url} ", 1)
        cloud.machines.programs["/usr/local/bin/scavenger-vm"] = agent
        cloud.server.profiles, cloud.profile = {"scavenger-vms"}, "scavenger-vms"
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        s3 = boto3.client("s3", endpoint_url=cloud.server.url, region_name="us-east-1", **keys)
        s3.create_bucket(Bucket="training")
        store = f"sqlite:///{tmp_path / 'store' / 'scavenger.db'}"
        job = CloudJob(tmp_path / "job", store, cloud, uuid.uuid4().hex, dict(cloud.prices))
        as_command(job.write(infra=f"aws/{cloud.region}", resources={"vm": cloud.small}, **_SECTIONS))
        job.change(
            checkpoint={"path": "s3://training/checkpoints", "every_steps": 40},
            search={"workers": [2], "batch_size": [32]},
        )

        def stored() -> list[str]:
            found = s3.list_objects_v2(Bucket="training").get("Contents", [])
            return [one["Key"] for one in found if "/command-files/" in one["Key"]]

        driver = job.start()
        try:
            first, second = wait_for(lambda: _both(job), driver)
            wait_for(lambda: _checkpoint(job), driver)
            cloud.machine(second.id).kill()
            wait_for(lambda: [vm for vm in _both(job) if vm.id not in (first.id, second.id)], driver)
        finally:
            driver.kill()
        driver.communicate()
        for left in job.folder.glob(".scavenger/*/*"):  # nothing of this machine but the record is needed
            shutil.rmtree(left, ignore_errors=True)
        outcome = job.ask("resume", "digits-cnn", "--yes")

        assert outcome.code in (0, 4), outcome.stderr
        report = outcome.report
        assert report["steps"] == STEPS * EPOCHS
        state = json.loads(Path(report["model_path"]).read_text())
        assert (state["epoch"], state["samples"]) == (EPOCHS, 640 * EPOCHS)
        assert state["error"] == pytest.approx(10.0 * 0.99 ** (STEPS * EPOCHS))
        assert 0 < len(stored()) <= 4 * 4
        assert not list(job.folder.glob("**/command-files"))
        assert_nothing_left(job)


def _job(make_job: MakeJob) -> CloudJob:
    return as_command(make_job(**_SECTIONS))


def as_command(job: CloudJob) -> CloudJob:
    """The job with `PROGRAM` in place of its training module."""
    spec = json.loads(job.file.read_text())
    del spec["train"]
    spec["run"] = RUN
    job.file.write_text(json.dumps(spec))
    (job.folder / "program.py").write_text(PROGRAM)
    return job


def _both(job: CloudJob) -> list[Any]:
    vms = job.workers_vms() if job.phase() == "running" else []
    return vms if len(vms) == 2 else []


def _checkpoint(job: CloudJob) -> bool:
    with Store.open(job.store) as store:
        return store.running_jobs(job.file)[0].checkpoint is not None
