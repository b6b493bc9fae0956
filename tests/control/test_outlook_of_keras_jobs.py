"""A Keras job whose rate is planned is forecast from its plan: that of the optimizer's schedule, or a callback's."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import STEP_S, Scripted, offer, trainer_of

from scavenger.control.search.outlook import EpochForecaster
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.job import GoalSpec
from scavenger.domain.measurement import Measurement, Profile
from scavenger.domain.report import EpochsForecast
from scavenger.models.curve_shapes import RateSchedule
from scavenger.models.job_model import JobModel
from scavenger.train.transport.messages.requests import RunCallbacks
from scavenger.train.worker.loading import load_program

pytestmark = pytest.mark.slow

EPOCHS, EPOCH_STEPS, SEEN = 100, 10, 60
SPACE = SearchSpace((offer(),), (1, 2), (32, 64))
ROWS = tuple(
    Measurement(c, 20, STEP_S, 0.0, 0.9 * STEP_S, 0.1 * STEP_S, 1.5, 300.0, 0) for c in SPACE.configurations()
)
AT = np.arange(1.0, EPOCHS + 1.0)
COSINE = 0.5 * (1.0 + np.cos(np.pi * (AT - 1.0) / EPOCHS))
DROP = np.where(AT <= 70, 1.0, 0.1)

JOB = """
    import keras
    import numpy as np
    from scavenger.sdk import KerasJob

    X, Y = np.zeros((320, 2), "float32"), np.zeros((320, 1), "float32")

    def job(rate, *callbacks):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse")
        return KerasJob(model, (X, Y), (X, Y), callbacks=list(callbacks))

    constant = job(0.1)
    cosine = job(keras.optimizers.schedules.CosineDecay(0.1, 1000))
    pieces = job(keras.optimizers.schedules.PiecewiseConstantDecay([699], [0.1, 0.01]))
    scheduler = job(0.1, keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < 70 else 0.01))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("planned")
    (made / "planned_rates.py").write_text(textwrap.dedent(JOB))
    return made


def forecast_of(folder: Path, work_dir: Path, job: str, rates: Any) -> tuple[EpochsForecast, int]:
    """What is forecast after `SEEN` epochs of a loss under these rates, and in which epoch it reaches the target."""
    schedule = RateSchedule.of(AT, rates)
    loss = 1.0 + 0.5 * (schedule.unit * schedule.area(AT) / 1e4) ** -0.5 - 0.3 * schedule.annealed(AT)
    truth = int(np.argmax(loss < loss[-1] + 0.15 * (loss[SEEN - 1] - loss[-1]))) + 1
    program = load_program(f"planned_rates:{job}", str(folder), 1)
    begun = program.callbacks.run(RunCallbacks(1, -1, 0, {}, 2 * EPOCHS, False, "", 1.0))
    goal = GoalSpec(metric="val_loss", target=float(loss[truth - 1]), max_epochs=2 * EPOCHS)
    scripted = Scripted(
        epoch_steps=EPOCH_STEPS,
        worker_sqnorm=1.5,
        metrics=[{"val_loss": float(one)} for one in loss],
        manifest=program.manifest,
    )
    trainer = trainer_of(scripted, work_dir, goal=goal)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    trainer.history.callback_runs = [CallbackRunRecord(-1, 0, "", rates_ahead=begun.rates_ahead)]
    trainer.until(lambda: len(trainer.history.epochs) >= SEEN)
    outlook = EpochForecaster(trainer, goal)
    outlook.told(JobModel.fit(Profile(ROWS, 320), space=SPACE, epochs_hint=None, max_epochs=2 * EPOCHS))
    return outlook.forecasts[-1], truth


@pytest.mark.parametrize(("job", "rates"), [("cosine", COSINE), ("pieces", DROP), ("scheduler", DROP)])
def test_a_planned_rate_tells_when_the_target_is_reached(
    job: str, rates: Any, folder: Path, tmp_path: Path
) -> None:
    planned, truth = forecast_of(folder, tmp_path / "planned", job, rates)
    unplanned, _ = forecast_of(folder, tmp_path / "unplanned", "constant", rates)

    assert truth > SEEN + 5
    assert planned.epochs_interval[0] <= truth <= planned.epochs_interval[1]
    assert abs(planned.epochs - truth) < abs(unplanned.epochs - truth)
