"""What a running job is told by models that are fitted again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripted import STEP_S, Scripted, offer, trainer_of

from scavenger.control.outcome import progress_of
from scavenger.control.replanning import STEP, Replanning
from scavenger.control.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement, Profile
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading

SPACE = SearchSpace((offer(),), (1, 2), (32, 64))
JOB = JobSpec.model_validate(
    {"version": 1, "name": "tiny", "train": "train:job", "objective": "time", "goal": {"max_epochs": 100}}
)
SAMPLES = 3200


def model_of(step_time_s: dict[int, float]) -> JobModel:
    """Steps that take so long by batch size, whatever the workers; 100 epochs at each."""
    rows = [
        Measurement(
            c,
            20,
            step_time_s[c.global_batch_size],
            0.0,
            0.9 * step_time_s[c.global_batch_size],
            0.1,
            1.5,
            300.0,
            0,
        )
        for c in SPACE.configurations()
    ]
    profile = Profile(tuple(rows), SAMPLES)
    return JobModel.fit(profile, space=SPACE, epochs_hint=None, max_epochs=100, fixed_epochs=True)


class Fits:
    """Fits that are scripted, and what they were given."""

    def __init__(self, *models: JobModel) -> None:
        self.models = list(models)
        self.measurements: list[Sequence[Measurement]] = []
        self.noise: list[list[NoiseReading]] = []

    def __call__(self, measurements: Sequence[Measurement], noise: Sequence[NoiseReading]) -> JobModel:
        self.measurements.append(measurements)
        self.noise.append(list(noise))
        return self.models[min(len(self.noise), len(self.models)) - 1]


def running(folder: Path) -> Trainer:
    """A job at one worker and batch 32."""
    trainer = trainer_of(Scripted(epoch_steps=10**6, worker_sqnorm=1.5), folder)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    return trainer


def replanning(trainer: Trainer, fits: Fits, **changes: object) -> Replanning:
    job = JobSpec.model_validate({**JOB.written(), **changes})
    return Replanning(trainer, job, SPACE, model=fits.models[0], fit=fits, measurements=())


def train(trainer: Trainer, model: JobModel, share: float) -> None:
    trainer.until(lambda: progress_of(trainer, model) >= share)


EVEN = model_of({32: STEP_S, 64: 2 * STEP_S})
LARGER_PAYS = model_of({32: STEP_S, 64: STEP_S})


def test_models_are_fitted_again_only_when_the_job_has_come_some_way(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN)
    again = replanning(trainer, fits)

    assert again.look() is None
    assert fits.noise == []
    for turn in range(1, 4):
        train(trainer, EVEN, turn * (STEP + 0.001))
        assert again.look() == trainer.configuration
        assert again.look() == trainer.configuration
        assert len(fits.noise) == turn


def test_the_noise_is_read_as_the_run_goes_on(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN)
    again = replanning(trainer, fits)
    for turn in range(1, 4):
        train(trainer, EVEN, turn * (STEP + 0.001))
        again.look()

    last = fits.noise[-1]
    assert len(last) == 3
    shares = [reading.progress or 0.0 for reading in last]
    assert shares == sorted(shares)
    assert all(reading.usable() for reading in last)


def test_the_step_time_of_what_the_job_runs_on_is_that_of_now(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN)
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    again.look()

    (live,) = fits.measurements[-1]
    assert live.configuration == trainer.configuration
    assert abs(live.step_time_s - STEP_S) < 1e-9
    assert live.steps >= JOB.profile.steps


def test_a_choice_that_saves_enough_is_what_the_job_should_run_on_and_is_told(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN, LARGER_PAYS)
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    assert again.look() == Configuration("local-1", 1, 32)
    train(trainer, EVEN, 2 * STEP + 0.002)

    planned = again.look()
    assert planned is not None
    assert planned.global_batch_size == 64
    assert "refitted after" in trainer.warnings[-1]


def test_a_job_whose_limits_nothing_meets_is_left_to_the_limits(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN, LARGER_PAYS)
    again = replanning(trainer, fits, constraints={"deadline": "5s"})
    train(trainer, EVEN, 2 * STEP + 0.002)

    assert again.look() == trainer.configuration
