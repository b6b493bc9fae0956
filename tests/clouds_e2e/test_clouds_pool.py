"""Jobs whose workers are on rented VMs share nodes of a pool, each a machine in the same cloud."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from cloud_jobs import CloudJob, MakeJob, assert_nothing_left
from machines import ROOT
from rented import Rented
from waiting import wait_for

from scavenger.control.places.pool_nodes import POOL_NAME
from scavenger.store import Store
from scavenger.train.pool.connection import drain, load_of
from scavenger.train.pool.protocol import PoolLoad

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.long]

_NODE = """Content-Type: text/x-shellscript

#!/bin/sh
cat > /tmp/join.json <<'END'
{ticket}
END
scavenger-vm /tmp/join.json
"""


@contextmanager
def served(cloud: Rented, folder: Path) -> Iterator[dict[str, str]]:
    """A pool that the cloud's machines can join; yields the environment of its commands."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}",
        "SCAVENGER_POOL": str(folder),
    }
    address = cloud.machines.address
    command = ["aggregators", "serve", "--nodes", "0", "--listen", address]
    manager = subprocess.Popen([sys.executable, "-m", "scavenger_cli", *command], env=env)
    try:
        wait_for(lambda: load_of(folder))
        yield env
    finally:
        manager.terminate()
        manager.wait(60.0)


def add_node(cloud: Rented, name: str, folder: Path, env: dict[str, str]) -> None:
    """As a user does: a machine is expected, and its agent started there with the file."""
    file = folder.parent / f"{name}.json"
    place = f"{cloud.name}/{cloud.region}"
    command = ["aggregators", "add-node", name, "--place", place, "--price", "0.085", "--file", str(file)]
    subprocess.run([sys.executable, "-m", "scavenger_cli", *command], env=env, check=True)
    # the machines of earlier tests are still there, by their names
    machine = cloud.machines.boot(f"{name}-{uuid4().hex[:8]}", _NODE.format(ticket=file.read_text()))
    try:
        wait_for(lambda: name in {one.node.name for one in load_of(folder).nodes})
    except AssertionError:
        print(machine.console())
        raise


@pytest.mark.timeout(540)
@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_two_jobs_on_vms_share_a_node_that_is_drained_while_they_train(
    cloud: Rented, make_job: MakeJob, tmp_path: Path
) -> None:
    folder = tmp_path / "pool"
    with served(cloud, folder) as env:
        for name in ("one", "two"):
            add_node(cloud, name, folder, env)
        drain(folder, "two")
        jobs = [
            make_job(
                name,
                tiny=True,
                search={"workers": 1, "batch_size": [32]},
                objective="time",
                profile={"steps": 8},
                goal={"metric": "val_loss", "max_epochs": 60},
                aggregation="shared",
            )
            for name in ("a", "b")
        ]
        for job in jobs:
            job.environment = {"SCAVENGER_POOL": str(folder)}
        drivers = [job.start() for job in jobs]
        try:
            for job, driver in zip(jobs, drivers, strict=True):
                wait_for(lambda job=job: job.phase() == "running" and job.workers_vms(), driver)
            assert {tenant.node for tenant in load_of(folder).tenants} == {"one"}

            drain(folder, "two", undo=True)
            answer = drain(folder, "one")
            assert answer.error == ""
            assert answer.moved == 2

            def moved() -> bool:
                at = {(tenant.job_id, tenant.name): tenant.node for tenant in load_of(folder).tenants}
                # the first of each job sequences, and stays
                return sorted((name, node) for (_, name), node in at.items()) == [
                    ("aggregator-0", "one"),
                    ("aggregator-0", "one"),
                    ("aggregator-1", "two"),
                    ("aggregator-1", "two"),
                ]

            wait_for(moved, drivers[0])
            time.sleep(2.0)
            outcomes = [job.ended(driver) for job, driver in zip(jobs, drivers, strict=True)]
        finally:
            for driver in drivers:
                driver.kill()
        wait_for(lambda: not load_of(folder).tenants)

    for job, outcome in zip(jobs, outcomes, strict=True):
        assert outcome.code == 0, outcome.stderr
        assert outcome.report["actual"]["epochs"] == 60
        with Store.open(job.store) as store:
            events = store.events(outcome.job_id, limit=500)
        assert not [event for event in events if "the job continues from step" in event.message]
        held = [event.message for event in events if event.message.startswith("the model is held by")]
        assert [words[-1] for words in sorted(held)] == ["0", "1", "1"]
        cost = job.ask("cost", outcome.job_id).report["job"]
        assert {one["role"] for one in cost["vms"]} == {"worker"}
        (item,) = (item for item in cost["items"] if item["name"] == "aggregators in the pool")
        assert item["usd"] > 0.0
    assert_nothing_left(jobs[0])


@pytest.mark.timeout(540)
@pytest.mark.parametrize("cloud", ["aws"], indirect=True)
def test_what_sequences_a_job_leaves_a_drained_node_after_a_checkpoint(
    cloud: Rented, make_job: MakeJob, tmp_path: Path
) -> None:
    folder = tmp_path / "pool"
    with served(cloud, folder) as env:
        for name in ("one", "two"):
            add_node(cloud, name, folder, env)
        drain(folder, "two")
        job = shared(
            make_job(
                "job",
                tiny=True,
                search={"workers": 1, "batch_size": [32]},
                objective="time",
                profile={"steps": 8},
                goal={"metric": "val_loss", "max_epochs": 80},
                checkpoint={"path": "checkpoints", "every": "5s"},
                aggregation="shared",
            ),
            folder,
        )
        driver = job.start()
        try:
            wait_for(lambda: job.phase() == "running", driver)
            assert {tenant.node for tenant in pool_of(folder).tenants} == {"one"}
            drain(folder, "two", undo=True)
            drain(folder, "one")

            wait_for(
                lambda: (
                    {(t.name, t.node) for t in pool_of(folder).tenants}
                    == {("aggregator-0", "two"), ("aggregator-1", "two")}
                ),
                driver,
            )
            outcome = job.ended(driver)
        finally:
            driver.kill()
    assert outcome.code == 0, outcome.stderr
    assert outcome.report["actual"]["epochs"] == 80
    with Store.open(job.store) as store:
        events = store.events(outcome.job_id, limit=1000)
    (back,) = (event.message for event in events if "the job continues from step" in event.message)
    print(back)
    assert_nothing_left(job)


# ---- nodes that the pool rents --------------------------------------------------------------------------------


def shared(job: CloudJob, folder: Path) -> CloudJob:
    job.environment = {"SCAVENGER_POOL": str(folder)}
    return job


def small(make_job: MakeJob, folder: Path, name: str, epochs: int) -> CloudJob:
    """A job with one worker and one aggregator in the pool."""
    job = make_job(
        name,
        tiny=True,
        search={"workers": 1, "batch_size": [32]},
        objective="time",
        profile={"steps": 8},
        goal={"metric": "val_loss", "max_epochs": epochs},
        aggregation="shared",
    )
    return shared(job, folder)


def serve(job: CloudJob, *options: str) -> subprocess.Popen[str]:
    """A pool that rents nodes where the job's VMs are, each for one aggregator."""
    place = f"{job.cloud.name}/{job.cloud.region}"
    words = ["--nodes", "0", "--infra", place, "--vm", job.cloud.small, "--tenants", "1", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "scavenger_cli", "aggregators", "serve", *words, "--store", job.store],
        env=job.whole_environment(),
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def pool_of(folder: Path) -> PoolLoad:
    found = load_of(folder)
    assert found is not None
    return found


def rented_nodes(folder: Path) -> set[str]:
    load = pool_of(folder)
    assert load.rental is not None
    return {one.node.name for one in load.nodes} | set(load.rental.since)


@pytest.mark.timeout(540)
def test_a_pool_rents_nodes_for_its_jobs_and_gives_them_back(
    cloud: Rented, make_job: MakeJob, tmp_path: Path
) -> None:
    folder = tmp_path / "pool"
    long, short = small(make_job, folder, "long", 150), small(make_job, folder, "short", 20)
    manager = serve(long, "--nodes-max", "2", "--idle-duration", "5s")
    drivers = []
    try:
        assert wait_for(lambda: load_of(folder), manager)
        assert cloud.vms() == (), "nothing is rented for nobody"

        drivers.append(long.start())
        wait_for(lambda: long.phase() == "running", drivers[0])
        assert rented_nodes(folder) == {"rented-1"}

        drivers.append(short.start())
        wait_for(lambda: short.phase() == "running", drivers[1])
        assert rented_nodes(folder) == {"rented-1", "rented-2"}
        ended = short.ended(drivers[1])
        assert ended.code == 0, ended.stderr

        wait_for(lambda: rented_nodes(folder) == {"rented-1"}, drivers[0])
        assert long.phase() == "running"
        ended = long.ended(drivers[0])
        assert ended.code == 0, ended.stderr
        wait_for(lambda: not rented_nodes(folder), manager)
        load = pool_of(folder)
        assert load.rental is not None
        assert 0.0 < load.rental.idle_usd < load.rental.spent_usd
        wait_for(lambda: not [vm for vm in cloud.vms() if vm.alive], manager)
    finally:
        for driver in drivers:
            driver.kill()
        manager.terminate()
        said, _ = manager.communicate(timeout=120.0)
        print(said)
    assert manager.returncode == 0, said
    with Store.open(long.store) as store:
        (pool,) = (job for job in store.jobs() if job.name == POOL_NAME)
        assert pool.state == "stopped"
        assert pool.cost_usd == pytest.approx(load.rental.spent_usd, rel=0.2)
        nodes = store.intents(pool.id)
    assert len(nodes) == 2, said
    assert_nothing_left(long)


@pytest.mark.timeout(540)
def test_a_manager_that_is_killed_leaves_no_vm_behind(
    cloud: Rented, make_job: MakeJob, tmp_path: Path
) -> None:
    folder = tmp_path / "pool"
    job = small(make_job, folder, "job", 150)
    manager = serve(job, "--nodes-max", "1")
    driver = None
    try:
        assert wait_for(lambda: load_of(folder), manager)
        driver = job.start()
        wait_for(lambda: job.phase() == "running", driver)
    finally:
        manager.kill()
        print(manager.communicate()[0])
        if driver is not None:
            driver.kill()
            driver.communicate()
    for folder_of_killed in Path(os.environ["TMPDIR"]).glob("scavenger-pool-*"):
        folder_of_killed.rmdir()  # empty: all that nobody could remove
    (left,) = (vm for vm in cloud.vms() if vm.alive and vm.slot > 1_000_000)
    swept = job.ask("gc", "--yes")
    assert swept.code == 0, swept.stderr
    assert left.id in swept.stdout
    assert_nothing_left(job)

    again = serve(job, "--nodes-max", "1")
    try:
        wait_for(lambda: load_of(folder) is not None and load_of(folder).pid == again.pid, again)
    finally:
        again.terminate()
        again.communicate(timeout=120.0)
    assert_nothing_left(job)
