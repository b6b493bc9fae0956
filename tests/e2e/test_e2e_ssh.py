"""`scavenger optimize` on hosts that one has, over SSH, through the loss of one; nothing is left or paid."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from audits import AUDIT_FILE, verify_audit
from real_jobs import ROOT, Job, ended, opened
from ssh_lab import SshLab, lab_of, needs_ssh, programs_in
from waiting import wait_for

from scavenger.policy.provisioning.slots import is_for_aggregators

pytestmark = [needs_ssh, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
AGENT = f"""#!/bin/sh
export PYTHONPATH={ROOT}:{ROOT}/cli OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=2
exec {sys.executable} -m scavenger.control.provisioning.on_vm "$@"
"""
SPEC = {
    "version": 1,
    "name": "tiny",
    "train": "train:job",
    "infra": "ssh/lab",
    "search": {"workers": 1, "batch_size": [32]},
    "objective": "time",
    "goal": {"metric": "val_loss", "target": 0.19, "max_epochs": 400, "epochs_hint": 60},
    "profile": {"steps": 16},
}
HOST = {"cpus": 2, "memory": 4.0, "gpus": 0, "usd_per_hour": 0.0}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[SshLab]:
    """Three hosts: for an aggregator, a worker, and its successor."""
    programs = programs_in(tmp_path / "programs", scavenger_vm=AGENT)
    with lab_of(tmp_path / "lab", {f"h{n}": HOST for n in range(3)}, programs) as made:
        yield made


def test_a_job_trains_on_hosts_through_the_loss_of_one_and_leaves_nothing(
    lab: SshLab, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCAVENGER_CONFIG", str(lab.settings_file()))
    monkeypatch.setenv("SCAVENGER_ADDRESS", "127.0.0.1")
    haste = tmp_path / "haste"
    job = Job(tmp_path / "job", f"sqlite:///{tmp_path}/s.db", mark, SPEC)
    job.write(in_sample=f"if not os.path.exists({str(haste)!r}): time.sleep(0.01)", samples=800)

    driver = job.start()
    try:
        lost = wait_for(lambda: worker_host(job, set()), driver, within_s=300.0)
        lab.stop(lost)
        lab.kill(lost)
        successor = wait_for(lambda: worker_host(job, {lost}), driver, within_s=400.0)
        haste.touch()
        outcome = ended(driver, 300.0)
    finally:
        driver.kill()

    assert outcome.code == 0, outcome.stderr
    report = outcome.report
    assert report["job"]["state"] == "succeeded"
    assert successor != lost
    assert report["actual"]["cost_usd"] == 0.0
    assert report["choice"]["vm"] == "2cpu-4gib"
    assert lab.left() == []
    found = json.loads(ended(job.begin("gc", "--dry-run")).stdout)
    assert (found["regions"], found["leftovers"]) == (["ssh/lab"], [])


def worker_host(job: Job, but: set[str]) -> str:
    """The host whose worker trains; empty while there is none."""
    store = opened(job)
    running = store.running_jobs(job.file)
    if not running or running[0].phase != "running":
        return ""
    if not any((p.role, p.state) == ("worker", "training") for p in store.processes(running[0].id)):
        return ""
    hosts = {
        one.instance_id.partition(".")[0]
        for one in store.intents(running[0].id)
        if one.state == "UP" and not is_for_aggregators(one.slot)
    }
    return next(iter(hosts - but), "")


def test_a_model_is_divided_over_the_processes_of_each_host(
    lab: SshLab, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of two processes, on a host each: gradients go to the leader, and no memory is shared with it."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")
    monkeypatch.setenv("SCAVENGER_CONFIG", str(lab.settings_file()))
    monkeypatch.setenv("SCAVENGER_ADDRESS", "127.0.0.1")
    goal = {"metric": "val_accuracy", "target": 0.95, "max_epochs": 40}
    changed = {"train": "train.py", "search": {"workers": 2, "batch_size": [64]}, "goal": goal}
    job = Job(
        tmp_path / "job", f"sqlite:///{tmp_path}/s.db", mark, SPEC | changed | {"elastic": {"processes": 2}}
    )
    job.write()
    shutil.copy(ROOT / "examples" / "torch_fsdp" / "train.py", job.folder)

    outcome = ended(job.start("optimize", "--audit"), 400.0)

    assert outcome.code == 0, outcome.stderr
    report = outcome.report
    assert (report["job"]["state"], report["choice"]["workers"]) == ("succeeded", 2)
    assert verify_audit(Path(report["measurements_path"]).with_name(AUDIT_FILE), 1437) == []
    assert lab.left() == []
