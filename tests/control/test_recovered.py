"""A job of which only its checkpoints and its file are left goes on from the newest."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from scavenger.control.jobs.recovered import record_of_checkpoints
from scavenger.control.jobs.resumption import find_resumption
from scavenger.errors import ConfigurationError, JobFileError
from scavenger.store import Store
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.manifest import CheckpointManifest

pytestmark = pytest.mark.slow

ID = "3b2a1c00-5d4e-4f6a-8b7c-9d0e1f2a3b4c"
SPEC = {
    "version": 1,
    "name": "tiny",
    "train": "train:job",
    "infra": "local",
    "goal": {"metric": "val_loss", "max_epochs": 9},
}


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "job.yaml"
    path.parent.mkdir()
    path.write_text(json.dumps(SPEC))
    return path


def checkpoint(url: str, step: int) -> None:
    store = CheckpointStore(url)
    part = store.write_part(step, f"try{step}", "a0", {"kernel": np.ones((4, 3), np.float32)})
    store.commit(
        CheckpointManifest(
            fingerprint="f",
            step=step,
            attempt=f"try{step}",
            epoch=2,
            consumed=64,
            view=1,
            parts=(part,),
            created_at=datetime(2030, 1, 1, tzinfo=UTC),
        )
    )


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_record_made_from_checkpoints_resumes_at_the_newest_with_the_jobs_id(
    tmp_path: Path, job_file: Path, place: str
) -> None:
    url = f"memory://{uuid.uuid4()}/{ID}" if place == "bucket" else str(tmp_path / "saved" / ID)
    for step in (20, 40):
        checkpoint(url, step)

    made = record_of_checkpoints(url, job_file)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        assert store.recover_job(made)
        store.check_resumable(store.job(ID))
        found = find_resumption(store.job(ID), tmp_path / "measurements.jsonl")

    assert (found.job_id, found.url, found.before.step, found.before.epoch) == (ID, url, 40, 2)
    assert (made.name, made.job_file, made.step) == ("tiny", str(job_file), 40)


def test_a_copy_that_lies_elsewhere_makes_a_job_of_its_own(tmp_path: Path, job_file: Path) -> None:
    checkpoint(str(tmp_path / "copy"), 20)

    one, other = (record_of_checkpoints(str(tmp_path / "copy"), job_file) for _ in range(2))

    assert one.id != other.id


def test_where_there_is_no_checkpoint_or_no_job_file_it_says_so(tmp_path: Path, job_file: Path) -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint that can be read"):
        record_of_checkpoints(str(tmp_path / "nothing"), job_file)
    with pytest.raises(JobFileError):
        record_of_checkpoints(str(tmp_path), tmp_path / "none.yaml")
