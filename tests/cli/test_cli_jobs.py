"""The list of jobs, what `status` tells of their progress, and `jobs rm`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fake import Run

from scavenger.control.search.outcome import NOTHING_SEARCHED
from scavenger.domain.configuration import Configuration
from scavenger.domain.document import report_document
from scavenger.domain.progress import PROGRESS, Moved, Progress
from scavenger.domain.report import JobState, ReportedJob, RunReport, TrainingResult
from scavenger.frames import Frame
from scavenger.store import Store

NOW = Progress(
    1234,
    2,
    Configuration("local-1", 3, 96),
    0.51234,
    "val_accuracy",
    0.91,
    0.97,
    (19.0, 40.0),
    130.0,
    (60.0, 300.0),
    Moved(Configuration("local-1", 3, 96), 1100, "asked to scale"),
)


def make_job(store_url: str, name: str, *, state: JobState | None = None) -> str:
    """A job of this process that has moved since its choice; it runs if no final state is given."""
    with Store.open(store_url) as store:
        job = store.create_job(name, spec={}, job_file="/jobs/job.yaml")
        store.update_job(job.id, state="running", chosen=Configuration("local-1", 2, 64))
        store.add_event(job.id, PROGRESS, str(NOW), data=NOW.data(), replacing=True)
        if state is not None:
            store.finish_job(job.id, state=state, report=None, exit_code=0)
    return job.id


def rows(text: str) -> dict[str, str]:
    """The facts of a job by their names, which are in the first twelve columns."""
    return {line[:12].strip(): line[12:].strip() for line in text.splitlines()}


def test_status_shows_how_far_a_job_is_and_on_what_it_trains_now(scavenger: Run, store_url: str) -> None:
    job_id = make_job(store_url, "digits")
    shown = rows(scavenger("status", job_id)[1])

    assert shown["chosen"] == "2 x local-1, batch 64"
    assert shown["moved"] == "to 3 x local-1, batch 96 at step 1,100: asked to scale"
    assert shown["trains on"] == "3 x local-1, batch 96"
    assert shown["epoch"] == "3 of 19 to 40 (90 %)"
    assert shown["loss"] == "0.512"
    assert shown["metric"] == "val_accuracy 0.91 (target 0.97)"
    assert shown["left"] == "2 min 10 s (90 %: 1 min to 5 min)"
    assert "3 x batch 96" in scavenger("status")[1]
    assert json.loads(scavenger("status", job_id, "-o", "json")[1])["progress"]["step"] == 1234


def test_status_of_a_job_whose_code_failed_shows_where(
    scavenger: Run, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = (
        Frame(str(tmp_path / "proj" / "train.py"), 12, "call", "\x1b[2Jx = 1"),
        Frame(folded=1, of="keras"),
    )
    failed = RunReport(
        ReportedJob("", "digits", "failed"), NOTHING_SEARCHED, result=TrainingResult(traceback=frames)
    )
    with Store.open(store_url) as store:
        job = store.create_job("digits", spec={}, job_file="/jobs/job.yaml")
        store.finish_job(job.id, state="failed", report=report_document(failed), exit_code=6)
    shown = scavenger("status", "digits")[1]

    assert (
        'your code failed here:\n  File "proj/train.py", line 12, in call\n    x = 1\n  ... 1 frame of keras\n'
        in shown
    )


def test_status_of_a_job_that_has_ended_keeps_all_but_what_is_to_come(scavenger: Run, store_url: str) -> None:
    make_job(store_url, "digits", state="succeeded")
    shown = rows(scavenger("status", "digits")[1])

    assert shown["trained on"] == "3 x local-1, batch 96"
    assert (shown["epoch"], shown["loss"]) == ("3", "0.512")
    assert "left" not in shown


def test_hosts_are_those_of_live_workers_with_how_many_each_has(scavenger: Run, store_url: str) -> None:
    job_id = make_job(store_url, "digits")
    assert scavenger("hosts", "digits") == (0, "", "")
    with Store.open(store_url) as store:
        store.set_process(job_id, "aggregator-0", role="aggregator", state="training", host="10.0.0.9")
        for name, state, host in (
            ("w1", "training", "10.0.0.2"),
            ("w2", "training", "10.0.0.1"),
            ("w3", "ready", "10.0.0.2"),
            ("w4", "lost", "10.0.0.3"),
            ("w5", "starting", None),
            ("w6", "leaving", "10.0.0.4"),
        ):
            store.set_process(job_id, name, role="worker", state=state, host=host)

    assert scavenger("hosts", "digits") == (0, "10.0.0.1:1\n10.0.0.2:2\n", "")
    assert json.loads(scavenger("hosts", job_id, "-o", "json")[1])["hosts"] == [
        {"host": "10.0.0.1", "slots": 1},
        {"host": "10.0.0.2", "slots": 2},
    ]


def test_a_job_that_has_ended_has_no_hosts(scavenger: Run, store_url: str) -> None:
    job_id = make_job(store_url, "digits")
    with Store.open(store_url) as store:
        store.set_process(job_id, "w1", role="worker", state="training", host="10.0.0.2")
        store.finish_job(job_id, state="succeeded", report=None, exit_code=0)

    assert scavenger("hosts", job_id) == (0, "", "")
    assert scavenger("hosts", "absent")[0] == 2


def test_the_log_of_events_shows_the_progress(scavenger: Run, store_url: str) -> None:
    make_job(store_url, "digits", state="succeeded")

    out = scavenger("logs", "digits", "--events", "-f")[1]
    assert "progress: epoch 3, step 1234, 3 x local-1, batch 96, loss 0.512, val_accuracy 0.91" in out


def test_the_list_of_jobs_can_be_filtered(scavenger: Run, store_url: str) -> None:
    make_job(store_url, "digits", state="succeeded")
    make_job(store_url, "digits_2", state="failed")
    make_job(store_url, "text", state="failed")

    def names(*options: str) -> list[str]:
        document = json.loads(scavenger("status", *options, "-o", "json")[1])
        return sorted(job["name"] for job in document["jobs"])

    assert names("--state", "failed") == ["digits_2", "text"]
    assert names("--state", "failed", "--state", "succeeded") == ["digits", "digits_2", "text"]
    assert names("--name", "digits*") == ["digits", "digits_2"]
    assert names("--name", "digits") == ["digits"]
    assert names("--name", "digits_?", "--state", "failed") == []
    assert names("--name", "d_*") == [], "only * is special"
    assert "No such job" in scavenger("status", "--name", "absent")[1]
    code, _, err = scavenger("status", "digits", "--state", "failed")
    assert (code, "leave out the job" in err) == (2, True)


@pytest.mark.slow
def test_jobs_are_deleted_after_a_yes_and_only_named_by_a_dry_run(scavenger: Run, store_url: str) -> None:
    kept, gone = (make_job(store_url, name, state="succeeded") for name in ("digits", "text"))

    code, out, _ = scavenger("jobs", "rm", "text", "--dry-run")
    assert (code, "would delete job text" in out) == (0, True)
    code, _, err = scavenger("jobs", "rm", "text")
    assert (code, "use --yes" in err) == (2, True)
    with Store.open(store_url) as store:
        assert len(store.jobs()) == 2

    code, out, _ = scavenger("jobs", "rm", "text", gone, "--yes")
    assert code == 0
    assert f"/jobs/.scavenger/{gone}" in out.splitlines()[1]
    with Store.open(store_url) as store:
        assert [job.id for job in store.jobs()] == [kept]
        assert store.events(gone) == ()


def test_a_running_job_is_not_deleted_nor_another_with_it(scavenger: Run, store_url: str) -> None:
    running, ended = make_job(store_url, "digits"), make_job(store_url, "text", state="failed")

    for options in (("--yes",), ("--dry-run",)):
        code, _, err = scavenger("jobs", "rm", ended, running, *options)
        assert (code, f"scavenger stop {running[:8]}" in err) == (3, True)
    with Store.open(store_url) as store:
        assert len(store.jobs()) == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_unknown_job_is_not_deleted(scavenger: Run, store_url: str, form: str) -> None:
    make_job(store_url, "digits", state="failed")

    assert scavenger("jobs", "rm", "digit", "--yes", "-o", form)[0] == 2


def test_what_tensorflow_always_writes_at_its_start_is_not_shown(
    scavenger: Run, store_url: str, tmp_path: Path
) -> None:
    with Store.open(store_url) as store:
        job = store.create_job("digits", spec={"output": "out"}, job_file=tmp_path / "job.yaml")
    folder = tmp_path / "out" / job.id / "logs"
    folder.mkdir(parents=True)
    (folder / "w0.log").write_text(
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I0000 00:00:1 2 port.cc:153] oneDNN custom operations are on. You may see slightly different\n"
        "mine\n"
    )

    assert scavenger("logs", "digits", "-n", 2)[1] == "w0 | mine\n"
