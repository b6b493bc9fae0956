"""A pool whose slots are rented VMs: jobs take, give back and hand on slots, within its VMs and its budget."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
from cloud_jobs import CloudJob, assert_nothing_left, paid_usd
from real_jobs import MARK
from rented import Rented
from sleeping_loop import SLEEPING_LOOP
from waiting import wait_for

from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long]

MakeJob = Callable[..., CloudJob]


def _job(make_job: MakeJob, name: str, *, epochs: int) -> CloudJob:
    job = make_job(name)
    spec = {
        "version": 1,
        "name": name,
        "infra": "pool/vms",
        "train": "train:job",
        "search": {"workers": [1, 2], "batch_size": [32], "strategy": "extremes"},
        "goal": {"max_epochs": epochs},
        "profile": {"steps": 3},
        "checkpoint": {"path": "./saved", "every_steps": 40},
    }
    job.file.write_text(json.dumps(spec))
    (job.folder / "train.py").write_text(SLEEPING_LOOP)
    return job


@contextmanager
def _served(job: CloudJob, *, most: int, budget: float) -> Iterator[subprocess.Popen[str]]:
    """A server of a pool of so many VMs."""
    cloud = job.cloud
    file = job.folder / "pools.toml"
    file.write_text(
        f'[pool.vms]\ninfra = "{cloud.name}/{cloud.region}"\nvm = "{cloud.small}"\npolicy = "even"\n'
        f"max = {most}\nbudget = {budget}\nhour = 100\n"
    )
    server = job.begin("serve", "--no-api", "--pool", str(file))
    with Store.open(job.store) as store:
        wait_for(lambda: store.servers(), server)
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30.0)


def _submit(job: CloudJob, *options: str) -> None:
    outcome = job.ask("optimize", str(job.file), "--detach", "--yes", *options)
    assert outcome.code == 0, outcome.stderr


def _states(job: CloudJob) -> dict[str, str]:
    with Store.open(job.store) as store:
        return {one.job.name: one.state for one in store.submissions()}


def _shares(job: CloudJob) -> dict[str, int]:
    """Slots that jobs were told."""
    with Store.open(job.store) as store:
        names = {one.id: one.job.name for one in store.submissions()}
        last = store.allotment("vms")
        return {} if last is None else {names[key]: share.told for key, share in last.shares.items()}


@pytest.mark.parametrize("cloud", ["gcp"], indirect=True)
def test_jobs_hand_their_vms_on_and_never_have_more_than_there_may_be(
    cloud: Rented, make_job: MakeJob
) -> None:
    long, urgent = _job(make_job, "long", epochs=16), _job(make_job, "urgent", epochs=3)
    at_once, over = [], threading.Event()

    def count() -> None:
        while not over.wait(0.2):
            at_once.append(sum(vm.alive for vm in cloud.vms()))

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    try:
        with _served(long, most=2, budget=50) as server:
            _submit(long)
            wait_for(
                lambda: _shares(long).get("long") == 2 and sum(vm.alive for vm in cloud.vms()) == 2, server
            )
            _submit(urgent, "--priority", "5")
            wait_for(lambda: _shares(long) == {"long": 1, "urgent": 1}, server)
            wait_for(lambda: _states(long).get("urgent") == "ended", server)
            wait_for(lambda: _states(long).get("long") == "ended", server)
    finally:
        over.set()
        counting.join()

    assert max(at_once) == 2
    with Store.open(long.store) as store:
        assert {job.state for job in store.jobs(10)} == {"succeeded"}
        ids = [one.id for one in store.submissions()]
        spent_usd = store.spent_by(ids, store.submissions()[0].submitted_at)
    assert spent_usd == pytest.approx(paid_usd(long), rel=0.2)
    assert_nothing_left(long)


@pytest.mark.parametrize("cloud", ["gcp"], indirect=True)
def test_whatever_is_killed_or_used_up_no_vm_is_left_and_the_job_goes_on(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = _job(make_job, "long", epochs=40)

    def trains() -> bool:
        return len(job.workers_vms()) == 2

    def runner() -> psutil.Process | None:
        words = "scavenger.control.service.runner"
        found = [one for one in psutil.process_iter(["cmdline"]) if words in (one.info["cmdline"] or [])]
        return next((one for one in found if one.environ().get(MARK) == job.mark), None)

    with _served(job, most=2, budget=50) as server:
        _submit(job)
        wait_for(trains, server)
        first = runner()
        assert first is not None
        first.kill()
        wait_for(lambda: (now := runner()) is not None and now.pid != first.pid and trains(), server)
        server.kill()
    with _served(job, most=2, budget=0.0001) as server:  # less than was spent already
        wait_for(lambda: _states(job) == {"long": "queued"}, server)
        wait_for(lambda: not [vm for vm in cloud.vms() if vm.alive], server)
    with Store.open(job.store) as store:
        (waiting,) = store.submissions()
        assert "of this month pays for 0 VMs" in waiting.reason or "paused" in waiting.reason
    with _served(job, most=2, budget=50) as server:
        wait_for(lambda: _states(job) == {"long": "ended"}, server)

    with Store.open(job.store) as store:
        assert {one.state for one in store.jobs(10)} == {"succeeded"}
    assert_nothing_left(job)
