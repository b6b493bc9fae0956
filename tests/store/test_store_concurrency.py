"""Laws of many who write at once, and of those who are killed while they write."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
from store_values import start_python

from scavenger.errors import ConfigurationError
from scavenger.store import Store

pytestmark = pytest.mark.slow

WRITER = """
import sys, time
from scavenger.errors import ConfigurationError
from scavenger.store import Store
with Store.open(sys.argv[1]) as store:
    job = store.create_job(sys.argv[2], spec={}, job_file="job.yaml")
    print(job.id, flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(sys.argv[3])
    number = 0
    while time.monotonic() < until:
        number += 1
        store.update_job(job.id, step=number)
        store.add_event(job.id, "step", str(number))
        print(number, flush=True)
"""


def writer(url: str, name: str, seconds: float) -> subprocess.Popen[str]:
    return start_python(WRITER, url, name, str(seconds))


def go(child: subprocess.Popen[str]) -> str:
    """Wait for a writer to have its job, and let it write; the id of the job."""
    assert child.stdout is not None
    assert child.stdin is not None
    job_id = child.stdout.readline().strip()
    child.stdin.write("go\n")
    child.stdin.flush()
    return job_id


def test_processes_that_write_at_once_all_succeed(url: str) -> None:
    with Store.open(url) as store:
        children = [writer(url, f"writer-{number}", 0.5) for number in range(4)]
        ids = [go(child) for child in children]
        for job_id, child in zip(ids, children, strict=True):
            output, complaint = child.communicate(timeout=60)
            assert complaint == ""
            last = int(output.split()[-1])
            assert last >= 1
            assert store.job(job_id).step == last
            assert store.events(job_id)[-1].message == str(last)


def test_threads_that_share_a_store_lose_no_write(store: Store) -> None:
    job = store.create_job("digits", spec={}, job_file="job.yaml")
    failures: list[BaseException] = []

    def note(number: int) -> None:
        try:
            for _ in range(10):
                store.add_event(job.id, "note", str(number))
                store.job(job.id)
        except BaseException as error:  # noqa: BLE001 - it is reported below
            failures.append(error)

    threads = [threading.Thread(target=note, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(event.message for event in store.events(job.id)) == sorted("012345" * 10)


def test_what_was_confirmed_before_a_kill_is_there_after_it(sqlite_url: str, tmp_path: Path) -> None:
    with Store.open(sqlite_url) as store:
        assert store.path is not None
        for writes in (0, 5, 50):
            child = writer(sqlite_url, "killed", 30.0)
            assert child.stdout is not None
            job_id = go(child)
            confirmed = [int(child.stdout.readline()) for _ in range(writes)]
            child.kill()  # somewhere within its next writes
            confirmed = [*confirmed, *map(int, child.stdout.read().split())]
            child.communicate(timeout=60)
            last = max(confirmed, default=0)

            # at most the write under way is there unconfirmed
            assert store.job(job_id).step in ((last or None), last + 1)
            assert len(store.events(job_id, limit=10_000)) in (min(last, 1000), last + 1)
            store.update_job(job_id, detail="the next writer is not held up")
        check = sqlite3.connect(store.path)
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert check.execute("PRAGMA foreign_key_check").fetchall() == []
        check.close()


def test_what_one_thread_writes_together_is_one_transaction_without_the_calls_that_failed(url: str) -> None:
    with Store.open(url) as store, Store.open(url) as other:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        with store.together():
            store.add_event(job.id, "note", "first")
            with pytest.raises(ConfigurationError, match="no job none"):
                store.add_event("none", "note", "lost")
            store.update_job(job.id, phase="running")
            assert [event.message for event in store.events(job.id)] == ["first"]
            assert other.events(job.id) == ()
            store.add_event(job.id, "note", "second")
        assert [event.message for event in other.events(job.id)] == ["first", "second"]
        assert other.job(job.id).phase == "running"

        def stopped() -> None:
            with store.together():
                store.add_event(job.id, "note", "never")
                raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            stopped()
        store.add_event(job.id, "note", "third")
        assert [event.message for event in other.events(job.id)] == ["first", "second", "third"]


def test_what_is_read_at_one_moment_is_of_that_moment_and_others_may_write(store: Store) -> None:
    job = store.create_job("digits", spec={}, job_file="/job.yaml")
    with store.at_one_moment():
        assert store.job(job.id).step is None
        with Store.open(store.url) as another:
            another.update_job(job.id, step=5)
            another.add_event(job.id, "note", "late")
        with store.at_one_moment():
            assert store.job(job.id).step is None
            assert store.events(job.id) == ()
    assert store.job(job.id).step == 5
