"""What the trainer makes of what a supervisor reports; the supervisor is scripted."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scripted import PRICE, STEP_S, Heard, Scripted, offer, trainer_of

from scavenger.control.training.limits import DRAIN_S
from scavenger.control.training.losses import GIVE_UP
from scavenger.control.training.measure import measure
from scavenger.control.training.view_in_effect import VIEW_WARM_UP_STEPS
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import GoalSpec
from scavenger.domain.measurement import StepRecord
from scavenger.domain.report import ViewChanged
from scavenger.errors import Interrupted, LimitReachedError, WorkersLostError
from scavenger.models.noise import NoiseTracker
from scavenger.train.supervisor.events import PreemptionNotice, Refused
from scavenger.train.transport import messages as m

LOSS = GoalSpec(metric="val_loss", target=0.5, max_epochs=5)


def at(workers: int, batch: int) -> Configuration:
    return Configuration("local-1", workers, batch)


# ---- goals -------------------------------------------------------------------------------------------------


def test_training_ends_with_the_epoch_that_reaches_the_target(tmp_path: Path) -> None:
    scripted = Scripted(metrics=[{"val_loss": 0.9}, {"val_loss": 0.5}, {"val_loss": 0.1}])
    trainer = trainer_of(scripted, tmp_path, goal=LOSS)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    trainer.until(lambda: False)

    assert (trainer.finished, trainer.reached, trainer.step) == (True, True, 20)
    assert scripted.verdicts == [(False, True), (True, True)]


def test_without_reaching_it_training_ends_after_the_last_epoch_and_the_best_weights_were_kept(
    tmp_path: Path,
) -> None:
    scripted = Scripted(metrics=[{"val_loss": value} for value in (0.9, 0.7, math.nan, 0.8, 0.75)])
    trainer = trainer_of(scripted, tmp_path, goal=LOSS)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    trainer.until(lambda: False)

    assert (trainer.reached, len(trainer.history.epochs)) == (False, 5)
    assert [kept for _, kept in scripted.verdicts] == [True, True, False, False, False]
    assert trainer.history.best_epoch == trainer.history.epochs[1]


# ---- limits ------------------------------------------------------------------------------------------------


@examples(12)
@given(budget_usd=st.floats(0.03, 0.1), workers=st.integers(1, 4))
def test_what_is_spent_when_a_budget_stops_the_job_leaves_enough_to_end_in_order(
    tmp_path_factory: pytest.TempPathFactory, budget_usd: float, workers: int
) -> None:
    scripted = Scripted(epoch_steps=10**6)
    trainer = trainer_of(scripted, tmp_path_factory.mktemp("j"), budget_usd=budget_usd)
    trainer.start(workers)
    trainer.move(at(workers, 32), "test")
    with pytest.raises(LimitReachedError, match="budget"):
        trainer.until(lambda: False)

    per_s = workers * PRICE / 3600
    assert trainer.cost_usd + DRAIN_S * per_s <= budget_usd + 3 * STEP_S * per_s
    assert trainer.cost_usd == pytest.approx(scripted.now_s * per_s)


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"budget_usd": 0.0}, r"budget of \$0"), ({"deadline_s": DRAIN_S}, "deadline of 5 s")],
)
def test_a_limit_that_leaves_no_time_to_end_in_order_starts_nobody(
    tmp_path: Path, limits: dict[str, float], words: str
) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path, **limits)
    with pytest.raises(LimitReachedError, match=words):
        trainer.start(1)

    assert (scripted.launched, trainer.cost_usd) == ({}, 0.0)


def test_free_workers_train_on_a_budget_of_nothing(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(), tmp_path, budget_usd=0.0, price=0.0)
    trainer.start(2)

    assert trainer.move(at(2, 32), "test")


def test_workers_that_were_let_go_count_against_the_budget_until_they_have_ended(tmp_path: Path) -> None:
    class Lingering(Scripted):
        """Nobody that is let go ever ends."""

        @property
        def existing(self) -> dict[str, int]:
            return dict(Counter(self.vms.values()))

    per_s = PRICE / 3600
    trainer = trainer_of(Lingering(epoch_steps=10**6), tmp_path, budget_usd=0.1)
    trainer.start(4)
    trainer.move(at(4, 32), "test")
    trainer.move(at(1, 32), "test")
    with pytest.raises(LimitReachedError, match="budget"):
        trainer.until(lambda: False)

    assert trainer.cost_usd + 4 * DRAIN_S * per_s <= 0.1 + STEP_S * per_s


def test_a_deadline_stops_the_job_while_workers_still_start(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path, deadline_s=8.0)
    with pytest.raises(LimitReachedError, match="deadline of 8 s"):
        trainer.until(lambda: False)

    assert scripted.now_s < 8.0 - DRAIN_S + 2 * STEP_S


def test_the_reserve_grows_with_what_a_worker_may_be_busy_with(tmp_path: Path) -> None:
    scripted = Scripted(epoch_steps=5)
    trainer = trainer_of(scripted, tmp_path)
    alone = trainer.drain_s
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    stepping = trainer.drain_s
    trainer.until(lambda: bool(trainer.history.epochs))

    assert (alone, stepping, trainer.drain_s) == (DRAIN_S, DRAIN_S + STEP_S, DRAIN_S + 0.5)


def test_a_wish_to_stop_is_heard_at_the_next_look(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(), tmp_path)
    trainer.stop("interrupted")

    with pytest.raises(Interrupted, match="interrupted"):
        trainer.pump()


# ---- workers -----------------------------------------------------------------------------------------------


def test_the_first_worker_is_replaced_when_it_dies_before_it_is_ready(tmp_path: Path) -> None:
    scripted = Scripted(doomed={"w0"})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)

    assert trainer.move(at(1, 32), "test")
    assert list(scripted.launched) == ["w0", "w1"]
    assert "replaced" in trainer.warnings[0]


@pytest.mark.parametrize("crashing", [False, True])
@pytest.mark.parametrize("workers", [1, 2, GIVE_UP, GIVE_UP + 3])
def test_a_job_whose_workers_all_die_as_they_start_gives_up_and_starts_no_more_than_may_fail(
    tmp_path: Path, workers: int, crashing: bool
) -> None:
    names = {f"w{i}" for i in range(100)}
    scripted = Scripted(doomed=names, crashing=names if crashing else set())
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(workers)
    with pytest.raises(WorkersLostError, match="before it could train"):
        trainer.until(lambda: False)

    assert len(scripted.launched) == max(workers, GIVE_UP)
    assert not [warning for warning in trainer.warnings if "samples" in warning]


def test_a_worker_that_crashes_on_its_samples_is_replaced_as_long_as_that_may_find_them(
    tmp_path: Path,
) -> None:
    scripted = Scripted(dies_at={5: "w0"}, crashing={"w0"})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    trainer.until(lambda: "w1" in scripted.launched)

    assert "samples are tried again separately" in trainer.warnings[-1]


def test_after_the_last_replacement_the_job_goes_on_with_fewer_and_says_so(tmp_path: Path) -> None:
    scripted = Scripted(doomed={f"w{i}" for i in range(1, 100)})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    assert trainer.move(at(1, 32), "test")
    assert trainer.workers_max(trainer.elapsed_s) is None

    there = trainer.move(at(2, 32), "test")

    assert not there
    assert trainer.workers_max(trainer.elapsed_s) == 1
    assert trainer.warnings[-1].endswith("continues with 1")
    assert trainer.step > 0


def test_scaling_in_lets_the_spare_workers_go_so_that_nobody_pays_for_them(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(3)
    assert trainer.move(at(3, 32), "test")
    assert trainer.move(at(1, 64), "test")
    began_usd, began_s = trainer.cost_usd, scripted.now_s
    for _ in range(10):
        trainer.pump()

    assert sorted(scripted.gone) == ["w1", "w2"]
    assert trainer.cost_usd - began_usd == pytest.approx((scripted.now_s - began_s) * PRICE / 3600)


def test_workers_that_nobody_waits_for_any_more_are_let_go_once_they_are_ready(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    assert trainer.move(at(1, 32), "test")

    assert not trainer.move(at(4, 32), "test", give_up=lambda: True)
    trainer.pump()
    trainer.pump()

    assert len(scripted.membership.alive) == 1
    assert sorted(scripted.gone) == ["w1", "w2", "w3"]


def test_a_replacement_that_is_no_longer_wanted_is_let_go(tmp_path: Path) -> None:
    scripted = Scripted(dies_at={5: "w1"})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(2)
    assert trainer.move(at(2, 32), "test")
    trainer.until(lambda: "w2" in scripted.launched)
    assert trainer.move(at(1, 32), "test")
    trainer.pump()

    assert scripted.membership.alive == ("w0",)


# ---- what a step tells -------------------------------------------------------------------------------------


def test_the_first_steps_of_a_view_and_partial_ones_are_no_evidence(tmp_path: Path) -> None:
    scripted = Scripted(partial_at=7)
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    trainer.until(lambda: trainer.step == 10)

    warm = list(range(1, VIEW_WARM_UP_STEPS + 1))
    assert [record.step for record in trainer.history.steps if record.disturbed] == [*warm, 7]
    assert [r.step for r in trainer.history.window(at(1, 32), 4)] == [5, 6, 8, 9, 10]
    assert trainer.history.window(at(1, 64), 0) == []


@pytest.mark.parametrize(("shared_cpus", "disturbed"), [(2, True), (None, False)])
def test_starting_workers_disturb_only_those_that_share_their_processors(
    tmp_path: Path, shared_cpus: int | None, disturbed: bool
) -> None:
    class Slow(Scripted):
        """The second worker never gets ready."""

        @property
        def starting(self) -> int:
            return 1 if self.polls > 8 else 0

    trainer = trainer_of(Slow(), tmp_path, shared_cpus=shared_cpus)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    trainer.until(lambda: trainer.step == 12)

    assert trainer.history.steps[-1].disturbed is disturbed


def test_steps_that_came_while_the_job_was_being_stopped_are_recorded_too(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    scripted.step += 1
    scripted.late = [scripted.report()]
    trainer.take_last_steps()
    trainer.journal.close()

    written = [json.loads(line) for line in trainer.journal.path.read_text().splitlines()]
    steps = [line["step"] for line in written if line["kind"] == "step"]
    assert steps == list(range(1, scripted.step + 1))
    assert trainer.history.samples_by_batch == {32: 32 * scripted.step}


def test_a_checkpoint_is_recorded_and_one_that_cannot_be_written_is_told_once_for_each_reason(
    tmp_path: Path,
) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    full = m.CheckpointFailed(4, "no space left on device")
    scripted.coming = [m.CheckpointWritten(3, 0, 0.5, 1000), full, full, m.CheckpointFailed(6, "read-only")]
    trainer.pump()

    written = [json.loads(line) for line in trainer.journal.path.read_text().splitlines()]
    (checkpoint,) = [line for line in written if line["kind"] == "checkpoint"]
    assert (checkpoint["step"], checkpoint["bytes"], trainer.checkpoint_step) == (3, 1000, 3)
    assert ["no space" in trainer.warnings[0], "read-only" in trainer.warnings[1]] == [True, True]
    assert len(trainer.warnings) == 2


def test_a_view_is_told_with_its_first_step_and_the_time_that_was_not_computing(tmp_path: Path) -> None:
    heard = Heard()
    trainer = trainer_of(Scripted(), tmp_path, observer=heard)
    trainer.start(1)
    trainer.move(at(1, 32), "because")

    (change,) = [event for event in heard.events if isinstance(event, ViewChanged)]
    assert (change.configuration, change.first_step, change.reason) == (at(1, 32), 1, "because")
    assert change.stall_s == pytest.approx(STEP_S / 2)


# ---- measuring ---------------------------------------------------------------------------------------------


def record(step_time_s: float) -> StepRecord:
    return StepRecord(
        1, 1, 0, 1, 32, 32, step_time_s, step_time_s / 2, step_time_s / 2, 1.0, 2.0, 1.0, 2, False, 0.0
    )


@given(
    times=st.lists(st.floats(1e-4, 10.0), min_size=5, max_size=40),
    spikes=st.lists(st.floats(1e3, 1e6), max_size=2),
)
def test_a_few_stalled_steps_do_not_move_a_measurement_out_of_what_was_seen(
    times: list[float], spikes: list[float]
) -> None:
    measurement = measure(at(1, 32), [record(value) for value in [*times, *spikes]], NoiseTracker(), 7)

    assert min(times) <= measurement.step_time_s <= max(times)
    assert measurement.step_time_spread_s <= 1.4826 * max(times)
    assert measurement.compute_s + measurement.sync_s == pytest.approx(measurement.step_time_s)
    assert (measurement.steps, measurement.memory_bytes) == (len(times) + len(spikes), 7)


def test_nothing_is_measured_from_no_step() -> None:
    with pytest.raises(ValueError, match="no undisturbed step"):
        measure(at(1, 32), [], NoiseTracker(), 0)


def test_evaluation_is_told_by_the_worker_count_that_it_was_seen_at(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(2)
    trainer.move(at(1, 32), "test")
    trainer.until(lambda: len(trainer.history.epochs) == 1)
    trainer.move(at(2, 32), "test")
    trainer.until(lambda: len(trainer.history.epochs) == 3)

    assert [workers for workers, _ in trainer.history.evaluation_s()] == [1, 2]


def test_a_worker_whose_vm_will_end_leaves_at_once_and_is_replaced_beside_it(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(2)
    trainer.move(at(2, 32), "test")
    scripted.coming = [PreemptionNotice("w0", 30.0, "spot VM taken back")]
    trainer.until(lambda: scripted.launched.keys() >= {"w2"})
    view = scripted.membership.announced
    assert view is not None
    assert "w0" not in [member.worker for member in view.members]

    trainer.until(lambda: "w0" in scripted.gone and trainer.supervisor.ready == 2)
    trainer.until(lambda: trainer.configuration == at(2, 32))
    assert trainer.supervisor.alive == ("w1", "w2")
    assert [departure.kind for departure in trainer.history.departures] == ["eviction"]


def test_the_only_worker_trains_on_until_its_vm_ends(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    step = trainer.step
    scripted.coming = [PreemptionNotice("w0", 30.0, "spot VM taken back")]
    trainer.until(lambda: scripted.gone.keys() == {"w0"})
    trainer.until(lambda: trainer.step > step + 30)

    assert trainer.configuration == at(1, 32)
    assert trainer.supervisor.workers("training") == ("w1",)


def test_all_may_be_told_of_their_end_at_once(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(2)
    trainer.move(at(2, 32), "test")
    scripted.coming = [PreemptionNotice(name, 30.0, "spot VM taken back") for name in ("w0", "w1")]
    trainer.until(lambda: scripted.gone.keys() >= {"w0", "w1"})
    trainer.until(lambda: trainer.configuration == at(2, 32))

    assert trainer.supervisor.alive == ("w2", "w3")


def test_workers_that_there_is_no_room_for_are_no_failures_and_the_job_goes_on_without(
    tmp_path: Path,
) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    trainer.move(at(1, 32), "test")

    def refuse(workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        names = Scripted.launch(scripted, workers, vm)
        for name in names:
            scripted.membership.release(name)
            scripted.gone[name] = scripted.now_s
            scripted.coming.append(Refused(name, "no VM"))
        return names

    scripted.launch = refuse  # type: ignore[method-assign]
    assert not trainer.move(at(8, 256), "test")
    assert (trainer.wanted, trainer.workers_max(trainer.elapsed_s)) == (1, 1)
    assert trainer.history.departures == []
    assert [
        warning for warning in trainer.warnings if "continues with 1 worker" in warning
    ] == trainer.warnings


def test_a_vm_that_is_only_at_risk_is_replaced_when_somebody_else_is_there(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(2)
    trainer.move(at(2, 32), "test")
    scripted.coming = [PreemptionNotice("w1", None, "rebalance recommended")]
    trainer.pump()
    assert trainer.at_risk == {"w1"}
    assert trainer.supervisor.alive == ("w0", "w1")


def test_a_change_of_vm_type_keeps_the_old_ones_until_all_new_ones_have_come(tmp_path: Path) -> None:
    scripted = Scripted()
    other = replace(offer(price=2 * PRICE), vm="local-2", cpus=2)
    trainer = trainer_of(scripted, tmp_path, others=[other])
    trainer.start(2)
    trainer.move(at(2, 32), "test", keep=True)
    there = Configuration("local-2", 3, 96)

    assert trainer.move(there, "test", keep=True)
    assert trainer.configuration == there
    assert scripted.gone.keys() == {"w0", "w1"}
    assert {scripted.vm_of(name) for name in trainer.supervisor.alive} == {"local-2"}
    assert trainer.offer is other
    spent = scripted.worker_seconds()
    assert trainer.cost_usd == pytest.approx((spent["local-1"] + 2 * spent["local-2"]) * PRICE / 3600)


def test_a_vm_type_that_cannot_be_kept_alive_is_not_gone_to(tmp_path: Path) -> None:
    scripted = Scripted(doomed={f"w{n}" for n in range(2, 30)})
    other = replace(offer(price=2 * PRICE), vm="local-2", cpus=2)
    trainer = trainer_of(scripted, tmp_path, others=[other])
    trainer.start(2)
    trainer.move(at(2, 32), "test")

    assert not trainer.move(Configuration("local-2", 2, 64), "test")
    assert trainer.configuration == at(2, 32)
    assert trainer.supervisor.alive == ("w0", "w1")


@pytest.mark.parametrize(
    ("vms", "stay"),
    [
        ("abababab", ["w0", "w2", "w4", "w6"]),
        ("aabbbbaa", ["w0", "w1", "w6", "w7"]),
        ("abbbbcca", ["w1", "w2", "w3", "w4"]),
        ("aabbbccc", ["w2", "w3", "w4", "w8"]),  # one more begins where it has most of them
    ],
)
def test_a_smaller_job_leaves_whole_vms(tmp_path: Path, vms: str, stay: list[str]) -> None:
    scripted = Scripted(vms_of={f"w{at}": vm for at, vm in enumerate(vms)})
    trainer = trainer_of(scripted, tmp_path, workers_per_vm=4)
    trainer.start(8)
    trainer.move(at(8, 128), "test")

    assert trainer.move(at(4, 64), "smaller")
    assert trainer.configuration == at(4, 64)
    assert sorted(trainer.supervisor.workers("training")) == stay
    assert trainer.wanted == len(trainer.supervisor.alive) == 4


def test_four_fifths_of_a_limit_are_told_once(tmp_path: Path) -> None:
    scripted, heard = Scripted(), Heard()
    trainer = trainer_of(scripted, tmp_path, deadline_s=60.0, observer=heard)
    trainer.start(1)
    trainer.move(at(1, 32), "test")
    with pytest.raises(LimitReachedError):
        trainer.until(lambda: False)

    told = [warning for warning in trainer.warnings if "used up" in warning]
    assert len(told) == 1
    assert "of the deadline of 60 s" in told[0]
