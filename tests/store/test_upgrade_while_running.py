"""An upgrade from the version before: the store is migrated while a job runs, and the job goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from scavenger.domain.intent import Fence
from scavenger.domain.submission import NewSubmission, runner_lease
from scavenger.errors import StoreTooNewError
from scavenger.store import Store
from scavenger.store import migrate as migrate_module
from scavenger.store.owner import this_process
from scavenger.store.schema import REVISION, LeaseRow
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


def submitted(store: Store, folder: Path) -> Fence:
    """A job whose runner is being started; the fence of the server.

    Both rows are written as the version before did: its leases know nothing of restores.
    """
    account = this_process()
    spec = {"goal": {"max_epochs": STEPS}}
    new = NewSubmission("tiny", spec, str(folder / "job.yaml"), "ann", account.host, os.getuid())
    job = store.submit(new)
    with store._database.writing() as session:
        session.add(LeaseRow(name=runner_lease(job.id), holder="server", token=1, beats=0))
    lease = store.start_runner(job.id, "server", store.lease(runner_lease(job.id)))
    assert lease is not None
    return lease.fence


def test_what_a_running_process_of_the_version_before_writes_is_accepted(
    old: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = submitted(old, tmp_path)
    job_id = fence.name.partition("/")[2]
    lease = old.hand_over_lease(fence, "runner")
    assert lease is not None
    old.fence(lease.fence)
    old.create_job("tiny", spec={}, job_file="/job.yaml", job_id=job_id)
    old.update_job(job_id, state="running", step=1)

    with Store.open(url) as new:  # migrates
        assert new.revision == REVISION
        assert old.renew_lease(lease.fence)
        old.update_job(job_id, step=2)
        old.add_event(job_id, "note", "goes on")
        assert new.job(job_id).step == 2
        (seen,) = new.backlog(this_process().host, os.getuid(), None).running
        assert (seen.step, seen.lease and seen.lease.holder) == (2, "runner")
        old.finish_job(job_id, state="succeeded", report=None, exit_code=0)
        assert old.end_submission(lease.fence, job_id, "succeeded")
        assert (new.job(job_id).state, new.submission(job_id).state) == ("succeeded", "ended")  # type: ignore[union-attr]

    with monkeypatch.context() as earlier:
        for place in ("scavenger.store.migrate.REVISION", "scavenger.store.store.REVISION"):
            earlier.setattr(place, before())
        with pytest.raises(StoreTooNewError) as refused:
            _open_as_before(url, tmp_path, earlier)
    assert "was written by a newer Scavenger" in str(refused.value)
    assert "\n" not in str(refused.value)


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


@pytest.mark.slow
@pytest.mark.long
def test_a_runner_process_of_the_version_before_makes_every_step_once(
    old: Store, url: str, tmp_path: Path
) -> None:
    fence = submitted(old, tmp_path)
    job_id = fence.name.partition("/")[2]
    code = (
        "import sys\n"
        "from scavenger.store import migrate, store\n"
        f"migrate.REVISION = store.REVISION = {before()!r}\n"
        "from tests.control import soak_runner\n"
        "sys.exit(soak_runner.runner.main(soak_runner.SoakRunner))\n"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", code, job_id, str(fence.token)],
        cwd=ROOT,
        env={**os.environ, "SCAVENGER_STORE": url},
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
