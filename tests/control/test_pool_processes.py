"""Real jobs in a pool of this machine: processes, moves, checkpoints and leases are real, computing is a sleep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from audits import AUDIT_FILE, verify_audit
from sleeping_loop import SHARD, SHARDS, SLEEPING_LOOP
from waiting import wait_for

from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.service.submitting import new_submission
from scavenger.domain.job import JobSpec
from scavenger.domain.pool import JobStanding, PoolAllotment
from scavenger.domain.submission import Submission
from scavenger.store import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@dataclass
class World:
    """A store, and the jobs in it."""

    folder: Path
    store: Store

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def submit(
        self,
        name: str,
        *,
        epochs: int,
        workers: tuple[int, int] = (1, 4),
        priority: int = 0,
        study: str = "",
        study_workers: int | None = None,
        deadline_s: float | None = None,
        steps: int = 3,
        code: str = SLEEPING_LOOP,
    ) -> Submission:
        folder = self.folder / name
        folder.mkdir()
        (folder / "train.py").write_text(code)
        spec = {
            "version": 1,
            "name": study or name,
            "train": "train:job",
            "infra": "pool/gpu",
            "goal": {"max_epochs": epochs},
            "search": {
                "workers": list(range(workers[0], workers[1] + 1)),
                "batch_size": [32],
                "strategy": "extremes",
            },
            "profile": {"steps": steps},
            "checkpoint": {"path": "./saved", "every_steps": 40},
            "constraints": {"deadline": deadline_s},
        }
        path = folder / "job.yaml"
        path.write_text("{}")
        prepared = prepare_job(JobSpec.model_validate(spec), path)
        new = new_submission(prepared, audit=True, priority=priority, study_workers=study_workers)
        return self.store.submit(new)

    @property
    def last(self) -> PoolAllotment | None:
        return self.store.allotment("gpu")

    def counts(self, one: Submission) -> int:
        share = None if self.last is None else self.last.shares.get(one.id)
        return 0 if share is None else share.counts

    def standing(self, one: Submission) -> JobStanding | None:
        return self.store.standings([one.id]).get(one.id)

    def holds(self, one: Submission, slots: int) -> Callable[[], bool]:
        def look() -> bool:
            self.check()
            standing = self.standing(one)
            return standing is not None and standing.state == "training" and standing.held == slots

        return look

    def now(self, one: Submission) -> Submission:
        found = self.store.submission(one.id)
        assert found is not None
        return found

    def ended(self, one: Submission) -> Callable[[], bool]:
        def look() -> bool:
            self.check()
            return not self.now(one).is_open

        return look

    def check(self) -> None:
        """No slot has two owners: neither on record, nor of the processes that there are."""
        last = self.last
        if last is not None:
            assert sum(share.counts for share in last.shares.values()) <= last.pool.slots
            assert len(self.workers()) <= last.pool.slots

    def runner(self, one: Submission) -> int:
        """The process of a job's runner."""
        lease = self.store.lease(f"runner/{one.id}")
        assert lease is not None
        return int(lease.holder.split("/")[1])

    def workers(self) -> list[int]:
        """The processes of workers that live."""
        found: list[int] = []
        for one in self.store.submissions(99):
            if not self.store.has_job(one.id):
                continue
            known = (each.pid for each in self.store.processes(one.id) if each.role == "worker")
            found += [pid for pid in known if pid is not None and _lives(pid)]
        return found

    def audit(self, one: Submission) -> None:
        """Every sample of each epoch counts once."""
        assert (self.now(one).state, self.now(one).reason) == ("ended", "succeeded")
        folder = Path(one.job.job_file).parent / ".scavenger" / one.id
        assert verify_audit(folder / AUDIT_FILE, SHARDS * SHARD) == []


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        world = World(tmp_path, store)
        try:
            yield world
        finally:
            for one in store.submissions(99, states=("running",)):
                if _lives(pid := world.runner(one)):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def serving(world: World, slots: int = 4, policy: str = "even") -> Iterator[subprocess.Popen[bytes]]:
    pools = world.folder / "pools.toml"
    pools.write_text(f"[pool.gpu]\nslots = {slots}\npolicy = '{policy}'\n")
    command = [sys.executable, "-m", "scavenger_cli", "serve", "--no-api", "--pool", str(pools)]
    env = {**os.environ, "SCAVENGER_STORE": world.url, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    with open(world.folder / "server.log", "ab") as log:
        server = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_jobs_shrink_for_each_other_and_grow_when_one_has_ended(world: World) -> None:
    """They are a study's, which has four of the pool's eight slots."""
    with serving(world, slots=8):
        first = world.submit("first", epochs=40, workers=(1, 6), study="rates", study_workers=4)
        wait_for(world.holds(first, 4))
        assert len(world.workers()) == 4
        second = world.submit("second", epochs=4, study="rates", study_workers=4)
        wait_for(world.holds(second, 2))
        assert world.holds(first, 2)()
        assert len(world.workers()) <= 4
        wait_for(world.ended(second))
        wait_for(world.holds(first, 4))
        wait_for(world.ended(first))
    for one in (first, second):
        world.audit(one)


def test_a_job_whose_workers_die_when_its_model_is_saved_goes_on_at_its_checkpoint(world: World) -> None:
    """The worker kills itself, once, when it is asked for its state after the last step."""
    dying = f"""\
def last():
    if state["w"][0] == {4 * SHARDS * SHARD // 32} and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
    return state
"""
    code = SLEEPING_LOOP.replace("import time\n", "import os, time\n")
    code = code.replace("    state = {", "    global state\n    state = {").replace("lambda: state", "last")
    code = code.replace("def train():", dying + "\ndef train():")
    with serving(world, slots=1):
        one = world.submit("one", epochs=4, workers=(1, 1), code=code)
        wait_for(world.ended(one))
    assert (Path(one.job.job_file).parent / "died").exists()
    assert world.now(one).starts.count == 2
    world.audit(one)


def test_an_urgent_job_pauses_another_which_goes_on_at_its_checkpoint(world: World) -> None:
    """Server and runner are killed in between."""
    with serving(world, slots=2) as server:
        first = world.submit("first", epochs=40, workers=(2, 2))  # not over before the next server is there
        wait_for(world.holds(first, 2))
        server.kill()
        server.wait()
    with serving(world, slots=2):
        urgent = world.submit("urgent", epochs=3, workers=(2, 2), priority=5)
        wait_for(lambda: world.now(first).state == "queued")
        assert world.now(first).starts.fruitless == 0
        paused_at = world.store.job(first.id).step
        wait_for(world.holds(urgent, 2))
        wait_for(world.ended(urgent))
        wait_for(world.holds(first, 2))
        os.kill(world.runner(first), signal.SIGKILL)
        wait_for(world.ended(first))
    assert paused_at
    assert world.now(first).starts.count == 3
    for one in (first, urgent):
        world.audit(one)


@pytest.mark.long
def test_a_deadline_is_promised_when_the_job_has_told_how_long_it_takes_and_to_its_next_run_at_once(
    world: World,
) -> None:
    def promised(one: Submission) -> list[bool]:
        """By each allotment, the first of them first."""
        found = [each.shares.get(one.id) for each in reversed(world.store.allotments("gpu", 1000))]
        return [share.promised for share in found if share is not None]

    with serving(world, slots=2, policy="worth"):
        first = world.submit("first", epochs=20, workers=(1, 2), deadline_s=3600.0)
        wait_for(world.ended(first))
        again = world.store.submit(first.job)
        wait_for(world.ended(again))
    assert promised(first)[0] is False
    assert promised(first) == sorted(promised(first))
    assert promised(first)[-1]
    assert all(promised(again))
    world.audit(first)
    world.audit(again)


@pytest.mark.long
def test_a_search_ends_early_for_an_urgent_job_and_the_job_goes_on_with_what_it_has_measured(
    world: World,
) -> None:
    def searches() -> bool:
        standing = world.standing(first)
        return standing is not None and standing.state == "searching"

    with serving(world, slots=2):
        first = world.submit("first", epochs=30, workers=(1, 2), steps=60)
        wait_for(searches)
        urgent = world.submit("urgent", epochs=3, workers=(2, 2), priority=5)
        wait_for(lambda: "first has 2 (searching)" in world.now(urgent).reason)
        wait_for(world.ended(urgent))
        wait_for(world.ended(first))
    why = "the job's pool has another use for its slots"
    assert [one for one in world.store.events(first.id, limit=1000) if why in one.message]
    for one in (first, urgent):
        world.audit(one)
