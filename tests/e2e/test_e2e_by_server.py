"""Commands that speak to a server run a real job: it is submitted, followed, scaled, stopped and resumed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_jobs import Job, Outcome, ended, environment, training
from waiting import wait_for
from warm_commands import Command

from scavenger.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.long]

MakeJob = Callable[..., Job]


def test_a_job_is_run_by_the_server_and_followed_from_here(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(
        goal={"metric": "val_loss", "target": 0.0001, "max_epochs": 100_000, "epochs_hint": 2},
        checkpoint={"path": "./saved", "every_steps": 20},
        elastic={"min": 1, "max": 3},
        code={"sleep_s": 0.001},
    )
    with _served(job, tmp_path) as env:
        follower = _begin(env, "optimize", str(job.file), "--yes")
        watcher = None
        try:
            wait_for(training(job, phase="running"), follower)
            watcher = _begin(env, "status", "tiny", "-f")
            scaled = _run(env, "scale", "tiny", "--workers", "2")
            assert scaled.code == 0, scaled.stderr
            assert "asked to scale to 2 workers: done" in scaled.stdout
            assert "the job has started it" in scaled.stderr
            assert "2 x local-1" in _run(env, "status", "tiny").stdout
            stopped = _run(env, "stop", "tiny")
            assert stopped.code == 0, stopped.stderr
            followed = ended(follower)
            watched = ended(watcher)
        finally:
            for process in (follower, watcher):
                if process is not None and process.poll() is None:
                    process.kill()
        assert "view" in followed.stdout
        assert "is interrupted" in followed.stderr
        assert "Job tiny" in followed.stdout  # the report, as `optimize` prints it
        with Store.open(job.store) as store:
            assert followed.code == store.job("tiny").exit_code
        assert "state       interrupted" in watched.stdout
        again = _run(env, "resume", "tiny", "--yes", "--detach")
        assert again.code == 0, again.stderr
        wait_for(lambda: _attempts(job) == 2)
        assert _run(env, "jobs", "cancel", "tiny", "--yes").code == 0
        wait_for(lambda: "No job is queued" in _run(env, "jobs", "queue").stdout)


def _begin(env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scavenger_cli", *arguments]
    return Command(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _run(env: dict[str, str], *arguments: str) -> Outcome:
    return ended(_begin(env, *arguments))


@contextmanager
def _served(job: Job, folder: Path) -> Iterator[dict[str, str]]:
    """A server of the job's store; yields the environment of commands that have nothing but its address and a token."""
    env = environment(job.mark)
    log = folder / "serve.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "scavenger_cli", "serve", "--port", "0", "--store", job.store]
        server = Command(command, env=env, stdout=output, stderr=output)
        try:
            (address, token) = wait_for(
                lambda: re.search(r"open (http://\S+)/login\?token=(\S+)", log.read_text())
            ).groups()
            own = {"SCAVENGER_SERVER": address, "SCAVENGER_TOKEN": token}
            none = f"sqlite:///{folder}/none.db"
            yield {**env, **own, "SCAVENGER_STORE": none}
            assert not os.path.exists(folder / "none.db")
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0, log.read_text()


def _attempts(job: Job) -> int:
    with Store.open(job.store) as store:
        found = store.job("tiny")
        return found.attempts if found.state == "running" else 0
