"""Clouds whose VMs run, jobs on them, and the proof that nothing of either is left."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_jobs import CloudJob, MakeJob
from machines import left, unavailable
from real_jobs import Job, marked
from rented import Rented, rented
from waiting import wait_for


@pytest.fixture(scope="module")
def clouds() -> Iterator[Callable[[str], Rented]]:
    """Each cloud begins when it is first asked for."""
    made: dict[str, Any] = {}

    def get(name: str) -> Rented:
        if name not in made:
            made[name] = rented(name)
            opened[name] = made[name].__enter__()
        return opened[name]

    opened: dict[str, Rented] = {}
    yield get
    marks = [cloud.machines.mark for cloud in opened.values()]
    for each in made.values():
        each.__exit__(None, None, None)
    assert [what for mark in marks for what in left(mark)] == []


@pytest.fixture(params=["aws", "gcp"])
def cloud(request: pytest.FixtureRequest, clouds: Callable[[str], Rented]) -> Rented:
    """With nothing in it."""
    if reason := unavailable():
        pytest.skip(reason)
    found = clouds(request.param)
    found.clear()
    return found


@pytest.fixture
def make_job(cloud: Rented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    """Makes a job in a folder of its own; no process on this machine outlives its test, nor a temporary file."""
    mark = uuid.uuid4().hex
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def make(
        name: str = "job",
        *,
        tiny: bool = False,
        code: dict[str, Any] | None = None,
        prices: dict[str, tuple[float, float]] | None = None,
        **sections: Any,
    ) -> CloudJob:
        job = CloudJob(
            tmp_path / name,
            f"sqlite:///{tmp_path / 'store' / 'scavenger.db'}",
            cloud,
            mark,
            prices or dict(cloud.prices),
        )
        if tiny:
            Job(job.folder, job.store, mark).write(**{"sleep_s": 0.0005, **(code or {})})
        infra = {"infra": f"{cloud.name}/{cloud.region}", "resources": {"vm": cloud.small}}
        return job.write(**{**infra, **sections})

    yield make
    wait_for(lambda: not marked(mark))
    assert list(temporary.iterdir()) == []
