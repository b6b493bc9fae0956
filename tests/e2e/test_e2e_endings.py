"""Whatever goes wrong ends well: the right exit code, one line that says what, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from audits import AUDIT_FILE, verify_audit
from real_jobs import Job, ended, lines, marked, training
from waiting import PATIENCE_S, wait_for

from scavenger.api.logs import log_folder
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.domain.report import ChoiceMade, Event, Noted, Observer, Profiled, WorkerChanged
from scavenger.store import Store
from scavenger.store.schema import VERSION_TABLE
from scavenger.train.checkpoints.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow

MakeJob = Callable[..., Job]
NEVER = {"metric": "val_loss", "target": 0.0001, "max_epochs": 100_000, "epochs_hint": 2}
SHORT, STEPS = 320, 10
"""Samples of a short epoch, and its steps at batch 32."""
SLOW = {"sleep_s": 0.005, "samples": SHORT}
"""A step takes long without much computing, so that what is waited for costs little."""


# ---- limits ------------------------------------------------------------------------------------------------


def test_a_budget_that_is_reached_stops_the_run_below_it_with_the_model_saved(make_job: MakeJob) -> None:
    """A worker second costs a tenth of a cent; the hint is far too low, so the choice looks feasible. The budget is for
    more than the start of a worker takes on a busy machine, and there is one configuration to choose."""
    one = {"workers": 1, "batch_size": [64]}
    outcome = make_job(goal=NEVER, search=one, constraints={"budget": "$0.05"}, code=SLOW).run()
    report = outcome.report

    assert (outcome.code, report["job"]["state"]) == (5, "stopped")
    assert "budget" in outcome.error
    assert 0.01 < report["actual"]["cost_usd"] <= 0.05
    assert Path(report["model_path"]).is_file()
    steps = [line["step"] for line in lines(report["measurements_path"]) if line["kind"] == "step"]
    assert steps == list(range(1, report["steps"] + 1))


def test_a_missed_target_trains_on_when_resume_gives_it_more_epochs(make_job: MakeJob) -> None:
    job = make_job(
        goal={"metric": "val_loss", "target": 1e-6, "max_epochs": 3},
        search={"workers": 1, "batch_size": [64]},
        constraints={"budget": 9},
    )
    missed = job.run()
    key = missed.report["job"]["id"][:8]
    assert (missed.code, missed.report["job"]["state"], missed.report["steps"]) == (
        0,
        "target_missed",
        3 * 25,
    )
    assert any(f"`scavenger resume {key} --max-epochs N`" in line for line in missed.report["warnings"])

    assert "--max-epochs N` trains on" in job.ask("resume", key, "--yes").error
    below = job.ask("resume", key, "--yes", "--max-epochs", "5", "--budget", "0.5")
    assert (below.code, "below the job's own, 9" in below.error) == (2, True)

    elsewhere = job.folder / "another disk"
    longer = job.ask(
        "resume", key, "--yes", "--max-epochs", "5", "--budget", "$10", "--output-dir", str(elsewhere)
    )
    assert (longer.code, longer.report["job"]["state"], longer.report["steps"]) == (
        0,
        "target_missed",
        5 * 25,
    )
    # all that it had written went with it, and what asks for it finds it there
    folder = elsewhere / longer.report["job"]["id"]
    assert (
        Path(longer.report["model_path"]).parent == Path(longer.report["measurements_path"]).parent == folder
    )
    steps = [line["step"] for line in lines(longer.report["measurements_path"]) if line["kind"] == "step"]
    assert steps == list(range(1, 5 * 25 + 1))
    assert not (Path(missed.report["measurements_path"]).parent / "record.json").exists()
    with Store.open(job.store) as store:
        record = store.job(key)
        assert record.checkpoint is not None
        assert Path(record.checkpoint) == folder / "checkpoints"
        assert log_folder(record) == folder / "logs"
    assert (folder / "logs" / "w0.log").is_file()
    assert CheckpointStore(record.checkpoint).latest().manifest.step == 5 * 25  # type: ignore[union-attr]


def test_a_deadline_that_is_reached_stops_the_run_before_it_also_while_a_question_stands(
    make_job: MakeJob, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the search takes, the deadline is a while after the question."""
    monkeypatch.setenv("SCAVENGER_LOCAL_PRICE", "3.6")
    deadline_s, left_s = 3600.0, 20.0
    job = make_job(goal=NEVER, constraints={"deadline": deadline_s}, code=SLOW)
    seen: list[bool] = []
    began, ahead_s = time.monotonic(), 0.0

    def ponder(*_: Any) -> bool:
        """The answer comes long after the deadline."""
        nonlocal ahead_s
        ahead_s = deadline_s - left_s - (time.monotonic() - began)
        assert not psutil.wait_procs([p for p in marked(mark) if _name(p)], timeout=PATIENCE_S)[1]
        seen.append(True)
        return True

    with Store.open(job.store) as store:
        report = _run(job, store, confirm=ponder, clock=lambda: time.monotonic() + ahead_s)

    assert seen == [True]
    assert (report.exit_code, report.job.state) == (5, "stopped")
    assert "deadline" in report.error
    assert report.result.actual is not None
    assert report.result.actual.cost_usd <= deadline_s * 0.001
    assert report.result.model_path is not None
    assert Path(report.result.model_path).is_file()


def test_limits_that_no_configuration_meets_are_told_with_the_nearest_one(make_job: MakeJob) -> None:
    goal = {"metric": "val_loss", "target": 0.0001, "max_epochs": 100_000, "epochs_hint": 5000}
    outcome = make_job(goal=goal, constraints={"deadline": "10m", "budget": "$0.50"}, code=SLOW).run()

    assert outcome.code == 4
    assert "nearest is 1 x local-1, batch 32" in outcome.error
    assert "past the deadline" in outcome.error
    assert "over the budget" in outcome.error
    assert outcome.report["choice"] is None
    assert outcome.report["infeasible"]["nearest"]["workers"] == 1


def test_a_profile_that_takes_too_long_is_cut_short_and_a_no_ends_the_job(make_job: MakeJob) -> None:
    """However long the first configuration takes, it is the only one within the time."""
    max_s, ahead_s = 3600.0, 0.0

    class Late(Observer):
        def on_event(self, event: Event) -> None:
            nonlocal ahead_s
            if isinstance(event, Profiled):
                ahead_s = max_s

    job = make_job(
        goal={**NEVER, "epochs_hint": 500},
        search={"workers": [1, 2], "batch_size": [32, 64]},
        profile={"steps": 12, "max_time": max_s},
        code=SLOW,
    )
    asked: list[Any] = []

    def refuse(*question: Any) -> bool:
        asked.append(question)
        return False

    with Store.open(job.store) as store:
        report = _run(job, store, confirm=refuse, observer=Late(), clock=lambda: time.monotonic() + ahead_s)

        assert len(asked) == 1
        assert (report.exit_code, report.job.state, report.result.model_path) == (0, "planned", None)
        assert 1 <= len(report.search.profiled) < 4
        assert any("profile.max_time" in warning for warning in report.warnings)
        assert store.job(report.job.id).state == "planned"


def test_without_a_terminal_nothing_is_paid_for_unless_agreed_beforehand(make_job: MakeJob) -> None:
    job = make_job()

    outcome = job.run(yes=False)

    assert outcome.code == 2
    assert "--yes" in outcome.error
    assert not (job.folder / ".scavenger").exists()


# ---- the training code -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "sections", "exit_code", "words"),
    [
        pytest.param(
            {"in_sample": "assert self.x is None, 'bad sample of ' + os.environ['SERVICE_API_KEY']"},
            {},
            6,
            ["train.py:15", "bad sample of ***"],
            id="raises",
        ),
        pytest.param(
            {"in_sample": "time.sleep(100 if index % 100 == 37 else 0)"},
            {"limits": {"step": 2}},
            6,
            ["limits.step", "stack", "log"],
            id="hangs",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"rate": 1e30},
            {},
            6,
            ["became", "step", "learning rate"],
            id="nan",
            marks=pytest.mark.long,
        ),
        pytest.param({"inputs": 17}, {}, 6, ["17", "16"], id="shapes"),
        pytest.param(
            {}, {"goal": {"metric": "vall_loss", "max_epochs": 3}}, 2, ["did you mean val_loss"], id="metric"
        ),
        pytest.param(
            {"samples": 50},
            {"search": {"workers": 1, "batch_size": [64, 128]}},
            2,
            ["64", "50 samples"],
            id="batch",
        ),
    ],
)
def test_what_the_training_code_or_job_file_gets_wrong_is_told_in_one_line(
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    code: dict[str, Any],
    sections: dict[str, Any],
    exit_code: int,
    words: list[str],
) -> None:
    secret = "not-for-others"
    monkeypatch.setenv("SERVICE_API_KEY", secret)
    job = make_job(code=code, **sections)
    outcome = job.run()

    assert outcome.code == exit_code
    assert [word for word in words if word not in outcome.error] == []
    assert outcome.report["exit_code"] == exit_code
    assert outcome.report["error"] == outcome.error
    # not in the output, the store, the logs or anywhere else
    assert secret not in outcome.stdout + outcome.stderr
    written = [file for file in job.folder.rglob("*") if file.is_file()]
    assert [file for file in written if secret.encode() in file.read_bytes()] == []


def test_training_code_that_crashes_while_it_is_built_is_started_no_oftener_than_it_may_fail(
    make_job: MakeJob,
) -> None:
    job = make_job(
        code={"in_job": "os.kill(os.getpid(), signal.SIGSEGV)"},
        search={"workers": 2, "batch_size": [32]},
        elastic={"failures": {"give_up": 3}},
    )
    outcome = job.run()
    report = outcome.report

    assert (outcome.code, report["job"]["state"]) == (6, "failed")
    # whose frame it is stands in the log, by faulthandler
    assert re.search(
        r"the training code failed: w\d was killed by SIGSEGV .* at train\.py:\d+, in job; see ",
        outcome.error,
    )
    assert "before it could train" in outcome.error
    assert "samples" not in outcome.stderr
    with Store.open(job.store) as store:
        processes = store.processes(report["job"]["id"])
    assert sorted(p.process for p in processes if p.role == "worker") == ["w0", "w1", "w2"]


def test_a_job_that_is_done_while_it_is_profiled_ends_well_and_teaches(make_job: MakeJob) -> None:
    """Also: batch sizes above the data set are left out, a missed target is told, and how data is read."""
    goal = {"metric": "val_loss", "target": 0.0001, "max_epochs": 5}
    search = {"workers": [1, 2], "batch_size": [32, 6400], "strategy": "full"}
    job = make_job(goal=goal, search=search, profile={"steps": 200, "max_time": "10m"})
    module = job.folder / "train.py"
    held_out = "tf.data.Dataset.from_tensor_slices((x[1600:], y[1600:])).batch(64)"
    code = module.read_text().replace("(x[1600:], y[1600:])", held_out)
    module.write_text("import tensorflow as tf\n" + code)

    outcome = job.run()
    report = outcome.report

    assert (outcome.code, report["job"]["state"]) == (0, "target_missed")
    assert any("are left out: an epoch has 1600 samples" in warning for warning in report["warnings"])
    assert any(
        "KerasJob.validation: the data set is taken without its final .batch(64)" in warning
        for warning in report["warnings"]
    )
    assert any("too small to gain by one" in warning for warning in report["warnings"])
    assert report["choice"] is not None  # for another run of it
    assert Path(report["model_path"]).is_file()
    assert report["steps"] == 5 * 50
    with Store.open(job.store) as store:
        assert len(store.models()) == 1


# ---- processes ---------------------------------------------------------------------------------------------


class _Killer(Observer):
    """Kills a worker of the job at two moments: in the profile and in the run, which hastens to its end then."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store, self._job = store, job
        self.killed: list[str] = []
        self.notes: list[str] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, Noted):
            self.notes.append(event.message)
        if isinstance(event, Profiled) and event.index == 1:
            self._kill("profile")
        if isinstance(event, ChoiceMade):
            self._kill("run")
        if isinstance(event, WorkerChanged) and event.state == "ready" and len(self.killed) == 2:
            (self._job.folder / "haste").touch()

    def _kill(self, when: str) -> None:
        for process in psutil.Process().children(recursive=True):
            if _name(process).startswith("w"):
                process.kill()
                self.killed.append(when)
                return


def test_a_worker_killed_in_the_profile_and_one_in_the_run_are_replaced_and_no_step_is_lost(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(
        goal={"metric": "val_loss", "target": 0.0001, "max_epochs": 20, "epochs_hint": 10},
        search={"workers": [2], "batch_size": [32, 64]},
        code={"in_sample": "os.path.exists(HASTE) or time.sleep(0.02)", "samples": SHORT},
    )
    module = job.folder / "train.py"
    module.write_text(f"HASTE = {str(job.folder / 'haste')!r}\n{module.read_text()}")
    with Store.open(job.store) as store:
        killer = _Killer(store, job)
        report = _run(job, store, observer=killer)

        assert killer.killed == ["profile", "run"]
        assert (report.exit_code, report.job.state) == (0, "target_missed")
        assert sum("SIGKILL" in warning and "replaced" in warning for warning in report.warnings) == 2
        steps = [line for line in lines(report.measurements_path or "") if line["kind"] == "step"]
        assert [line["step"] for line in steps] == list(range(1, report.result.steps + 1))
        assert sum(line["samples"] for line in steps) == 20 * SHORT
        lost = [
            e for e in store.events(report.job.id, limit=500) if e.kind == "worker" and "lost" in e.message
        ]
        assert len(lost) == 2
    assert report.result.metric is not None
    losses = [
        line["metrics"]["val_loss"] for line in lines(report.measurements_path or "") if "metrics" in line
    ]
    assert report.result.metric.value == min(losses)


@pytest.mark.long
def test_a_killed_aggregator_and_a_killed_coordinator_are_replaced_and_no_step_is_lost(
    make_job: MakeJob,
) -> None:
    goal = {"metric": "val_loss", "target": 0.0001, "max_epochs": 16, "epochs_hint": 10}
    job = make_job(goal=goal, elastic={"aggregators": 2}, code={**SLOW, "sleep_s": 0.0025})
    process = job.start("optimize", "--audit")
    for role in ("aggregator", "coordinator"):
        pids = wait_for(training(job, role=role), process)
        os.kill(pids[-1], signal.SIGKILL)
    outcome = ended(process)
    report = outcome.report

    assert (outcome.code, report["job"]["state"]) == (0, "target_missed")
    assert report["steps"] == 16 * STEPS
    assert report["actual"]["epochs"] == 16
    with Store.open(job.store) as store:
        told = [event.message for event in store.events(report["job"]["id"], limit=500)]
    assert sum("recovered" in message and "SIGKILL" in message for message in told) == 2
    assert verify_audit(Path(report["measurements_path"]).with_name(AUDIT_FILE), SHORT) == []


def test_one_ctrl_c_ends_the_job_in_order_with_its_model_and_a_second_run_meanwhile_is_refused(
    make_job: MakeJob,
) -> None:
    job = make_job(goal=NEVER, code=SLOW)
    process = job.start()
    wait_for(training(job, phase="running"), process)

    second = job.run()
    assert second.code == 3
    assert str(process.pid) in second.error

    process.send_signal(signal.SIGINT)
    outcome = ended(process)

    assert outcome.code == 130
    assert re.search("stopping in order; [345] processes of this job are still running", outcome.stderr)
    assert outcome.report["job"]["state"] == "interrupted"
    assert Path(outcome.report["model_path"]).is_file()
    steps = [line["step"] for line in lines(outcome.report["measurements_path"]) if line["kind"] == "step"]
    assert steps == list(range(1, outcome.report["steps"] + 1))


def test_a_second_ctrl_c_leaves_at_once(make_job: MakeJob, mark: str) -> None:
    job = make_job(goal=NEVER, limits={"start": 60, "step": 60}, code={"sleep_s": 0.2})
    process = job.start()
    wait_for(lambda: [p for p in marked(mark) if _name(p).startswith("coordinator")], process)

    process.send_signal(signal.SIGSTOP)  # so that both come before the first is done
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: _said(process, "stopping in order"))
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=10) == 130
    with Store.open(job.store) as store:
        (entry,) = store.jobs()
        assert (entry.state, entry.exit_code) == ("interrupted", 130)


def test_a_killed_command_leaves_nothing_and_the_next_marks_its_job_failed(
    make_job: MakeJob, mark: str
) -> None:
    job = make_job(goal=NEVER, code=SLOW)
    process = job.start()
    wait_for(training(job), process)

    process.kill()
    process.wait()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])
    job.change(goal={"metric": "val_other_loss", "max_epochs": 2}).run("plan")

    with Store.open(job.store) as store:
        _, dead = store.jobs()
        assert dead.state == "failed"
        assert str(process.pid) in dead.error


@pytest.mark.long
def test_two_jobs_at_once_both_finish(make_job: MakeJob) -> None:
    one = make_job(code={"sleep_s": 0.00005})
    two = make_job(store=one.store, name="two", code={"sleep_s": 0.00005})

    outcomes = [ended(process) for process in [one.start(), two.start()]]

    assert [(o.code, o.report["job"]["state"]) for o in outcomes] == [(0, "succeeded")] * 2


# ---- the store ---------------------------------------------------------------------------------------------


def test_a_store_that_another_process_holds_a_newer_one_and_a_read_only_one_are_told_apart(
    make_job: MakeJob,
) -> None:
    job = make_job()
    path = Path(job.store.removeprefix("sqlite:///"))
    Store.open(job.store).close()

    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    busy = Job(job.folder, f"{job.store}?timeout=0.2", job.mark, job.spec).run()
    holder.execute("ROLLBACK")
    holder.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    holder.close()
    newer = job.run()

    assert (busy.code, "held by another process" in busy.error) == (3, True)
    assert (newer.code, "newer" in newer.error) == (9, True)
    if os.geteuid() != 0:  # nothing is read-only to root
        path.chmod(0o400)
        assert job.run().code == 9


@pytest.mark.long
def test_a_store_that_is_held_during_the_run_is_waited_for_while_training_goes_on(make_job: MakeJob) -> None:
    job = make_job(goal={"max_epochs": 12}, code=SLOW)
    job.store = f"{job.store}?timeout=0.2"
    process = job.start()
    wait_for(training(job), process)

    holder = sqlite3.connect(job.store.removeprefix("sqlite:///").partition("?")[0], isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    (journal,) = job.folder.glob(".scavenger/*/measurements.jsonl")
    before = _steps_in(journal)
    wait_for(lambda: _steps_in(journal) >= before + 2 * STEPS, process)
    holder.execute("ROLLBACK")
    holder.close()
    outcome = ended(process)

    assert (outcome.code, outcome.report["job"]["state"]) == (0, "succeeded")
    with Store.open(job.store) as store:
        stored = store.job("tiny")
        assert (stored.state, stored.report) == ("succeeded", outcome.report)
        assert len(store.measurements(stored.id)) == len(outcome.report["search"]["profiled"])


# ---- helpers -----------------------------------------------------------------------------------------------


def _run(
    job: Job,
    store: Store,
    *,
    confirm: Any = None,
    observer: Observer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    run = JobRun(
        prepare_job(load_job(job.file), job.file),
        store=store,
        observer=observer or Observer(),
        run=True,
        confirm=confirm,
        clock=clock,
    )
    return run.run()


def _steps_in(journal: Path) -> int:
    return sum(1 for line in journal.read_text().splitlines() if '"kind":"step"' in line)


def _name(process: psutil.Process) -> str:
    try:
        return process.environ().get("SCAVENGER_PROCESS", "").rpartition(".")[2]
    except psutil.Error:
        return ""


def _said(process: subprocess.Popen[str], words: str) -> bool:
    """Whether a line with these words comes on standard error, which is read until then, or to its end."""
    assert process.stderr is not None
    return (
        any(words in line for line in iter(process.stderr.readline, "") if line)
        if process.poll() is None
        else True
    )
