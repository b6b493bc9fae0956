"""The copy of a job's record in its folder, and a store that is made again from it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_values import FINGERPRINT

from scavenger.domain.configuration import Configuration
from scavenger.domain.report import Predicted
from scavenger.errors import ConfigurationError
from scavenger.store import Store, record_file
from scavenger.store.record_file import RECORD_FILE, RecordFile, read_record
from scavenger.store.records import JobRecord

PREDICTED = Predicted(9.5, (8.0, 12.0), 0.25, (0.2, math.nan), 0.05, 3.5)


@pytest.fixture
def job(store: Store) -> JobRecord:
    job = store.create_job("digits", spec={"version": 1}, job_file="/j/job.yaml")
    store.update_job(job.id, state="running", chosen=Configuration("e2", 2, 64), fingerprint=FINGERPRINT)
    store.update_job(job.id, step=90, cost_usd=0.25, predicted=PREDICTED, checkpoint="/ckpt")
    return store.job(job.id)


@pytest.fixture
def folder(tmp_path: Path, job: JobRecord) -> Path:
    folder = tmp_path / job.id
    folder.mkdir()
    return folder


def same(one: JobRecord, other: JobRecord) -> bool:
    """But for the time of the last heartbeat; NaN equals NaN."""
    return repr(replace(one, heartbeat_at=other.heartbeat_at)) == repr(other)


@pytest.mark.parametrize("ended", [False, True])
def test_a_lost_job_is_on_record_again_as_it_was(
    store: Store, job: JobRecord, folder: Path, tmp_path: Path, ended: bool
) -> None:
    copy = RecordFile(folder / RECORD_FILE, job)
    if ended:
        report = {"steps": 90, "curve": [1.5, None]}
        job = store.finish_job(job.id, state="failed", report=report, error="w1 raised", exit_code=6)
        copy.end(state="failed", report=report, error="w1 raised", exit_code=6)

    found = read_record(folder)
    with Store.open(f"sqlite:///{tmp_path}/new.db") as again:
        assert again.recover_job(found)
        assert not again.recover_job(found)
        recovered = again.job(job.id)

        assert same(replace(recovered, ended_at=job.ended_at, report=None), replace(job, report=None))
        assert recovered.report == job.report
        assert recovered.ended == ended
        assert again.is_alive(recovered) == (not ended)
        if ended:
            assert again.resume_job(job.id).attempts == 2


def test_a_job_on_record_is_left_as_it_is(store: Store, job: JobRecord, folder: Path) -> None:
    RecordFile(folder / RECORD_FILE, replace(job, step=1, cost_usd=0.0))

    assert not store.recover_job(read_record(folder))
    assert store.job(job.id) == job


def test_steps_and_cost_alone_are_written_now_and_then(job: JobRecord, folder: Path) -> None:
    now = 0.0
    copy = RecordFile(folder / RECORD_FILE, job, clock=lambda: now)

    copy.update({"step": 91, "cost_usd": 0.26})
    assert read_record(folder).step == 90
    copy.update({"phase": "saving"})
    assert (read_record(folder).step, read_record(folder).phase) == (91, "saving")
    now = 60.0
    copy.update({"step": 99})
    assert read_record(folder).step == 99


def test_undecodable_text_is_written_as_the_store_writes_it(job: JobRecord, folder: Path) -> None:
    copy = RecordFile(folder / RECORD_FILE, job)
    copy.update({"detail": "/\udcff.csv", "step": 95})

    assert (read_record(folder).detail, read_record(folder).step) == ("/\\udcff.csv", 95)
    copy.end(
        state="failed", error="", exit_code=1, report={"warnings": ["\ud800"]}
    )  # no JSON: nothing is raised
    assert read_record(folder).state == "running"


def test_a_job_that_begins_to_run_has_a_start(store: Store, tmp_path: Path) -> None:
    job = store.create_job("digits", spec={}, job_file="/j/job.yaml")
    (tmp_path / job.id).mkdir()
    RecordFile(tmp_path / job.id / RECORD_FILE, job).update({"state": "profiling"})

    assert read_record(tmp_path / job.id).started_at is not None


def test_without_room_the_last_copy_stays(
    job: JobRecord, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RecordFile(folder / RECORD_FILE, job)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_file.os, "fsync", full)
    copy.update({"phase": "saving"})

    assert read_record(folder).phase == job.phase


def _with(**changes: Any) -> Any:
    return lambda document: {**document, "job": {**document["job"], **changes}}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda document: {}, "job: Field required"),
        (lambda document: {**document, "schema_version": 2}, "schema_version"),
        (_with(state="asleep"), "job.state"),
        (_with(state="failed"), "contradict each other"),
        (_with(id="another"), "the record of another job, another"),
        (_with(surprise=1), "job.surprise"),
    ],
)
def test_a_damaged_copy_is_refused(job: JobRecord, folder: Path, damage: Any, words: str) -> None:
    RecordFile(folder / RECORD_FILE, job)
    path = folder / RECORD_FILE
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))

    with pytest.raises(ConfigurationError, match=words):
        read_record(folder)


def test_half_a_copy_and_none_are_refused(job: JobRecord, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not the folder of a job"):
        read_record(folder)
    RecordFile(folder / RECORD_FILE, job)
    path = folder / RECORD_FILE
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match="is damaged"):
        read_record(folder)


def test_another_user_s_copy_is_refused(
    job: JobRecord, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordFile(folder / RECORD_FILE, job)
    assert (folder / RECORD_FILE).stat().st_mode & 0o777 == 0o600
    other = os.getuid() + 1
    monkeypatch.setattr(record_file.os, "getuid", lambda: other)

    with pytest.raises(ConfigurationError, match=f"belongs to another user \\(uid {os.getuid() - 1}\\)"):
        read_record(folder)
