"""`scavenger init`: what it writes is a job that starts, with what the user asked for in it."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from cli_fake import Run

from scavenger.control.job_file.examples import Example, examples_path
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.script_job import bring_up_to_date
from scavenger.domain.fit import FitFound
from scavenger.domain.script import Script

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
        (("--train", "train.py:job"), "train names a module, not a file: write train:job"),
        (("--train", "train.py"), "`scavenger init --from train.py` is for a script"),
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


def test_a_script_gets_a_job_file_beside_it_once(scavenger: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("EPOCHS = 4\nmodel.fit(x, y, epochs=EPOCHS, batch_size=64)\n")
    words = (
        "init",
        "--from",
        tmp_path / "net.py",
        "--budget",
        "5",
        "--metric",
        "val_loss",
        "--target",
        "0.2",
    )
    code, out, err = scavenger(*words)
    job_file = tmp_path / "net.job.yaml"

    assert (code, out) == (0, f"next: scavenger optimize {job_file}\n"), err
    job = load_job(job_file)
    assert (str(job.train), job.name, job.goal.max_epochs, job.batch_sizes) == ("net.py", "net", 4, (64,))
    assert (job.constraints.budget, job.goal.metric, job.goal.target) == (5.0, "val_loss", 0.2)
    assert scavenger("optimize", job_file, "--dry-run")[0] == 0
    assert "net.job.yaml exists; nothing was written" in scavenger(*words)[2]
    assert "so it takes no FOLDER, example or --train" in scavenger(*words, "--train", "net:job")[2]


def test_what_is_the_scripts_follows_it_and_what_is_the_users_stays(scavenger: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("model.fit(x, y, epochs=4)\n")
    assert scavenger("init", "--from", tmp_path / "net.py", "--budget", "5")[0] == 0
    job_file, found = (
        tmp_path / "net.job.yaml",
        FitFound("net.py:1", "A", 1, 9, 0, 32, 7, "B", (), (), (), 0.0),
    )
    before = job_file.read_text()
    for script in (Script("net.py", ("--rate", "0.1")), Script("net.py")):
        bring_up_to_date(job_file, script, found)

        job = load_job(job_file)
        assert (job.train, job.goal.max_epochs, job.constraints.budget) == (script, 7, 5.0)
    assert job_file.read_text() == before.replace("max_epochs: 4", "max_epochs: 7")


def test_a_script_is_not_run_where_nothing_is_to_be_done_or_nobody_can_be_asked(
    scavenger: Run, tmp_path: Path
) -> None:
    script = tmp_path / "net.py"
    script.write_text("raise SystemExit('it was run')")
    for words, complaint in (
        (("optimize", script, "--dry-run"), f"so no script: `scavenger init --from {script}`"),
        (("optimize", script), "there is no terminal on which to confirm"),
        (("optimize", tmp_path / "none.py", "--yes"), "none.py: there is no such file; `scavenger init`"),
        (("plan", tmp_path / "job.yaml", "--", "--epochs", "5"), "--epochs 5: arguments are for a script"),
    ):
        code, out, err = scavenger(*words)
        assert (code, out) == (2, "")
        assert complaint in err
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


def test_the_demo_is_an_example_that_is_copied_once(scavenger: Run, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert scavenger("demo", folder, "--yes")[0] == 0
    (folder / "train.py").write_text("mine")
    assert scavenger("demo", folder, "--yes")[0] == 0

    assert (folder / "train.py").read_text() == "mine"
    assert load_job(folder / "job.yaml") == load_job(examples_path() / "digits" / "job.yaml")


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
        f"examples/{example.value}/{path.name}": f"scavenger/examples/{example.value}/{path.name}"
        for example in Example
        for path in (examples_path() / example.value).iterdir()
        if path.suffix in (".py", ".yaml")
    }
    assert len(copied) >= 10
    assert copied.items() <= shipped.items()
