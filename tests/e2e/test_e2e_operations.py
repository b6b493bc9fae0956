"""A running job is steered from other processes; a killed one goes on from its last checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audits import AUDIT_FILE, verify_audit
from real_jobs import Job, ended, lines, marked, opened, training
from waiting import wait_for

from scavenger import RunningJob
from scavenger.domain.progress import PROGRESS
from scavenger.errors import TransientError
from scavenger.store import Store
from scavenger.store.record_file import read_record

pytestmark = pytest.mark.slow

MakeJob = Callable[..., Job]
SAMPLES, STEPS = 320, 10
"""Of an epoch at batch 32."""
SLOW = {"sleep_s": 0.005, "samples": SAMPLES}
"""A step takes long without much computing, so that what is waited for costs little."""


def test_a_job_is_scaled_migrated_watched_and_stopped_from_other_processes(make_job: MakeJob) -> None:
    job = make_job(
        goal={"metric": "val_loss", "target": 0.0001, "max_epochs": 100_000, "epochs_hint": 2},
        elastic={"min": 1, "max": 3, "aggregators": 2},
        code=SLOW,
    )
    driver = job.start("optimize", "--audit")
    try:
        wait_for(training(job, phase="running"), driver)

        scaling = job.begin("scale", "tiny", "--workers", "2")
        wait_for(lambda: _open_operation(job) == "running", scaling)
        # a command would take longer to begin than the first operation takes
        with pytest.raises(TransientError, match="try again"):
            RunningJob("tiny", job.store).scale_out(1)
        _done(ended(scaling), "now at 2 x local-1, batch 32")
        _done(job.ask("scale", "tiny", "--add", "1"), "now at 3 x local-1, batch 32")

        wait_for(lambda: _workers_told(job) == 3, driver)
        status = job.ask("status", "tiny").report
        assert status["progress"]["configuration"]["workers"] == 3
        alive = {p["process"]: p for p in status["processes"] if p["state"] == "training"}
        roles = sorted(process["role"] for process in alive.values())
        assert roles == ["aggregator"] * 2 + ["coordinator"] + ["worker"] * 3
        for process in alive.values():
            assert process["pid"]
            assert process["host"]
            assert process["view"] >= 3
            assert process["step"] >= 1

        _done(job.ask("scale", "tiny", "--remove", "w1"), "now at 2 x local-1, batch 32")
        _done(job.ask("migrate", "tiny", "--worker", "w0"), "now at 2 x local-1, batch 32")
        assert _training_workers(job) == {"w2", "w3"}
        unknown = job.ask("migrate", "tiny", "--worker", "w9")
        assert unknown.code == 2
        assert "no worker w9; it has w2, w3" in unknown.error
        told = job.ask("logs", "tiny", "-n", "200")
        assert "w3" in told.stdout
        assert "asked to migrate w0" in told.stdout

        stopped = job.ask("stop", "tiny")
        outcome = ended(driver)
    finally:
        driver.kill()

    report = outcome.report
    assert (stopped.code, outcome.code, report["job"]["state"]) == (0, 130, "interrupted")
    assert Path(report["model_path"]).is_file()
    steps = [line["step"] for line in lines(report["measurements_path"]) if line["kind"] == "step"]
    assert steps == list(range(1, report["steps"] + 1))
    assert verify_audit(Path(report["measurements_path"]).with_name(AUDIT_FILE), SAMPLES) == []


def test_a_killed_command_is_resumed_from_its_last_checkpoint_with_each_sample_once(
    make_job: MakeJob, mark: str
) -> None:
    epochs = 10
    job = make_job(
        goal={"metric": "val_loss", "target": 0.0001, "max_epochs": epochs, "epochs_hint": 10},
        checkpoint={"path": "./saved", "every_steps": 7},
        code=SLOW,
    )
    driver = job.start("optimize", "--audit")
    wait_for(lambda: _progress(job) >= 4 * STEPS and _job(job).checkpoint is not None, driver)
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])
    before = _job(job)

    outcome = job.ask("resume", "tiny", "--yes", "--audit")
    report = outcome.report

    assert (outcome.code, report["job"]["id"]) == (0, before.id)
    assert (report["job"]["state"], report["steps"]) == ("target_missed", epochs * STEPS)
    assert report["actual"]["epochs"] == pytest.approx(epochs)
    assert report["actual"]["cost_usd"] > before.cost_usd
    journal = list(lines(report["measurements_path"]))
    (resumed,) = [line["step"] for line in journal if line["kind"] == "resumed"]
    assert 0 < resumed <= (before.step or 0) + STEPS
    assert resumed % 7 == 0
    begin = [line["kind"] for line in journal].index("resumed")
    steps = [line["step"] for line in journal[begin:] if line["kind"] == "step"]
    assert steps == list(range(resumed + 1, epochs * STEPS + 1))
    ends = [line["at_s"] for line in journal if "at_s" in line]
    assert ends == sorted(ends)
    assert report["actual"]["time_s"] >= ends[-1]
    best = min(line["metrics"]["val_loss"] for line in journal if line["kind"] == "epoch")
    assert report["metric"]["value"] == pytest.approx(best)
    assert verify_audit(Path(report["measurements_path"]).with_name(AUDIT_FILE), SAMPLES) == []
    stored = _job(job)
    assert (stored.state, stored.attempts, stored.report) == ("target_missed", 2, report)
    again = job.ask("resume", "tiny", "--yes")
    assert again.code == 2
    assert "cannot be resumed" in again.error


def test_a_job_whose_store_is_lost_is_recovered_from_its_folder_and_resumed(
    make_job: MakeJob, mark: str
) -> None:
    epochs = 3
    job = _with_checkpoints(make_job, epochs)
    driver = job.start("optimize", "--audit")
    (copy,) = wait_for(lambda: list(job.folder.glob(".scavenger/*/record.json")), driver)
    wait_for(lambda: json.loads(copy.read_text())["job"]["checkpoint"], driver)
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])

    _lose(job.store)
    (row,) = job.ask("store", "recover", str(copy.parent)).report["jobs"]
    assert row["recovered"]
    before = job.ask("status", "tiny").report["job"]
    assert (before["alive"], before["ended_at"]) == (False, None)
    assert before["step"] > 0

    report = job.ask("resume", "tiny", "--yes", "--audit").report
    assert report["steps"] == epochs * STEPS
    assert Path(report["model_path"]).is_file()
    assert verify_audit(Path(report["measurements_path"]).with_name(AUDIT_FILE), SAMPLES) == []

    stored = _job(job)
    _lose(job.store)
    with Store.open(job.store) as store:
        store.recover_job(read_record(copy.parent))
    assert (_job(job).report, _job(job).attempts, _job(job).state) == (report, 2, stored.state)


@pytest.mark.long
def test_a_job_of_which_only_its_code_and_checkpoints_are_left_is_resumed(
    make_job: MakeJob, mark: str
) -> None:
    epochs = 3
    job = _with_checkpoints(make_job, epochs)
    driver = job.start("optimize")
    (kept,) = wait_for(
        lambda: {path.parents[1] for path in job.folder.glob("saved/*/*/manifest.json")}, driver
    )
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])

    _lose(job.store)
    shutil.rmtree(job.folder / ".scavenger")
    (row,) = job.ask("store", "recover", str(kept), "--job", str(job.folder / "job.yaml")).report["jobs"]
    assert (row["id"], row["recovered"]) == (kept.name, True)

    report = job.ask("resume", "tiny", "--yes").report
    assert report["steps"] == epochs * STEPS
    assert Path(report["model_path"]).is_file()


# ---- helpers -----------------------------------------------------------------------------------------------


def _lose(store: str) -> None:
    for file in Path(store.removeprefix("sqlite:///")).parent.glob("*.db*"):
        file.unlink()


def _job(job: Job) -> Any:
    return opened(job).job("tiny")


def _with_checkpoints(make_job: MakeJob, epochs: int) -> Job:
    """A job of one configuration that trains for seconds."""
    return make_job(
        goal={"max_epochs": epochs},
        search={"workers": 1, "batch_size": [32]},
        checkpoint={"path": "./saved", "every_steps": 4},
        code=SLOW,
    )


def _progress(job: Job) -> int:
    """The last step that the store has heard of; 0 before the job is there."""
    jobs = opened(job).jobs()
    return (jobs[0].step or 0) if jobs else 0


def _workers_told(job: Job) -> int:
    """The workers that `status` says the job has; 0 before the job has told of its progress."""
    told = opened(job).events(_job(job).id, limit=1, kind=PROGRESS)
    return told[0].data["configuration"]["workers"] if told else 0


def _open_operation(job: Job) -> str:
    record = opened(job).open_operation(_job(job).id)
    return "" if record is None else record.state


def _training_workers(job: Job) -> set[str]:
    processes = job.ask("status", "tiny").report["processes"]
    return {p["process"] for p in processes if p["role"] == "worker" and p["state"] == "training"}


def _done(outcome: Any, message: str) -> None:
    assert outcome.code == 0, outcome.stderr
    operation = outcome.report["operation"]
    assert (operation["state"], operation["message"].partition("; elastic.policy: model may")[0]) == (
        "done",
        message,
    )
