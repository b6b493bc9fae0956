"""The search on a scripted supervisor: what is measured, when it ends, and that no question holds it up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scripted import PRICE, STEP_S, Scripted, offer, trainer_of

from scavenger.control.search.outcome import actual_of, predict_run, progress_of, run_ahead, search_outcome
from scavenger.control.search.own_batch import resumed_epochs
from scavenger.control.search.profile import Search, Spent, profile, repeat_first
from scavenger.control.search.select import (
    Selection,
    ask_while_training,
    decide,
    fit_model,
    judged,
    profile_of,
)
from scavenger.control.training.measure import STEPS_MIN, is_known
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.curve import Choice, Infeasible
from scavenger.domain.job import GoalSpec, JobSpec, ProfileSpec
from scavenger.domain.measurement import Measurement, StepRecord
from scavenger.domain.report import time_error
from scavenger.errors import ConfigurationError, Interrupted, LimitReachedError
from scavenger.models.job_model import JobModel
from scavenger.models.starts import Starts, ending
from scavenger.search.plan import SearchPlan

SPACE = SearchSpace((offer(),), (1, 2), (32, 64))
END = ending((), tensorflow=True)
ONE_WORKER = SPACE.configurations()[:2]
PLAN = SearchPlan("full", "asked for", SPACE.configurations(), 5)


class _Recorder:
    """Takes what a recorder takes."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []

    def measured(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)

    def on_event(self, event: object) -> None:
        pass


def searched(
    scripted: Scripted,
    folder: Path,
    plan: SearchPlan = PLAN,
    *,
    enough: str = "",
    samples: float | None = None,
    **limits: Any,
) -> tuple[Search, Trainer]:
    trainer = trainer_of(scripted, folder)
    trainer.start(1)
    search = begun = Search(plan, Spent.by_now(trainer))
    spec = ProfileSpec(steps=plan.steps_per_configuration, **limits)
    recorder = _Recorder()
    for search in profile(
        begun,
        trainer,
        cast(Recorder, recorder),
        spec,
        SPACE,
        judge=lambda so_far: replace(so_far, ended_because=enough),
        samples=samples,
    ):
        assert tuple(recorder.measurements) == search.measurements
    return search, trainer


def test_what_is_profiled_is_what_was_planned_in_order(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)

    assert tuple(m.configuration for m in search.measurements) == PLAN.configurations
    assert all(m.steps >= 5 and m.step_time_s == pytest.approx(STEP_S) for m in search.measurements)
    assert trainer.warnings == []


def test_a_point_ends_once_its_median_is_known(tmp_path: Path) -> None:
    plan = replace(PLAN, steps_per_configuration=50)
    search, _ = searched(Scripted(epoch_steps=10**6), tmp_path, plan)

    assert all(STEPS_MIN <= m.steps < 2 * STEPS_MIN for m in search.measurements)


@pytest.mark.parametrize(("off", "known"), [(0.0, True), (0.03, True), (0.2, False)])
def test_a_median_is_known_by_its_spread_and_never_from_few_steps(off: float, known: bool) -> None:
    step = StepRecord(1, 1, 0, 1, 32, 32, 0.1, 0.09, 0.01, 1.0, 1.0, 1.0, 2, False, 0.0)
    window = [replace(step, step_time_s=0.1 * (1.0 + off * (-1) ** n)) for n in range(STEPS_MIN)]

    assert is_known(window) is known
    assert not is_known(window[1:])


def test_the_first_point_is_measured_again_where_there_is_time(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    again = repeat_first(search, trainer, SPACE, lost=0.5, left_s=1000.0)

    first = search.measurements[0]
    assert again.twice[0] == first
    assert again.twice[1].configuration == first.configuration == trainer.configuration
    assert again.twice[1].steps >= PLAN.steps_per_configuration
    assert (again.measurements, again.tried) == (search.measurements, search.tried)
    assert len(trainer.supervisor.alive) == 2  # the workers of the other points stay for the choice


@pytest.mark.parametrize("left_s", [0.0, 50 * 5 * STEP_S])
def test_the_first_point_is_not_measured_again_for_more_than_two_hundredths_of_what_is_left(
    tmp_path: Path, left_s: float
) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    step = trainer.step

    assert repeat_first(search, trainer, SPACE, lost=1.0, left_s=left_s) == search
    assert trainer.step == step


def test_a_search_of_one_point_has_nothing_to_compare(tmp_path: Path) -> None:
    plan = SearchPlan("full", "asked for", SPACE.configurations()[:1], 5)
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path, plan)

    assert repeat_first(search, trainer, SPACE, lost=0.5, left_s=1000.0) == search


def test_what_a_workers_memory_does_not_hold_is_left_out_and_said_once(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6, too_many=40), tmp_path)

    measured = [(m.configuration.workers, m.configuration.global_batch_size) for m in search.measurements]
    assert measured == [(1, 32), (2, 32), (2, 64)]
    assert [(c.workers, c.global_batch_size) for c in search.tried] == [(1, 32), (1, 64), (2, 32), (2, 64)]
    (warning,) = trainer.warnings
    assert "64 samples at once do not fit into the memory of a worker's device" in warning

    curve = decided(search, trainer).curve
    left_out = {(p.configuration.workers, p.configuration.global_batch_size): p.excluded for p in curve}
    assert [where for where, why in left_out.items() if why] == [(1, 64)]
    assert left_out[1, 64] == "local batch too large for a worker's memory"


@pytest.mark.parametrize("limits", [{"max_time": 2.0}, {"max_cost": 2.0 * PRICE / 3600}])
def test_a_profile_stops_within_a_look_of_its_limit_and_keeps_what_it_has(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    scripted = Scripted(epoch_steps=10**6)
    search, trainer = searched(scripted, tmp_path, **limits)

    assert scripted.now_s <= 2.0 + 5 * STEP_S
    assert 1 <= len(search.measurements) < len(PLAN.configurations)
    assert "is used up" in trainer.warnings[0]


def test_a_profile_that_is_cut_off_ends_between_two_configurations_and_keeps_what_it_has(
    tmp_path: Path,
) -> None:
    trainer = trainer_of(Scripted(epoch_steps=10**6), tmp_path)
    trainer.start(1)
    recorder, begun = cast(Recorder, _Recorder()), Search(PLAN, Spent(0.0, 0.0))
    asked = trainer.elapsed_s + 1.0
    *_, search = profile(
        begun,
        trainer,
        recorder,
        ProfileSpec(steps=20),
        SPACE,
        judge=lambda so_far: so_far,
        samples=None,
        cut=lambda: trainer.elapsed_s > asked,
    )

    assert 1 <= len(search.measurements) == len(search.tried) < len(PLAN.configurations)
    assert "the job's pool has another use for its slots" in trainer.warnings[-1]
    assert isinstance(decided(search, trainer, objective="time").choice, Choice)


def test_a_profile_does_not_wait_for_workers_beyond_its_limit(tmp_path: Path) -> None:
    class NeverReady(Scripted):
        """Only the first worker ever gets ready."""

        def poll(self, timeout_s: float) -> list[Any]:
            if len(self.launched) > 1:
                self.now_s += STEP_S
                return []
            return super().poll(timeout_s)

    search, trainer = searched(NeverReady(epoch_steps=10**6), tmp_path, max_time=20.0)

    assert trainer.elapsed_s <= 20.0 + 3 * STEP_S
    assert {m.configuration.workers for m in search.measurements} == {1}


def test_a_profile_ends_where_workers_cannot_be_kept_alive_and_the_choice_keeps_to_fewer(
    tmp_path: Path,
) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6, doomed={f"w{i}" for i in range(1, 50)}), tmp_path)
    assert "could not be kept alive" in trainer.warnings[-1]

    chosen = decided(search, trainer, objective="time").choice

    assert isinstance(chosen, Choice)
    assert chosen.configuration.workers == 1


def test_what_was_measured_before_a_limit_ends_the_job_stays_known(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(epoch_steps=10**6), tmp_path, deadline_s=9.0)
    trainer.start(1)
    recorder, plan = cast(Recorder, _Recorder()), SearchPlan("full", "asked for", SPACE.configurations(), 20)
    found = [Search(plan, Spent(0.0, 0.0))]

    searches = profile(
        found[0], trainer, recorder, ProfileSpec(steps=20), SPACE, judge=lambda so_far: so_far, samples=None
    )

    with pytest.raises(LimitReachedError, match="deadline"):
        found.extend(searches)

    assert 1 <= len(found[-1].measurements) < len(plan.configurations)


def test_a_search_that_is_overtaken_by_the_end_of_training_stops(tmp_path: Path) -> None:
    scripted = Scripted(epoch_steps=10)
    trainer = trainer_of(scripted, tmp_path, goal=JOB.goal.model_copy(update={"max_epochs": 1}))
    trainer.start(1)
    spec, recorder = ProfileSpec(steps=5), cast(Recorder, _Recorder())
    begun = Search(PLAN, Spent(0.0, 0.0))
    *_, search = profile(begun, trainer, recorder, spec, SPACE, judge=lambda so_far: so_far, samples=None)

    assert trainer.finished
    assert len(search.measurements) <= 1
    assert begun == Search(PLAN, Spent(0.0, 0.0))


def test_a_search_ends_where_what_is_known_suffices_unless_all_was_asked_for(tmp_path: Path) -> None:
    search, _ = searched(Scripted(epoch_steps=10**6), tmp_path, enough="it would not pay")
    assert tuple(m.configuration for m in search.measurements) == PLAN.configurations

    partial = SearchPlan("partial", "asked for", SPACE.configurations()[:1], 5, points=3)
    search, _ = searched(Scripted(epoch_steps=10**6), tmp_path, partial, enough="it would not pay")
    assert (len(search.measurements), search.ended_because) == (1, "it would not pay")


def test_a_partial_search_measures_what_tells_most_and_keeps_workers_until_it_ends(tmp_path: Path) -> None:
    plan = SearchPlan("partial", "asked for", SPACE.configurations()[:1], 5, points=3)
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path, plan)

    measured = [m.configuration for m in search.measurements]
    assert len(set(measured)) == len(measured) == 3
    assert {c.workers for c in measured} == {1, 2}
    assert len(trainer.supervisor.alive) == 2


def test_how_far_the_run_was_is_kept_with_each_reading_of_the_noise(tmp_path: Path) -> None:
    search, _ = searched(Scripted(epoch_steps=10**6), tmp_path, samples=1e6)
    shares = [m.progress for m in search.measurements]
    assert shares == sorted(shares, key=lambda share: share or 0.0)
    assert 0.0 < (shares[0] or 0.0) < (shares[-1] or 0.0) < 1.0

    search, _ = searched(Scripted(epoch_steps=10**6), tmp_path)
    assert {m.progress for m in search.measurements} == {None}


# ---- deciding --------------------------------------------------------------------------------------------

JOB = JobSpec.model_validate(
    {"version": 1, "name": "tiny", "train": "train:job", "objective": "cost", "goal": {"max_epochs": 100}}
)
SAMPLES = 3200


def decided(
    search: Search,
    trainer: Trainer,
    tell: Callable[[JobModel], JobModel] = lambda model: model,
    **changes: Any,
) -> Selection:
    job = JobSpec.model_validate({**JOB.written(), **changes})
    measured = profile_of(trainer, search.measurements, dataset_size=SAMPLES, convergence=())
    model = fit_model(measured, SPACE, job, prior=None)
    return decide(model, trainer, SPACE, job, told=tell(model), end=END)


def at_epochs(epochs: float) -> Callable[[JobModel], JobModel]:
    """The model with the level of its epochs as a forecast sets it."""

    def tell(model: JobModel) -> JobModel:
        return replace(model, statistical=model.statistical.at_level(32, epochs, 0.5, "from a test"))

    return tell


def test_without_a_target_the_choice_is_at_equal_progress_unless_the_epochs_are_fixed(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6, worker_sqnorm=1.5), tmp_path)
    equal = decided(search, trainer)
    fixed = decided(search, trainer, goal={"max_epochs": 100, "epochs_fixed": True})
    sizes = equal.curve.configurations.global_batch_size
    law = equal.model.statistical.fixed

    assert law is not None
    assert law.critical_batch_size is not None
    assert set(equal.curve.epochs[sizes == 32]) == {100.0}
    assert np.all(equal.curve.epochs[sizes > 32] > 100.0)
    assert np.all(equal.curve.epochs <= np.maximum(100.0, 100.0 * sizes / 32))
    assert equal.curve.notes[0].startswith("compared at equal progress")
    assert isinstance(equal.choice, Choice)
    assert equal.choice.point.on_front
    assert equal.predicted is not None
    assert equal.predicted.epochs == pytest.approx(equal.choice.point.epochs, abs=0.5)
    at = equal.choice.configuration.global_batch_size
    assert at > 32
    needed = equal.choice.point.epochs
    told = f"; {needed:g} epochs at batch {at} make the progress of 100 at batch 32, as a larger batch"
    assert f"{told} makes less in each; --epochs-fixed trains 100" in equal.choice.reason
    assert isinstance(fixed.choice, Choice)
    assert "epochs-fixed" not in fixed.choice.reason
    assert set(fixed.curve.epochs) == {100.0}
    assert fixed.curve.progress_share is not None


def test_a_forecast_sets_the_level_at_the_choice_and_excludes_not_everything(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    goal = {"metric": "val_loss", "target": 1.0, "max_epochs": 100}
    bound = decided(search, trainer, goal=goal)
    told = decided(search, trainer, at_epochs(25.0), goal=goal)
    assert bound.predicted is not None
    assert told.predicted is not None
    limit = {"deadline": f"{1.5 * bound.predicted.time_s:.3f}s"}
    too_long = decided(search, trainer, at_epochs(1000.0), goal=goal, constraints=limit)

    assert bound.curve.relative_only
    assert not told.curve.relative_only
    assert told.predicted.time_s < 0.6 * bound.predicted.time_s
    assert told.model.relative_only
    assert isinstance(too_long.choice, Choice)
    assert too_long.told is too_long.model


def test_limits_are_held_against_the_rest_of_the_way_and_what_is_spent(tmp_path: Path) -> None:
    """Every step takes as long, so the whole way takes 100 epochs of 100 or 50 steps, less what is done."""
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    trainer.until(lambda: trainer.step == 2500)
    spent_s = trainer.elapsed_s
    decision = decided(search, trainer)
    assert decision.predicted is not None
    needed_s = decision.predicted.time_s
    whole = decision.choice.point.time_s

    assert 0.2 < decision.progress < 0.6
    assert isinstance(decision.choice, Choice)
    stall = trainer.stall(decision.choice.configuration)
    assert stall is not None  # of the change to the choice
    stall_s = stall.median_s
    assert needed_s == pytest.approx(spent_s + stall_s + (1 - decision.progress) * whole + END.median_s)
    assert needed_s < spent_s + whole
    for deadline, kind in ((needed_s * 1.01, Choice), (needed_s * 0.5, Infeasible)):
        found = decided(search, trainer, constraints={"deadline": f"{deadline:.3f}s"})
        assert isinstance(found.choice, kind)
        assert (found.predicted is None) is (kind is Infeasible)


def test_while_workers_for_the_choice_start_the_job_trains_on(tmp_path: Path) -> None:
    plan = SearchPlan("full", "asked for", (Configuration("local-1", 1, 32),), 5)
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path, plan)
    decision = decided(search, trainer)
    larger, here = (decision.curve.find(Configuration("local-1", workers, 32)) for workers in (2, 1))
    assert larger is not None
    assert here is not None
    trainer.earlier_starts = Starts((), (20.0,) * 100)
    start_s = trainer.further_start.median_s
    spent_s, left = trainer.elapsed_s, 1.0 - decision.progress
    choice = Choice(larger, "time", "")
    found = predict_run(
        trainer, decision.told, choice, run_ahead(trainer, decision.told, decision.curve, choice, end=END)
    )

    assert start_s > 5.0
    assert found.spent_s == pytest.approx(spent_s + start_s)
    assert found.remaining == pytest.approx(left - start_s / here.time_s)
    assert found.time_s == pytest.approx(found.spent_s + found.remaining * larger.time_s + END.median_s)
    # The epochs are fixed, so what is not certain is how long steps and the start take.
    assert found.time_interval_s[0] < found.time_s < found.time_interval_s[1]


def test_the_pause_of_a_program_that_starts_again_is_in_the_prediction_and_its_interval(
    tmp_path: Path,
) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6, stall_s=20.0), tmp_path)
    decision = decided(search, trainer)
    assert isinstance(decision.choice, Choice)
    other = next(
        point
        for point in decision.curve
        if point.configuration != trainer.configuration and point.configuration.workers == 2
    )
    choice = Choice(other, "time", "")
    ahead = run_ahead(trainer, decision.told, decision.curve, choice, end=END)
    found, without = (
        predict_run(trainer, decision.told, choice, one) for one in (ahead, replace(ahead, stall=None))
    )

    stall = trainer.stall(other.configuration)
    assert stall is not None
    assert found.time_s == pytest.approx(without.time_s + stall.median_s)
    assert stall.median_s == pytest.approx(20.0, rel=0.1)
    assert found.time_interval_s[1] == pytest.approx(without.time_interval_s[1] + 20.0, abs=4.0)
    here = replace(choice, point=decision.curve.find(trainer.configuration) or other)
    assert run_ahead(trainer, decision.told, decision.curve, here, end=END).stall is None


def test_a_change_of_the_batch_alone_is_known_apart_from_that_of_workers(tmp_path: Path) -> None:
    """A program that takes its batches from the job is started again for other workers alone."""
    _, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    now, history = trainer.configuration, trainer.history
    assert now is not None
    batch = replace(now, global_batch_size=2 * now.global_batch_size)
    workers = replace(now, workers=now.workers + 1)
    found = []
    for stalls in (
        ([], [], []),
        ([], [], [8.0]),
        ([4.0], [], [8.0]),
        ([4.0], [0.5], [8.0]),
        ([], [0.5], [8.0]),
    ):
        history.stalls_s, history.batch_stalls_s, history.program_starts_s = stalls
        pauses = [
            trainer.stall(batch),
            trainer.stall(workers),
            trainer.stall(now, workers),
            trainer.stall(workers, batch),
        ]
        found.append([None if one is None else one.median_s for one in pauses])

    assert found == [
        [None] * 4,
        [pytest.approx(8.0)] * 4,
        [pytest.approx(4.0)] * 4,
        [pytest.approx(value) for value in (0.5, 4.0, 4.0, 4.0)],
        [pytest.approx(value) for value in (0.5, 8.0, 8.0, 8.0)],
    ]


def test_a_program_stays_where_it_is_if_its_start_takes_longer_than_a_change_saves(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    other = decided(search, trainer, objective="time").choice
    assert isinstance(other, Choice)
    trainer.move(replace(other.configuration, workers=3 - other.configuration.workers), "elsewhere")
    trainer.history.stalls_s, trainer.history.program_starts_s = [], [1e6]
    here = decided(search, trainer, objective="time")

    assert isinstance(here.choice, Choice)
    assert here.choice.configuration == trainer.configuration != other.configuration
    assert "is not worth a pause of 1,100,000 s" in here.choice.reason  # the mean of what it may be
    anew = decide(
        here.model,
        trainer,
        SPACE,
        JOB.model_copy(update={"objective": "time"}),
        told=here.model,
        end=END,
        anew=True,
    )
    assert isinstance(anew.choice, Choice)
    assert anew.choice.configuration == other.configuration  # another run begins there
    assert anew.predicted is not None
    assert anew.predicted.spent_s > 1e6  # with a start of its program


def test_the_first_point_is_not_measured_again_by_a_program_that_starts_slowly(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    trainer.history.stalls_s = [20.0]

    assert repeat_first(search, trainer, SPACE, lost=0.0, left_s=1000.0) == search
    assert repeat_first(search, trainer, SPACE, lost=0.0, left_s=1e5) != search


def test_while_workers_start_a_program_that_starts_slowly_is_not_started_again(tmp_path: Path) -> None:
    _, trainer = searched(
        Scripted(epoch_steps=10**6, stall_s=20.0), tmp_path, replace(PLAN, configurations=ONE_WORKER)
    )
    views = trainer.view
    trainer.move(Configuration("local-1", 2, 64), "chosen", meanwhile=32)

    assert trainer.view == views + 1  # and none for the batch size until then


def test_another_point_must_pay_for_the_pauses_of_the_program(tmp_path: Path) -> None:
    """What knowing more may gain is the same: what is lost by it is not."""
    plan = SearchPlan("partial", "asked for", SPACE.configurations()[:1], 5, points=4)
    reasons = []
    for stall_s in (0.0, 1e4):
        folder = tmp_path / str(stall_s)
        folder.mkdir()
        search, trainer = searched(Scripted(epoch_steps=10**6), folder, replace(plan, points=2))
        trainer.history.stalls_s = [stall_s] * bool(stall_s)
        measured = profile_of(trainer, search.measurements, dataset_size=SAMPLES, convergence=())
        model = fit_model(measured, SPACE, JOB, prior=None)
        begun = replace(search, plan=plan)
        reasons.append(judged(begun, model, trainer, SPACE, JOB).ended_because)

    assert "another measurement could gain" in reasons[1]
    assert reasons[0] != reasons[1]


def test_what_is_left_of_the_first_start_is_what_was_left_in_earlier_runs_when_the_module_was_known(
    tmp_path: Path,
) -> None:
    scripted = Scripted(epoch_steps=10**6, now_s=100.0)
    trainer = trainer_of(scripted, tmp_path)
    trainer.earlier_starts, trainer.earlier_rests_s = Starts((6.0,) * 9), (0.25,) * 9
    scripted.now_s += 5.0
    before = trainer.first_start
    scripted.manifest = SimpleNamespace(dataset_size=SAMPLES, validation_size=0, tensors=())
    trainer.pump()
    scripted.now_s += 0.1
    known = trainer.first_start
    trainer.start(1)
    trainer.until(lambda: bool(trainer.history.setup_s))
    trainer.pump()

    assert before is not None
    assert before[0].median_s == pytest.approx(6.0, rel=0.05)
    assert before[1] == 5.0
    assert known is not None
    assert known[0].median_s == pytest.approx(0.25)
    assert known[1] == pytest.approx(0.1)
    assert trainer.first_start is None
    assert 0.1 <= trainer.rest_of_start_s < 5.0


def test_a_job_that_ends_before_another_worker_is_ready_waits_for_none(tmp_path: Path) -> None:
    plan = SearchPlan("full", "asked for", (Configuration("local-1", 1, 32),), 5)
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path, plan)
    larger = decided(search, trainer, objective="time").choice
    trainer.earlier_starts = Starts((), (3000.0,) * 100)
    alone = decided(search, trainer, objective="time").choice

    assert isinstance(larger, Choice)
    assert isinstance(alone, Choice)
    assert (larger.configuration.workers, alone.configuration.workers) == (2, 1)
    assert "the job ends before another worker is ready" in alone.reason


@pytest.mark.parametrize(("worth", "until"), [("$1000", "4h"), ("$0.01", "30d")])
def test_by_utility_the_rest_of_the_way_and_what_is_spent_are_weighed(
    tmp_path: Path, worth: str, until: str
) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    utility = {"utility": {"linear": {"worth": worth, "until": until}}}

    decision = decided(search, trainer, objective=utility)
    choice = decision.choice

    assert isinstance(choice, Choice)
    assert choice.objective == "utility"
    assert choice.reason.startswith("worth most above its cost")
    left, spent_s, spent_usd = 1.0 - decision.progress, decision.at.time_s, decision.at.cost_usd
    curve = JobSpec.model_validate({**JOB.written(), "objective": utility}).utility
    assert curve is not None

    def above_cost(time_s: float, cost_usd: float) -> float:
        return curve.worth_at(spent_s + left * time_s) - (spent_usd + left * cost_usd)

    # without a target, batch sizes cannot be compared
    alike = [point for point in decision.curve if point.configuration.global_batch_size == 32]
    best = max(above_cost(point.time_s, point.cost_usd) for point in alike)
    assert above_cost(choice.point.time_s, choice.point.cost_usd) == pytest.approx(best)


def test_without_a_measurement_and_a_stored_model_the_limit_to_raise_is_named(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path, max_time=0.05)

    with pytest.raises(ConfigurationError, match="max_time"):
        decided(search, trainer)


def test_what_a_search_and_a_run_took_add_up(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    decision = decided(search, trainer)
    search = replace(search, ended=decision.at)
    choice = decision.choice if isinstance(decision.choice, Choice) else None
    taken = search_outcome(search, choice, decision.progress, trainer)
    trainer.until(lambda: trainer.step == 200)
    actual = actual_of(trainer, SAMPLES, Configuration("local-1", 1, 32))

    assert actual is not None
    assert taken == search_outcome(search, choice, decision.progress, trainer)
    assert 0 < taken.time_s < actual.time_s
    assert 0 < taken.cost_usd < actual.cost_usd
    assert actual.epochs == sum(record.samples for record in trainer.history.steps) / SAMPLES


@pytest.mark.parametrize("batch", [32, 64])
def test_epochs_are_predicted_as_they_are_counted_at_whatever_batch_sizes(tmp_path: Path, batch: int) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6, worker_sqnorm=1.5), tmp_path)
    decision = decided(search, trainer, goal={"max_epochs": 2})
    point = decision.curve.find(Configuration("local-1", 2, batch))
    assert point is not None
    choice = Choice(point, "time", "")
    predicted = predict_run(
        trainer, decision.told, choice, run_ahead(trainer, decision.told, decision.curve, choice, end=END)
    )
    trainer.move(point.configuration, "as chosen")
    last = trainer.step + round((1.0 - progress_of(trainer, decision.told)) * point.epochs * SAMPLES / batch)
    trainer.until(lambda: trainer.step == last)
    actual = actual_of(trainer, SAMPLES, point.configuration)
    assert actual is not None
    error = time_error(predicted, actual)

    assert predicted.epochs == pytest.approx(actual.epochs, abs=2 * batch / SAMPLES)
    assert error is not None
    assert abs(error.epochs_s) < 2 * STEP_S
    again = resumed_epochs(
        JobSpec.model_validate({**JOB.written(), "goal": {"max_epochs": 2}}),
        point.configuration,
        predicted,
        None,
    )
    assert again.epochs(np.array([float(batch)])) == point.epochs


# ---- asking ----------------------------------------------------------------------------------------------


def test_training_goes_on_while_a_question_stands(tmp_path: Path) -> None:
    before, moved_on = 10**6, threading.Event()
    trainer = trainer_of(
        Scripted(epoch_steps=10**6),
        tmp_path,
        progress=lambda: moved_on.set() if trainer.step > before + 10 else None,
    )
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "test")
    before = trainer.step

    assert ask_while_training(lambda: moved_on.wait(60), trainer, at_end=lambda error: None)
    assert trainer.step > before + 10


def test_a_limit_ends_the_job_while_a_question_stands_and_is_told_after_the_answer(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(epoch_steps=10**6), tmp_path, deadline_s=30.0)
    trainer.start(1)
    ended = threading.Event()

    with pytest.raises(LimitReachedError, match="deadline"):
        ask_while_training(lambda: ended.wait(20), trainer, at_end=lambda error: ended.set())
    assert ended.is_set()
    assert trainer.elapsed_s < 30.0


def test_a_wish_to_stop_that_comes_with_the_answer_is_heeded(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(epoch_steps=2), tmp_path, goal=GoalSpec(max_epochs=1))
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "test")
    trainer.until(lambda: False)
    assert trainer.finished  # so that the other thread looks no more

    def refuse() -> bool:
        trainer.stop("interrupted")
        return False

    with pytest.raises(Interrupted, match="interrupted"):
        ask_while_training(refuse, trainer, at_end=lambda error: None)


def test_a_question_that_is_taken_back_leaves_no_thread(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(epoch_steps=10**6), tmp_path)
    trainer.start(1)

    def taken_back() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_while_training(taken_back, trainer, at_end=lambda error: None)
    assert not [t for t in threading.enumerate() if t.name == "scavenger-train"]


def test_a_plan_predicts_a_run_that_begins_at_its_choice(tmp_path: Path) -> None:
    search, trainer = searched(Scripted(epoch_steps=10**6), tmp_path)
    measured = profile_of(trainer, search.measurements, dataset_size=SAMPLES, convergence=())
    model = fit_model(measured, SPACE, JOB, prior=None)
    here, anew = (
        decide(model, trainer, SPACE, JOB, told=model, end=END, anew=anew) for anew in (False, True)
    )
    assert isinstance(anew.choice, Choice)
    assert here.predicted is not None
    assert anew.predicted is not None
    point, predicted = anew.choice.point, anew.predicted

    assert predicted.remaining == 1.0
    assert predicted.time_s == pytest.approx(predicted.spent_s + point.time_s + predicted.end_s, rel=0.01)
    assert predicted.cost_usd > point.cost_usd
    assert predicted.epochs == point.epochs
    assert predicted.spent_s < here.predicted.spent_s
