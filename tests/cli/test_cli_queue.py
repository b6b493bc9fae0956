"""Submitted jobs, as `jobs queue`, `jobs cancel`, `status` and `resume` show and treat them."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace

import pytest
from cli_fake import Run

from scavenger.domain.submission import NewSubmission, Submission
from scavenger.store import Store
from scavenger.store.owner import this_process

JOB = NewSubmission("digits", {}, "/jobs/job.yaml", this_process().user, socket.gethostname(), os.getuid())


def submitted(store_url: str, **fields: object) -> Submission:
    with Store.open(store_url) as store:
        return store.submit(replace(JOB, **fields))  # type: ignore[arg-type]


def begun(store_url: str, one: Submission) -> None:
    """Its runner has put the job on record, and died."""
    with Store.open(store_url) as store:
        assert store.start_runner(one.id, f"{JOB.host}/4194303/1.00", None)
        store.create_job(one.job.name, spec={}, job_file=one.job.job_file, job_id=one.id)


def test_the_queue_shows_what_waits_and_why_and_that_no_server_is_there(
    scavenger: Run, store_url: str
) -> None:
    first, second = submitted(store_url), submitted(store_url, user="bob", name="other")
    with Store.open(store_url) as store:
        store.explain_waiting({second.id: "1 job at once may run on this machine itself"})
    _, shown, noted = scavenger("jobs", "queue")

    assert first.id[:8] in shown
    assert "bob" in shown
    assert "1 job at once may run" in " ".join(shown.split())
    assert "no server is running: `scavenger serve` starts one" in " ".join(noted.split())
    document = json.loads(scavenger("jobs", "queue", "-o", "json")[1])
    assert [row["name"] for row in document["submissions"]] == ["other", "digits"]
    assert document["servers"] == []


def test_an_empty_queue_says_how_to_submit(scavenger: Run) -> None:
    assert "scavenger optimize JOB.yaml --detach" in scavenger("jobs", "queue")[1]


def test_a_job_that_has_not_begun_is_told_of_by_every_command(scavenger: Run, store_url: str) -> None:
    one = submitted(store_url)
    for command in ("status", "logs", "stop"):
        code, _, error = scavenger(command, one.id[:8])
        assert code == 2
        assert f"job digits ({one.id[:8]}) has not begun: it is queued" in " ".join(error.split())


def test_a_waiting_job_is_withdrawn_and_a_running_one_is_told(scavenger: Run, store_url: str) -> None:
    waiting, running = submitted(store_url), submitted(store_url)
    begun(store_url, running)
    code, shown, _ = scavenger("jobs", "cancel", waiting.id, running.id[:8], "--yes")

    assert code == 0
    assert f"({waiting.id[:8]}) is cancelled" in shown
    assert f"({running.id[:8]}) is being stopped" in shown
    with Store.open(store_url) as store:
        assert store.submission(running.id).cancelling  # type: ignore[union-attr]
    assert "digits" in scavenger("jobs", "queue", "--all")[1]


def test_all_of_ones_own_are_cancelled_and_nobody_elses(scavenger: Run, store_url: str) -> None:
    submitted(store_url)
    others = submitted(store_url, user="somebody else")
    assert scavenger("jobs", "cancel", "--all", "--yes")[0] == 0

    with Store.open(store_url) as store:
        assert [one.id for one in store.submissions(states=("queued",))] == [others.id]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name jobs, or give --all"),
        (("digits", "--all", "--yes"), "name jobs, or give --all"),
        (("unknown", "--yes"), "there is no job 'unknown'"),
    ],
)
def test_a_cancel_that_names_nothing_is_refused(
    scavenger: Run, arguments: tuple[str, ...], words: str
) -> None:
    code, _, error = scavenger("jobs", "cancel", *arguments)

    assert code == 2
    assert words in error


def test_a_job_that_was_not_submitted_is_stopped_and_not_cancelled(scavenger: Run, store_url: str) -> None:
    with Store.open(store_url) as store:
        job = store.create_job("mine", spec={}, job_file="/jobs/mine.yaml")
    code, _, error = scavenger("jobs", "cancel", "mine", "--yes")

    assert code == 2
    assert f"scavenger stop {job.id[:8]}" in error


def test_a_job_whose_runner_is_dead_waits_for_the_next_and_is_not_resumed_beside_it(
    scavenger: Run, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = submitted(store_url)
    with monkeypatch.context() as dead:
        gone = replace(this_process(), pid=4_194_303)
        dead.setattr("scavenger.store.base.this_process", lambda: gone)
        begun(store_url, one)

    assert "waits for its next runner (starting when last seen)" in scavenger("status", one.id)[1]
    code, _, error = scavenger("resume", one.id, "--yes")
    assert code == 3
    assert "is running as a detached job: a server resumes it" in error
    with Store.open(store_url) as store:
        assert not store.job(one.id).ended
