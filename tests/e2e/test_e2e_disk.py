"""A disk that is full when the model is saved: nothing that was trained is lost, and nobody is told otherwise."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import pytest
from real_jobs import Job

pytestmark = [pytest.mark.slow, pytest.mark.root]

FILL = """
    from pathlib import Path
    place = Path(__file__).parent / ".scavenger"
    if (place / "full").exists():
        try:
            with open(place / "rest", "ab", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError:
            pass
"""
"""What leaves no room at all, as long as a file says so."""


@pytest.fixture
def small_output(make_job: Callable[..., Job]) -> Iterator[Job]:
    """A job whose output has room for its records, and not for its model."""
    job = make_job(
        goal={"max_epochs": 2},
        search={"workers": 1, "batch_size": [32]},
        checkpoint={"path": "./checkpoints", "every": "10m"},
        code={"width": 20_000, "samples": 64, "in_job": FILL.strip()},
    )
    output = job.folder / ".scavenger"
    output.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", output]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield job
    finally:
        subprocess.run(["umount", "--lazy", output], check=True)


def test_a_model_that_finds_no_room_fails_the_job_and_is_written_by_resume(small_output: Job) -> None:
    job = small_output

    outcome = job.run()

    assert outcome.code == 3
    assert outcome.report["job"]["state"] == "failed"
    assert "the model could not be saved" in outcome.error
    assert "No space left on device" in outcome.error
    assert "training code" not in outcome.error
    steps, job_id = outcome.report["steps"], outcome.report["job"]["id"]
    assert f"checkpoint of step {steps} is kept" in outcome.error

    again = job.ask("resume", job_id, "--yes", "--output-dir", str(job.folder / "elsewhere"))

    assert again.code == 0, again.stderr
    assert again.report["job"]["state"] == "succeeded"
    assert again.report["steps"] == steps
    assert Path(again.report["model_path"]).parent == job.folder / "elsewhere" / job_id
    assert int(keras.models.load_model(Path(again.report["model_path"])).optimizer.iterations) == steps


def test_a_disk_without_room_for_a_single_record_leaves_a_checkpoint_at_once(small_output: Job) -> None:
    job, output = small_output, small_output.folder / ".scavenger"
    (output / "full").touch()

    outcome = job.run()  # which waits for less than it took to time out once

    steps, job_id = outcome.report["steps"], outcome.report["job"]["id"]
    assert (outcome.code, steps) == (3, 4)
    assert f"checkpoint of step {steps} is kept" in outcome.error
    assert any("make room before training ends" in line for line in outcome.report["warnings"])

    (output / "full").unlink()
    (output / "rest").unlink()
    subprocess.run(["mount", "-o", "remount,size=32m", output], check=True)
    again = job.ask("resume", job_id, "--yes")

    assert again.code == 0, again.stderr
    assert again.report["job"]["state"] == "succeeded"
    assert int(keras.models.load_model(Path(again.report["model_path"])).optimizer.iterations) == steps
