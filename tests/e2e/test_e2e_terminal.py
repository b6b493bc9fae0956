"""What a user sees of a real job: no line that Scavenger did not write, on a terminal or in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from real_jobs import Job, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOISE = (
    "import logging, sys, warnings; os.write(2, b'I0000 port.cc:153] lib-line of C++\\n'); "
    "logging.getLogger('lib').warning('lib-line of logging'); warnings.warn('lib-line of warnings'); "
    "print('user-line'); print('user-line', file=sys.stderr)"
)
GOAL = {"metric": "val_loss", "target": 1e-6, "max_epochs": 2}
FIRST_WORDS = re.compile(
    r"(starting|profiling|profiled|fitting|chosen|running|saving|done|step|epoch|warning|note|forecast|view)\b"
)
ESCAPES = re.compile(r"\x1b\[[0-?]*[@-~]")


def transcripts() -> str:
    """The summary that the page about reports shows."""
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text("utf-8")
    return (
        page.partition("transcripts writes this: summary -->")[2]
        .partition("```text\n")[2]
        .partition("```")[0]
    )


def heads(report: str) -> list[str]:
    """The names of the rows of a summary, in order."""
    return re.findall(
        r"^ {0,2}(Job|Chosen|time|cost|step time|epochs|Search|model|next)\b", report, re.MULTILINE
    )


def seen_of(job: Job, *arguments: str, terminal: bool) -> tuple[str, str]:
    """Standard output and error of a command that is begun as a user begins it; of a terminal, all is one."""
    words = [sys.executable, "-m", "scavenger_cli", *arguments, "--store", job.store]
    env = {**environment(job.mark), "TERM": "xterm", "HOME": str(job.folder)}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)  # of this test's own process
    if not terminal:
        ran = subprocess.run(words, cwd=job.folder, env=env, capture_output=True, text=True, check=False)
        return ran.stdout, ran.stderr
    mine, theirs = pty.openpty()
    with subprocess.Popen(words, cwd=job.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as ran:
        os.close(theirs)
        said = b""
        try:
            while data := os.read(mine, 65536):
                said += data
        except OSError:  # it has ended
            pass
        os.close(mine)
    return ESCAPES.sub("", said.decode()), ""


@pytest.mark.parametrize("terminal", [pytest.param(False, marks=pytest.mark.long), True])
def test_lines_of_libraries_are_in_the_logs_and_what_the_users_code_prints_is_kept(
    make_job: Callable[..., Job], terminal: bool
) -> None:
    tracked = {"mlflow": "sqlite:///mlflow.db"}
    job = make_job(
        goal=GOAL, search={"workers": 1, "batch_size": [64]}, trackers=tracked, code={"in_job": NOISE}
    )
    stdout, stderr = seen_of(job, "optimize", "job.yaml", "--yes", terminal=terminal)

    for words in ("lib-line", "user-line", "mlflow.store", "oneDNN", "absl::InitializeLog"):
        assert words not in stdout + stderr
    if not terminal:
        assert [line for line in stderr.splitlines() if not FIRST_WORDS.match(line)] == []
        assert heads(stdout) == heads(transcripts())
    logs = {one.name: one.read_text() for one in job.folder.rglob("*.log")}
    worker = logs["w0.log"]
    for words in ("lib-line of C++", "lib-line of logging", "lib-line of warnings"):
        assert words in worker
    assert worker.count("user-line\n") == 2
    assert "mlflow.store" in logs["trackers.log"]


@pytest.mark.long
def test_a_script_is_run_without_a_line_of_others_and_keeps_what_it_prints(
    make_job: Callable[..., Job],
) -> None:
    job = make_job()
    script = Path(__file__).parents[2] / "examples" / "script" / "train.py"
    (job.folder / "plain.py").write_text(
        f"import os\n{NOISE}\n{script.read_text()}".replace("EPOCHS = 60", "EPOCHS = 1")
    )
    stdout, stderr = seen_of(job, "optimize", "plain.py", "--yes", terminal=False)

    for words in ("lib-line", "user-line", "oneDNN", "absl::InitializeLog"):
        assert words not in stdout + stderr
    own = [line for line in stderr.splitlines() if not FIRST_WORDS.match(line)]
    assert [line.split(":")[0] for line in own] == ["plain.py", "plain.py", "not run", "written"], own
    assert (job.folder / ".scavenger" / "plain.log").read_text().count("user-line\n") == 2


def test_a_program_shows_its_own_lines_and_those_of_no_library(make_job: Callable[..., Job]) -> None:
    tracked = {"mlflow": "sqlite:///mlflow.db"}
    job = make_job(
        goal=GOAL, search={"workers": 1, "batch_size": [64]}, trackers=tracked, code={"in_job": NOISE}
    )
    (job.folder / "pipeline.py").write_text(
        "import logging\n"
        "import scavenger\n"
        "if __name__ == '__main__':\n"
        f"    with scavenger.Client(store={job.store!r}) as client:\n"
        "        print('before', flush=True)\n"
        "        run = client.optimize(scavenger.Job.from_yaml('job.yaml'))\n"
        "        logging.getLogger('mlflow').warning('of my own')\n"
        "        print(run.state)\n"
    )
    env = environment(job.mark)
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    ran = subprocess.run(
        [sys.executable, "pipeline.py"], cwd=job.folder, env=env, capture_output=True, text=True, check=False
    )

    assert ran.stdout.splitlines() == ["before", "target_missed"]
    (line,) = ran.stderr.splitlines()
    assert line.endswith("WARNING mlflow: of my own")
    (log,) = job.folder.rglob("trackers.log")
    assert "mlflow.store" in log.read_text()
