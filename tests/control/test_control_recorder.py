"""What is recorded of a job, also when the store is held by another process for a while."""

from __future__ import annotations

import errno
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from scripted import Heard, Scripted, trainer_of
from waiting import wait_for

from scavenger.control.training.recorder import CONTENDED_S, Recorder
from scavenger.control.training.writes import EVENTS_WAITING_MAX
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import EpochRecord, StepRecord
from scavenger.domain.progress import PROGRESS, Progress
from scavenger.domain.report import (
    EpochEnded,
    EpochsForecast,
    Event,
    Forecasted,
    Noted,
    Observer,
    Predicted,
    ReportedJob,
    RunReport,
    SearchOutcome,
    StepDone,
    ViewChanged,
    WorkerChanged,
)
from scavenger.errors import StoreUnavailableError, TransientError
from scavenger.store import Store
from scavenger.store.database import HURRIED_WAIT_S
from scavenger.store.record_file import RECORD_FILE, read_record
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
    return RunReport(ReportedJob(job_id, "tiny", "succeeded"), nothing)


def settled(recorder: Recorder) -> Recorder:
    """All that was recorded so far is in the store."""
    assert recorder._writes.settle(120.0), recorder._writes.outage
    return recorder


def test_what_waits_for_a_held_store_is_written_in_order_and_told_once(tmp_path: Path) -> None:
    path, heard, now = tmp_path / "s.db", Heard(), [0.0]
    trainer = trainer_of(Scripted(), tmp_path)
    with Store.open(f"sqlite:///{path}?timeout=0.01") as store:
        entry = store.create_job("tiny", spec=JOB.written(), job_file=tmp_path / "job.yaml")
        with Recorder(store, entry, heard, clock=lambda: now[0]) as recorder:
            with _Held(path):
                for number in range(3):
                    recorder.on_event(Noted("info", str(number)))
                wait_for(lambda: recorder._writes.outage)
                now[0] = CONTENDED_S - 1.0  # others that share the store may hold it for so long
                recorder.tick(trainer)
                assert not recorder.warnings
                now[0] = CONTENDED_S
                recorder.tick(trainer)
                recorder.tick(trainer)
            recorder.on_event(Noted("info", "3"))
            settled(recorder).tick(trainer)

            written = [event.message for event in store.events(recorder.job_id)]
            recorder.finish(report(recorder.job_id))

        assert written == ["0", "1", "2", "3"]
        assert len(recorder.warnings) == 1
        told = [(e.level, e.message) for e in heard.events if isinstance(e, Noted)]
        assert [level for level, _ in told] == ["info"] * 3 + ["warning"] + ["info"] * 2
        assert "the job continues for at most 10 minutes" in recorder.warnings[0]
        assert "the store is available again" in told[-1][1]
        assert store.job(recorder.job_id).state == "succeeded"


@pytest.mark.slow
def test_a_held_store_holds_a_running_job_up_for_no_time_at_all(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(f"sqlite:///{path}") as store, Recorder.begin(store, JOB, path, Heard()) as recorder:
        with _Held(path):
            began = time.monotonic()
            recorder.on_event(Noted("info", "waits"))
            recorder.tick(trainer_of(Scripted(), tmp_path))
            took_s = time.monotonic() - began
        recorder.finish(report(recorder.job_id))

        assert took_s < HURRIED_WAIT_S / 2
        assert [event.message for event in store.events(recorder.job_id)] == ["waits"]


@pytest.mark.slow
def test_a_store_that_stays_out_of_service_ends_the_job_once_and_keeps_what_came_before(
    tmp_path: Path,
) -> None:
    path, trainer, now = tmp_path / "s.db", trainer_of(Scripted(), tmp_path), [0.0]
    with Store.open(f"sqlite:///{path}?timeout=0.01") as store:
        entry = store.create_job("tiny", spec=JOB.written(), job_file=tmp_path / "job.yaml")
        with Recorder(store, entry, Heard(), patience_s=300.0, clock=lambda: now[0]) as recorder:
            with _Held(path):
                recorder.on_event(Noted("info", "0"))
                wait_for(lambda: recorder._writes.outage)
                now[0] = 299.0
                recorder.tick(trainer)
                now[0] = 301.0
                with pytest.raises(StoreUnavailableError, match="unavailable for 5 minutes"):
                    recorder.tick(trainer)
                recorder.tick(trainer)  # its checkpoint and its end are not disturbed again
            recorder.finish(report(recorder.job_id))

        assert [event.message for event in store.events(recorder.job_id)] == ["0"]
        assert store.job(recorder.job_id).state == "succeeded"


@pytest.mark.parametrize("harm", ["deleted", "replaced", "damaged"])
def test_a_store_that_is_lost_in_mid_run_is_told_and_ends_no_training(tmp_path: Path, harm: str) -> None:
    path, heard = tmp_path / "s.db", Heard()
    trainer = trainer_of(Scripted(), tmp_path)
    with Store.open(f"sqlite:///{path}?timeout=0.01") as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", heard) as recorder:
            recorder.on_event(Noted("info", "before"))
            settled(recorder)
            kept, other = tmp_path / "kept", tmp_path / "other"
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(kept)) as copy:
                source.backup(copy)
            for beside in ("-wal", "-shm"):
                path.with_name(path.name + beside).unlink(missing_ok=True)
            if harm == "deleted":
                path.unlink()
            elif harm == "replaced":
                other.touch()
                other.rename(path)
            else:
                store.close()
                path.write_bytes(b"nothing" * 5000)
            recorder.on_event(Noted("info", "after"))
            wait_for(lambda: recorder._writes.outage)
            recorder.tick(trainer)
            kept.rename(path)  # as from a backup
            settled(recorder)
            recorder.finish(report(recorder.job_id))

        (warning,) = recorder.warnings
        assert harm in warning
        assert store.events(recorder.job_id)[-1].message == "after"
        assert store.job(recorder.job_id).state == "succeeded"


def test_what_is_asked_of_a_held_store_is_answered_when_it_serves_while_training_goes_on(
    tmp_path: Path,
) -> None:
    path, pumped = tmp_path / "s.db", []
    with (
        Store.open(f"sqlite:///{path}?timeout=0.01") as store,
        Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder,
    ):
        held = _Held(path)
        held.__enter__()

        def pump() -> None:
            pumped.append(recorder._writes.outage is not None)
            if pumped.count(True) == 1:
                held.__exit__()

        def question() -> str:
            store.heartbeat(recorder.job_id)
            return store.job(recorder.job_id).name

        assert recorder.ask(question, pump) == "tiny"
        assert True in pumped
        with pytest.raises(TransientError):
            recorder.ask(_refused, lambda: None)
        recorder.finish(report(recorder.job_id))


def _refused() -> None:
    raise TransientError("no")


@pytest.mark.slow
def test_very_many_events_that_wait_lose_the_oldest_and_no_other_write(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(f"sqlite:///{path}?timeout=0.01") as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder:
            with _Held(path):
                recorder.update(cost_usd=3.0)
                for number in range(EVENTS_WAITING_MAX + 5):
                    recorder.on_event(Noted("info", str(number)))
                assert recorder._writes.pending <= EVENTS_WAITING_MAX + 2
            settled(recorder)
            recorder.finish(report(recorder.job_id))

        events = store.events(recorder.job_id, limit=5)
        assert events[-1].message == str(EVENTS_WAITING_MAX + 4)
        assert store.job(recorder.job_id).cost_usd == 3.0


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
        settled(recorder).tick(trainer)
        settled(recorder)

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
        entry = store.job(settled(recorder).job_id)
        assert (entry.step, entry.cost_usd) == (trainer.step, pytest.approx(trainer.cost_usd))

        trainer.pump()
        recorder.tick(trainer)
        settled(recorder)
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
        entry = store.job(settled(recorder).job_id)
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


def test_a_store_that_is_lost_during_the_run_is_made_again_from_the_folder_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    trainer = trainer_of(Scripted(), tmp_path)
    with Store.open(url) as store:
        with Recorder.begin(store, JOB, tmp_path / "job.yaml", Heard()) as recorder:
            folder = tmp_path / recorder.job_id
            folder.mkdir()
            recorder.copy_to(folder / RECORD_FILE)
            recorder.update(state="running")
            settled(recorder)
            for file in tmp_path.glob("s.db*"):
                file.unlink()
            recorder.checkpointed("/ckpt")
            wait_for(lambda: recorder._writes.outage)
            recorder.tick(trainer)
            assert "`scavenger store recover FOLDER...`" in recorder.warnings[0]

            with Store.open(url) as another:
                assert another.recover_job(read_record(folder))
                assert (another.job(recorder.job_id).state, another.job(recorder.job_id).checkpoint) == (
                    "running",
                    "/ckpt",
                )
            settled(recorder).tick(trainer)
            recorder.finish(report(recorder.job_id))

        ended = store.job(recorder.job_id)
        copy = read_record(folder)
    assert (ended.state, copy.state, copy.report) == ("succeeded", "succeeded", ended.report)


def test_forecasts_that_are_kept_are_events_of_the_job(tmp_path: Path) -> None:
    forecast = EpochsForecast(8, 26.2, (18.7, 40.1), 80.0, 0.0061, 0.05, 0.93)
    with (
        Store.open(f"sqlite:///{tmp_path / 's.db'}") as store,
        Recorder.begin(store, JOB, tmp_path, Heard()) as recorder,
    ):
        recorder.on_event(Forecasted(forecast, False))
        recorder.on_event(Forecasted(forecast, True))
        recorder.finish(report(recorder.job_id))
        (event,) = store.events(recorder.job_id)

    assert (event.kind, event.message.split(":")[0]) == ("forecast", "after 8 epochs")
    assert event.data is not None
    assert event.data["epochs"] == 26.2


def test_a_heartbeat_is_recorded_while_other_writes_wait_and_only_one_waits_itself(tmp_path: Path) -> None:
    path, trainer = tmp_path / "s.db", trainer_of(Scripted(), tmp_path)
    with Store.open(f"sqlite:///{path}?timeout=0.01") as store:
        entry = store.create_job("tiny", spec=JOB.written(), job_file=tmp_path / "job.yaml")
        with Recorder(store, entry, Heard()) as recorder:
            before = store.job(recorder.job_id).heartbeat_at
            with _Held(path):
                recorder.on_event(Noted("info", "waits"))
                recorder.tick(trainer)
                waiting = recorder._writes.pending
                assert waiting >= 3
                recorder.tick(trainer)
                assert recorder._writes.pending == waiting
            settled(recorder)
            assert store.job(recorder.job_id).heartbeat_at > before
            recorder.tick(trainer)
            assert recorder._writes.pending
            settled(recorder)
            recorder.finish(report(recorder.job_id))


def step(number: int, *, workers: int = 2, at_s: float) -> StepDone:
    record = StepRecord(number, 1, 2, workers, 64, 64, 0.1, 0.05, 0.05, 0.5, 1.0, 1.0, 2, False, at_s)
    return StepDone(record, 0.5, 0.0)


def view(workers: int) -> ViewChanged:
    return ViewChanged(1, Configuration("local-1", workers, 64), 1, 0.0, "asked")


def test_the_store_holds_how_far_the_job_is_and_only_the_latest_of_it(tmp_path: Path) -> None:
    now, trainer = [0.0], trainer_of(Scripted(), tmp_path)

    def told() -> list[Progress]:
        settled(recorder)
        return [Progress.read(event.data) for event in store.events(recorder.job_id, kind=PROGRESS)]

    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        entry = store.create_job("tiny", spec=JOB.written(), job_file=tmp_path / "job.yaml")
        with Recorder(store, entry, Heard(), clock=lambda: now[0]) as recorder:
            settled(recorder).tick(trainer)
            assert told() == []
            for event in (view(2), step(1, at_s=10.0)):
                recorder.on_event(event)
            recorder.update(predicted=Predicted(30.0, (20.0, 50.0), 1.0, (1.0, 2.0), 0.1, 3.0))
            recorder.on_event(step(2, at_s=12.0))
            settled(recorder).tick(trainer)
            (first,) = told()
            assert (first.step, first.epoch, first.configuration.workers) == (2, 2, 2)
            assert (first.left_s, first.left_interval_s) == (18.0, (8.0, 38.0))

            now[0] = 1.0
            recorder.on_event(step(3, at_s=13.0))
            settled(recorder).tick(trainer)
            assert told() == [first], "not at every step"
            for event in (view(3), step(4, workers=3, at_s=14.0)):
                recorder.on_event(event)
            settled(recorder).tick(trainer)
            (after,) = told()
            assert (after.step, after.configuration) == (4, Configuration("local-1", 3, 64))

            recorder.on_event(EpochEnded(EpochRecord(2, 4, {"val_loss": 0.25}, 0.1, 15.0), "val_loss", 0.2))
            recorder.finish(report(recorder.job_id))
        assert [(one.metric, one.value, one.target, one.left_s) for one in told()] == [
            ("val_loss", 0.25, 0.2, None)
        ]
