"""A submitted job is run by a process that outlives the command, its terminal and the server."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from audits import AUDIT_FILE, verify_audit
from real_jobs import Job, environment, lines, marked, training
from waiting import wait_for

from scavenger.domain.intent import Lease
from scavenger.domain.submission import Submission, runner_lease
from scavenger.store import Store

pytestmark = pytest.mark.slow

MakeJob = Callable[..., Job]
SAMPLES = 1600


def test_a_detached_job_outlives_its_terminal_and_its_server(make_job: MakeJob) -> None:
    job = make_job(goal={"max_epochs": 5}, code={"sleep_s": 0.001})
    with _servers_ended(job):
        terminal = _submitted_at_a_terminal(job)
        wait_for(lambda: _begun(job))  # server and runner start, and then TensorFlow: a minute each
        (worker,) = wait_for(training(job))
        os.close(terminal)  # the session of the command is hung up
        first = _server(job)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not psutil.pid_exists(first) or psutil.Process(first).status() == "zombie")
        runner = _record(job).owner.pid
        assert os.getsid(runner) == runner

        follower = job.begin("jobs", "queue")
        assert "no server is running" not in follower.communicate()[0]
        with _serving(job):
            scaled = job.ask("scale", "tiny", "--workers", "1")
            assert scaled.code in (0, 2), scaled.stderr  # it is asked like any other, and has 1 already
            wait_for(lambda: not _submission(job).is_open)

    done = _record(job)
    assert (done.state, done.attempts, done.owner.pid) == ("succeeded", 1, runner)
    assert (_submission(job).state, _submission(job).reason, _submission(job).starts.count) == (
        "ended",
        "succeeded",
        1,
    )
    assert done.model_path is not None
    assert Path(done.model_path).is_file()
    told = job.ask("logs", "tiny", "-n", "500").report
    assert "runner" in told["logs"]
    assert {"phase", "view"} <= {event["kind"] for event in told["events"]}
    assert worker  # it trained under the first server


@pytest.mark.long
def test_a_killed_runner_is_replaced_and_each_sample_counts_once(make_job: MakeJob, mark: str) -> None:
    epochs = 8
    job = make_job(
        goal={"max_epochs": epochs},
        checkpoint={"path": "./saved", "every_steps": 35},
        code={"sleep_s": 0.001},
    )
    with _servers_ended(job):
        assert job.run("optimize", "--detach", "--audit").code == 0
        wait_for(lambda: _begun(job))
        wait_for(lambda: _record(job).checkpoint is not None and (_record(job).step or 0) > 100)
        first = _record(job)
        os.kill(first.owner.pid, signal.SIGKILL)
        wait_for(lambda: _record(job).attempts == 2)
        wait_for(training(job))
        stalled = _record(job).owner.pid
        os.kill(stalled, signal.SIGSTOP)  # it is ended when it has been silent for a minute
        assert _waited(lambda: _record(job).attempts == 3, stalled)
        wait_for(lambda: not _submission(job).is_open)

    done = _record(job)
    assert (done.state, done.step) == ("succeeded", epochs * SAMPLES // 32)
    assert done.measurements_path is not None
    assert verify_audit(Path(done.measurements_path).with_name(AUDIT_FILE), SAMPLES) == []
    kinds = [line["kind"] for line in lines(done.measurements_path)]
    assert kinds.count("resumed") == 2
    lease = _lease(job)
    assert lease is not None
    assert (lease.holder, lease.token) == ("", 2 * _submission(job).starts.count)


@pytest.mark.long
def test_a_store_that_is_away_and_a_machine_that_sleeps_end_no_runner(make_job: MakeJob) -> None:
    job = make_job(goal={"max_epochs": 2000}, code={"sleep_s": 0.002})
    database = Path(job.store.removeprefix("sqlite:///"))
    away = database.with_name("away.db")
    with _servers_ended(job):
        assert job.run("optimize", "--detach").code == 0
        wait_for(lambda: _begun(job))
        wait_for(training(job))
        runner = _record(job).owner.pid

        database.rename(away)
        _pass(66.0)
        away.rename(database)
        _goes_on(job, runner)

        everything = [process for process in marked(job.mark) if process.pid != os.getpid()]
        for process in everything:
            process.suspend()
        _pass(90.0)
        for process in everything:
            process.resume()
        _goes_on(job, runner)
        assert job.ask("jobs", "cancel", "tiny", "--yes").code == 0
        wait_for(lambda: not _submission(job).is_open)


@pytest.mark.long
def test_a_killed_runner_goes_on_with_its_runs_and_tells_trackers_each_epoch_once(
    make_job: MakeJob, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    epochs, uri = 12, f"sqlite:///{tmp_path}/mlflow.db"
    job = make_job(
        goal={"metric": "val_loss", "max_epochs": epochs},
        checkpoint={"path": "./saved", "every_steps": 90},
        trackers={"mlflow": uri, "tensorboard": str(tmp_path / "runs")},
        code={"sleep_s": 0.001},
    )
    records = MlflowClient(tracking_uri=uri)

    def history(run: Any) -> list[int]:
        return [one.step for one in records.get_metric_history(run.info.run_id, "val_loss")]

    def runs() -> list[Any]:
        found = records.get_experiment_by_name("tiny")
        return [] if found is None else list(records.search_runs([found.experiment_id]))

    with _servers_ended(job):
        assert job.run("optimize", "--detach").code == 0
        wait_for(lambda: _begun(job))
        # an epoch after its checkpoint is told: it is trained again
        wait_for(
            lambda: _record(job).checkpoint is not None and any(len(history(run)) >= 3 for run in runs())
        )
        os.kill(_record(job).owner.pid, signal.SIGKILL)
        wait_for(lambda: _record(job).attempts == 2)
        wait_for(lambda: not _submission(job).is_open)

    steps = list(range(SAMPLES // 32, epochs * SAMPLES // 32 + 1, SAMPLES // 32))
    (run,) = runs()
    assert history(run) == steps
    assert (run.info.status, run.data.tags["scavenger.job_id"]) == ("FINISHED", _first(job))
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(list(folder.iterdir())) == 2  # a file for each attempt
    scalars = EventAccumulator(str(folder)).Reload().Scalars("val_loss")
    assert [one.step for one in scalars] == steps


@pytest.mark.long
def test_a_queued_job_waits_for_the_first_and_can_be_cancelled(make_job: MakeJob) -> None:
    first = make_job(goal={"max_epochs": 100_000}, code={"sleep_s": 0.001})
    second = make_job(store=first.store, goal={"max_epochs": 1})
    with _servers_ended(first):
        assert first.run("optimize", "--detach").code == 0
        wait_for(lambda: _begun(first))
        wait_for(training(first))
        waiting = second.run("optimize", "--detach").report["submission"]["id"]
        wait_for(lambda: "1 job at once" in _submission(second, waiting).reason)
        stopped = _submission(first, _first(first))
        assert first.ask("jobs", "cancel", stopped.id, "--yes").code == 0
        wait_for(lambda: not _submission(first, stopped.id).is_open)
        assert _submission(first, stopped.id).reason.startswith("cancelled by")
        wait_for(lambda: not _submission(second, waiting).is_open)
        assert _submission(second, waiting).reason == "succeeded"


# ---- helpers -----------------------------------------------------------------------------------------------


def _submitted_at_a_terminal(job: Job) -> int:
    """Submit the job in a terminal of its own, which is returned."""
    command = [sys.executable, "-m", "scavenger_cli", "optimize", str(job.file), "--detach", "--yes"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], [*command, "--store", job.store], environment(job.mark))
    shown = b""
    while True:
        try:
            read = os.read(terminal, 4096)
        except OSError:
            break
        shown += read
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown.decode()
    assert b"scavenger logs" in shown
    return terminal


def _server(job: Job) -> int:
    (server,) = job.ask("jobs", "queue").report["servers"]
    assert server["background"]
    return int(server["pid"])


@contextmanager
def _serving(job: Job) -> Iterator[None]:
    """A server in the foreground."""
    command = [sys.executable, "-m", "scavenger_cli", "serve", "--store", job.store]
    server = subprocess.Popen(command, env=environment(job.mark), stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0, server.communicate()


@contextmanager
def _servers_ended(job: Job) -> Iterator[None]:
    """Servers and runners of the test end with it."""
    try:
        yield
    finally:
        for process in marked(job.mark):
            if "scavenger.control.service" in " ".join(process.cmdline()):
                process.terminate()


def _waited(what: Callable[[], Any], pid: int) -> bool:
    """Wait for longer than a minute; the stopped process is continued if it never happens."""
    for _ in range(3):
        try:
            return bool(wait_for(what))
        except AssertionError:
            continue
    os.kill(pid, signal.SIGCONT)
    return False


def _pass(seconds: float) -> None:
    """Let real time pass: a store or machine is away."""
    threading.Event().wait(seconds)


def _goes_on(job: Job, runner: int) -> None:
    """The runner is the same a while later, and its job has made further steps."""
    step = _record(job).step or 0
    _pass(15.0)
    wait_for(lambda: (_record(job).step or 0) > step)
    assert (_record(job).owner.pid, _record(job).attempts, _submission(job).starts.count) == (runner, 1, 1)


def _begun(job: Job) -> bool:
    with Store.open(job.store) as store:
        return store.has_job(_first(job))


def _first(job: Job) -> str:
    with Store.open(job.store) as store:
        return store.submissions()[-1].id


def _record(job: Job) -> Any:
    with Store.open(job.store) as store:
        return store.job(_first(job))


def _submission(job: Job, job_id: str | None = None) -> Submission:
    with Store.open(job.store) as store:
        found = store.submission(job_id or _first(job))
    assert found is not None
    return found


def _lease(job: Job) -> Lease | None:
    with Store.open(job.store) as store:
        return store.lease(runner_lease(_first(job)))
