"""Laws of backups: all rows of one moment, for either database; after a restore nothing of them acts by itself."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, make_url, select
from store_values import Clock

from scavenger.domain.intent import Fence
from scavenger.domain.submission import NewSubmission, ServerRecord, runner_lease
from scavenger.errors import (
    ConfigurationError,
    LeaseLostError,
    StoreError,
    StoreTooNewError,
    StoreTooOldError,
)
from scavenger.store import Store
from scavenger.store.backup import check_backup
from scavenger.store.columns import Base
from scavenger.store.owner import this_process

GONE = 4_194_303
"""A process that is not there."""
SECRET = "AKIA" + "ABCDEFGHIJKLMNOP"


def rows_of(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns))
            ]
            for table in Base.metadata.sorted_tables
        }
    engine.dispose()
    return found


@pytest.fixture
def filled(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with a job that a runner runs, two of commands, one that waits, and what belongs to them."""
    store.installation()
    store.set_user("ann", "admin")
    store.new_token("ann", "first")
    new = NewSubmission("digits", {"output": "out"}, "/home/ann/job.yaml", "ann", "h", os.getuid())
    running, _ = store.submit(new), store.submit(replace(new, name="waits", reserved_usd=2.5))
    lease = store.start_runner(running.id, "server", None)
    assert lease is not None
    store.take_lease("gcp/us-central1", "elsewhere/1/1.0", None)
    me = this_process()
    with monkeypatch.context() as dead:
        dead.setattr("scavenger.store.base.this_process", lambda: replace(me, pid=GONE))
        store.create_job("digits", spec={"a": [1.5, None]}, job_file="/job.yaml", job_id=running.id)
        store.create_job("gone", spec={}, job_file="/job.yaml")
    store.create_job("lives", spec={}, job_file="/job.yaml")
    store.update_job(running.id, state="running", step=7, cost_usd=math.inf, checkpoint="/c")
    store.add_event(running.id, "note", f"with {SECRET} and a \N{SNOWMAN}", data={"key": SECRET, "n": 1})
    store.set_process(running.id, "w0", role="worker", state="training", pid=9)
    store.add_indicators(running.id, [1, 2], {"loss": [0.5, 0.25]})
    store.put_server(
        ServerRecord(
            "s",
            "h",
            1,
            1.0,
            "ann",
            1,
            "",
            "0",
            background=False,
            started_at=Clock().at,
            heartbeat_at=Clock().at,
        )
    )
    return store


@pytest.fixture(params=["sqlite", "postgresql"])
def other(request: pytest.FixtureRequest, tmp_path: Path, url: str) -> Iterator[str]:
    """The URL of an empty store, of the same kind and of the other."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/other/scavenger.db"
        return
    if make_url(url).get_backend_name() != "postgresql":
        pytest.skip("tried with PostgreSQL")
    name = make_url(url).database + "_other"  # type: ignore[operator]
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield make_url(url).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


def test_every_row_comes_back_in_either_database(filled: Store, other: str, tmp_path: Path) -> None:
    made = filled.backup(tmp_path / "b")
    found = Store.restore(other, tmp_path / "b", keep_tokens=True)

    assert found.backup.rows == made.rows
    before, after = rows_of(filled.url), rows_of(other)
    changed = {"jobs", "leases", "events", "processes", "servers", "submissions", "restores"}
    assert {name: rows for name, rows in after.items() if name not in changed} == {
        name: rows for name, rows in before.items() if name not in changed
    }
    assert after["tokens"]
    assert after["indicators"]
    with Store.open(other) as store:
        for job in filled.jobs():
            again = store.job(job.id)
            assert (again.spec, again.step, again.cost_usd, again.created_at) == (
                job.spec,
                job.step,
                job.cost_usd,
                job.created_at,
            )
        new = store.submit(NewSubmission("next", {}, "/j.yaml", "ann", "h", 1))
        assert new.number == 3  # numbers go on


@pytest.mark.parametrize("keep", [True, False])
def test_tokens_are_valid_again_only_if_that_is_said_and_sessions_never(
    filled: Store, tmp_path: Path, keep: bool
) -> None:
    token, text = filled.new_token("ann", "lost since")
    _, session = filled.new_token("ann", "browser", made_with=token, is_session=True)
    filled.backup(tmp_path / "b")
    filled.revoke_token(token.id)
    url = f"sqlite:///{tmp_path}/again.db"

    Store.restore(url, tmp_path / "b", keep_tokens=keep)

    with Store.open(url) as store:
        assert store.caller(session) is None
        assert (store.caller(text) is not None) is keep
        assert bool(store.tokens()) is keep
        assert [user.name for user in store.users()] == ["ann"]


@pytest.mark.slow
def test_what_ran_is_to_be_resumed_and_what_lives_here_is_left_alone(filled: Store, tmp_path: Path) -> None:
    at = Clock().at
    filled.backup(tmp_path / "b")
    url = f"sqlite:///{tmp_path}/again.db"
    found = Store.restore(url, tmp_path / "b", keep_tokens=True, clock=lambda: at + timedelta(days=30))

    assert [name for name, _ in found.to_resume] == ["digits", "gone"]
    with Store.open(url) as store:
        job = store.job("digits")
        assert (job.state, job.checkpoint) == ("interrupted", "/c")
        assert "restored from its backup" in job.error
        assert store.events(job.id)[-1].message == job.error
        assert [process.state for process in store.processes(job.id)] == ["lost"]
        assert store.job("lives").state == "starting"
        ran, waits = store.submission(job.id), store.submission("waits")
        assert ran is not None
        assert waits is not None
        assert (ran.state, waits.state) == ("ended", "queued")
        assert store.servers(alive=False) == ()
        assert store.resume_job(job.id).attempts == 2
        restore = store.last_restore()
        assert restore is not None
        assert (restore.at, restore.looked_at) == (at + timedelta(days=30), None)


def test_no_process_of_the_time_before_can_write(filled: Store, tmp_path: Path) -> None:
    """Also not by a token that the lost store gave after the backup, nor under a lease that the backup lacks."""
    job = filled.submission("digits")
    assert job is not None
    filled.backup(tmp_path / "b")
    later = filled.start_runner(job.id, "late", filled.lease(runner_lease(job.id)))
    unknown = filled.take_lease("aws/eu-west-1", "late", None)
    assert later is not None
    assert unknown is not None
    url = f"sqlite:///{tmp_path}/again.db"
    Store.restore(url, tmp_path / "b", keep_tokens=True)

    with Store.open(url) as store, Store.open(url) as late:
        for name in (runner_lease(job.id), "gcp/us-central1"):
            lease = store.lease(name)
            assert lease is not None
            assert lease.holder == ""
            assert lease.token > 1 << 40
        taken = store.take_lease("aws/eu-west-1", "new", None)
        assert taken is not None
        assert taken.token > 1 << 40
        late.fence(Fence(later.name, later.token))
        with pytest.raises(LeaseLostError):
            late.add_event(job.id, "note", "late")
        assert not store.renew_lease(unknown.fence)


def test_a_file_is_private_and_has_no_secret(filled: Store, tmp_path: Path) -> None:
    path = tmp_path / "b"
    made = filled.backup(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.masked == 2
    text = gzip.decompress(path.read_bytes()).decode()
    assert SECRET not in text
    assert "with *** and a \N{SNOWMAN}" in text
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*.part"))
    with pytest.raises(ConfigurationError, match="exists"):
        filled.backup(path)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    text = gzip.decompress(data)
    return gzip.compress(text.replace(b'"digits"', b'"digitz"', 1))


def _fewer(data: bytes) -> bytes:
    lines = gzip.decompress(data).splitlines(keepends=True)
    return gzip.compress(b"".join(line for line in lines if b'"waits"' not in line))


def _newer(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data).replace(b'"version":1', b'"version":2', 1))


DAMAGES: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (_cut, "damaged"),
    (_flipped, "damaged or cut short"),
    (_fewer, "damaged or cut short"),
    (_newer, "upgrade Scavenger"),
    (lambda data: b"", "not a backup"),
    (lambda data: b"not gzip at all", "not a backup"),
    (lambda data: gzip.compress(b'{"format":"other"}\n'), "not a backup"),
)


def test_a_damaged_file_restores_nothing(filled: Store, tmp_path: Path) -> None:
    path, url = tmp_path / "b", f"sqlite:///{tmp_path}/again.db"
    filled.backup(path)
    data = path.read_bytes()
    for damage, words in DAMAGES:
        path.write_bytes(damage(data))
        with pytest.raises(ConfigurationError, match=words):
            Store.restore(url, path, keep_tokens=True)
    with Store.open(url) as store:
        assert store.jobs() == ()


def test_only_an_empty_store_is_restored_into(filled: Store, tmp_path: Path) -> None:
    filled.backup(tmp_path / "b")
    before = rows_of(filled.url)

    with pytest.raises(ConfigurationError, match="is not empty"):
        Store.restore(filled.url, tmp_path / "b", keep_tokens=True)
    assert rows_of(filled.url) == before
    url = f"sqlite:///{tmp_path}/opened.db"
    Store.open(url).close()  # it has tables, and no rows
    assert Store.restore(url, tmp_path / "b", keep_tokens=True).to_resume


@pytest.mark.parametrize(
    ("revision", "kind"), [("0018", StoreTooOldError), ("9999", StoreTooNewError)], ids=["earlier", "later"]
)
def test_a_backup_of_another_version_is_refused(
    tmp_path: Path, revision: str, kind: type[StoreError]
) -> None:
    """One of an earlier release is migrated, as a store is; there is none yet."""
    with Store.open(f"sqlite:///{tmp_path}/new.db") as store:
        store.backup(tmp_path / "b")
    lines = gzip.decompress((tmp_path / "b").read_bytes()).splitlines(keepends=True)
    data = b"".join(
        (json.dumps(json.loads(lines[0]) | {"revision": revision}).encode() + b"\n", *lines[1:-1])
    )
    end = json.loads(lines[-1]) | {"sha256": hashlib.sha256(data).hexdigest()}
    (tmp_path / "other").write_bytes(gzip.compress(data + json.dumps(end).encode() + b"\n"))
    with pytest.raises(kind, match=f"schema {revision}"):
        Store.restore(f"sqlite:///{tmp_path}/other.db", tmp_path / "other", keep_tokens=True)


def test_a_backup_is_of_one_moment_while_others_write(store: Store, tmp_path: Path) -> None:
    """What is written after the first table was read is in none of the tables."""
    store.create_job("digits", spec={}, job_file="/j.yaml")
    written = False

    def after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal written
        if not written and "FROM fingerprints" in statement:
            written = True
            with Store.open(store.url) as another:
                another.create_job("late", spec={}, job_file="/j.yaml")

    event.listen(store._database.engine, "after_cursor_execute", after)
    made = store.backup(tmp_path / "b")
    event.remove(store._database.engine, "after_cursor_execute", after)

    assert written
    assert made.rows["jobs"] == 1
    assert {one.name for one in store.jobs()} == {"digits", "late"}
    assert check_backup(tmp_path / "b").rows == made.rows
