"""Environment variables that strangers set before a command, and those that a job file names: each job sees its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_jobs import Job, marked
from waiting import wait_for

from scavenger.store import Store

pytestmark = pytest.mark.slow

MakeJob = Callable[..., Job]
SAVING = """
import os, sys
from scavenger.sdk.report import scavenger_report
with open("seen.txt", "a") as file:
    file.write(os.environ.get("DATA_VERSION", "none") + " " + os.environ.get("BASE", "") + "\\n")
with scavenger_report(samples_per_epoch=80) as report:
    for step in range(10):
        report.step(loss=1.0)
    open(os.path.join(sys.argv[1], "model.txt"), "w").write("saved")
    report.epoch(val_loss=0.3, saved=True)
"""

SHOWING = """
    open("length.txt", "w").write(str(len(secret)))
    sys.stdout.write("the club says " + secret[:5])
    sys.stdout.flush()
    print(secret[5:] + ", and once more " + secret)
    for step"""
RAISING = "    raise ValueError(secret + ' is wrong')\n"


def _command(make_job: MakeJob, **sections: object) -> Job:
    """A job of a command that says which DATA_VERSION it has seen."""
    given = {
        "search": {"workers": 1, "batch_size": [8]},
        "goal": {"max_epochs": 1},
        "elastic": {"policy": "fixed", "failures": {"give_up": 1}},
        **sections,
    }
    job = make_job(run="python train.py {checkpoint_dir}", **given)
    job.spec.pop("train", None)
    (job.folder / "train.py").write_text(SAVING)
    job.file.write_text(json.dumps(job.spec))
    return job


@pytest.fixture
def servers_end(mark: str) -> Iterator[None]:
    yield
    for process in marked(mark):
        if "scavenger.control.service" in " ".join(process.cmdline()):
            process.terminate()


def _ended(job: Job, count: int) -> bool:
    with Store.open(job.store) as store:
        found = store.submissions()
    return len(found) == count and not any(one.is_open for one in found)


def _seen(job: Job) -> list[str]:
    return (job.folder / "seen.txt").read_text().split()


@pytest.mark.usefixtures("servers_end")
def test_each_submitted_job_has_the_environment_of_its_submitter_or_of_its_file(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server, begun by the first submission, runs both."""
    first = _command(make_job)
    second = _command(make_job, store=first.store, env={"DATA_VERSION": "${BASE}-$$7"})
    for version, job in (("1", first), ("2", second)):
        monkeypatch.setenv("DATA_VERSION", version)
        monkeypatch.setenv("BASE", f"v{version}")
        monkeypatch.setenv("NOT_TO_BE_STORED", "a value of the submitter's own")
        submitted = job.run("optimize", "--detach")
        assert submitted.code == 0, submitted.stderr
    wait_for(lambda: _ended(first, 2))

    assert [_seen(job) for job in (first, second)] == [["1", "v1"], ["v2-$7", "v2"]]
    for path in Path(first.store.removeprefix("sqlite:///")).parent.iterdir():
        assert b"a value of the submitter's own" not in path.read_bytes(), path


@pytest.mark.usefixtures("servers_end")
def test_a_secret_that_a_program_shows_is_found_nowhere(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints it in two halves, saves what it has seen of it, tells it as the reason of its end, and raises it."""
    secret = "Tr0ub4dor&3 for nobody"
    monkeypatch.setenv("OF_THE_CLUB", secret)
    job = _command(make_job, secrets=["OF_THE_CLUB"])
    job.change(goal={"max_epochs": 2}, elastic={"policy": "fixed", "failures": {"give_up": 1}})
    (job.folder / "train.py").write_text(
        SAVING.replace(
            "import os, sys\n", "import os, sys, time\nsecret = os.environ['OF_THE_CLUB']\n"
        ).replace("\n    for step", SHOWING)
        + RAISING
    )
    submitted = job.run("optimize", "--detach")
    assert submitted.code == 0, submitted.stderr
    wait_for(lambda: _ended(job, 1))
    logs = job.ask("logs", "tiny", "-n", "500")
    status = job.ask("status", "tiny")

    assert (job.folder / "length.txt").read_text() == str(len(secret))
    assert "the club says ***, and once more ***" in logs.stdout
    assert "ValueError: *** is wrong" in logs.stdout
    for told in (logs, status, job.ask("jobs", "queue")):
        assert secret not in told.stdout + told.stderr
    store = Path(job.store.removeprefix("sqlite:///")).parent
    for path in [*store.rglob("*"), *job.folder.rglob("*")]:
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_a_keras_module_sees_what_its_file_names_when_it_is_imported(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_VERSION", "2")
    seen = "os.environ['DATA_VERSION'] + ' ' + os.environ['TF_CPP_MIN_LOG_LEVEL']"
    job = make_job(
        env={"DATA_VERSION": "3", "TF_CPP_MIN_LOG_LEVEL": 1},
        goal={"max_epochs": 1},
        code={"in_job": f"open(os.path.join(os.path.dirname(__file__), 'seen.txt'), 'w').write({seen})"},
    )
    outcome = job.run()

    assert outcome.code == 0, outcome.stderr
    assert _seen(job) == ["3", "1"]
