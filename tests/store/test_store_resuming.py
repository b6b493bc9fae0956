"""Laws of resuming a job, and of what is known of its processes and events."""

from __future__ import annotations

import math
import os
import sqlite3
from contextlib import closing

import pytest
from store_values import ANOTHER_MACHINE, FINGERPRINT, Clock

from scavenger.domain.configuration import Configuration
from scavenger.domain.operation import ScaleTo
from scavenger.errors import ConfigurationError, StoreError, TransientError
from scavenger.store import Store
from scavenger.store.records import JobRecord


def ended_job(store: Store, state: str = "failed", checkpoint: str | None = "/ckpt") -> JobRecord:
    job = store.create_job("digits", spec={"version": 1}, job_file="/j/job.yaml")
    store.update_job(job.id, state="running", chosen=Configuration("e2", 2, 64), fingerprint=FINGERPRINT)
    store.update_job(job.id, step=90, cost_usd=0.25)
    if checkpoint:
        store.update_job(job.id, checkpoint=checkpoint)
    return store.finish_job(job.id, state=state, report={"steps": 90}, error="w1 raised", exit_code=6)  # type: ignore[arg-type]


class TestResuming:
    @pytest.mark.parametrize("state", ["failed", "stopped", "interrupted"])
    def test_a_job_that_ended_early_lives_again_and_keeps_what_it_knew(
        self, store: Store, state: str
    ) -> None:
        ended = ended_job(store, state)
        store.check_resumable(ended)
        resumed = store.resume_job(ended.id)

        assert (resumed.state, resumed.owner, resumed.attempts) == ("starting", store.me(), 2)
        assert (resumed.error, resumed.exit_code, resumed.report, resumed.ended_at) == ("", None, None, None)
        assert (resumed.checkpoint, resumed.step, resumed.cost_usd) == ("/ckpt", 90, 0.25)
        assert (resumed.chosen, resumed.fingerprint) == (ended.chosen, FINGERPRINT)
        assert (resumed.created_at, resumed.started_at) == (ended.created_at, ended.started_at)
        assert store.is_alive(resumed)

        store.update_job(resumed.id, state="running")
        assert store.submit_operation(resumed.id, ScaleTo(1), "ann").state == "pending"
        store.finish_job(resumed.id, state="failed", report=None, error="again", exit_code=6)
        assert store.resume_job(resumed.id).attempts == 3

    @pytest.mark.parametrize(
        ("state", "words"),
        [
            ("succeeded", "nothing is left to do"),
            ("planned", "it is a plan"),
            ("target_missed", "goal.max_epochs; `scavenger resume"),
        ],
    )
    def test_a_job_with_nothing_to_go_on_with_is_refused(self, store: Store, state: str, words: str) -> None:
        ended = ended_job(store, state)

        with pytest.raises(ConfigurationError, match=words):
            store.resume_job(ended.id)
        assert store.job(ended.id) == ended

    def test_a_missed_target_goes_on_with_more_epochs_which_are_recorded(self, store: Store) -> None:
        ended = ended_job(store, "target_missed")

        with pytest.raises(ConfigurationError, match="trained all"):
            store.check_resumable(ended, spec={"version": 1, "goal": {"max_epochs": 0}})
        resumed = store.resume_job(
            ended.id, spec={"version": 1, "goal": {"max_epochs": 9}}, checkpoint="/other/ckpt"
        )
        assert (resumed.state, resumed.spec["goal"]) == ("starting", {"max_epochs": 9})
        assert resumed.checkpoint == "/other/ckpt"

    def test_a_job_without_a_checkpoint_is_refused(self, store: Store) -> None:
        ended = ended_job(store, checkpoint=None)

        with pytest.raises(ConfigurationError, match="before its first checkpoint; `scavenger optimize"):
            store.resume_job(ended.id)

    def test_a_job_that_runs_is_resumed_once_it_has_ended(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")

        with pytest.raises(TransientError, match=f"it runs, driven by process {os.getpid()}"):
            store.resume_job(job.id)

    def test_a_job_whose_process_died_is_resumed_without_reaping_it_first(self, sqlite_url: str) -> None:
        clock = Clock()
        with Store.open(sqlite_url, clock=clock) as store:
            job = store.create_job("digits", spec={}, job_file="job.yaml")
            store.update_job(job.id, checkpoint="/ckpt")
            asked = store.submit_operation(job.id, ScaleTo(2), "ann")
            store.set_process(job.id, "w0", role="worker", state="training", pid=77, step=4)
            assert store.path is not None
            with closing(sqlite3.connect(store.path)) as connection, connection:
                connection.execute("UPDATE jobs SET owner_pid = 2147483647")
            assert store.resume_job(job.id).attempts == 2
            assert store.operation(asked.id).state == "refused"
            assert store.processes(job.id) == ()

    def test_a_job_that_is_silent_elsewhere_may_still_run_there(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two who drive one job would both spend its money."""
        with monkeypatch.context() as there:
            there.setattr(store, "me", lambda: ANOTHER_MACHINE)
            job = store.create_job("digits", spec={}, job_file="job.yaml")
        store.update_job(job.id, checkpoint="/ckpt")
        monkeypatch.setattr(store, "is_alive", lambda _: False)

        with pytest.raises(ConfigurationError, match="driven from node-7, which has been silent"):
            store.resume_job(job.id)


class TestPaused:
    def test_a_paused_job_lives_and_goes_on(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        store.update_job(job.id, state="paused", detail="waiting for 2 workers")

        assert store.is_alive(store.job(job.id))
        assert [each.id for each in store.running_jobs()] == [job.id]
        store.update_job(job.id, state="running")
        with pytest.raises(StoreError, match="state of a live job"):
            store.finish_job(job.id, state="paused", report=None, exit_code=0)


class TestProcesses:
    def test_a_process_keeps_what_is_not_told_anew(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        store.set_process(job.id, "w0", role="worker", state="starting", pid=77, host="node-1")
        store.set_process(job.id, "w0", role="worker", state="training", step=5, view=2)
        store.set_process(job.id, "w0", role="worker", state="lost", detail="was killed by SIGKILL")
        store.set_process(job.id, "w0", role="worker", state="lost")
        (lost,) = store.processes(job.id)

        assert (lost.pid, lost.host, lost.step, lost.view) == (77, "node-1", 5, 2)
        assert (lost.state, lost.detail) == ("lost", "was killed by SIGKILL")

    def test_a_detail_goes_with_the_state_that_it_explained(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        store.set_process(job.id, "w0", role="worker", state="starting", detail="importing")
        store.set_process(job.id, "w0", role="worker", state="ready")

        assert store.processes(job.id)[0].detail == ""

    def test_several_are_written_all_or_none(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        good = {"role": "worker", "state": "ready", "pid": 5}
        store.set_processes(job.id, {"w0": good, "w1": good})  # type: ignore[dict-item]
        with pytest.raises(StoreError):
            store.set_processes(
                job.id,
                {"w0": {**good, "step": 3}, "w2": {**good, "pid": -1}},  # type: ignore[dict-item]
            )

        assert [(each.process, each.step) for each in store.processes(job.id)] == [("w0", None), ("w1", None)]

    def test_all_are_gone_when_the_job_has_ended_but_the_lost_stay_lost(self, store: Store) -> None:
        job = store.create_job("digits", spec={}, job_file="job.yaml")
        store.set_process(job.id, "w0", role="worker", state="training", pid=5)
        store.set_process(job.id, "w1", role="worker", state="lost", detail="no word for 10 s")
        store.finish_job(job.id, state="succeeded", report=None, exit_code=0)

        assert [(each.state, each.detail) for each in store.processes(job.id)] == [
            ("gone", ""),
            ("lost", "no word for 10 s"),
        ]


def test_what_a_program_needs_of_an_event_is_read_as_written(store: Store) -> None:
    job = store.create_job("digits", spec={}, job_file="job.yaml")
    store.add_event(job.id, "view", "view 2", data={"stall_s": 0.004, "workers": ["w0"], "odd": math.nan})
    store.add_event(job.id, "note", "nothing more")

    assert [event.data for event in store.events(job.id)] == [
        {"stall_s": 0.004, "workers": ["w0"], "odd": None},
        {},
    ]
