"""A job whose file says `aggregation: shared` gets its aggregators in the pool of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scavenger.control.jobs.platform import ThisMachine, check_room
from scavenger.domain.job import JobSpec
from scavenger.errors import TransientError
from scavenger.train.pool.connection import load_of, wait_for_load
from scavenger.train.pool.engine import PooledEngine
from scavenger.train.pool.protocol import PoolLoad

RECORD: Any = SimpleNamespace(id="0123", name="tiny")


def job(**sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}, **sections}
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SCAVENGER_POOL", str(tmp_path / "pool"))
    yield tmp_path / "pool"
    if (load := load_of(tmp_path / "pool")) is not None:
        os.kill(load.pid, signal.SIGTERM)


@pytest.mark.slow
def test_it_starts_a_pool_if_none_is_served_and_uses_it(folder: Path) -> None:
    made: Any = ThisMachine(job(aggregation="shared")).allocate(None, RECORD, warn=print).engine

    assert made.func is PooledEngine
    assert (made.keywords["folder"], made.keywords["job_id"], made.keywords["job"]) == (
        folder,
        "0123",
        "tiny",
    )
    first = wait_for_load(folder)
    ThisMachine(job(aggregation="shared")).allocate(None, RECORD, warn=print)
    assert wait_for_load(folder).pid == first.pid


def test_a_job_of_its_own_starts_none(folder: Path) -> None:
    made: Any = ThisMachine(job()).allocate(None, RECORD, warn=print).engine

    assert made.func is not PooledEngine
    assert not folder.exists()


def test_a_pool_without_room_for_all_its_aggregators_is_refused() -> None:
    load = PoolLoad(1, 0.0, "session", 1 << 30, 1, (), ())

    check_room(load, 1)
    with pytest.raises(TransientError, match="room for 1 of 2 aggregators"):
        check_room(load, 2)
