"""Laws of upgrading a store of the first version with data in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy.exc import IntegrityError

from scavenger.store import Store
from scavenger.store import migrate as migrate_module
from scavenger.store.database import Database

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
CHOSEN = {"chosen_vm": "e2", "chosen_workers": 2, "chosen_global_batch_size": 128}


def job_values(job_id: str, state: str, **more: Any) -> dict[str, Any]:
    """A row of the first version's table of jobs."""
    return {
        "id": job_id,
        "name": "digits",
        "state": state,
        "phase": "running",
        "detail": "",
        "spec": {"version": 1},
        "job_file": "/home/u/job.yaml",
        "owner_pid": 4_194_000,
        "owner_host": "elsewhere",
        "owner_started_at_s": 1.0,
        "heartbeat_at": AT,
        "created_at": AT,
        "error": "",
        **more,
    }


@pytest.fixture
def first_version(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store as the first version left it: two jobs, and something about each."""
    with monkeypatch.context() as earlier:
        earlier.setattr(migrate_module, "REVISION", "0001")
        database = Database(url)
        migrate_module.upgrade(database)
    tables = MetaData()
    tables.reflect(database.engine)
    assert "operations" not in tables.tables
    with database.engine.begin() as connection:
        jobs, events, processes = (tables.tables[name] for name in ("jobs", "events", "processes"))
        connection.execute(jobs.insert(), [job_values("live", "running", step=7, cost_usd=0.5)])
        ended = {"ended_at": AT, "report": {"steps": 9}, "exit_code": 0, **CHOSEN}
        connection.execute(jobs.insert(), [job_values("ended", "succeeded", **ended)])
        event = {"job_id": "live", "at": AT, "level": "warning", "kind": "worker", "message": "w1 lost"}
        connection.execute(events.insert(), [event])
        process = {"job_id": "live", "process": "w1", "role": "worker", "pid": 77, "state": "lost", "step": 5}
        connection.execute(processes.insert(), [{"detail": "", "updated_at": AT, **process}])
    database.close()
    return url


def test_everything_that_was_there_is_there_after_the_upgrade(first_version: str) -> None:
    with Store.open(first_version) as store:
        live, ended = store.job("live"), store.job("ended")
        assert (live.state, live.step, live.cost_usd, live.created_at) == ("running", 7, 0.5, AT)
        assert (live.checkpoint, live.attempts) == (None, 1)
        assert (live.owner.user, live.owner.uid, live.owner.account) == ("", None, "?@elsewhere")
        assert (ended.report, ended.ended_at, str(ended.chosen)) == ({"steps": 9}, AT, "2 x e2, batch 128")
        (event,) = store.events("live")
        assert (event.message, event.data) == ("w1 lost", {})
        (process,) = store.processes("live")
        assert (process.process, process.pid, process.step, process.host) == ("w1", 77, 5, None)


def test_an_upgraded_store_takes_what_is_new(first_version: str) -> None:
    with Store.open(first_version) as store:
        store.update_job("live", state="paused", checkpoint="/c")
        store.add_event("live", "view", "view 2", data={"stall_s": 0.004})
        store.set_process("live", "w1", role="worker", state="gone", host="here")

        assert (store.job("live").state, store.job("live").checkpoint) == ("paused", "/c")
        assert [event.data for event in store.events("live")] == [{}, {"stall_s": 0.004}]
        assert store.processes("live")[0].host == "here"


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "asleep"},
        {"state": "paused", "ended_at": AT},
        {"state": "failed"},
        {"step": -1},
        {"cost_usd": -0.1},
        {"owner_pid": 0},
        {"chosen_vm": "e2"},
        {**CHOSEN, "chosen_global_batch_size": 1},
        {"attempts": 0},
    ],
    ids=str,
)
def test_every_constraint_of_a_job_stands_after_the_upgrade(
    first_version: str, wrong: dict[str, Any]
) -> None:
    """SQLite's way of changing a table would drop those that a migration does not name."""
    Store.open(first_version).close()
    engine = create_engine(first_version)
    tables = MetaData()
    tables.reflect(engine)
    try:
        with engine.begin() as connection, pytest.raises(IntegrityError):
            connection.execute(
                tables.tables["jobs"].insert(), [job_values("new", "running", attempts=1) | wrong]
            )
    finally:
        engine.dispose()
