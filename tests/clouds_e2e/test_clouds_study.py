"""A study keeps its VMs between trials: it rents once, pays for each second once, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cloud_jobs import CloudJob, MakeJob, assert_nothing_left, paid_usd
from rented import Rented
from waiting import wait_for

from scavenger.control.provisioning.kept_place import KEEPER_NAME
from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.long, pytest.mark.timeout(540)]

PROGRAM = Path(__file__).with_name("study_program.py")
CLOCKS_S = 2.5
"""AWS tells when a VM began and ended in whole seconds."""
TRIAL: dict[str, Any] = {
    "tiny": True,
    "search": {"workers": 1, "batch_size": [32]},
    "objective": "time",
    "profile": {"steps": 8},
    "goal": {"metric": "val_loss", "max_epochs": 4},
}


def begin(
    job: CloudJob, epochs: list[int], *, at_once: int = 1, keep_s: float = 120.0, rest_s: float = 0.0
) -> Any:
    arguments = [job.store, str(job.file), json.dumps(epochs), str(at_once), str(keep_s), str(rest_s)]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        env=job.whole_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], within_s: float = 400.0) -> list[dict[str, Any]]:
    try:
        stdout, stderr = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(process.communicate()) from None
    assert process.returncode == 0, stderr
    return [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]


def bills_usd(job: CloudJob) -> dict[str, float]:
    """What the bills of all records say, disks left out, by the record's name and number."""
    with Store.open(job.store) as store:
        records = store.jobs(50)
    found = {}
    for record in records:
        cost = job.ask("cost", record.id).report["job"]
        found[f"{record.name}-{record.id[:4]}"] = sum(one["usd"] for one in cost["vms"])
    return found


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_three_trials_rent_once_and_the_bills_add_up(cloud: Rented, make_job: MakeJob) -> None:
    job = make_job(**TRIAL)

    *trials, study = ended(begin(job, [4, 5, 6]))

    assert [(trial["state"], trial["error"]) for trial in trials] == [("succeeded", "")] * 3
    vms = cloud.vms()
    assert len(vms) == 2, vms  # a worker's and the aggregators'
    assert_nothing_left(job)
    bills = bills_usd(job)
    assert len(bills) == 4
    rate = sum(job.prices[vm.vm][vm.spot] for vm in vms) / 3600.0
    assert sum(bills.values()) == pytest.approx(paid_usd(job), abs=CLOCKS_S * rate)
    waited = sum(usd for name, usd in bills.items() if name.startswith(KEEPER_NAME))
    assert waited > 0.0
    assert study["waited_usd"] == pytest.approx(waited, rel=0.1)  # with disks
    assert study["spent_usd"] == pytest.approx(sum(t["cost_usd"] for t in trials) + study["waited_usd"])
    assert "VMs between trials" in study["bill"]


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_study_that_was_killed_leaves_nothing_and_goes_on(cloud: Rented, make_job: MakeJob) -> None:
    job = make_job(**TRIAL)
    first = begin(job, [4, 400])
    try:
        wait_for(lambda: _running(job, 2), first, within_s=300.0)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(10.0)
    finally:
        first.kill()

    *trials, _study = ended(begin(job, [4, 5]))

    assert [(trial["state"], trial["known"]) for trial in trials] == [
        ("succeeded", True),
        ("succeeded", False),
    ]
    assert len(cloud.vms()) == 4
    assert_nothing_left(job)
    assert sum(bills_usd(job).values()) == pytest.approx(
        paid_usd(job), rel=0.15
    )  # counted where a process died


def _running(job: CloudJob, count: int) -> bool:
    with Store.open(job.store) as store:
        trials = [one for one in store.jobs(50) if one.name == "tiny"]
        return len(trials) == count and trials[0].phase == "running" and (trials[0].step or 0) > 0


@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_a_vm_that_nobody_takes_ends_within_its_time(cloud: Rented, make_job: MakeJob) -> None:
    job = make_job(**TRIAL)
    study = begin(job, [4], keep_s=5.0, rest_s=45.0)
    try:
        wait_for(lambda: cloud.vms() and not any(vm.alive for vm in cloud.vms()), study, within_s=200.0)
        assert study.poll() is None  # long before the program's end
        ended(study)
    finally:
        study.kill()
    assert_nothing_left(job)
