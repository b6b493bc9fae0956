"""How a job ends, and what its report is made of."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nested import changed
from scripted import Scripted, offer, trainer_of

from scavenger.control.jobs.end import JobOutcome, ended_by, report_of
from scavenger.control.jobs.upkeep import Upkeep
from scavenger.control.jobs.workflow import WorkflowState
from scavenger.control.search.profile import Search, Spent
from scavenger.control.training.recorder import Recorder
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.document import report_document, report_from_document
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import Observer
from scavenger.errors import Interrupted, LimitReachedError, TrainingCodeError, TrainingError
from scavenger.frames import Frame
from scavenger.search.plan import SearchPlan
from scavenger.store import Store
from scavenger.train.transport import messages as m

SPACE = SearchSpace((offer(),), (1, 2), (32, 64))
RECORDER = cast(Recorder, SimpleNamespace(job_id="1", warnings=["the store was busy"]))
MEASURED = Measurement(Configuration("local-1", 1, 32), 20, 0.1, 0.0, 0.05, 0.05, None, None, 1)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (Interrupted("interrupted"), JobOutcome("interrupted", "interrupted", Interrupted.exit_code)),
        (
            LimitReachedError("the deadline"),
            JobOutcome("stopped", "the deadline", LimitReachedError.exit_code, in_haste=True),
        ),
        (TrainingError("no data"), JobOutcome("failed", "no data", TrainingError.exit_code)),
        (OSError(28, "No space left on device"), JobOutcome("failed", "No space left on device: out", 9)),
        (OSError(28, "No space left", "out/a"), JobOutcome("failed", "No space left: out/a", 9)),
    ],
)
def test_what_ends_a_job_says_how_it_ended(error: Any, ending: JobOutcome) -> None:
    assert ended_by(error, Path("out"), Path("code"), None) == ending


def test_where_the_code_failed_is_told_by_the_error_or_by_what_supervises_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path.parent)
    mine, output = Frame("train.py", 3, "f", "1 / 0"), Frame(code="no licence")
    command = cast(Any, SimpleNamespace(frames=(output,)))
    error = TrainingCodeError("the training code failed: train.py:3: ZeroDivisionError", frames=(mine,))

    ending = ended_by(error, tmp_path, tmp_path, command)
    assert ending.error == f"the training code failed: {tmp_path.name}/train.py:3: ZeroDivisionError"
    assert ending.traceback == (replace(mine, file=str(tmp_path / "train.py")),)
    assert ended_by(TrainingCodeError("w0 lost its command"), tmp_path, tmp_path, command).traceback == (
        output,
    )
    assert ended_by(LimitReachedError("the budget"), tmp_path, tmp_path, command).traceback == ()


def test_a_job_that_never_came_so_far_has_a_report_of_nothing() -> None:
    report = report_of(
        JobOutcome("failed", "no", 2),
        job_name="tiny",
        recorder=RECORDER,
        journals=None,
        warnings=[],
        workflow=None,
        upkeep=None,
        run=True,
    )

    assert (report.job.state, report.error, report.exit_code, report.result.steps) == ("failed", "no", 2, 0)
    assert report.warnings == ("the store was busy",)
    assert report_from_document(report_document(report)) == report


def test_a_job_that_is_stopped_in_its_search_reports_what_it_had_measured(tmp_path: Path) -> None:
    manifest = SimpleNamespace(dataset_size=3200, validation_size=0, tensors=())
    scripted = Scripted(epoch_steps=10**6, manifest=manifest)
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(MEASURED.configuration, "profiling")
    trainer.until(lambda: trainer.step == 20)
    trainer.note("slow")
    plan = SearchPlan("full", "asked for", SPACE.configurations(), 20)
    state = WorkflowState(SPACE, Search(plan, Spent(0.0, 0.0), (MEASURED,), (MEASURED.configuration,)))
    cast(Any, scripted).quarantined = (7,)
    outlook = SimpleNamespace(forecasts=[])
    workflow = cast(Any, SimpleNamespace(state=state, outlook=outlook, trainer=trainer))
    unused = cast(Any, None)
    upkeep = Upkeep(trainer, RECORDER, unused, unused, checkpoints="", clock=scripted.clock)

    reported = partial(
        report_of,
        ended_by(Interrupted("interrupted"), tmp_path, tmp_path, None),
        job_name="tiny",
        recorder=RECORDER,
        journals=None,
        warnings=["one VM type is left out"],
        workflow=workflow,
        upkeep=upkeep,
    )
    whole, plan_only = reported(run=True), reported(run=False)

    assert (whole.job.state, whole.exit_code, whole.result.steps) == ("interrupted", 130, 20)
    assert whole.search.profiled == (MEASURED,)
    assert whole.search.time_s == pytest.approx(trainer.elapsed_s)
    assert whole.result.actual is not None
    assert whole.result.actual.epochs == pytest.approx(20 * 32 / 3200)
    assert whole.warnings == ("one VM type is left out", "slow", "the store was busy")
    assert whole.result.quarantined == (7,)
    assert report_from_document(json.loads(json.dumps(report_document(whole)))) == whole
    assert plan_only == changed(whole, actual=None)

    upkeep.save(in_haste=False, wanted=False)
    scripted.now_s += 3.0
    later = reported(run=True)
    assert later.result.actual is not None
    assert later.result.actual.end_s == pytest.approx(3.0)
    assert later.result.actual.time_s == pytest.approx(whole.result.actual.time_s + 3.0)


def test_a_job_killed_while_it_saves_can_be_resumed_from_the_checkpoint_of_its_end(tmp_path: Path) -> None:
    scripted = cast(Any, Scripted(epoch_steps=10**6))
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(MEASURED.configuration, "profiling")
    trainer.until(lambda: trainer.step == 3)

    def killed_in_the_middle(*_: object, **__: object) -> None:
        scripted.late = [m.CheckpointWritten(3, 0, 0.1, 100)]
        upkeep.live_on()
        raise SystemExit(130)

    scripted.finish, scripted.model_file = killed_in_the_middle, "model.keras"
    spec = JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}}
    )
    with (
        Store.open(f"sqlite:///{tmp_path / 's.db'}") as store,
        Recorder.begin(store, spec, tmp_path / "job.yaml", Observer()) as recorder,
    ):
        unused = cast(Any, SimpleNamespace(tick=lambda: None))
        upkeep = Upkeep(trainer, recorder, unused, unused, checkpoints="checkpoints", clock=scripted.clock)
        with pytest.raises(SystemExit):
            upkeep.save(in_haste=False)

        assert recorder.record.checkpoint == "checkpoints"
