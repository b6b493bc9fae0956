"""What the tests of the server find in its store."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from scavenger.domain.intent import Fence
from scavenger.domain.submission import NewSubmission, runner_lease
from scavenger.store import Store

JOB = """\
version: 1
name: digits-cnn
train: train:job
search: {workers: 1..2, batch_size: {min: 64, max: 256}}
goal: {metric: val_accuracy, target: 0.97, max_epochs: 60}
"""


@dataclass(frozen=True)
class World:
    """Tokens by user, and ids of jobs by their owner."""

    tokens: dict[str, str]
    jobs: dict[str, str]
    job_file: Path

    def headers(self, user: str) -> dict[str, str]:
        return headers(self.tokens[user])


def headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def submission(user: str, job_file: Path, name: str = "digits-cnn") -> NewSubmission:
    return NewSubmission(name, {}, str(job_file), user, socket.gethostname(), os.getuid())


def build(store: Store, folder: Path) -> World:
    """Users `root` (admin), `ann`, `bob` and `eve` (viewer); ann and bob have a running job each."""
    job_file = folder / "job.yaml"
    job_file.write_text(JOB)
    (folder / "train.py").write_text("")
    tokens, jobs = {}, {}
    for name, role in (("root", "admin"), ("ann", "user"), ("bob", "user"), ("eve", "viewer")):
        store.set_user(name, role)  # type: ignore[arg-type]
        tokens[name] = store.new_token(name, "test")[1]
    for owner in ("ann", "bob"):
        queued = store.submit(submission(owner, job_file, f"{owner}-secret"))
        store.create_job(f"{owner}-secret", spec={}, job_file=job_file, job_id=queued.id)
        store.start_runner(queued.id, "", None)
        store.update_job(queued.id, state="running", step=3, cost_usd=0.5)
        store.set_process(queued.id, "w0", role="worker", state="training", pid=os.getpid())
        for number in range(5):
            store.add_event(queued.id, "note", f"{owner} {number}")
        store.add_indicators(queued.id, [1, 2], {"step_time_s": [0.1, float("nan")]})
        jobs[owner] = queued.id
    return World(tokens, jobs, job_file)


def end_runner(store: Store, job_id: str) -> None:
    """The runner of a job ends, as it does once the job has ended."""
    lease = store.start_runner(job_id, "runner", store.lease(runner_lease(job_id)))
    assert lease is not None
    assert store.end_submission(Fence(lease.name, lease.token), job_id, "stopped")
