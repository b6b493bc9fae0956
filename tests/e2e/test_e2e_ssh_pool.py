"""A pool of hosts over SSH: jobs share them, hand them on, and go on with those that live; nothing is left there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real_jobs import Job, environment, opened
from sleeping_loop import SLEEPING_LOOP
from ssh_lab import SshLab, lab_of, needs_ssh, programs_in
from test_e2e_ssh import AGENT, HOST
from waiting import wait_for
from warm_commands import Command

from scavenger.control.places.launching import GPU_VMS, UNPROVEN_VARIABLE
from scavenger.control.pools.rented import KEEPER_NAME

pytestmark = [needs_ssh, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(params=[[HOST] * 3])
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[SshLab]:
    """Hosts, and settings with a pool of them."""
    programs = programs_in(tmp_path / "programs", scavenger_vm=AGENT)
    with lab_of(tmp_path / "lab", {f"h{n}": host for n, host in enumerate(request.param)}, programs) as made:
        path = made.settings_file()
        path.write_text(
            path.read_text() + '\n[pool.hosts]\ninfra = "ssh/lab"\npolicy = "even"\nidle_duration = "1s"\n'
        )
        monkeypatch.setenv("SCAVENGER_CONFIG", str(path))
        monkeypatch.setenv(UNPROVEN_VARIABLE, GPU_VMS)
        monkeypatch.setenv("SCAVENGER_ADDRESS", "127.0.0.1")
        yield made


def job_of(folder: Path, name: str, mark: str, *, epochs: int, workers: list[int]) -> Job:
    spec = {
        "version": 1,
        "name": name,
        "infra": "pool/hosts",
        "train": "train:job",
        "search": {"workers": workers, "batch_size": [32], "strategy": "extremes"},
        "goal": {"max_epochs": epochs},
        "profile": {"steps": 3},
        "checkpoint": {"path": "./saved", "every_steps": 20},
    }
    job = Job(folder / name, f"sqlite:///{folder}/store.db", mark, spec)
    job.folder.mkdir(parents=True)
    job.file.write_text(json.dumps(spec))
    (job.folder / "train.py").write_text(SLEEPING_LOOP)
    return job


@contextmanager
def served(job: Job) -> Iterator[subprocess.Popen[str]]:
    """A server of the pool."""
    command = [sys.executable, "-m", "scavenger_cli", "serve", "--no-api", "--store", job.store]
    with (job.folder.parent / "serve.log").open("a") as log:
        server = Command(command, env=environment(job.mark), stdout=log, stderr=log)
        try:
            wait_for(lambda: opened(job).servers(), server)
            yield server
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60.0)


def submit(job: Job, *options: str) -> None:
    outcome = job.run("optimize", "--detach", *options)
    assert outcome.code == 0, outcome.stderr


def shares(job: Job) -> dict[str, int]:
    """Hosts that jobs were told, by their names."""
    store = opened(job)
    names = {one.id: one.job.name for one in store.submissions()}
    last = store.allotment("hosts")
    return {} if last is None else {names[key]: share.told for key, share in last.shares.items()}


def states(job: Job) -> dict[str, str]:
    return {one.job.name: one.state for one in opened(job).submissions()}


def trains_on(job: Job) -> set[str]:
    """The hosts of the job, if on each of them a worker trains."""
    store = opened(job)
    running = store.running_jobs(job.file)
    if not running:
        return set()
    workers = [
        one for one in store.processes(running[0].id) if (one.role, one.state) == ("worker", "training")
    ]
    vms = [one for one in store.intents(running[0].id) if one.state in ("PLAN", "UP")]
    return {one.instance_id.partition(".")[0] for one in vms} if len(vms) == len(workers) else set()


def nodes(job: Job) -> dict[str, str]:
    last = opened(job).allotment("hosts")
    return {} if last is None else {one.name: one.state for one in last.nodes}


def test_jobs_share_hosts_and_go_on_with_those_that_live_whoever_is_killed(
    lab: SshLab, tmp_path: Path, mark: str
) -> None:
    long, urgent = (
        job_of(tmp_path / "jobs", name, mark, epochs=epochs, workers=workers)
        for name, epochs, workers in (("long", 200, [1, 2, 3]), ("urgent", 3, [1]))
    )
    with served(long) as server:
        submit(long)
        wait_for(lambda: len(trains_on(long)) == 3, server)
        assert nodes(long) == {"h0": "open", "h1": "open", "h2": "open"}
        submit(urgent, "--priority", "5")
        wait_for(lambda: shares(long) == {"long": 2, "urgent": 1}, server)
        wait_for(lambda: states(long).get("urgent") == "ended", server)
        drained = sorted(wait_for(lambda: len(there := trains_on(long)) == 3 and there, server))[-1]
        assert long.ask("pool", "drain", drained).report["name"] == "long"
        wait_for(lambda: shares(long) == {"long": 2} and trains_on(long) == {*lab.hosts} - {drained}, server)
        wait_for(lambda: not lab.host(drained).look()["held"], server)
        assert nodes(long)[drained] == "draining"
        assert long.ask("pool", "drain", drained, "--undo").code == 0
        wait_for(lambda: len(trains_on(long)) == 3, server)
        lost = sorted(trains_on(long))[0]
        lab.stop(lost)
        lab.kill(lost)
        wait_for(lambda: shares(long) == {"long": 2} and nodes(long)[lost] == "lost", server)
        server.kill()
    with served(long) as server:
        wait_for(lambda: states(long).get("long") == "ended", server)
    records: list[Any] = [one for one in opened(long).jobs(10) if one.name != KEEPER_NAME]
    assert {one.state for one in records} == {"succeeded"}
    assert wait_for(lambda: lab.left() == [])


def trains_with(job: Job) -> tuple[set[str], int]:
    """The hosts of the job, and its workers that train."""
    store, workers, hosts = opened(job), 0, set[str]()
    for running in store.running_jobs(job.file):
        workers += sum((one.role, one.state) == ("worker", "training") for one in store.processes(running.id))
        vms = (one for one in store.intents(running.id) if one.state in ("PLAN", "UP"))
        hosts |= {one.instance_id.partition(".")[0] for one in vms}
    return hosts, workers


@pytest.mark.parametrize("lab", [[{**HOST, "gpus": 2}] * 2], indirect=True)
def test_a_job_has_a_worker_on_each_gpu_of_its_hosts_and_gives_back_whole_ones(
    lab: SshLab, tmp_path: Path, mark: str
) -> None:
    long, urgent = (
        job_of(tmp_path / "jobs", name, mark, epochs=epochs, workers=workers)
        for name, epochs, workers in (("long", 120, [2, 4]), ("urgent", 3, [1]))
    )

    def at_rest(told: dict[str, int], workers: int) -> bool:
        hosts, training = trains_with(long)
        return shares(long) == told and (len(hosts), training) == (told["long"], workers)

    with served(long) as server:
        submit(long)
        wait_for(lambda: at_rest({"long": 2}, 4), server)
        submit(urgent, "--priority", "5")
        wait_for(lambda: at_rest({"long": 1, "urgent": 1}, 2), server)
        hosts = wait_for(lambda: trains_on(urgent), server)
        assert hosts.isdisjoint(trains_with(long)[0])
        wait_for(lambda: states(long).get("urgent") == "ended", server)
        wait_for(lambda: at_rest({"long": 2}, 4), server)
        wait_for(lambda: states(long).get("long") == "ended", server)
    records: list[Any] = [one for one in opened(long).jobs(10) if one.name != KEEPER_NAME]
    assert {one.state for one in records} == {"succeeded"}
    assert wait_for(lambda: lab.left() == [])
