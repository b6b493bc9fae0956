"""Jobs whose workers are on rented VMs share nodes of a pool, each a machine in the same cloud."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cloud_jobs import assert_nothing_left, eventually
from conftest import MakeJob
from machines import ROOT
from rented import Rented

from scavenger.store import Store
from scavenger.train.pool.connection import drain, load_of

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
        eventually(lambda: load_of(folder))
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
    machine = cloud.machines.boot(name, _NODE.format(ticket=file.read_text()))
    try:
        eventually(lambda: name in {one.node.name for one in load_of(folder).nodes})
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
                eventually(lambda job=job: job.phase() == "running" and job.workers_vms(), driver)
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

            eventually(moved, drivers[0])
            time.sleep(2.0)
            outcomes = [job.ended(driver) for job, driver in zip(jobs, drivers, strict=True)]
        finally:
            for driver in drivers:
                driver.kill()
        eventually(lambda: not load_of(folder).tenants)

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
