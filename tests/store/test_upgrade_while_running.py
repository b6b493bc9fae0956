"""An upgrade from the version before: the store is migrated while a job runs, and the job goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import insert, inspect

from scavenger.domain.intent import Fence
from scavenger.domain.submission import NewSubmission, runner_lease
from scavenger.errors import StoreTooNewError
from scavenger.store import Store
from scavenger.store import migrate as migrate_module
from scavenger.store.owner import this_process
from scavenger.store.schema import REVISION, Base, JobRow, LeaseRow, SubmissionRow
from tests.control import soak_runner

ROOT = Path(__file__).parents[2]
STEPS = 40


def before() -> str:
    """The revision before the newest."""
    scripts = ScriptDirectory(str(migrate_module.migrations_path()))
    found = scripts.get_revision(REVISION).down_revision
    assert isinstance(found, str)
    return found


@pytest.fixture
def old(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of the version before, which does not know that there is a newer one."""
    with monkeypatch.context() as earlier:
        for place in ("scavenger.store.migrate.REVISION", "scavenger.store.store.REVISION"):
            earlier.setattr(place, before())
        store = Store.open(url)
    with store:
        yield store


def write(store: Store, *rows: Base) -> None:
    """Write rows as the version before did: with the columns that its tables have."""
    with store._database.writing() as session:
        for row in rows:
            known = {one["name"] for one in inspect(session.connection()).get_columns(row.__tablename__)}
            values = {name: value for name, value in vars(row).items() if name in known}
            session.execute(insert(type(row)).values(values))


def submitted(store: Store, folder: Path, holder: str) -> Fence:
    """A job whose runner is started or running; the fence of the holder of its lease."""
    account, now, job_id = this_process(), datetime.now(UTC), str(uuid.uuid4())
    row = SubmissionRow(
        id=job_id,
        name="tiny",
        spec={"goal": {"max_epochs": STEPS}},
        job_file=str(folder / "job.yaml"),
        user="ann",
        host=account.host,
        uid=os.getuid(),
        rents=False,
        audit=False,
        priority=0,
        state="running",
        reason="",
        cancelling=False,
        starts=1,
        fruitless=1,
        submitted_at=now,
        started_at=now,
    )
    write(store, row, LeaseRow(name=runner_lease(job_id), holder=holder, token=1, beats=0))
    return Fence(runner_lease(job_id), 1)


def test_what_a_running_process_of_the_version_before_writes_is_accepted(
    old: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = submitted(old, tmp_path, "runner")
    job_id = fence.name.partition("/")[2]
    old.fence(fence)
    write(old, _job_row(job_id))

    with Store.open(url) as new:  # migrates
        assert new.revision == REVISION
        assert old.renew_lease(fence)
        old.update_job(job_id, step=2)
        old.add_event(job_id, "note", "goes on")
        assert new.job(job_id).step == 2
        (seen,) = new.backlog(this_process().host, os.getuid(), None).running
        assert (seen.step, seen.lease and seen.lease.holder) == (2, "runner")
        old.finish_job(job_id, state="succeeded", report=None, exit_code=0)
        assert old.end_submission(fence, job_id, "succeeded")
        assert (new.job(job_id).state, new.submission(job_id).state) == ("succeeded", "ended")  # type: ignore[union-attr]

    with monkeypatch.context() as earlier:
        for place in ("scavenger.store.migrate.REVISION", "scavenger.store.store.REVISION"):
            earlier.setattr(place, before())
        with pytest.raises(StoreTooNewError) as refused:
            _open_as_before(url, tmp_path, earlier)
    assert "was written by a newer Scavenger" in str(refused.value)
    assert "\n" not in str(refused.value)


def _job_row(job_id: str) -> JobRow:
    """A job that this process runs."""
    me, now = this_process(), datetime.now(UTC)
    return JobRow(
        id=job_id,
        name="tiny",
        state="running",
        phase="",
        detail="",
        spec={},
        job_file="/job.yaml",
        owner_pid=me.pid,
        owner_host=me.host,
        owner_started_at_s=me.started_at_s,
        owner_user=me.user,
        owner_uid=me.uid,
        heartbeat_at=now,
        created_at=now,
        error="",
        step=1,
    )


def _open_as_before(url: str, folder: Path, earlier: pytest.MonkeyPatch) -> None:
    """Open a store with the migrations of the version before."""
    versions = folder / "migrations" / "versions"
    versions.mkdir(parents=True)
    here = migrate_module.migrations_path()
    (folder / "migrations" / "env.py").write_text((here / "env.py").read_text())
    for path in (here / "versions").glob("*.py"):
        if not path.name.startswith(REVISION):
            (versions / path.name).write_text(path.read_text())
    earlier.setattr(migrate_module, "migrations_path", lambda: folder / "migrations")
    Store.open(url).close()


def version_before(folder: Path) -> Path:
    """The code as it was before the newest migration came, from the history."""
    (newest,) = (ROOT / "migrations" / "versions").glob(f"{REVISION}_*.py")
    log = ["git", "log", "--diff-filter=A", "--format=%H", "--", str(newest)]
    added = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not added:
        pytest.skip("there is no history of the code here")
    folder.mkdir()
    packed = folder / "code.tar"
    subprocess.run(["git", "archive", f"--output={packed}", f"{added[-1]}^"], cwd=ROOT, check=True)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.slow
@pytest.mark.long
def test_a_runner_process_of_the_version_before_makes_every_step_once(
    old: Store, url: str, tmp_path: Path
) -> None:
    code = version_before(tmp_path / "before")
    fence = submitted(old, tmp_path, "server")
    job_id = fence.name.partition("/")[2]
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.control.soak_runner", job_id, str(fence.token)],
        cwd=code,
        env={**os.environ, "SCAVENGER_STORE": url, "PYTHONPATH": str(code)},
    )
    until = time.monotonic() + 60
    while not old.has_job(job_id) or (old.job(job_id).step or 0) < 3:
        assert time.monotonic() < until
        assert runner.poll() is None
        time.sleep(0.05)
    with Store.open(url) as new:
        assert (new.job(job_id).step or 0) < STEPS
        assert runner.wait(60) == 0
        told = [event.data["step"] for event in new.events(job_id, limit=100, kind=soak_runner.STEP)]
        assert told == list(range(1, STEPS + 1))
        assert (new.job(job_id).state, new.submission(job_id).state) == ("succeeded", "ended")  # type: ignore[union-attr]


SERVER_BEFORE = """
import os, sys
from scavenger.store import Store
from scavenger.store.owner import this_process
with Store.open(None) as store:
    print("open", flush=True)
    sys.stdin.readline()
    found = store.backlog(this_process().host, os.getuid(), None)
    taken = [*found.queued, *(one.submission for one in found.running)]
    print(*(one.id for one in taken if getattr(one.job, "run", True)))
"""


@pytest.mark.slow
def test_a_server_of_the_version_before_runs_no_plan_as_a_job(old: Store, url: str, tmp_path: Path) -> None:
    """It serves on after the store was migrated; whether it knows plans or not, it runs the jobs alone."""
    code = version_before(tmp_path / "before")
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER_BEFORE],
        cwd=code,
        env={**os.environ, "SCAVENGER_STORE": url, "PYTHONPATH": str(code)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "open\n"
    account = this_process()
    with Store.open(url) as new:
        job = NewSubmission("tiny", {}, str(tmp_path / "job.yaml"), "ann", account.host, os.getuid())
        plans = [new.submit(replace(job, run=False)) for _ in range(2)]
        jobs = [new.submit(job) for _ in range(2)]
        for one in (plans[0], jobs[0]):
            assert new.start_runner(one.id, "server", None) is not None
        seen = new.backlog(account.host, os.getuid(), None)
        assert {one.id for one in seen.queued} == {plans[1].id, jobs[1].id}
        assert {one.submission.id for one in seen.running} == {plans[0].id, jobs[0].id}
        assert {one.job.host for one in (*seen.queued, *new.submissions())} == {account.host}
        assert [one.job.run for one in seen.queued] == [False, True]
        told, _ = server.communicate("\n", timeout=60)
    assert server.returncode == 0
    assert set(told.split()) == {one.id for one in jobs}
