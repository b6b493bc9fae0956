"""What of a job, besides its model, tells whether a stored model is of the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scavenger.control.search.sources import Sources
from scavenger.domain.job import JobSpec
from scavenger.train.transport.messages.values import Manifest

MANIFEST = Manifest((), (), "{}", "a" * 64, 10, 100, 20, 64, (), data="d" * 64)
CODE, PARAMS, DATA = "training code", "params", "data"


def job(**sections: Any) -> JobSpec:
    spec = {"version": 1, "name": "j", "train": "train:job", "objective": "time", "goal": {"max_epochs": 3}}
    return JobSpec.model_validate({**spec, "search": {"workers": 1, "batch_size": 32}, **sections})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in (
        ("train.py", "from lib import data\n"),
        ("lib/data.py", "SCALE = 1.0\n"),
        ("notes.txt", ""),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def differing(folder: Path, before: Sources, **sections: Any) -> list[str]:
    now = Sources.of(job(**sections), folder, MANIFEST)
    return [name for name in (CODE, PARAMS, DATA) if before.digests.get(name) != now.digests.get(name)]


def test_only_what_may_change_the_run_makes_another_job(folder: Path) -> None:
    before = Sources.of(job(), folder, MANIFEST)
    assert (
        before.compared
        == "compared were 2 Python files of its folder, its params and env, and some samples of its data"
    )
    (folder / "notes.txt").write_text("looks good")
    (folder / "runs").mkdir()
    (folder / "runs" / "copy.py").write_text("x = 1")
    assert differing(folder, before) == []

    assert differing(folder, before, params={"noise": 0.1}) == [PARAMS]
    assert differing(folder, before, env={"SCALE": "2"}) == [PARAMS]
    (folder / "lib" / "data.py").write_text("SCALE = 2.0\n")
    assert differing(folder, before) == [CODE]
    (folder / "lib" / "data.py").rename(folder / "lib" / "moved.py")
    assert differing(folder, before) == [CODE]


def test_other_samples_make_another_job_where_they_can_be_compared(folder: Path) -> None:
    before = Sources.of(job(), folder, MANIFEST)
    other = Sources.of(job(), folder, msgspec.structs.replace(MANIFEST, data="e" * 64))
    unknown = Sources.of(job(), folder, msgspec.structs.replace(MANIFEST, data=""))
    loop = Sources.of(job(), folder, msgspec.structs.replace(MANIFEST, data="", sample_bytes=0))

    assert other.digests[DATA] != before.digests[DATA]
    assert DATA not in unknown.digests
    assert unknown.compared.endswith(
        "of its data some targets, as samples are read otherwise each time, or only in sequence"
    )
    assert loop.compared.endswith("and not its data")


def test_a_command_tells_by_itself_what_was_compared(folder: Path) -> None:
    manifest = msgspec.structs.replace(MANIFEST, compared="compared were the command")

    assert Sources.of(job(), folder, manifest) == Sources({}, "compared were the command")
