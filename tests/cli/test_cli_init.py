"""`scavenger init`: what it writes is a job that starts, with what the user asked for in it."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from cli_fake import Run
from scavenger_cli.commands.init import Example, examples_path

from scavenger.control.job_file.load import load_job

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("example", [None, "starter", "digits", "charlm"])
def test_what_init_writes_passes_a_dry_run(scavenger: Run, tmp_path: Path, example: str | None) -> None:
    folder = tmp_path / "my jobs" / "First try"
    code, out, err = scavenger("init", folder, *(() if example is None else ("--example", example)))

    assert (code, out) == (0, f"next: scavenger optimize '{folder}/job.yaml'\n")
    assert f"written: {folder}/train.py" in err
    for job_file in folder.glob("*.yaml"):
        assert "examples/" not in job_file.read_text()
        load_job(job_file)
    assert scavenger("optimize", folder / "job.yaml", "--dry-run")[0] == 0


def test_options_are_in_the_job_file_and_its_comments_stay(scavenger: Run, tmp_path: Path) -> None:
    words = ("--name", "mine", "--train", "net:build", "--metric", "val_loss", "--target", "0.2")
    assert scavenger("init", tmp_path / "a", *words, "--workers", "1,2,4", "--budget", "5")[0] == 0

    job = load_job(tmp_path / "a" / "job.yaml")
    assert (job.name, str(job.train), job.goal.metric, job.goal.target) == (
        "mine",
        "net:build",
        "val_loss",
        0.2,
    )
    assert (job.search.workers, job.constraints.budget) == ((1, 2, 4), 5.0)
    assert "# time | cost | knee" in (tmp_path / "a" / "job.yaml").read_text()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["job.yaml", "net.py"]
    assert "def build() -> KerasJob" in (tmp_path / "a" / "net.py").read_text()

    assert scavenger("init", tmp_path / "b", "--example", "digits", "--workers", "1..2")[0] == 0
    assert load_job(tmp_path / "b" / "job.yaml").search.workers == (1, 2)


def test_the_job_has_its_folders_name_and_no_target_of_another_metric(scavenger: Run, tmp_path: Path) -> None:
    assert scavenger("init", tmp_path / "My Net_2", "--metric", "val_loss")[0] == 0
    assert scavenger("init", tmp_path / "2026")[0] == 0

    job = load_job(tmp_path / "My Net_2" / "job.yaml")
    assert (job.name, job.goal.metric, job.goal.target) == ("my-net-2", "val_loss", None)
    assert load_job(tmp_path / "2026" / "job.yaml").name == "my-job"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--name", "A b"), "name must be made of lower-case letters"),
        (("--target", "95"), "goal.target must be from 0 to 1 for val_accuracy, not 95; write 0.95 for 95 %"),
        (("--workers", "0"), "--workers '0': give positive whole numbers"),
        (("--train", "train.py"), "train names a module, not a file: write train:job"),
        (("--example", "digits", "--metric", "val_loss"), "--train and --metric go without --example"),
        (("--example", "own_loop", "--name", "x"), "--example own_loop has no job file"),
    ],
)
def test_nothing_is_written_for_a_value_that_cannot_be(
    scavenger: Run, tmp_path: Path, words: tuple[str, ...], complaint: str
) -> None:
    code, out, err = scavenger("init", tmp_path / "a", *words)

    assert (code, out) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_a_file_that_exists_is_neither_changed_nor_joined_by_others(scavenger: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    code, _, err = scavenger("init", tmp_path)

    assert code == 2
    assert f"{tmp_path}/job.yaml exists; nothing was written: give another folder" in err
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".py", ".yaml")] == ["job.yaml"]
    assert (tmp_path / "job.yaml").read_text() == "mine"

    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "train.py").write_text("mine")
    assert scavenger("init", tmp_path / "digits", "--example", "digits")[0] == 2
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["train.py"]


def test_a_module_of_ones_own_gets_a_job_file(scavenger: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("mine")
    code, _, err = scavenger("init", tmp_path, "--train", "net:build")

    assert code == 0
    assert "kept: the training module; net:build is to be a KerasJob, or to return one" in err
    assert "written: " + str(tmp_path / "net.py") not in err
    assert (tmp_path / "net.py").read_text() == "mine"
    assert scavenger("optimize", tmp_path / "job.yaml", "--dry-run")[0] == 0


def test_json_names_the_files_and_the_next_command(scavenger: Run, tmp_path: Path) -> None:
    code, out, _ = scavenger("init", tmp_path, "-o", "json")

    assert code == 0
    written = [f"{tmp_path}/job.yaml", f"{tmp_path}/train.py"]
    command = f"scavenger optimize {tmp_path}/job.yaml"
    assert json.loads(out) == {"schema_version": 1, "written": written, "next": command}


@pytest.mark.slow
def test_the_module_that_init_writes_is_a_job(
    scavenger: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scavenger.train.worker.loading import load_program

    monkeypatch.setattr(sys, "path", list(sys.path))
    assert scavenger("init", tmp_path, "--train", "written_by_init:build")[0] == 0

    manifest = load_program("written_by_init:build", str(tmp_path), 1).manifest
    assert manifest.dataset_size == 1437


def test_the_wheel_has_every_file_of_the_examples_that_init_copies() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shipped = build["targets"]["wheel"]["force-include"]
    copied = {
        f"examples/{example.value}/{path.name}": f"scavenger_cli/examples/{example.value}/{path.name}"
        for example in Example
        for path in (examples_path() / example.value).iterdir()
        if path.suffix in (".py", ".yaml")
    }
    assert len(copied) >= 10
    assert copied.items() <= shipped.items()
