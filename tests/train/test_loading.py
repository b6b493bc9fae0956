"""Finding the job in the user's module, and saying in one line what is wrong with it."""

from __future__ import annotations

import itertools
import sys
import textwrap
from pathlib import Path

import pytest

from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.train.failure import DataError, describe_failure
from scavenger.train.worker.loading import load_program

pytestmark = pytest.mark.slow

_names = itertools.count()
_MODEL = """
import keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["fork_server.py", "5", "module:function"])


def failure(folder: Path, text: str, name: str = "job") -> tuple[str, str]:
    """Kind and line of what loading `name` from a module with this text fails with."""
    module = f"user_module_{next(_names)}"
    (folder / f"{module}.py").write_text(textwrap.dedent(text))
    with pytest.raises((Exception, SystemExit)) as caught:
        load_program(f"{module}:{name}", str(folder), 1)
    kind, line = describe_failure(caught.value, str(folder))
    assert "\n" not in line
    return kind, line.replace(module, "MODULE")


def test_an_exception_at_import_names_file_and_line(tmp_path: Path) -> None:
    assert failure(tmp_path, "x = 1\nraise RuntimeError('no GPU\\nhere')") == (
        "code",
        "MODULE.py:2: RuntimeError: no GPU",
    )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    kind, line = failure(tmp_path, "\nimport nothing_of_this_name")

    assert (kind, line) == (
        "code",
        "MODULE.py:2: ModuleNotFoundError: No module named 'nothing_of_this_name'",
    )


def test_a_module_that_asks_for_another_backend_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    text = "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n" + _MODEL

    kind, line = failure(tmp_path, text)

    assert kind == "unsupported"
    assert "MODULE.py or a module that it imports sets KERAS_BACKEND to 'jax'" in line


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        load_program("absent_module:job", str(tmp_path), 1)

    assert describe_failure(caught.value, str(tmp_path)) == (
        "code",
        "ModuleNotFoundError: No module named 'absent_module'",
    )


def test_code_that_reads_a_command_line_finds_none_of_ours(tmp_path: Path) -> None:
    text = """
    import argparse, sys
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.5)
    RATE = parser.parse_args().rate
    raise RuntimeError(f"{RATE} {len(sys.argv)} {sys.argv[0] == __file__}")
    """

    assert failure(tmp_path, text) == ("code", "MODULE.py:6: RuntimeError: 0.5 1 True")


def test_a_module_that_needs_arguments_is_told_where_they_come_from(tmp_path: Path) -> None:
    text = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.parse_args()
    """

    kind, line = failure(tmp_path, text)

    assert (kind, line[:28]) == ("code", "MODULE.py:5: SystemExit: 2; ")
    assert "argparse" in line
    assert "`params:`" in line


def test_a_missing_object_is_named(tmp_path: Path) -> None:
    kind, line = failure(tmp_path, "", name="jobb")

    assert kind == "code"
    assert line == f"{tmp_path}/MODULE.py has no object 'jobb'"


@pytest.mark.parametrize(
    "text",
    ["job = 5", "def job():\n    return None", "class Job:\n    def __call__(self): return 5\njob = Job()"],
)
def test_what_is_no_job_is_refused(tmp_path: Path, text: str) -> None:
    kind, line = failure(tmp_path, text)

    assert kind == "code"
    assert "must be, or return, a scavenger.sdk.KerasJob" in line


def test_a_bad_model_and_bad_data_are_unsupported_and_not_a_crash(tmp_path: Path) -> None:
    bad_data = _MODEL + "from scavenger.sdk import KerasJob\njob = KerasJob(model, 5)"
    bad_model = "from scavenger.sdk import KerasJob\njob = KerasJob(5, 5)"

    assert failure(tmp_path, bad_data)[0] == "unsupported"
    assert failure(tmp_path, bad_model) == ("unsupported", "the job's model is a int, not a keras.Model")


def test_a_shape_that_does_not_fit_is_told_by_what_keras_says_of_it(tmp_path: Path) -> None:
    text = _MODEL + (
        "import numpy as np\nfrom scavenger.sdk import KerasJob\n"
        "job = KerasJob(model, (np.zeros((9, 3)), np.zeros(9)))"
    )

    kind, line = failure(tmp_path, text)

    assert kind == "code"
    assert "expected axis -1 of input shape to have value 2" in line
    assert "\x1b" not in line


def test_a_job_may_be_an_object_or_a_function(tmp_path: Path) -> None:
    text = _MODEL + "import numpy as np\nfrom scavenger.sdk import KerasJob\n"
    text += "job = KerasJob(model, (np.zeros((9, 2)), np.zeros(9)))\ndef make(): return job\n"
    (tmp_path / "two_ways.py").write_text(text)

    for name in ("job", "make"):
        assert load_program(f"two_ways:{name}", str(tmp_path), 1).manifest.dataset_size == 9


def test_two_builds_under_one_seed_begin_with_the_same_weights(tmp_path: Path) -> None:
    text = (
        "def job():\n"
        + textwrap.indent(_MODEL, "    ")
        + (
            "\n    import numpy as np\n    from scavenger.sdk import KerasJob"
            "\n    return KerasJob(model, (np.zeros((9, 2)), np.zeros(9)))\n"
        )
    )
    (tmp_path / "seeded.py").write_text(text)

    a, b, other = (load_program("seeded:job", str(tmp_path), seed).initial_state() for seed in (1, 1, 2))

    assert (a[0] == b[0]).all()
    assert (a[0] != other[0]).any()


def test_what_tensorflow_wraps_is_unwrapped(tmp_path: Path) -> None:
    message = (
        f'in user code:\n\n    File "/elsewhere/program.py", line 9, in _half\n        x = f()\n'
        f'    File "{tmp_path}/train.py", line 12, in call\n        raise ValueError("bad")\n\n'
        "    ValueError: Exception encountered when calling Odd.call().\n\n    \x1b[1mbad\x1b[0m\n\n"
        "    Arguments received by Odd.call():\n"
    )

    assert describe_failure(ValueError(message), str(tmp_path)) == ("code", "train.py:12: ValueError: bad")


def test_tensorflow_s_words_about_its_own_graph_are_left_out() -> None:
    message = "{{function_node __wrapped__Soft_device_/job:a}} Received a label of -1 [Op:Soft] name: "

    assert describe_failure(ValueError(message), "/job") == ("code", "ValueError: Received a label of -1")


@pytest.mark.parametrize("error", [NotSupportedError("not this"), DataError("nor that")])
def test_what_is_not_supported_is_said_as_it_is(error: Exception) -> None:
    assert describe_failure(error, "/job") == ("unsupported", str(error))


def test_a_folder_whose_name_another_begins_with_is_not_taken_for_it() -> None:
    error = TrainingCodeError("plain")
    assert describe_failure(error, "/job") == ("code", "plain")
    text = 'in user code:\n\n    File "/job2/x.py", line 3, in f\n        y\n\n    KeyError: 7\n'
    assert describe_failure(RuntimeError(text), "/job") == ("code", "RuntimeError: KeyError: 7")
