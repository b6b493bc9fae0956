"""What `make chaos` does to a job apart from killing its processes: each case breaks something around the training.

Each case trains a small job, and returns what must hold, as (words, whether it does).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from driving import Run, assert_same_weights, plain_keras
from waiting import wait_for

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
from audits import AUDIT_FILE, verify_audit
from real_jobs import Job, Outcome, ended, lines, marked, training

from scavenger.store import Store
from scavenger.train.transport.connections import raise_descriptor_limit

Verdicts = list[tuple[str, bool]]

SAMPLES = 1600
EPOCHS = 20
SPEC: dict[str, Any] = {
    "version": 1,
    "name": "chaos",
    "train": "train:job",
    "search": {"workers": 2, "batch_size": [32]},
    "objective": "time",
    "goal": {"metric": "val_loss", "target": 0.0001, "max_epochs": EPOCHS, "epochs_hint": 10},
    "profile": {"steps": 16},
}
STRANGERS = 1500
FREE = 100
"""Descriptors that an aggregator has left."""
OUTAGE_S = 10.0
STOPPED_S = 3.0
GONE_S = 30.0


def make_job(folder: Path, *, store: str = "", code: dict[str, Any] | None = None, **sections: Any) -> Job:
    """Make a job; `store` are options of its store's URL."""
    url = f"sqlite:///{folder / 'store' / 'scavenger.db'}{store}"
    return Job(folder, url, uuid.uuid4().hex, {**SPEC, **sections}).write(**(code or {"sleep_s": 0.001}))


def complete(job: Job, outcome: Outcome) -> Verdicts:
    """What holds of every job that reached its end, whatever happened on the way."""
    steps = [line for line in lines(outcome.report["measurements_path"]) if line["kind"] == "step"]
    audit = Path(outcome.report["measurements_path"]).with_name(AUDIT_FILE)
    problems = verify_audit(audit, SAMPLES) if audit.exists() else ["no audit"]
    with Store.open(job.store) as store:
        stored = store.jobs()[0].state
    state = outcome.report["job"]["state"]
    return [
        (f"the job ended as {state!r} with exit code {outcome.code}", outcome.code == 0),
        (f"{len(steps)} steps, every sample once an epoch: {problems[:1] or 'proven'}", not problems),
        (f"the store says {stored!r} too", stored == state),
        ("no process is left", not [p for p in marked(job.mark) if p.pid != os.getpid()]),
    ]


def store_outage(folder: Path) -> Verdicts:
    """The store is held by another process for a while."""
    job = make_job(folder, store="?timeout=0.2")  # else a held store is noticed late
    process = job.start("optimize", "--audit")
    wait_for(training(job), process)
    holder = sqlite3.connect(job.store.removeprefix("sqlite:///").partition("?")[0], isolation_level=None)
    deadline = time.monotonic() + OUTAGE_S
    while True:
        try:
            holder.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError:
            assert time.monotonic() < deadline
    (journal,) = (folder / ".scavenger").glob("*/measurements.jsonl")
    before = journal.stat().st_size
    time.sleep(OUTAGE_S)
    grown = journal.stat().st_size - before
    holder.execute("ROLLBACK")
    holder.close()
    return [
        (f"without the store, training went on: {grown:,} bytes in {OUTAGE_S:g} s", grown > 0),
        *complete(job, ended(process)),
    ]


def unread_pipe(folder: Path) -> Verdicts:
    """Nobody reads the command's standard error, and its pipe is full from the start."""
    job = make_job(folder)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(65536))
    os.set_blocking(writer, True)
    process = job.start("optimize", "--audit", stderr=writer)
    try:
        stdout, _ = process.communicate(timeout=150)
    finally:
        process.kill()
        os.close(writer)
        os.close(reader)
    return complete(job, Outcome(process.returncode, stdout, ""))


def _checkpoint(job: Job) -> str | None:
    with Store.open(job.store) as store:
        return store.jobs()[0].checkpoint


def command_stopped_then_killed(folder: Path) -> Verdicts:
    """The command stands still, as after Ctrl-Z or in a debugger, and is then killed."""
    job = make_job(folder, checkpoint={"path": "./checkpoints", "every_steps": 20})
    process = job.start("optimize", "--audit")
    wait_for(training(job, phase="running"), process)
    wait_for(lambda: _checkpoint(job), process)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    while left := marked(job.mark):
        if time.monotonic() - began > GONE_S:
            break
        time.sleep(0.1)
    took_s = time.monotonic() - began
    return [
        (f"{took_s:.1f} s after the command, its processes were gone: {[p.pid for p in left]}", not left),
        *complete(job, job.ask("resume", SPEC["name"], "--yes", "--audit")),
    ]


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 1 MB at a folder; False without the right to mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def disk_full_while_saving(folder: Path) -> Verdicts:
    """The disk has room for the job's records, and not for its model."""
    job = make_job(
        folder,
        goal={"max_epochs": 2},
        search={"workers": 1, "batch_size": [32]},
        checkpoint={"path": "./checkpoints"},
        code={"width": 20_000, "samples": 64},
    )
    output = folder / ".scavenger"
    with _small_disk(output) as mounted:
        if not mounted:
            return [("left out: only root can mount a full disk", True)]
        outcome = job.run()
        state, steps = outcome.report["job"]["state"], outcome.report["steps"]
        subprocess.run(["mount", "-o", "remount,size=32m", output], check=True)
        again = job.ask("resume", outcome.report["job"]["id"], "--yes")
        model = again.report["model_path"]
        return [
            (f"without room, the job ended as {state!r} with exit code {outcome.code}", outcome.code == 3),
            (f"with room, `resume` ended with exit code {again.code}", again.code == 0),
            (f"of the same {steps} steps", again.report["steps"] == steps),
            ("the model is written", model is not None and Path(model).is_file()),
        ]


def idle_connections(folder: Path) -> Verdicts:
    """Strangers connect to every port of a job of several hosts, more often than its processes have descriptors.

    The supervisor listens at one port; each aggregator at one for messages and at one for payloads.
    """
    raise_descriptor_limit()
    with (
        Run("small:slow", folder, aggregators=2, remote=("w0", "w1", "w2")) as run,
        contextlib.ExitStack() as own,
    ):
        run.begin(2, 32)
        run.train(5)
        ports = {int(run.supervisor._processes.hub.address.rpartition(":")[2]): STRANGERS}
        aggregators = ("aggregator-0", "aggregator-1")
        for name in aggregators:
            process = psutil.Process(run.pid(name))
            # what the bound is to prevent must be survived, too
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() + FREE,) * 2)
            listening = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            ports |= {connection.laddr.port: 3 * FREE for connection in listening}
        strangers = own.enter_context(contextlib.ExitStack())
        for port, count in ports.items():
            for _ in range(count):
                with contextlib.suppress(OSError):
                    strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.2))
        run.train(50)
        steps = len(run.steps)
        strangers.close()
        run.supervisor.launch(1)
        run.until(lambda: run.supervisor.ready == 3)
        run.supervisor.resize(3, 32, "more")
        run.train(10)
        got = run.finish()
    try:
        assert_same_weights(got, plain_keras("slow", run.steps))
        same = True
    except AssertionError:
        same = False
    return [
        (
            f"{sum(ports.values()):,} idle connections to {len(ports)} ports, {steps} steps",
            len(ports) == 1 + 2 * len(aggregators),
        ),
        ("no process was lost", not run.lost and not run.recovered),
        ("when they were gone, a worker could join", len(run.views[-1].members) == 3),
        ("the weights are those of plain Keras", same),
    ]


CASES = (disk_full_while_saving, store_outage, command_stopped_then_killed, idle_connections, unread_pipe)
