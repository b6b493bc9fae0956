"""A pool whose slots are rented VMs: jobs take, give back and hand on slots, within its VMs and its budget."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest
from cloud_jobs import CloudJob, assert_nothing_left, paid_usd
from real_jobs import MARK
from rented import Rented
from sleeping_loop import SLEEPING_LOOP
from waiting import wait_for

from scavenger.control.places.launching import GPU_VMS, UNPROVEN_VARIABLE
from scavenger.control.pools.rented import KEEPER_NAME, idle_vms
from scavenger.domain.pool import Pool
from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long]

MakeJob = Callable[..., CloudJob]
TWO_GPUS = "g2-standard-24"
"""A type with two GPUs, which the VMs of the tests lack: workers are processes all the same."""


def _job(
    make_job: MakeJob, name: str, *, epochs: int, workers: tuple[int, ...] = (1, 2), **more: Any
) -> CloudJob:
    job = make_job(name, **more)
    spec = {
        "version": 1,
        "name": name,
        "infra": "pool/vms",
        "train": "train:job",
        "search": {"workers": list(workers), "batch_size": [32], "strategy": "extremes"},
        "goal": {"max_epochs": epochs},
        "profile": {"steps": 3},
        "checkpoint": {"path": "./saved", "every_steps": 40},
    }
    job.file.write_text(json.dumps(spec))
    (job.folder / "train.py").write_text(SLEEPING_LOOP)
    return job


@contextmanager
def _served(
    job: CloudJob, *, most: int, budget: float, idle: str = "1s", vm: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A server of a pool of so many VMs."""
    cloud = job.cloud
    file = job.folder / "pools.toml"
    file.write_text(
        f'[pool.vms]\ninfra = "{cloud.name}/{cloud.region}"\nvm = "{vm or cloud.small}"\npolicy = "even"\n'
        f'max = {most}\nbudget = {budget}\nhour = 100\nidle_duration = "{idle}"\n'
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


def test_jobs_hand_their_vms_on_and_never_have_more_than_there_may_be(
    cloud: Rented, make_job: MakeJob
) -> None:
    long, urgent = _job(make_job, "long", epochs=16), _job(make_job, "urgent", epochs=3)
    with _counted(cloud) as at_once, _served(long, most=2, budget=50) as server:
        _submit(long)
        wait_for(lambda: _shares(long).get("long") == 2 and sum(vm.alive for vm in cloud.vms()) == 2, server)
        _submit(urgent, "--priority", "5")
        wait_for(lambda: _shares(long) == {"long": 1, "urgent": 1}, server)
        wait_for(lambda: _states(long).get("urgent") == "ended", server)
        wait_for(lambda: _states(long).get("long") == "ended", server)

    assert max(at_once) == 2
    _assert_done_and_paid(long)


@contextmanager
def _counted(cloud: Rented) -> Iterator[list[int]]:
    """How many VMs there are, again and again."""
    at_once, over = list[int](), threading.Event()

    def count() -> None:
        while not over.wait(0.2):
            at_once.append(sum(vm.alive for vm in cloud.vms()))

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    try:
        yield at_once
    finally:
        over.set()
        counting.join()


def _assert_done_and_paid(job: CloudJob) -> None:
    """All jobs have succeeded, the bills are what the cloud's is, and nothing is left."""
    with Store.open(job.store) as store:
        records = store.jobs(10)
        assert {one.state for one in records if one.name != KEEPER_NAME} == {"succeeded"}
        spent_usd = sum(store.spent_usd(one.id) for one in records)
    assert spent_usd == pytest.approx(paid_usd(job), rel=0.2)
    assert_nothing_left(job)


@pytest.mark.parametrize("cloud", ["gcp"], indirect=True)
def test_a_job_has_a_worker_on_each_gpu_of_its_vms_and_gives_back_whole_ones(
    cloud: Rented, make_job: MakeJob
) -> None:
    prices = {TWO_GPUS: (0.067, 0.027)}  # a second one is worth it for a small gain
    long = _job(make_job, "long", epochs=60, prices=prices)
    urgent = _job(make_job, "urgent", epochs=3, workers=(1,), prices=prices)
    # it measures two batch sizes, by which it knows on its first VM what half as many samples for each worker take
    long.change(search={"workers": [2, 4], "batch_size": [32, 64], "strategy": "extremes"})
    for job in (long, urgent):
        job.environment[UNPROVEN_VARIABLE] = GPU_VMS
        # steps so long that what workers tell each other is little beside them
        (job.folder / "train.py").write_text(SLEEPING_LOOP.replace("0.004", "0.01"))

    def at_rest(told: dict[str, int], workers: int) -> bool:
        with Store.open(long.store) as store:
            training = [
                one
                for running in store.running_jobs(long.file)
                for one in store.processes(running.id)
                if (one.role, one.state) == ("worker", "training")
            ]
        there = (len(long.workers_vms()), len(training))
        return _shares(long) == told and there == (told["long"], workers)

    with _counted(cloud) as at_once, _served(long, most=2, budget=50, vm=TWO_GPUS) as server:
        _submit(long)
        wait_for(lambda: at_rest({"long": 2}, 4), server)
        _submit(urgent, "--priority", "5")
        wait_for(lambda: at_rest({"long": 1, "urgent": 1}, 2), server)
        [vm] = wait_for(urgent.workers_vms, server)
        assert vm not in long.workers_vms()
        wait_for(lambda: _states(long).get("urgent") == "ended", server)
        wait_for(lambda: at_rest({"long": 2}, 4), server)
        wait_for(lambda: _states(long).get("long") == "ended", server)

    assert max(at_once) == 2
    assert {vm.vm for vm in cloud.vms()} == {TWO_GPUS}
    with Store.open(long.store) as store:
        last = store.allotment("vms")
    assert last is not None
    assert last.pool.vms is not None
    long.prices = {TWO_GPUS: (last.pool.vms.usd_per_hour, 0.0)}  # with a disk of 100 GiB
    _assert_done_and_paid(long)


def _runner(job: CloudJob) -> psutil.Process | None:
    words = "scavenger.control.service.runner"
    found = [one for one in psutil.process_iter(["cmdline"]) if words in (one.info["cmdline"] or [])]
    return next((one for one in found if one.environ().get(MARK) == job.mark), None)


def _alive(job: CloudJob) -> list[str]:
    return [vm.id for vm in job.cloud.vms() if vm.alive]


def _idle(job: CloudJob) -> int:
    """VMs that wait for a job."""
    with Store.open(job.store) as store:
        return idle_vms(store, Pool("vms", 2), datetime.now(UTC))[0]


def test_the_next_job_begins_on_the_vms_of_the_one_before_and_all_is_on_one_bill(
    cloud: Rented, make_job: MakeJob
) -> None:
    first, second, third = (_job(make_job, name, epochs=3, workers=(2,)) for name in ("one", "two", "three"))
    with _served(first, most=2, budget=50, idle="10m") as server:
        for job in (first, second):
            _submit(job)
            wait_for(lambda job=job: _states(job).get(job.folder.name) == "ended", server)
            wait_for(lambda: _idle(first) == 2, server)
        vms = _alive(first)
        assert len(cloud.vms()) == 2
        _submit(third)
        wait_for(lambda: len(third.workers_vms()) == 2, server)
        runner = _runner(third)
        assert runner is not None
        runner.kill()
        wait_for(lambda: _states(third).get("three") == "ended", server)
        assert not set(vms) & set(_alive(first))  # a runner that begins again has other VMs
    with Store.open(first.store) as store:
        records = store.jobs(10)
        assert {one.state for one in records if one.name != KEEPER_NAME} == {"succeeded"}
        bills = [store.spent_usd(one.id) for one in records]
    assert sum(bills) == pytest.approx(paid_usd(first), rel=0.2)
    assert min(bills) > 0.0
    assert_nothing_left(first)


def test_vms_that_wait_for_a_job_end_when_their_server_is_killed(cloud: Rented, make_job: MakeJob) -> None:
    job = _job(make_job, "one", epochs=3, workers=(1,))
    with _served(job, most=2, budget=50, idle="10m") as server:
        _submit(job)
        wait_for(lambda: _states(job).get("one") == "ended", server)
        wait_for(lambda: _idle(job) == 1, server)
        server.kill()
    assert len(_alive(job)) == 1
    with _served(job, most=2, budget=50) as server:
        wait_for(lambda: not _alive(job), server)
    assert_nothing_left(job)


def test_whatever_is_killed_or_used_up_no_vm_is_left_and_the_job_goes_on(
    cloud: Rented, make_job: MakeJob
) -> None:
    job = _job(make_job, "long", epochs=40)

    def trains() -> bool:
        return len(job.workers_vms()) == 2

    with _served(job, most=2, budget=50) as server:
        _submit(job)
        wait_for(trains, server)
        first = _runner(job)
        assert first is not None
        first.kill()
        wait_for(lambda: (now := _runner(job)) is not None and now.pid != first.pid and trains(), server)
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
        assert {one.state for one in store.jobs(10) if one.name != KEEPER_NAME} == {"succeeded"}
    assert_nothing_left(job)
