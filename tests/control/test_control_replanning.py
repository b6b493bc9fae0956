"""What a running job is told by models that are fitted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted import STEP_S, Scripted, offer, trainer_of

from scavenger.control.jobs.workflow import JobWorkflow, Known
from scavenger.control.search.model_library import ModelLibrary
from scavenger.control.search.outcome import progress_of, remaining_samples
from scavenger.control.search.profile import Search, Spent
from scavenger.control.search.replan import STEP, Replanning
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import FloatArray
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import Measurement, Profile
from scavenger.elastic.membership import worker_name
from scavenger.errors import ConfigurationError
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseReading
from scavenger.models.statistical import StatisticalModel
from scavenger.search.plan import SearchPlan
from scavenger.train.transport import messages as m

SPACE = SearchSpace((offer(),), (1, 2), (32, 64))
JOB = JobSpec.model_validate(
    {
        "version": 1,
        "name": "tiny",
        "train": "train:job",
        "objective": "time",
        "goal": {"metric": "val_loss", "target": 0.1, "max_epochs": 100},
    }
)
SAMPLES = 3200


def model_of(step_time_s: dict[int, float], *, shared: bool = False) -> JobModel:
    """Steps that take so long by batch size, whatever the workers or shared among them; 100 epochs at each."""
    rows = [
        Measurement(
            c,
            20,
            step_time_s[c.global_batch_size] / (c.workers if shared else 1),
            0.0,
            0.9 * step_time_s[c.global_batch_size] / (c.workers if shared else 1),
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

    def __call__(self, measurements: Sequence[Measurement], noise: Sequence[NoiseReading] | None) -> JobModel:
        self.measurements.append(measurements)
        self.noise.append(list(noise or ()))
        return self.models[min(len(self.noise), len(self.models)) - 1]


def running(folder: Path, stall_s: float = 0.0) -> Trainer:
    """A job at one worker and batch 32."""
    scripted = Scripted(epoch_steps=10**6, worker_sqnorm=1.5, stall_s=stall_s)
    trainer = trainer_of(scripted, folder)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    return trainer


def replanning(trainer: Trainer, fits: Fits, **changes: object) -> Replanning:
    job = JobSpec.model_validate({**JOB.written(), **changes})
    return Replanning(trainer, job, SPACE, model=fits.models[0], fit=fits, measurements=())


def train(trainer: Trainer, model: JobModel, share: float) -> None:
    trainer.until(lambda: progress_of(trainer, model) >= share)


EVEN = model_of({32: STEP_S, 64: 2 * STEP_S})
ROWS = tuple(
    Measurement(
        Configuration("local-1", 1, batch), 20, time_s, 0.0, 0.9 * time_s, 0.1 * time_s, 1.5, 300.0, 0
    )
    for batch, time_s in ((32, STEP_S), (64, 2 * STEP_S))
)
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


@pytest.mark.parametrize(("stall_s", "moves"), [(0.5, True), (600.0, False)])
def test_a_program_that_starts_slowly_is_not_started_again_for_less_than_that_takes(
    tmp_path: Path, stall_s: float, moves: bool
) -> None:
    """The larger batch saves half of what is left, some 400 s."""
    trainer, fits = running(tmp_path, stall_s), Fits(EVEN, LARGER_PAYS)
    trainer.move(Configuration("local-1", 1, 64), "profiling")
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    again.look()
    train(trainer, EVEN, 2 * STEP + 0.002)
    planned = again.look()

    stall = trainer.stall(Configuration("local-1", 1, 64))
    assert stall is not None
    assert stall.median_s == pytest.approx(stall_s + STEP_S / 2, rel=0.2)
    assert planned is not None
    assert (planned.global_batch_size == 64) is moves


def test_a_job_whose_limits_nothing_meets_is_left_to_the_limits(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN, LARGER_PAYS)
    again = replanning(trainer, fits, constraints={"deadline": "5s"})
    train(trainer, EVEN, 2 * STEP + 0.002)

    assert again.look() == trainer.configuration


def test_a_size_that_somebody_else_brought_the_job_to_is_left_until_it_is_asked_again(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN)
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    assert again.look() == Configuration("local-1", 1, 32)

    trainer.move(Configuration("local-1", 2, 32), "asked to scale to 2")

    assert again.look() is None
    assert again.reached is None


def test_a_move_that_was_made_is_remembered_and_not_asked_for_again(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(LARGER_PAYS)
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    planned = again.look()
    assert planned is not None
    assert planned != trainer.configuration

    trainer.move(planned, "the model now chooses it")

    assert again.look() is None
    assert again.reached == planned


def test_what_was_measured_before_a_move_still_counts_after_it(tmp_path: Path) -> None:
    trainer, fits = running(tmp_path), Fits(EVEN)
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    again.look()
    trainer.move(Configuration("local-1", 2, 64), "asked to")
    again.look()
    train(trainer, EVEN, 3 * STEP)
    again.look()

    measured = {m.configuration for m in fits.measurements[-1]}
    assert measured == {Configuration("local-1", 1, 32), Configuration("local-1", 2, 64)}


def test_a_fit_that_fails_ends_no_run_and_is_told_once(tmp_path: Path) -> None:
    def fails(measured: Sequence[Measurement], noise: Sequence[NoiseReading] | None) -> JobModel:
        raise ConfigurationError("the models cannot be fitted: singular")

    trainer = running(tmp_path)
    again = Replanning(trainer, JOB, SPACE, model=EVEN, fit=fails, measurements=())
    for turn in range(1, 4):
        train(trainer, EVEN, turn * (STEP + 0.001))
        assert again.look() is None

    assert sum("singular" in warning for warning in trainer.warnings) == 1


def test_workers_that_cannot_be_kept_alive_are_not_asked_for_again(tmp_path: Path) -> None:
    scripted = Scripted(epoch_steps=10**6, worker_sqnorm=1.5, doomed={worker_name(n) for n in range(1, 99)})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    pays = model_of({32: STEP_S, 64: 2 * STEP_S}, shared=True)
    again = replanning(trainer, Fits(pays))
    train(trainer, EVEN, STEP + 0.001)
    planned = again.look()
    assert planned is not None
    assert planned.workers == 2

    assert not trainer.move(planned, "the model now chooses it")

    assert again.look() is None


def test_nothing_is_asked_while_a_lost_worker_is_being_replaced(tmp_path: Path) -> None:
    scripted, fits = Scripted(epoch_steps=10**6, worker_sqnorm=1.5), Fits(EVEN)
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(2)
    trainer.move(Configuration("local-1", 2, 32), "chosen")
    again = replanning(trainer, fits)
    train(trainer, EVEN, STEP + 0.001)
    scripted.launch = lambda workers, vm="", *, threads=None: ()  # type: ignore[method-assign]
    scripted.dies_at = {scripted.polls + 1: "w1"}
    trainer.until(lambda: trainer.configuration == Configuration("local-1", 1, 32))

    again.look()

    assert fits.noise == []


def test_the_next_question_waits_for_another_part_of_the_way_by_the_new_model(tmp_path: Path) -> None:
    longer = replace(EVEN, dataset_size=2 * SAMPLES)
    trainer, fits = running(tmp_path), Fits(longer)
    again = replanning(trainer, fits)
    again.model = EVEN
    train(trainer, EVEN, 0.4)
    again.look()
    train(trainer, longer, 0.2 + STEP + 0.001)
    again.look()

    assert len(fits.noise) == 2


def test_the_worth_of_a_result_is_that_at_its_time_since_the_job_began(tmp_path: Path) -> None:
    """Half of 1000 s is gone: on the larger batch the result is there after 750 s, and only then worth anything."""
    trainer, fits = running(tmp_path), Fits(EVEN, LARGER_PAYS)
    again = replanning(trainer, fits, objective={"utility": {"step": [{"until": "800s", "worth": "$10"}]}})
    fits.models.pop(0)
    train(trainer, EVEN, 0.5)

    planned = again.look()
    assert planned is not None
    assert planned.global_batch_size == 64


def test_the_progress_of_every_step_asks_the_laws_once_for_each_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[float]] = []
    told = StatisticalModel.predict

    def predict(model: StatisticalModel, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        asked.append(batch.tolist())
        return told(model, batch)

    monkeypatch.setattr(StatisticalModel, "predict", predict)
    model = replace(EVEN, statistical=replace(EVEN.statistical, notes=("asked for the first time",)))
    trainer = running(tmp_path)
    train(trainer, model, 0.01)
    remaining_samples(trainer, model)

    assert asked == [[32.0]]


def driven(folder: Path, *measured: Measurement) -> tuple[JobWorkflow, Trainer]:
    """A job at one worker and batch 32 after a search that has measured this, and chosen by `EVEN`."""
    manifest = SimpleNamespace(dataset_size=SAMPLES, validation_size=0, tensors=())
    trainer = trainer_of(Scripted(epoch_steps=10**6, worker_sqnorm=1.5, manifest=manifest), folder)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "chosen")
    nothing, recorder = cast(Any, None), cast(Any, SimpleNamespace(job_id="0" * 32))
    workflow = JobWorkflow(
        trainer,
        JOB,
        SPACE,
        store=nothing,
        recorder=recorder,
        hardware="",
        folder=folder,
        run=True,
        confirm=None,
        at_end=lambda error: None,
        resumed=None,
    )
    plan = SearchPlan("partial", "asked for", SPACE.configurations()[:1], 20, 6)
    workflow.state = replace(workflow.state, search=Search(plan, Spent(0.0, 0.0), measurements=measured))
    return workflow, trainer


class _Recorder:
    """Takes what a recorder takes."""

    job_id = "j"

    def on_event(self, event: object) -> None:
        pass

    def update(self, **changes: object) -> None:
        pass


@pytest.mark.parametrize("slower", [0.04, 0.5, 0.9, 1.0, 1.1, 2.0, 25.0])
def test_reuse_profiles_nothing_however_fast_the_machine_has_become_and_predicts_its_steps(
    tmp_path: Path, slower: float
) -> None:
    """The stored model is of a machine that took so many times as long; one of another job would be profiled."""
    workflow, trainer = driven(tmp_path)
    workflow._recorder = cast(Any, _Recorder())
    workflow._job = JOB.model_copy(update={"search": JOB.search.model_copy(update={"strategy": "reuse"})})
    prior = model_of({32: slower * STEP_S, 64: slower * STEP_S})
    plan = SearchPlan("none", "stored", (), 20)
    decision, chosen = workflow._search_and_move(plan, prior, KNOWN)
    assert chosen is not None

    decision, chosen = workflow._verified(prior, decision, chosen, KNOWN)

    assert decision is not None
    assert chosen is not None
    search = workflow.state.search
    assert search is not None
    assert search.measurements == search.tried == ()
    assert ("corrected by the first steps" in search.plan.reason) == (not 0.8 <= slower <= 1.25)
    at = decision.curve.find(chosen)
    assert at is not None
    assert at.step_time_s == pytest.approx(STEP_S, rel=0.25)
    assert trainer.configuration == chosen
    assert trainer.warnings == []


KNOWN = Known(
    SPACE,
    SAMPLES,
    cast(
        ModelLibrary,
        SimpleNamespace(same=None, convergence=(), run_ratios=(), rerun_ratios=(), endings_s=(1.0,)),
    ),
)


def test_what_the_search_measured_counts_once_when_models_are_fitted_again(tmp_path: Path) -> None:
    workflow, trainer = driven(tmp_path, *ROWS)
    again = workflow._replanning(EVEN, KNOWN)
    assert again is not None
    train(trainer, EVEN, STEP + 0.001)
    again.look()

    assert again.model is not EVEN
    assert not any("stored models" in note for note in again.model.all_notes())


def test_measurements_that_nothing_can_be_fitted_to_end_neither_a_search_nor_a_run(tmp_path: Path) -> None:
    workflow, trainer = driven(tmp_path, replace(ROWS[0], compute_s=0.0))
    assert workflow.state.search is not None

    assert workflow._judged(workflow.state.search, KNOWN) == workflow.state.search
    assert workflow._end_of_training(KNOWN) == "target_missed"
    assert "no model of this run is stored" in trainer.warnings[-2]
    assert "the target is missed" in trainer.warnings[-1]


def test_a_job_that_a_callback_stops_below_its_target_succeeds(tmp_path: Path) -> None:
    workflow, trainer = driven(tmp_path, replace(ROWS[0], compute_s=0.0))
    scripted = cast(Scripted, trainer.supervisor)
    scripted.epoch_steps = 1000
    epoch = len(trainer.history.epochs)
    scripted.coming.append(m.EpochReport(epoch, trainer.step, {"val_loss": 9.0}, 0.5, callbacks=True))
    trainer.until(lambda: trainer.finished)

    assert not trainer.reached
    assert workflow._end_of_training(KNOWN) == "succeeded"
    assert f"stopped by EarlyStopping after epoch {epoch + 1}" in trainer.warnings
