"""Callbacks of real jobs do what they do in Keras's `fit`, also where their worker dies and the job is resumed."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from driving import JOBS, SEED, FaultyEngine, assert_same_weights

from scavenger.control.training.cost_meter import WorkerCostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import Journal, read_history
from scavenger.control.training.limits import Limits
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, Offer
from scavenger.domain.job import GoalSpec
from scavenger.domain.report import Observer
from scavenger.elastic.order import epoch_order
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import messages as m
from scavenger.train.worker.loading import load_program

pytestmark = pytest.mark.slow

EPOCHS, BATCH = 40, 40


def attempt(
    folder: Path,
    job: str = "called:called",
    *,
    faults: Sequence[str] = (),
    remote: Sequence[str] = (),
    stop_after: int | None = None,
    before: EarlierAttempts | None = None,
) -> Trainer:
    """Train with two workers, to the end or to a step after which all processes end at once."""
    resumed = before is not None
    supervisor = Supervisor.open(
        JobSource(job, JOBS, SEED, threads=1),
        work_dir=folder,
        timeouts=Timeouts(120.0, 60.0),
        restore=m.RestorePoint(str(folder / "saved")) if resumed else None,
        checkpoint=m.CheckpointPlan(str(folder / "saved"), 0.0, 7),
        engine=lambda log_dir, fd: FaultyEngine(log_dir, fd, faults=faults, remote=remote),
    )
    offer = Offer("local", "", "local-1", 1.0, "test", cpus=1, memory_bytes=2**30)
    journal = Journal(folder / "measurements.jsonl", resumed_step=None if before is None else before.step)
    trainer = Trainer(
        supervisor,
        goal=Goal(GoalSpec(max_epochs=EPOCHS)),
        offers=(offer,),
        meter=WorkerCostMeter(supervisor, {"local-1": offer}),
        limits=Limits(None, None),
        journal=journal,
        observer=Observer(),
        started_at=0.0,
        on_tick=lambda: None,
        before=before,
    )
    supervisor.recorded = journal.sync
    try:
        trainer.start(2)
        trainer.move(Configuration("local-1", 2, BATCH), "start")
        trainer.until(lambda: stop_after is not None and trainer.checkpoint_step >= stop_after)
        if stop_after is None:
            supervisor.finish(folder / "model.keras", best=True, callbacks=trainer.callbacks.last)
            trainer.take_last_steps()
    finally:
        supervisor.close(grace_s=0.0 if stop_after else 5.0)
        journal.close()
    return trainer


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The folder, model and history of Keras's `fit` on the batches of the job."""
    return by_fit("called:called", "callbacks", tmp_path_factory.mktemp("plain"))


def by_fit(job: str, callbacks: str, folder: Path) -> tuple[Path, Any, Any]:
    """Train with `fit` and the job's callbacks, which a function of its module makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("CALLED_FOLDER", str(folder))
        program = load_program(job, str(JOBS), SEED)
        import called

        x, y = program.train.batch(np.arange(len(program.train)))

        def batches() -> Iterator[Any]:
            for epoch in range(EPOCHS):
                order = epoch_order(SEED, epoch, len(x))
                for at in range(0, len(x), BATCH):
                    yield x[order[at : at + BATCH]], y[order[at : at + BATCH]]

        history = program.model.fit(
            batches(),
            steps_per_epoch=-(-len(x) // BATCH),
            epochs=EPOCHS,
            validation_data=(called.X[called.HELD_OUT], called.Y[called.HELD_OUT]),
            callbacks=getattr(called, callbacks)(folder),
            verbose=0,
        )
        return folder, program.model, history


def assert_as_plain(folder: Path, trainer: Trainer, plain: tuple[Path, Any, Any]) -> None:
    expected, model, history = plain
    epochs = len(history.epoch)
    assert 5 < epochs < EPOCHS
    assert trainer.warnings[-1] == f"stopped by EarlyStopping after epoch {epochs}"
    assert [record.epoch for record in trainer.history.epochs] == history.epoch

    runs = trainer.history.callback_runs
    assert [run.epoch for run in runs] == list(range(-1, epochs))
    # the rate that a run sets is that of the epoch after it
    rates = [run.learning_rate for run in runs[:-1]]
    assert len(set(rates)) == 3
    # Keras logs it at the end of the epoch, where ReduceLROnPlateau has not changed it yet
    np.testing.assert_array_equal(np.float32(rates), np.float32(history.history["learning_rate"]))

    tables = [list(csv.reader((path / "log.csv").open())) for path in (folder, expected)]
    assert tables[0][0] == tables[1][0]
    np.testing.assert_allclose(np.float64(tables[0][1:]), np.float64(tables[1][1:]), rtol=1e-4)
    assert (folder / "seen.txt").read_text() == (expected / "seen.txt").read_text()

    names = sorted(path.name for path in expected.glob("[0-9]*.keras"))
    assert sorted(path.name for path in folder.glob("[0-9]*.keras")) == names
    for name in (names[0], names[-1]):
        saved, told = (keras.models.load_model(path / name) for path in (folder, expected))
        assert_same_weights(saved.get_weights(), told.get_weights())
        assert_same_weights(
            [v.numpy() for v in saved.optimizer.variables],
            [v.numpy() for v in told.optimizer.variables],
            1e-3,
        )
    # the best weights, which are not the last
    best = keras.models.load_model(folder / "model.keras")
    assert_same_weights(best.get_weights(), model.get_weights())
    np.testing.assert_array_equal(best.optimizer.learning_rate, model.optimizer.learning_rate)


def test_callbacks_of_a_job_do_what_they_do_in_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: tuple[Path, Any, Any]
) -> None:
    monkeypatch.setenv("CALLED_FOLDER", str(tmp_path))
    # w0, which runs them, has the weights and the optimizer's state over the network
    assert_as_plain(tmp_path, attempt(tmp_path, remote=("w0",)), plain)


def test_they_go_on_where_their_worker_dies_in_a_run_and_the_job_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: tuple[Path, Any, Any]
) -> None:
    monkeypatch.setenv("CALLED_FOLDER", str(tmp_path))
    first = attempt(tmp_path, faults=("worker.called/w0:kill@4",), stop_after=21)
    assert any("w0" in str(departure.worker) for departure in first.history.departures)

    assert_as_plain(tmp_path, attempt(tmp_path, before=before_of(tmp_path)), plain)


def before_of(folder: Path) -> EarlierAttempts:
    """What the attempts in a folder have come to by the newest checkpoint."""
    checkpoint = CheckpointStore(str(folder / "saved")).latest(finite=True)
    assert checkpoint is not None
    step = checkpoint.manifest.step
    history = read_history(folder / "measurements.jsonl", step)
    return EarlierAttempts(
        step=step,
        epoch=checkpoint.manifest.epoch,
        consumed=checkpoint.manifest.consumed,
        epochs=history.epochs,
        callback_runs=history.callback_runs,
    )


@pytest.fixture(scope="module")
def plainly_cycled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    return by_fit("called:cycled", "by_batches", tmp_path_factory.mktemp("plain"))


def test_hooks_of_batches_do_what_they_do_in_fit_whoever_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plainly_cycled: tuple[Path, Any, Any]
) -> None:
    monkeypatch.setenv("CALLED_FOLDER", str(tmp_path))
    # the sequencer dies before it has reported a step, and the worker before it has answered
    faults = ("aggregator.published/aggregator-0:kill@4", "worker.called/w0:kill@9")
    trainer = attempt(tmp_path, "called:cycled", faults=faults)
    assert any("w0" in str(departure.worker) for departure in trainer.history.departures)
    assert_cycled(tmp_path, trainer, plainly_cycled)


@pytest.mark.long
def test_hooks_of_batches_go_on_where_the_job_is_resumed_within_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plainly_cycled: tuple[Path, Any, Any]
) -> None:
    monkeypatch.setenv("CALLED_FOLDER", str(tmp_path))
    attempt(tmp_path, "called:cycled", stop_after=7)
    before = before_of(tmp_path)
    assert before.consumed > 0
    assert_cycled(tmp_path, attempt(tmp_path, "called:cycled", before=before), plainly_cycled)


def assert_cycled(folder: Path, trainer: Trainer, plain: tuple[Path, Any, Any]) -> None:
    expected, model, history = plain
    assert trainer.warnings[-1] == "stopped by Cycle at step 13, in epoch 3"
    assert [record.epoch for record in trainer.history.epochs] == history.epoch
    rows, plainly = (np.array(json.loads((at / "rows.json").read_text())) for at in (folder, expected))
    np.testing.assert_allclose(rows, plainly, rtol=1e-4, atol=1e-6)
    names = sorted(path.name for path in expected.glob("*.keras"))
    assert names
    for name in names:
        saved, told = (keras.models.load_model(at / name) for at in (folder, expected))
        assert_same_weights(saved.get_weights(), told.get_weights())
    final = keras.models.load_model(folder / "model.keras")
    assert_same_weights(final.get_weights(), model.get_weights())
