"""Whose code a process ran that was killed by a signal of its own, as its log tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import scavenger
from scavenger.errors import ScavengerError, TrainingCodeError, WorkersLostError
from scavenger.train.crash import Crash, crash_error, crash_in

SITE = "/venv/lib/python3.11/site-packages"
OURS = Path(scavenger.__file__).parent


def written(tmp_path: Path, *files: str, before: str = "", label: str = "Current thread") -> Path:
    """A log in which a thread was killed in the calls of these files, the newest first."""
    frames = "".join(f'  File "{file}", line {number} in call\n' for number, file in enumerate(files, 7))
    log = tmp_path / "w0.log"
    log.write_text(
        f"{before}Fatal Python error: Segmentation fault\n\n"
        f'Thread 0x00007f2 (most recent call first):\n  File "/jobs/train.py", line 99 in waiting\n\n'
        f"{label} 0x00007f1 (most recent call first):\n{frames}\n"
        "Extension modules: numpy.core._multiarray_umath, h5py._errors (total: 2)\n"
    )
    return log


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("/jobs/train.py",), Crash("theirs", "train.py:7, in call")),
        (
            (
                f"{SITE}/tensorflow/python/eager/execute.py",
                f"{SITE}/keras/src/m.py",
                "/jobs/train.py",
                f"{OURS}/x.py",
            ),
            Crash("theirs", "train.py:9, in call", "tensorflow"),
        ),
        (
            (
                f"{SITE}/tensorflow/python/eager/execute.py",
                f"{OURS}/train/worker/data/items.py",
                "/jobs/train.py",
            ),
            Crash("ours", "scavenger/train/worker/data/items.py:8, in call", "tensorflow"),
        ),
        (
            (f"{SITE}/scavenger/train/worker/worker.py",),
            Crash("ours", "scavenger/train/worker/worker.py:7, in call"),
        ),
        (("/usr/lib/python3.11/threading.py",), Crash("nobody's", library="Python")),
        ((), Crash("nobody's")),
    ],
)
def test_the_newest_call_that_is_no_librarys_tells_whose_it_is(
    tmp_path: Path, files: tuple[str, ...], expected: Crash
) -> None:
    earlier = (
        "Fatal Python error: Aborted\n\n"
        'Current thread 0x1 (most recent call first):\n  File "/old.py", line 1 in x\n'
    )
    assert crash_in(written(tmp_path, *files)) == expected
    assert crash_in(written(tmp_path, *files, before=earlier)) == expected


def test_a_crash_of_no_thread_of_python_or_without_a_log_is_nobodys(tmp_path: Path) -> None:
    assert crash_in(written(tmp_path, "/jobs/train.py", label="Thread")) == Crash("nobody's")
    assert crash_in(tmp_path / "none.log") == Crash("nobody's")


@pytest.mark.parametrize(
    ("file", "kind", "code", "words"),
    [
        (
            "/jobs/train.py",
            TrainingCodeError,
            6,
            "the training code failed: w0 was killed by SIGSEGV, at train.py:7",
        ),
        (
            f"{OURS}/a.py",
            ScavengerError,
            1,
            "w0 was killed by SIGSEGV, in native code, called by Scavenger itself at",
        ),
        (
            "<frozen x>",
            WorkersLostError,
            3,
            "w0 was killed by SIGSEGV, in native code of Python, and whose",
        ),
    ],
)
def test_only_a_crash_in_the_training_code_is_called_its_failure(
    tmp_path: Path, file: str, kind: type[ScavengerError], code: int, words: str
) -> None:
    log = written(tmp_path, file)
    error = crash_error("w0 was killed by SIGSEGV", log)

    assert (type(error), error.exit_code) == (kind, code)
    assert str(error).startswith(words)
    assert str(log) in str(error)


def test_what_this_python_writes_when_it_is_killed_is_read(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import faulthandler, os, signal, threading\n"
        "faulthandler.enable()\n"
        "threading.Thread(target=signal.pause, daemon=True).start()\n"
        "def build():\n"
        "    os.kill(os.getpid(), signal.SIGSEGV)\n"
        "build()\n"
    )
    with (tmp_path / "w0.log").open("wb") as log:
        subprocess.run([sys.executable, program], stderr=log, check=False, timeout=60)

    assert crash_in(tmp_path / "w0.log") == Crash("theirs", "train.py:5, in build")
