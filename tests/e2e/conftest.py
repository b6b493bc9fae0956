"""Jobs in real processes, and the proof that nothing of them is left."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_jobs import MARK, Job, close_stores, marked
from waiting import wait_for
from warm_servers import ADDRESS, warm_address

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "train": "train:job",
    "search": {"workers": 1, "batch_size": [32]},
    "objective": "time",
    "goal": {"metric": "val_loss", "target": 0.19, "max_epochs": 400, "epochs_hint": 60},
    "profile": {"steps": 16},
}


def _shared_memory() -> set[str]:
    """What a job could leave; databases beside it have shared memory of their own."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if not name.startswith(("PostgreSQL.", "."))}


@pytest.fixture(scope="module")
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="package", autouse=True)
def warm_fork_servers() -> Iterator[None]:
    """Commands' fork servers begin at once; the test of a whole machine (tests/field) begins them cold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ADDRESS, warm_address())
        yield


@pytest.fixture(autouse=True)
def nothing_left(
    mark: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """No process, no shared memory and no temporary folder of a job outlives its test."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv(MARK, mark)
    before = _shared_memory()
    yield
    close_stores()
    mine = {os.getpid()}
    wait_for(lambda: not [p for p in marked(mark) if p.pid not in mine])
    # what another process of the tests has made in the meantime goes with its own job
    left = _shared_memory() - before
    wait_for(lambda: not left & _shared_memory())
    assert list(temporary.iterdir()) == []


@pytest.fixture(scope="module")
def make_job(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Callable[..., Job]:
    """Makes a job in a folder of its own; sections of the job file may be given, and `store`, and `code`."""

    def make(*, store: str | None = None, code: dict[str, Any] | None = None, **sections: Any) -> Job:
        folder: Path = tmp_path_factory.mktemp("job")
        url = store or f"sqlite:///{folder / 'store' / 'scavenger.db'}"
        return Job(folder, url, mark, {**SPEC, **sections}).write(**(code or {}))

    return make
