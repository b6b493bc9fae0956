"""What a job has written goes with it to another output, and the old place stays as it was."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from scavenger.control.jobs.relocation import forget_record, relocated
from scavenger.control.jobs.renewal import renewed
from scavenger.control.jobs.resumption import Resumption
from scavenger.control.training.history import EarlierAttempts
from scavenger.domain.overrides import Renewal
from scavenger.errors import ConfigurationError
from scavenger.store import Store

ID = "3b2a1c00-5d4e-4f6a-8b7c-9d0e1f2a3b4c"


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The folder of a job that has ended, with a file of every kind that is in one."""
    folder = tmp_path / "full" / ID
    for path, text in {
        "measurements.jsonl": "{}\n",
        "measurements-1.jsonl.gz": "old",
        "audit.jsonl": "{}\n",
        "record.json": "{}",
        "checkpoints/step-00000009-a/part-0.safetensors": "weights",
        "checkpoints/command/state.pt": "theirs",
        "logs/w0.log": "w0\n",
        "logs/runner.log": "the first runner\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "model").symlink_to("checkpoints/command")
    os.mkfifo(folder / "knock")
    return folder


def resumption(url: Path | str) -> Resumption:
    return Resumption(ID, str(url), "step-00000009-a", EarlierAttempts(), None, None)


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_all_that_a_job_has_written_is_copied_however_often_it_is_begun(before: Path, tmp_path: Path) -> None:
    after = tmp_path / "other" / ID
    was = files(before)
    (after / "logs").mkdir(parents=True)
    (after / "logs" / "runner.log").write_text("the new runner\n")  # which the server has started before

    for _ in range(2):
        moved = relocated(resumption(before / "checkpoints"), before, after)

    assert (moved.url, moved.moved_from) == (str(after / "checkpoints"), before)
    assert files(after) == {**was, "logs/runner.log": "the new runner\n"}
    assert (after / "model" / "state.pt").read_text() == "theirs"
    assert not (after / "knock").exists()
    assert files(before) == was
    forget_record(before)
    forget_record(before)
    assert set(was) - set(files(before)) == {"record.json"}


@pytest.mark.parametrize("url", ["s3://bucket/checkpoints/x", "/elsewhere/checkpoints/x"])
def test_checkpoints_at_a_place_of_their_own_stay_there(before: Path, tmp_path: Path, url: str) -> None:
    assert relocated(resumption(url), before, tmp_path / "other" / ID).url == url


def test_a_place_without_room_is_refused_before_anything_is_copied(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SimpleNamespace(total=9, used=0, free=9)
    monkeypatch.setattr("shutil.disk_usage", lambda _: small)

    with pytest.raises(ConfigurationError, match=r"takes .* has room for 9 B; name another folder"):
        relocated(resumption(before / "checkpoints"), before, tmp_path / "other" / ID)
    assert not (tmp_path / "other").exists()


def test_a_job_that_cannot_be_copied_leaves_nothing_behind(before: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone cannot be copied to .*: No such file"):
        relocated(resumption(before / "checkpoints"), before.with_name("gone"), tmp_path / "other" / ID)
    assert not (tmp_path / "other" / ID).exists()


def test_an_output_that_cannot_be_one_is_refused_before_the_job_is_touched(tmp_path: Path) -> None:
    spec = {"version": 1, "name": "digits", "train": "train:job", "goal": {"max_epochs": 9}}
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        job = store.create_job("digits", spec=spec, job_file=tmp_path / "job.yaml")
    (tmp_path / "file").touch()

    for output, words in (
        ("file", "is not a folder"),
        (" ", "the path of a folder"),
        ("a\0b", "the path of a folder"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            renewed(job, Renewal(output=output))
    to = renewed(job, Renewal(output=str(tmp_path / "other")))
    assert to is not None
    assert Path(to.output) == tmp_path / "other"
