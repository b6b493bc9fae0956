"""The network between a job's leader and its VMs is cut for up to four minutes: nothing is lost, however few VMs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from audits import AUDIT_FILE, verify_audit
from cloud_jobs import CloudJob, CloudOutcome, MakeJob, assert_nothing_left
from command_program import EPOCHS, PROGRAM, RUN, STEPS
from rented import Rented
from test_e2e_loop import _MODULE, SHARD, SHARDS
from waiting import wait_for

from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.root, pytest.mark.timeout(900)]

TRAINED = 1437
"""Samples of the example's training data."""
KINDS = ["keras", "loop", "command"]


def made(make_job: MakeJob, kind: str, vms: int) -> CloudJob:
    """A job of a kind whose workers are on so many VMs."""
    epochs = {"keras": 6, "loop": 60, "command": EPOCHS}[kind]
    job = make_job(
        search={"workers": vms, "batch_size": [32], "strategy": "full"},
        goal={"max_epochs": epochs, "epochs_hint": epochs},
        profile={"steps": 5},
        elastic={"policy": "fixed"},
        constraints={},
    )
    if kind == "loop":
        (job.folder / "train.py").write_text(_MODULE)
    elif kind == "command":
        spec = json.loads(job.file.read_text())
        del spec["train"]
        job.file.write_text(json.dumps({**spec, "run": RUN}))
        (job.folder / "program.py").write_text(PROGRAM)
    return job


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vms", "cut_s"), [(1, 5.0), (1, 25.0), (1, 230.0), (2, 150.0), (3, 60.0)])
@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_network_that_is_cut_for_less_than_four_minutes_costs_no_worker_no_vm_and_no_step(
    cloud: Rented, make_job: MakeJob, kind: str, vms: int, cut_s: float
) -> None:
    job = made(make_job, kind, vms)
    driver = job.start(*(("--audit",) if kind != "command" else ()))
    try:
        wait_for(lambda: job.phase() == "running" and len(job.workers_vms()) == vms, driver, within_s=300.0)
        before = {vm.id for vm in cloud.vms()}
        cloud.machines.cut()
        mended_at = time.monotonic() + cut_s
        wait_for(lambda: time.monotonic() > mended_at, driver, within_s=2.0 * cut_s)
        cloud.machines.mend()
        outcome = job.ended(driver, within_s=cut_s + 240.0)
    finally:
        cloud.machines.mend()
        driver.kill()

    assert outcome.code in (0, 4), outcome.stderr
    assert {vm.id for vm in cloud.vms()} == before, "no other VM was rented"
    assert _given_up(job, outcome) == []
    if kind == "command":
        assert outcome.report["steps"] == STEPS * EPOCHS
        state = json.loads(Path(outcome.report["model_path"]).read_text())
        assert (state["epoch"], state["samples"]) == (EPOCHS, 640 * EPOCHS)
    else:
        samples = TRAINED if kind == "keras" else SHARDS * SHARD
        audit = job.folder / ".scavenger" / outcome.job_id / AUDIT_FILE
        assert verify_audit(audit, samples) == []
        assert '"resumed"' not in audit.read_text(), "nothing was done again"
    assert_nothing_left(job)


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_the_only_worker_that_hangs_is_replaced_soon_and_so_is_the_only_vm_when_the_cloud_says_that_it_is_gone(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = made(make_job, "loop", 1)
    job.change(goal={"max_epochs": 150, "epochs_hint": 150})
    driver = job.start("--audit")
    try:
        (vm,) = wait_for(lambda: job.phase() == "running" and job.workers_vms(), driver)
        ((hung, pid),) = _training(job).items()
        assert cloud.machine(vm.id).run("sh", "-c", f"kill -STOP {pid}").returncode == 0
        wait_for(lambda: _training(job).keys() - {hung}, driver, within_s=90.0)
        assert [one.id for one in job.workers_vms()] == [vm.id]

        cloud.machine(vm.id).kill()
        wait_for(lambda: [one for one in job.workers_vms() if one.id != vm.id], driver, within_s=90.0)
        outcome = job.ended(driver)
    finally:
        driver.kill()

    assert outcome.code in (0, 4), outcome.stderr
    assert_nothing_left(job)


def _training(job: CloudJob) -> dict[str, int | None]:
    """The workers that train, with their process ids on their VMs."""
    with Store.open(job.store) as store:
        running = store.running_jobs(job.file)
        processes = store.processes(running[0].id) if running else ()
        return {one.process: one.pid for one in processes if (one.role, one.state) == ("worker", "training")}


def _given_up(job: CloudJob, outcome: CloudOutcome) -> list[Any]:
    """The workers that were lost or failed."""
    with Store.open(job.store) as store:
        told: list[dict[str, Any]] = [
            event.data for event in store.events(outcome.job_id) if event.kind == "worker"
        ]
    return [one for one in told if one["state"] in ("lost", "failed")]
