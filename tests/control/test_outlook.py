"""What the course of a job's metric tells while the job trains."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import STEP_S, Heard, Scripted, offer, trainer_of

from scavenger.control.search.outcome import progress_of, remaining_samples
from scavenger.control.search.outlook import WARNED_AFTER, EpochForecaster
from scavenger.control.search.replan import Replanning
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.job import GoalSpec, JobSpec
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.domain.report import EpochsForecast, Forecasted, Noted
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading

SPACE = SearchSpace((offer(),), (1, 2), (32, 64))
GOAL = GoalSpec(metric="val_loss", target=1.2, max_epochs=400)
EPOCH_STEPS = 10
SAMPLES = 32 * EPOCH_STEPS
TRUTH = 100
"""1 + 2 / sqrt(epoch) is 1.2 there."""


ROWS = tuple(
    Measurement(c, 20, STEP_S, 0.0, 0.9 * STEP_S, 0.1 * STEP_S, 1.5, 300.0, 0) for c in SPACE.configurations()
)


def model_of(hint: float | None = None) -> JobModel:
    return JobModel.fit(Profile(ROWS, SAMPLES), space=SPACE, epochs_hint=hint, max_epochs=400)


def running(folder: Path, heard: Heard | None = None, **limits: float) -> Trainer:
    """A job at one worker and batch 32 whose loss falls as 1 + 2 / sqrt(epoch)."""
    metrics = [{"val_loss": 1.0 + 2.0 * epoch**-0.5} for epoch in range(1, 2 * TRUTH)]
    scripted = Scripted(epoch_steps=EPOCH_STEPS, worker_sqnorm=1.5, metrics=metrics)
    trainer = trainer_of(scripted, folder, goal=GOAL, observer=heard or Heard(), **limits)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    return trainer


def train(trainer: Trainer, epochs: int) -> None:
    trainer.until(lambda: len(trainer.history.epochs) >= epochs)


def test_nothing_is_told_before_there_is_a_course(tmp_path: Path) -> None:
    trainer, model = running(tmp_path), model_of()
    train(trainer, 1)

    assert EpochForecaster(trainer, GOAL).told(model) is model


def test_epochs_without_a_hint_are_known_after_a_part_of_the_run(tmp_path: Path) -> None:
    heard, model = Heard(), model_of()
    trainer = running(tmp_path, heard)
    outlook = EpochForecaster(trainer, GOAL)
    assert model.relative_only
    train(trainer, 50)
    told = outlook.told(model)

    assert not told.relative_only
    assert "course of val_loss over 50 epochs" in told.all_notes()[0]
    assert progress_of(trainer, told) == pytest.approx(0.5, abs=0.12)
    assert remaining_samples(trainer, told) == pytest.approx(50 * SAMPLES, rel=0.25)
    (forecast,) = outlook.forecasts
    assert forecast.after_epochs == 50
    assert forecast.epochs == pytest.approx(TRUTH, rel=0.25)
    assert forecast.epochs_interval[0] < TRUTH < forecast.epochs_interval[1]
    assert forecast.time_s == pytest.approx(
        trainer.elapsed_s + (forecast.epochs - 50) * (EPOCH_STEPS * STEP_S + 0.5)
    )
    assert heard.events.count(Forecasted(forecast, True)) == 1


def test_a_run_that_ends_short_of_its_target_tells_when_it_would_have_reached_it(tmp_path: Path) -> None:
    goal = GOAL.model_copy(update={"max_epochs": 50})
    trainer, model = running(tmp_path), model_of()
    outlook = EpochForecaster(trainer, goal)
    train(trainer, WARNED_AFTER - 1)
    assert outlook.missed(model) is None  # mostly the prior
    train(trainer, 50)
    missed = outlook.missed(model)

    assert missed is not None
    assert missed.global_batch_size == 32
    assert missed.epochs == pytest.approx(TRUTH, rel=0.25)
    assert 0.08 <= missed.log_sd < 1.0
    assert (
        outlook.told(model).statistical.predict(np.array([32.0]))[0][0] <= 50.01
    )  # as no run of it lasts longer
    later = JobModel.fit(
        Profile(ROWS, SAMPLES, convergence=(missed,)), space=SPACE, epochs_hint=10.0, max_epochs=400
    )
    assert later.statistical.predict(np.array([32.0]))[0][0] == pytest.approx(missed.epochs)


def test_a_bound_tells_roughly_how_long_the_run_may_take(tmp_path: Path) -> None:
    forecasts = []
    for index, most in enumerate((30, 400)):
        goal = GOAL.model_copy(update={"max_epochs": most})
        trainer = running(tmp_path / str(index))
        train(trainer, 2)
        outlook = EpochForecaster(trainer, goal)
        outlook.told(model_of())
        forecasts += outlook.forecasts
    near, far = forecasts

    assert near.epochs < far.epochs < 400 / 3


def test_before_a_model_is_fitted_the_course_alone_is_followed(tmp_path: Path) -> None:
    trainer, goal = running(tmp_path), GOAL
    outlook = EpochForecaster(trainer, goal)
    train(trainer, 1)
    assert outlook.alone(SAMPLES, None) is None
    train(trainer, 40)
    unknown, expected = outlook.alone(SAMPLES, None), outlook.alone(SAMPLES, float(TRUTH))

    assert unknown == pytest.approx(0.4, abs=0.12)
    assert expected == unknown  # nothing was evaluated since
    assert [one.after_epochs for one in outlook.forecasts] == [40]


def test_while_a_search_tries_configurations_the_steps_of_all_of_them_count(tmp_path: Path) -> None:
    heard = Heard()
    trainer = running(tmp_path, heard)
    outlook = EpochForecaster(trainer, GOAL)
    train(trainer, 10)
    trainer.move(Configuration("local-1", 1, 64), "profiling")
    train(trainer, 11)
    outlook.told(model_of())
    outlook.searching = True
    outlook.told(model_of())
    lasting, trying = (event.forecast for event in heard.events if isinstance(event, Forecasted))

    def epoch_s(forecast: EpochsForecast) -> float:
        return (forecast.time_s - trainer.elapsed_s) / (forecast.epochs - 11)

    at_32, at_64 = (SAMPLES / size * STEP_S + 0.5 for size in (32, 64))
    assert trying.epochs == lasting.epochs
    assert epoch_s(lasting) == pytest.approx(at_64)
    assert 1.1 * at_64 < epoch_s(trying) < at_32


def test_a_hint_that_was_too_low_does_not_end_the_way(tmp_path: Path) -> None:
    trainer, model = running(tmp_path), model_of(hint=20.0)
    train(trainer, 60)

    assert progress_of(trainer, model) == 1.0
    assert 0.4 < progress_of(trainer, EpochForecaster(trainer, GOAL).told(model)) < 0.9


@pytest.mark.parametrize(("drop", "schedule_batch"), [(600, 0), (1200, 16)])
def test_a_drop_of_the_learning_rate_is_foreseen(drop: int, schedule_batch: int, tmp_path: Path) -> None:
    dropping = {
        "class_name": "PiecewiseConstantDecay",
        "config": {"boundaries": [drop], "values": [0.1, 0.01]},
    }
    known, unknown = (
        after_50_epochs(tmp_path / name, rate, schedule_batch)
        for name, rate in (("known", {"module": "keras.optimizers.schedules", **dropping}), ("unknown", 0.1))
    )
    low, high = known.epochs_interval

    assert 60.0 < low < 64.0 < high
    assert unknown.epochs_interval[0] > 64.0


def after_50_epochs(folder: Path, learning_rate: object, schedule_batch: int) -> EpochsForecast:
    """The forecast for a loss that has fallen slowly, and reaches its target after a drop of the rate, at epoch 64."""
    optimizer = json.dumps({"class_name": "SGD", "config": {"learning_rate": learning_rate}})
    goal = GoalSpec(metric="val_loss", target=1.0 + 64.0**-0.3 - 0.1, max_epochs=120)
    metrics = [{"val_loss": 1.0 + epoch**-0.3} for epoch in range(1, 51)]
    manifest = SimpleNamespace(
        optimizer=optimizer,
        tensors=(),
        schedule_batch=schedule_batch,
        validation_size=0,
        dataset_size=SAMPLES,
    )
    scripted = Scripted(epoch_steps=EPOCH_STEPS, worker_sqnorm=1.5, metrics=metrics, manifest=manifest)
    trainer = trainer_of(scripted, folder, goal=goal)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    train(trainer, 50)
    outlook = EpochForecaster(trainer, goal)
    outlook.told(model_of())
    return outlook.forecasts[-1]


def test_the_course_of_an_earlier_run_is_stored_and_followed(tmp_path: Path) -> None:
    """The first run guesses until epoch 40, the other until epoch 32; they end at epoch 100 and 80."""
    goal = GOAL.model_copy(update={"target": 1.2})
    forecasts, course = [], None
    for name, pace, seen in (("first", 1.0, 100), ("known", 1.25, 30), ("unknown", 1.25, 30)):
        metrics = [
            {
                "val_loss": 1.2
                + 1.3 * (1.0 - pace * epoch / 100.0) / (1.0 + math.exp(pace * epoch / 4.0 - 10.0))
            }
            for epoch in range(1, 101)
        ]
        scripted = Scripted(epoch_steps=EPOCH_STEPS, worker_sqnorm=1.5, metrics=metrics)
        trainer = trainer_of(scripted, tmp_path / name, goal=goal)
        trainer.start(1)
        trainer.move(Configuration("local-1", 1, 32), "chosen")
        train(trainer, seen)
        outlook = EpochForecaster(trainer, goal)
        outlook.told(replace(model_of(), course=course if name == "known" else None))
        forecasts += [one.epochs for one in outlook.forecasts]
        course = outlook.course() if name == "first" else course
    known, unknown = forecasts

    assert known == pytest.approx(80.0, rel=0.25)
    assert abs(known - 80.0) < 0.8 * abs(unknown - 80.0)


def test_the_same_course_is_forecast_once(tmp_path: Path) -> None:
    trainer, model = running(tmp_path), model_of()
    outlook = EpochForecaster(trainer, GOAL)
    train(trainer, 10)
    first = outlook.told(model)

    assert outlook.told(model) is first
    train(trainer, 11)
    assert outlook.told(model) is not first
    assert len(outlook.forecasts) == 1


def test_a_budget_that_comes_too_early_is_warned_of_once(tmp_path: Path) -> None:
    heard = Heard()
    trainer, model = running(tmp_path, heard, budget_usd=0.04), model_of()
    outlook = EpochForecaster(trainer, GOAL)
    for epochs in range(3, 20):
        train(trainer, epochs)
        outlook.told(model)

    warnings = [
        event.message
        for event in heard.events
        if isinstance(event, Noted) and event.message.startswith("at this rate val_loss 1.2 is reached with")
    ]
    assert trainer.warnings == []  # a report tells how it came
    assert 1 <= len(warnings) <= 2
    assert all(text.endswith("probability within $0.04") for text in warnings)
    assert outlook.forecasts[-1].within_limits < 0.5


def test_models_are_fitted_again_while_a_low_hint_is_overrun(tmp_path: Path) -> None:
    trainer, model, fits = running(tmp_path), model_of(hint=10.0), []

    def fit(measured: Sequence[Measurement], noise: Sequence[NoiseReading] | None) -> JobModel:
        fits.append(len(trainer.history.epochs))
        return model

    job = JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": GOAL.model_dump(exclude_none=True)}
    )
    outlook = EpochForecaster(trainer, GOAL)
    again = Replanning(trainer, job, SPACE, model=model, fit=fit, measurements=(), outlook=outlook.told)
    for epochs in range(1, 80):
        train(trainer, epochs)
        again.look()

    assert fits[-1] > 20
    assert again.model.statistical.notes[0].startswith("epochs from the course of val_loss")


def test_several_known_batch_sizes_keep_their_growth() -> None:
    profile = Profile(ROWS, SAMPLES, convergence=(ConvergenceRecord(32, 20.0), ConvergenceRecord(64, 30.0)))
    model = JobModel.fit(profile, space=SPACE, epochs_hint=None, max_epochs=400).statistical
    sizes = np.array([32.0, 64.0])
    before, _ = model.predict(sizes)
    moved, deviation = model.at_level(64, 90.0, 0.3, "epochs from a test").predict(sizes)

    assert moved[1] == pytest.approx(90.0)
    assert moved[0] / moved[1] == pytest.approx(before[0] / before[1])
    assert deviation[1] >= 0.3
