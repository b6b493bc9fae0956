"""What is recorded of a job, also when the store is held by another process for a while."""

from __future__ import annotations

import errno
import sqlite3
import time
from pathlib import Path
from typing import Any, cast

import pytest
from scripted import Heard, Scripted, trainer_of

from scavenger.control.training.limits import CLOSE_S, DRAIN_S
from scavenger.control.training.recorder import Recorder
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import JobSpec
from scavenger.domain.report import (
    Event,
    Noted,
    Observer,
    RunReport,
    SearchOutcome,
    ViewChanged,
    WorkerChanged,
)
from scavenger.errors import TransientError
from scavenger.store import Store
from scavenger.train.supervisor.supervisor import Supervisor

JOB = JobSpec.model_validate({"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}})


class _Held:
    """A store that another process holds."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: Any) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


def report(job_id: str) -> RunReport:
    nothing = SearchOutcome("none", "", (), 0.0, 0.0)
    return RunReport(job_id, "tiny", "succeeded", nothing, None, None, None, None, None, 0, None, None)


def test_what_waits_for_a_held_store_is_written_in_order_and_told_once(tmp_path: Path) -> None:
    path, heard = tmp_path / "s.db", Heard()
    now = [0.0]
    with Store.open(f"sqlite:///{path}?timeout=0.01") as store:
        entry = store.create_job("tiny", spec=JOB.written(), job_file=tmp_path / "job.yaml")
        with Recorder(store, entry, heard, clock=lambda: now[0]) as recorder:
            with _Held(path):
                for number in range(3):
                    recorder.on_event(Noted("info", str(number)))
            now[0] = 1000.0
            recorder.on_event(Noted("info", "3"))

            written = [event.message for event in store.events(recorder.job_id)]
            recorder.finish(report(recorder.job_id))

        assert written == ["0", "1", "2", "3"]
        assert len(recorder.warnings) == 1
        assert [e.message for e in heard.events if isinstance(e, Noted)] == [recorder.warnings[0], *"0123"]
        assert store.job(recorder.job_id).state == "succeeded"


def test_a_held_store_holds_a_running_job_up_for_less_than_its_reserve(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(f"sqlite:///{path}") as store, Recorder.begin(store, JOB, path, Heard()) as recorder:
        began = time.monotonic()
        with _Held(path):
            recorder.on_event(Noted("info", "waits"))
        assert time.monotonic() - began < (DRAIN_S - CLOSE_S) / 2
        recorder.finish(report(recorder.job_id))

        assert [event.message for event in store.events(recorder.job_id)] == ["waits"]


def test_a_display_that_is_gone_ends_no_job_and_loses_no_record(tmp_path: Path) -> None:
    class Gone(Observer):
        """Its terminal was closed."""

        def on_event(self, event: Event) -> None:
            raise OSError(errno.EIO, "Input/output error")

    with (
        Store.open(f"sqlite:///{tmp_path / 's.db'}") as store,
        Recorder.begin(store, JOB, tmp_path / "job.yaml", Gone()) as recorder,
    ):
        for number in range(2):
            recorder.on_event(Noted("info", str(number)))
        recorder.finish(report(recorder.job_id))

        assert [event.message for event in store.events(recorder.job_id)] == ["0", "1"]
        assert store.job(recorder.job_id).state == "succeeded"


def test_leaving_with_an_error_ends_the_entry_with_its_words_and_exit_code(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        with (
            pytest.raises(TransientError),
            Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder,
        ):
            raise TransientError("try again\nlater")

        ended = store.job(recorder.job_id)
        assert (ended.state, ended.exit_code) == ("failed", 3)
        assert ended.error == "TransientError: try again"


def test_every_process_is_recorded_with_its_role_place_view_and_step_and_written_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[set[str]] = []
    scripted = Scripted(epoch_steps=10**6)
    trainer = trainer_of(scripted, tmp_path)
    with (
        Store.open(f"sqlite:///{tmp_path / 's.db'}") as store,
        Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder,
    ):
        written = store.set_processes
        monkeypatch.setattr(
            store, "set_processes", lambda job, states: writes.append(set(states)) or written(job, states)
        )
        recorder.watch(cast(Supervisor, scripted))
        trainer.start(2)
        trainer.move(Configuration("local-1", 2, 32), "test")
        recorder.tick(trainer)
        recorder.tick(trainer)

        everybody = {"coordinator.1", "aggregator", "w0", "w1"}
        assert writes == [everybody]  # in one transaction, and not again
        rows = {row.process: row for row in store.processes(recorder.job_id)}
        assert {name: row.role for name, row in rows.items()} == {
            "coordinator.1": "coordinator",
            "aggregator": "aggregator",
            "w0": "worker",
            "w1": "worker",
        }
        for row in rows.values():
            assert (row.state, row.host, row.view, row.step) == (
                "training",
                "here",
                trainer.view,
                trainer.step,
            )
            assert row.pid is not None
        entry = store.job(recorder.job_id)
        assert (entry.step, entry.cost_usd) == (trainer.step, pytest.approx(trainer.cost_usd))

        trainer.pump()
        recorder.tick(trainer)
        assert len(writes) == 2
        recorder.finish(report(recorder.job_id))
        assert {row.state for row in store.processes(recorder.job_id)} == {"gone"}


def test_what_a_job_costs_is_recorded_before_its_first_step(tmp_path: Path) -> None:
    scripted = Scripted(epoch_steps=10**6)
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    scripted.now_s += 60.0
    with (
        Store.open(f"sqlite:///{tmp_path / 's.db'}") as store,
        Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder,
    ):
        recorder.tick(trainer)
        entry = store.job(recorder.job_id)
        recorder.finish(report(recorder.job_id))

    assert (entry.step, entry.cost_usd) == (None, pytest.approx(trainer.cost_usd))
    assert trainer.cost_usd > 0


def test_events_hold_what_a_program_needs_of_them(tmp_path: Path) -> None:
    with (
        Store.open(f"sqlite:///{tmp_path / 's.db'}") as store,
        Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder,
    ):
        recorder.on_event(ViewChanged(4, Configuration("local-1", 2, 64), 11, 0.004, "asked to add 1 worker"))
        recorder.on_event(WorkerChanged("w1", "lost", "was killed by SIGKILL"))
        recorder.finish(report(recorder.job_id))
        view, worker = store.events(recorder.job_id)

    assert view.data == {
        "view": 4,
        "first_step": 11,
        "workers": 2,
        "global_batch_size": 64,
        "stall_s": 0.004,
        "reason": "asked to add 1 worker",
    }
    assert worker.level == "warning"
    assert worker.data == {"process": "w1", "state": "lost", "detail": "was killed by SIGKILL"}
