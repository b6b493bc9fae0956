"""Trackers: what a job did is in the records of MLflow, TensorBoard and W&B, and their faults stay with them."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE_S

from scavenger.control.tracking import tracking as module
from scavenger.control.tracking.base import TrackedRun
from scavenger.control.tracking.mlflow_tracker import ALLOW_FOLDERS, MlflowTracker, uri_of, why_no_folder
from scavenger.control.tracking.tensorboard_tracker import TensorboardTracker
from scavenger.control.tracking.tracking import Tracking, trackers_of
from scavenger.control.tracking.wandb_tracker import WandbTracker
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, CurveConfigurations, Interval, PointMarks, TradeoffCurve
from scavenger.domain.measurement import EpochRecord, StepRecord
from scavenger.domain.report import (
    Actual,
    ChoiceMade,
    EpochEnded,
    Event,
    Observer,
    Predicted,
    ReportedJob,
    RunReport,
    SearchOutcome,
    StepDone,
    TrainingResult,
    ViewChanged,
)
from scavenger.domain.trackers import TrackersSpec
from scavenger.errors import ConfigurationError

pytestmark = pytest.mark.slow


def run_of(folder: Path, **changes: Any) -> TrackedRun:
    given = {"group": None, "folder": folder, "params": {"params.rate": "0.1"}, **changes}
    return TrackedRun("c0ffee00-1", "digits", "numbers", **given)


def step(number: int) -> StepDone:
    record = StepRecord(
        number,
        1,
        0,
        2,
        64,
        64,
        0.01,
        0.008,
        0.002,
        1.0 / number,
        1.0,
        1.0,
        2,
        disturbed=False,
        at_s=10.0 * number,
    )
    return StepDone(record, None, 0.01 * number)


def epoch(number: int) -> EpochEnded:
    record = EpochRecord(number, 10 * (number + 1), {"val_loss": 1.0 / (number + 1)}, 0.1, 5.0 * (number + 1))
    return EpochEnded(record, "val_loss", None)


VIEW = ViewChanged(2, Configuration("local-1", 2, 64), 11, 0.004, "chosen")
REPORT = RunReport(
    ReportedJob("c0ffee00-1", "digits", "succeeded"),
    SearchOutcome("none", "stored", (), 0.0, 0.0),
    predicted=Predicted(9.0, (5.0, 12.0), 0.3, (0.1, 0.5), 0.01, 3.0),
    result=TrainingResult(Actual(8.0, 0.25, 0.01, 3.0), None, 30),
)


class Seen(Observer):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def told(
    trackers: Mapping[str, Any], run: TrackedRun, events: list[Event], report: RunReport = REPORT
) -> Seen:
    seen = Seen()
    tracking = Tracking(trackers, seen)
    tracking.begin(run)
    for event in events:
        tracking.on_event(event)
    tracking.end(report)
    return seen


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """What is told is waited for at the end, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "END_S", PATIENCE_S)
        yield


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that a first run has made; its tables take MLflow seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    first = TrackedRun("1", "first", "others", group=None, folder=folder, params={})
    told({"mlflow": MlflowTracker("sqlite:///mlflow.db")}, first, [])
    return folder / "mlflow.db"


@pytest.fixture
def database(tables: Path, tmp_path: Path) -> Path:
    """The file `mlflow.db` in the folder of a test's job."""
    return Path(shutil.copy(tables, tmp_path))


def curve_of(workers: int) -> tuple[TradeoffCurve, Choice]:
    """A curve of one configuration, which is chosen."""
    one, values = np.zeros(1, np.int64), np.ones(1)
    of = CurveConfigurations(("local-1",), one, one + workers, one + 32)
    marks = PointMarks(one == 0, one == 0, one > 0, one)
    interval = Interval(values, values)
    curve = TradeoffCurve(of, values, interval, values, interval, values, values, marks)
    return curve, Choice(curve[0], "time", "the only one")


EVENTS: list[Event] = [step(1), step(2), epoch(0), VIEW, step(12), epoch(1)]


class TestMlflow:
    def runs(self, uri: str) -> list[Any]:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("numbers")
        return list(client.search_runs([experiment.experiment_id]))

    def test_parameters_metrics_costs_views_and_the_end_are_on_record(
        self, tmp_path: Path, database: Path
    ) -> None:
        from mlflow.tracking import MlflowClient

        run = run_of(tmp_path)
        seen = told({"mlflow": MlflowTracker("sqlite:///mlflow.db")}, run, EVENTS)

        assert seen.events == EVENTS
        uri = f"sqlite:///{database}"
        (found,) = self.runs(uri)
        assert found.data.params == {"params.rate": "0.1"}
        assert found.info.status == "FINISHED"
        assert found.data.tags["scavenger.job_id"] == run.job_id
        assert "view 2: 2 x local-1, batch 64 (chosen)" in found.data.tags["scavenger.view.11"]
        assert found.data.metrics["predicted_cost_usd"] == 0.3
        assert found.data.metrics["actual_cost_usd"] == 0.25
        history = MlflowClient(tracking_uri=uri).get_metric_history(found.info.run_id, "val_loss")
        assert [(one.step, one.value) for one in history] == [(10, 1.0), (20, 0.5)]
        costs = MlflowClient(tracking_uri=uri).get_metric_history(found.info.run_id, "cost_usd")
        assert {(one.step, one.value) for one in costs} >= {(1, 0.01), (12, 0.12)}

    def test_a_resumed_job_goes_on_with_its_run_and_trials_are_nested(
        self, tmp_path: Path, database: Path
    ) -> None:
        for attempt, job in ((None, "a"), (20, "a"), (None, "b")):
            run = TrackedRun(job, "digits", "numbers", "study-1", tmp_path, attempt, {"seed": "0"})
            told({"mlflow": MlflowTracker("sqlite:///mlflow.db")}, run, [epoch(0)])
        runs = self.runs(f"sqlite:///{database}")
        (parent,) = [one for one in runs if "scavenger.study" in one.data.tags]
        trials = [one for one in runs if one is not parent]
        assert sorted(one.data.tags["scavenger.job_id"] for one in trials) == ["a", "b"]
        assert {one.data.tags["mlflow.parentRunId"] for one in trials} == {parent.info.run_id}

    @pytest.mark.parametrize("place", ["sqlite:///mlflow.db", "./mlruns"])
    def test_the_run_of_a_study_ends_as_its_trials_did_and_each_has_a_name_of_its_own(
        self, tmp_path: Path, database: Path, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ALLOW_FOLDERS, "true")
        ends, at = {"a": "failed", "b": "failed", "c": "succeeded"}, (tmp_path, None, {"seed": "0"})
        parents = []
        for number, (job, state) in enumerate(ends.items(), start=1):
            curve, choice = curve_of(number)
            report = replace(REPORT, job=replace(REPORT.job, state=state))
            run = TrackedRun(job, "digits", "numbers", "study-1", *at)
            told({"mlflow": MlflowTracker(place)}, run, [ChoiceMade(curve, choice)], report)
            runs = self.runs(uri_of(place, run))
            (parent,) = [one for one in runs if "scavenger.study" in one.data.tags]
            parents.append((parent.info.status, parent.data.metrics))
        costs = [0.25, 0.5, 0.75]
        assert parents == [
            (end, {"trials": number, "actual_cost_usd": cost})
            for number, end, cost in zip((1, 2, 3), ("FAILED", "FAILED", "FINISHED"), costs, strict=True)
        ]
        named = {one.info.run_name: one.info.status for one in runs if one is not parent}
        assert named == {
            "digits-a, 1 x local-1, batch 32": "FAILED",
            "digits-b, 2 x local-1, batch 32": "FAILED",
            "digits-c, 3 x local-1, batch 32": "FINISHED",
        }

    def test_what_a_killed_job_had_told_is_not_told_again(self, tmp_path: Path, database: Path) -> None:
        uri = f"sqlite:///{database}"
        killed = Tracking({"mlflow": MlflowTracker(uri)}, Observer())
        killed.begin(run_of(tmp_path))
        for event in EVENTS:
            killed.on_event(event)
        killed.stop()  # without its end

        again: list[Event] = [step(12), epoch(1), epoch(2)]  # its checkpoint was of step 10
        told({"mlflow": MlflowTracker(uri)}, run_of(tmp_path, step=10), again)

        from mlflow.tracking import MlflowClient

        (run,) = self.runs(uri)
        history = MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, "val_loss")
        assert [one.step for one in history] == [10, 20, 30]
        assert run.data.metrics["actual_cost_usd"] == 0.25
        assert run.info.status == "FINISHED"

    def test_relative_files_are_in_the_folder_of_the_job(self, tmp_path: Path) -> None:
        run = run_of(tmp_path)
        assert uri_of("./mlruns", run) == (tmp_path / "mlruns").as_uri()
        assert uri_of("sqlite:////data/m.db", run) == "sqlite:////data/m.db"
        assert uri_of("http://127.0.0.1:5000", run) == "http://127.0.0.1:5000"


class TestTensorboard:
    def read(self, folder: Path) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        return EventAccumulator(str(folder)).Reload()

    def test_event_files_have_metrics_costs_and_views(self, tmp_path: Path) -> None:
        told({"tensorboard": TensorboardTracker("./runs")}, run_of(tmp_path, group="study-1"), EVENTS)
        found = self.read(tmp_path / "runs" / "study-1" / "digits-c0ffee00")
        assert [(one.step, one.value) for one in found.Scalars("val_loss")] == [(10, 1.0), (20, 0.5)]
        assert {one.value for one in found.Scalars("workers")} == {2.0}
        (view,) = found.Tensors("view/text_summary")
        assert view.step == 11
        assert b"chosen" in view.tensor_proto.string_val[0]
        assert found.Scalars("actual_cost_usd")[0].value == pytest.approx(0.25)

    def test_a_resumed_job_replaces_the_steps_that_it_trains_again(self, tmp_path: Path) -> None:
        told({"tensorboard": TensorboardTracker("runs")}, run_of(tmp_path), [epoch(0), epoch(1)])
        told({"tensorboard": TensorboardTracker("runs")}, run_of(tmp_path, step=12), [epoch(1), epoch(2)])
        found = self.read(tmp_path / "runs" / "digits-c0ffee00")
        assert [one.step for one in found.Scalars("val_loss")] == [10, 20, 30]


def test_wandb_keeps_a_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    told({"wandb": WandbTracker("offline")}, run_of(tmp_path, group="study-1"), EVENTS)
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))


class Broken:
    """A tracker that raises, or never returns."""

    def __init__(self, wait: threading.Event | None = None) -> None:
        self.calls, self._wait = 0, wait

    def _called(self, *_: object, **__: object) -> None:
        self.calls += 1
        if self._wait is not None:
            self._wait.wait(30.0)
        raise RuntimeError("no route to http://user:secret@host\nand more")

    begin = metrics = event = end = _called


def test_a_tracker_that_fails_is_named_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken()
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        seen = told(
            {"broken": broken, "tensorboard": TensorboardTracker("runs")},
            run_of(tmp_path),
            [*EVENTS, *EVENTS],
        )
    assert seen.events == [*EVENTS, *EVENTS]
    assert broken.calls == module.FAILURES_MAX
    assert [record.getMessage() for record in caplog.records] == [
        "tracker broken failed, and the job goes on: RuntimeError: no route to http://***@host",
        f"tracker broken is given up after {module.FAILURES_MAX} failures in a row",
    ]
    assert len(list((tmp_path / "runs" / "digits-c0ffee00").iterdir())) == 1


def test_a_tracker_that_hangs_holds_up_neither_events_nor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.1)
    monkeypatch.setattr(module, "WAITING_MAX", 4)
    wait = threading.Event()
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        seen = told({"stuck": Broken(wait)}, run_of(tmp_path), EVENTS * 3)
    wait.set()
    assert len(seen.events) == 18
    assert "are too slow" in caplog.text
    assert "not all was told" in caplog.text


def test_a_package_that_is_not_there_is_named_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'scavenger-ml\[mlflow\]'"):
        trackers_of(TrackersSpec(mlflow="http://127.0.0.1:1"))


def test_a_folder_to_which_mlflow_does_not_write_is_refused_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ALLOW_FOLDERS, raising=False)
    for uri in ("./mlruns", "file:///tmp/mlruns"):
        words = r"trackers.mlflow: MLflow 3.*; write sqlite:///mlflow.db, or set MLFLOW_ALLOW_FILE_STORE=true"
        with pytest.raises(ConfigurationError, match=words):
            trackers_of(TrackersSpec(mlflow=uri))
        assert why_no_folder(uri, "3.12.1", {}) == why_no_folder(uri, "3.13.0", {ALLOW_FOLDERS: "true"}) == ""
    assert set(trackers_of(TrackersSpec(mlflow="http://127.0.0.1:1"))) == {"mlflow"}


def test_no_tracker_is_named_is_refused() -> None:
    with pytest.raises(ValueError, match="one of mlflow, tensorboard and wandb"):
        TrackersSpec(experiment="x")


def test_trackers_import_no_tensorflow(tmp_path: Path, database: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/control'); from pathlib import Path; import test_trackers as t\n"
        "t.module.END_S = t.PATIENCE_S\n"
        "trackers = t.trackers_of(t.TrackersSpec(mlflow='sqlite:///mlflow.db', tensorboard='runs'))\n"
        f"t.told(trackers, t.run_of(Path({str(tmp_path)!r})), t.EVENTS)\n"
        "assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules), 'a framework is imported'"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert TestMlflow().runs(f"sqlite:///{database}")
    assert (tmp_path / "runs").is_dir()
