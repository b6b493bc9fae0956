"""Before a job starts on a cloud, its user reads where its training state is kept, and what may be lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_fake import Run

BUCKET = "s3://bucket/checkpoints"
KERAS = {"train": "train:job"}
COMMAND: dict[str, Any] = {"run": "python train.py --batch {local_batch_size}"}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("")
    monkeypatch.setenv("SCAVENGER_CONFIG", str(path))
    monkeypatch.delenv("SCAVENGER_ADDRESS", raising=False)
    return path


def preview(scavenger: Run, folder: Path, trains: dict[str, Any], **sections: Any) -> dict[str, Any]:
    job = {
        "version": 1,
        "name": "digits",
        "infra": "aws/us-east-1",
        "resources": {"vm": "c5.large"},
        "search": {"workers": [1, 2], "batch_size": [64]},
        "goal": {"max_epochs": 2},
        **trains,
        **sections,
    }
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text(json.dumps(job))
    code, out, err = scavenger("optimize", folder / "job.yaml", "--dry-run", "-o", "json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_a_job_on_a_cloud_says_what_may_be_lost_with_which_machine(
    scavenger: Run, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led_away = preview(scavenger, tmp_path, KERAS)
    assert led_away["checkpoints"].startswith(
        "every 10 min, on the leader's own disk: what was trained is lost"
    )
    words = " ".join(scavenger("optimize", tmp_path / "job.yaml", "--dry-run")[1].split())
    assert "checkpoints every 10 min, on the leader's own disk" in words

    monkeypatch.setenv("SCAVENGER_ADDRESS", "127.0.0.1")
    here = preview(scavenger, tmp_path, KERAS, checkpoint={"path": "saved", "every": "2m", "every_steps": 50})
    assert here["checkpoints"].startswith(f"every 2 min or 50 steps, in {tmp_path / 'saved'} on this machine")
    assert "checkpoint.path: s3://" in here["checkpoints"]

    local = preview(
        scavenger,
        tmp_path,
        KERAS,
        infra="local",
        resources={"vm": "local-1"},
        search={"workers": 1, "batch_size": 64},
    )
    assert local["checkpoints"] is None


@pytest.mark.parametrize("trains", [KERAS, COMMAND], ids=["keras", "command"])
def test_the_settings_name_where_jobs_without_a_checkpoint_keep_theirs(
    scavenger: Run, settings: Path, tmp_path: Path, trains: dict[str, Any]
) -> None:
    settings.write_text(f'[aws]\ncheckpoints = "{BUCKET}"\n')

    found = preview(scavenger, tmp_path, trains)
    assert found["job"]["checkpoint"]["path"] == BUCKET
    assert found["checkpoints"].startswith(f"every 10 min, at {BUCKET}")

    own = preview(scavenger, tmp_path, trains, checkpoint={"path": "s3://mine/here"})
    assert own["job"]["checkpoint"]["path"] == "s3://mine/here"
    elsewhere = preview(
        scavenger,
        tmp_path,
        trains,
        infra="local",
        resources={"vm": "local-1"},
        search={"workers": 1, "batch_size": 64},
    )
    assert elsewhere["job"]["checkpoint"] is None


def test_a_command_whose_checkpoints_leave_no_vm_is_told_so(
    scavenger: Run, settings: Path, tmp_path: Path
) -> None:
    def warned(command: str) -> bool:
        notes = preview(scavenger, tmp_path, {"run": command})["notes"]
        return any("begins again from its first step" in note for note in notes)

    assert warned("python train.py --batch {local_batch_size}")
    assert not warned("python train.py --batch {local_batch_size} --out {checkpoint_dir}")
    (tmp_path / "train.py").write_text("from scavenger.sdk import scavenger_report\n")
    assert not warned("python train.py --batch {local_batch_size}")


def test_a_place_of_checkpoints_that_is_none_is_refused_with_its_line(
    scavenger: Run, settings: Path, tmp_path: Path
) -> None:
    settings.write_text('[aws]\ncheckpoints = "checkpoints"\n')
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(
        "version: 1\nname: digits\ntrain: train:job\ninfra: aws/us-east-1\nresources: {vm: c5.large}\n"
        "search: {workers: 1, batch_size: 64}\ngoal: {max_epochs: 2}\n"
    )

    code, _, err = scavenger("optimize", tmp_path / "job.yaml", "--dry-run")

    assert code == 2
    assert "config.toml:2:1: aws.checkpoints must be the URL of an object store" in err
