"""What the text of a script tells without running it, and the job file that is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.control.job_file.load import load_job, parse_job
from scavenger.control.job_file.script_text import (
    WrittenFit,
    job_file_of,
    job_text,
    other_fits,
    read_script,
    written_fit,
)
from scavenger.control.jobs.script_job import bring_up_to_date
from scavenger.domain.fit import FitFound
from scavenger.domain.script import Script
from scavenger.errors import ConfigurationError
from scavenger.train.training_folder import digest_of

FOUND = FitFound("a.py:3", "Sequential", 10, 100, 0, 10, 7, "Adam", (), (), (), 1.0)
SCRIPTS = Path(__file__).parents[1] / "field" / "scripts"


def read(folder: Path, text: str) -> WrittenFit:
    (folder / "a.py").write_text(text)
    return written_fit(folder / "a.py")


@pytest.mark.parametrize(
    ("name", "line", "epochs", "batch_size"),
    [
        ("sequential", 18, 3, 16),
        ("functional", 19, 4, 32),
        ("pipeline", 32, 2, 20),
        ("with_callbacks", 33, 10, 8),
        ("two_fits", 12, 2, 32),
        ("transfer", 23, 1, 8),
        ("notebook", 43, 5, 32),
        ("arguments", 30, 6, 12),
    ],
)
def test_the_text_tells_what_a_run_finds(name: str, line: int, epochs: int, batch_size: int) -> None:
    assert written_fit(SCRIPTS / f"{name}.py") == WrittenFit(line, epochs, batch_size)


def test_names_with_one_value_are_followed(tmp_path: Path) -> None:
    text = "FOLDS = 2\nn = FOLDS * 4 - 1\nmodel.fit(x, y, 64, n // 2)\nmodel.fit(x, y, 16, epochs=n // 2)"

    assert read(tmp_path, text) == WrittenFit(4, 3, 16)  # without a name, it may be an estimator's


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model.fit(x, y, epochs=int(a))", "a.py:1: epochs=int(a) is known only when it runs"),
        ("n = 1\nn = 2\nmodel.fit(x, y, epochs=n)", "a.py:3: epochs=n is known"),
        ("def train(n): model.fit(x, y, epochs=n)\nn = 3", "a.py:1: epochs=n is known"),
        ("model.fit(x, y, epochs=2, **more)", "a.py:1: the arguments of fit are known only when it runs"),
        ("model.fit(data, epochs=2)", "a.py:1: its batch size is known only when it runs"),
        ("n = n + 1\nmodel.fit(x, y, epochs=n)", "a.py:2: epochs=n is known only when it runs"),
        ("n = 3 // 0\nmodel.fit(x, y, epochs=n)", "a.py:2: epochs=n is known only when it runs"),
        ("scaler.fit(x, y)", "a.py: no call of fit with epochs is written in it"),
        ("model.fit(", "a.py:1: '(' was never closed"),
    ],
)
def test_what_it_does_not_tell_is_left_to_a_run(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)

    assert complaint in str(caught.value)


def test_what_else_would_be_trained_is_told() -> None:
    tree = read_script(SCRIPTS / "two_fits.py")
    loop = SCRIPTS / "arguments.py"

    assert other_fits(tree, 12) == "the fit of line 16"
    assert other_fits(read_script(loop), 30) == ""


@pytest.mark.parametrize("arguments", [(), ("--name", "it's a: #b", "", "{x}", 'say "no"'), ("--lr", "1e-3")])
@pytest.mark.parametrize("path", ["train.py", "My first-net.py"])
def test_a_job_file_names_script_and_arguments_as_they_are(path: str, arguments: tuple[str, ...]) -> None:
    script = Script(path, arguments)
    text = job_text(script, f"{path}:7", epochs=5, batch_size=2, processors=16, start_s=90.0)
    job = parse_job(text, path="a.yaml")

    assert job.train == script
    assert (job.goal.max_epochs, job.batch_sizes, job.worker_counts) == (5, (2,), (1, 2))
    assert (job.name, job.limits.start) == (path.removesuffix(".py").lower().replace(" ", "-"), 480.0)
    assert job_file_of(Path("a") / path) == Path("a") / path.replace(".py", ".job.yaml")


def test_a_script_takes_no_params_and_no_data() -> None:
    for more, place in (("params: {a: 1}", "params"), ("data: train:data", "data")):
        with pytest.raises(
            ConfigurationError, match=f"{place} is for a function of a module: a script has its"
        ):
            parse_job(f"version: 1\nname: a\ntrain: train.py\ngoal: {{max_epochs: 1}}\n{more}", path="a.yaml")


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_files_with_the_line_ends_of_windows_are_read_as_others_and_keep_theirs(
    tmp_path: Path, begin: bytes
) -> None:
    script, job_file = tmp_path / "a.py", tmp_path / "a.job.yaml"
    plain = "import keras\nmodel = keras.Sequential([])\nmodel.fit(1, epochs=3, batch_size=8)\n"
    text = job_text(Script("a.py"), "a.py:3", epochs=3, batch_size=8, processors=2, start_s=1.0)
    found = []
    for end in ("\n", "\r\n"):
        script.write_bytes(begin + plain.replace("\n", end).encode())
        job_file.write_bytes(begin + text.replace("\n", end).encode())
        found.append((written_fit(script), load_job(job_file), digest_of([script], tmp_path)))
    assert found[0] == found[1]

    bring_up_to_date(job_file, Script("a.py"), FOUND)
    assert load_job(job_file).goal.max_epochs == 7
    assert job_file.read_bytes().count(b"\n") == job_file.read_bytes().count(b"\r\n") > 3
