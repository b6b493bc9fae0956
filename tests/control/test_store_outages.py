"""A job's record while its store is out of service: nothing is lost, and the job goes on."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql_server import running_server
from scripted import Heard, Scripted, trainer_of
from waiting import wait_for

from scavenger.control.training.recorder import Recorder
from scavenger.control.training.writes import TOGETHER_MAX
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Noted, ReportedJob, RunReport, SearchOutcome
from scavenger.store import Store

pytestmark = pytest.mark.slow

JOB = JobSpec.model_validate({"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}})
OUTAGE_S = float(os.environ.get("SCAVENGER_TEST_OUTAGE_S", "3"))
"""How long the server is away; a minute is worth a try."""
LOAD_EVERY_S = 0.05


def succeeded(job_id: str) -> RunReport:
    nothing = SearchOutcome("none", "", (), 0.0, 0.0)
    return RunReport(ReportedJob(job_id, "tiny", "succeeded"), nothing)


def test_a_server_that_restarts_under_load_costs_no_event_and_no_time(tmp_path: Path) -> None:
    heard, slowest_s, number = Heard(), 0.0, 0
    trainer = trainer_of(Scripted(), tmp_path)
    with running_server() as server, Store.open(server.url) as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", heard) as recorder:

            def load() -> None:
                nonlocal number, slowest_s
                began = time.monotonic()
                recorder.on_event(Noted("info", str(number)))
                recorder.tick(trainer)
                slowest_s = max(slowest_s, time.monotonic() - began)
                number += 1

            for _ in range(20):
                load()
            restart = threading.Thread(
                target=lambda: (server.stop(), time.sleep(OUTAGE_S), server.start()), daemon=True
            )
            restart.start()
            while restart.is_alive():
                load()
                restart.join(LOAD_EVERY_S)
            wait_for(lambda: load() or recorder._writes.outage is None)
            recorder.finish(succeeded(recorder.job_id))

        noted = [event.message for event in store.events(recorder.job_id, limit=10_000)]
        assert store.job(recorder.job_id).state == "succeeded"
    assert noted == [str(n) for n in range(number)][-len(noted) :]
    assert len(noted) == min(number, 1000)
    assert len(recorder.warnings) == 1
    assert "the job continues for at most" in recorder.warnings[0]
    assert slowest_s < 0.5


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_job_that_ends_while_its_server_is_away_is_recorded_when_it_is_back(
    tmp_path: Path, mode: str
) -> None:
    with running_server() as server, Store.open(server.url) as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder:
            server.stop(mode)
            later = threading.Timer(1.0, server.start)
            later.start()
            recorder.on_event(Noted("info", "late"))
            recorder.finish(succeeded(recorder.job_id))
            later.join()

        assert [event.message for event in store.events(recorder.job_id)] == ["late"]
        assert store.job(recorder.job_id).state == "succeeded"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield small
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


@pytest.mark.root
def test_a_full_disk_under_the_store_is_told_and_caught_up_with_once_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    heard, trainer = Heard(), trainer_of(Scripted(), tmp_path)
    with Store.open(f"sqlite:///{small_disk}/s.db") as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", heard) as recorder:
            ballast, free = small_disk / "ballast", os.statvfs(small_disk)
            ballast.write_bytes(bytes(free.f_bavail * free.f_frsize))
            for number in range(50):
                recorder.on_event(Noted("info", f"{number} {'x' * 1500}"))
            wait_for(lambda: recorder._writes.outage)
            recorder.tick(trainer)
            ballast.unlink()
            recorder.finish(succeeded(recorder.job_id))

        assert [e.message.split()[0] for e in store.events(recorder.job_id)] == [str(n) for n in range(50)]
        assert "disk is full" in recorder.warnings[0]


def test_a_store_that_may_not_grow_is_told_and_caught_up_with_once_it_may(tmp_path: Path) -> None:
    heard, trainer = Heard(), trainer_of(Scripted(), tmp_path)
    path = tmp_path / "s.db"
    with Store.open(f"sqlite:///{path}") as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", heard) as recorder:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
            try:
                for number in range(4 * TOGETHER_MAX):
                    recorder.on_event(Noted("info", f"{number} {'x' * 1500}"))
                wait_for(lambda: recorder._writes.outage)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            recorder.tick(trainer)
            recorder.finish(succeeded(recorder.job_id))

        told = store.events(recorder.job_id, limit=1000)
        assert [e.message.split()[0] for e in told] == [str(n) for n in range(4 * TOGETHER_MAX)]
        assert str(path) in recorder.warnings[0]
