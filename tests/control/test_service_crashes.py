"""Server, runner and submitter are killed at each of their writes to the store: nothing is lost, nothing runs twice.

A process that is killed has done what its transactions did: so it is enough to let each one of them be the last, once
before it was committed and once after. The store is a real one, and so are the server and what a runner does; a process
is a function here, and its death an exception.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scavenger.control.service import server as server_module
from scavenger.control.service.runner import take_over
from scavenger.control.service.server import Server
from scavenger.domain.intent import Fence
from scavenger.domain.submission import NewSubmission, Submission, runner_lease
from scavenger.errors import LeaseLostError
from scavenger.policy.admission import QueueLimits
from scavenger.store import Store
from scavenger.store.owner import this_process
from tests.control import soak_runner

pytestmark = pytest.mark.slow

STEPS, ROUNDS_MAX = 2, 30
GONE = 4_194_303


class Killed(BaseException):
    """The process that makes the write ends here."""


class Writes:
    """Counts the transactions of all processes, and kills at one of them."""

    def __init__(self, at: int, *, committed: bool) -> None:
        self.at, self.committed, self.count = at, committed, 0

    def watch(self, store: Store) -> Store:
        """The store, whose outermost transactions are counted."""
        database = store._database
        original = database.writing

        @contextmanager
        def writing(*arguments: Any) -> Iterator[Any]:
            if database._joined is not None:
                with original(*arguments) as session:
                    yield session
                return
            self.count += 1
            here = self.count == self.at
            with original(*arguments) as session:
                yield session
                if here and not self.committed:
                    raise Killed
            if here:
                raise Killed

        database.writing = writing  # type: ignore[method-assign]
        return store


class Child:
    """The process of a runner, as its server sees it."""

    pid = GONE

    def __init__(self, command: list[str], **_: Any) -> None:
        self.job_id, self.token, self.dead = command[-2], int(command[-1]), False

    def poll(self) -> int | None:
        return -9 if self.dead else None

    def kill(self) -> None:
        self.dead = True


class World:
    """A submitter, servers and runners of one store, one after another until all is done."""

    def __init__(self, url: str, folder: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.folder, self.writes = url, folder, writes
        self.watching = Store.open(url)
        self.alive: set[str] = set()
        self.children: list[Child] = []
        self.numbers = iter(range(1, 1000))
        me = this_process()
        monkeypatch.setattr("scavenger.control.service.runners.subprocess.Popen", self._popen)
        monkeypatch.setattr(server_module, "holder_name", self._name)
        monkeypatch.setattr(server_module, "state_of", lambda name: "alive" if name in self.alive else "dead")
        monkeypatch.setattr("scavenger.store.base.this_process", lambda: replace(me, pid=GONE))
        monkeypatch.setattr(soak_runner, "STEP_S", 0.0)

    def _popen(self, command: list[str], **options: Any) -> Child:
        self.children.append(Child(command, **options))
        return self.children[-1]

    def _name(self) -> str:
        name = f"here/{next(self.numbers)}/1.0"
        self.alive.add(name)
        return name

    def opened(self) -> Store:
        return self.writes.watch(Store.open(self.url))

    def submit(self) -> Submission:
        """Submit until it is answered, under one key."""
        spec = {"goal": {"max_epochs": STEPS}}
        new = NewSubmission(
            "tiny",
            spec,
            str(self.folder / "job.yaml"),
            "ann",
            this_process().host,
            os.getuid(),
            idempotency_key="k",
        )
        while True:
            with self.opened() as store, suppress(Killed):
                return store.submit(new)

    def run(self, job_id: str) -> None:
        """Let servers and runners work until the submission has ended."""
        server: Server | None = None
        for _ in range(ROUNDS_MAX):
            if server is None:
                server = Server(self.opened(), QueueLimits(), clock=lambda: next(self.numbers) * 100.0)
            try:
                if server._fence is None:
                    server.start()
                server.tick()
            except Killed:
                self.alive.discard(server._holder)
                server = None
            for child in self.children:
                if not child.dead:
                    self._run(child)
                    child.dead = True
            found = self.watching.submission(job_id)
            assert found is not None
            if not found.is_open:
                return
        raise AssertionError(f"the job is not run: {found}")

    def _run(self, child: Child) -> None:
        """What a runner does, in one process, which may be killed."""
        name = self._name()
        with suppress(Killed, LeaseLostError), self.opened() as store:
            lease = take_over(store, Fence(runner_lease(child.job_id), child.token), name)
            submission = store.submission(child.job_id)
            if lease is not None and submission is not None:
                store.fence(lease.fence)
                report = _Job(store, submission, lease.token).run()
                assert store.renew_lease(lease.fence)
                store.end_submission(lease.fence, child.job_id, report.job.state)
        self.alive.discard(name)


class _Job(soak_runner._Job):
    def _begin(self) -> None:
        """As the real one: begin, or go on after the last step. Each runner is another process."""
        if self._store.has_job(self._submission.id):
            if not self._store.job(self._submission.id).ended:
                self._store.resume_job(self._submission.id, again=True)
        else:
            super()._begin()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    Store.open(f"sqlite:///{path}").close()
    return path


def _lived(template: Path, folder: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One life of a job, and what is to be true after it."""
    folder.mkdir()
    shutil.copy(template, folder / "store.db")
    url = f"sqlite:///{folder}/store.db"
    with monkeypatch.context() as patched:
        world = World(url, folder, writes, patched)
        one = world.submit()
        world.run(one.id)
    with world.watching as store:
        assert [each.id for each in store.submissions()] == [one.id]
        job, ended = store.job(one.id), store.submission(one.id)
        assert ended is not None
        assert (job.state, job.step, ended.state) == ("succeeded", STEPS, "ended")
        told = [event.data for event in store.events(one.id, limit=100, kind=soak_runner.STEP)]
        assert [data["step"] for data in told] == list(range(1, STEPS + 1))
        tokens = [data["token"] for data in told]
        assert tokens == sorted(tokens)
        lease = store.lease(runner_lease(one.id))
        assert lease is not None
        assert lease.holder == ""
        assert ended.starts.count <= 2
        assert not (folder / soak_runner.OVERLAP).exists()


def test_a_job_survives_a_kill_at_every_write_of_every_process(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = Writes(0, committed=False)
    _lived(template, tmp_path / "calm", calm, monkeypatch)
    assert calm.count > 8
    for at in range(1, calm.count + 1):
        for committed in (False, True):
            writes = Writes(at, committed=committed)
            _lived(template, tmp_path / f"{at}-{committed}", writes, monkeypatch)
            assert writes.count >= at  # it was reached
