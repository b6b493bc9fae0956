"""What is kept of a history: as little as is used, and no less."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scripted import Scripted, trainer_of

from scavenger.control.training import history
from scavenger.control.training import journal as journals
from scavenger.control.training.journal import Journal, read_history
from scavenger.control.training.sample_counter import SampleCounter
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import GoalSpec
from scavenger.train.supervisor.events import Leaving, Warned
from scavenger.train.transport import messages as m

KEPT = 50
PLACE = Configuration("local-1", 2, 32)

steps = st.tuples(st.sampled_from([32, 64]), st.sampled_from([32, 31]))
happenings = st.lists(st.one_of(steps, st.integers(0, 30)), max_size=60)


@given(happened=happenings, before=st.dictionaries(st.sampled_from([32, 128]), st.integers(1, 1000)))
def test_a_tally_is_what_all_steps_that_stand_come_to(
    happened: list[tuple[int, int] | int], before: dict[int, int]
) -> None:
    tally, stand = SampleCounter(before.items()), {}  # type: ignore[var-annotated]
    for entry in happened:
        if isinstance(entry, int):
            undone = [step for step in stand if step > entry]
            assert tally.undo(entry) == len(undone)
            for step in undone:
                del stand[step]
        else:
            number = max(stand, default=0) + 1
            stand[number] = entry
            tally.add(number, *entry)
        assert tally.step == max(stand, default=None)
        assert tally.samples == sum(samples for _, samples in stand.values())
        for batch in (32, 64, 128):
            here = sum(samples for b, samples in stand.values() if b == batch)
            assert tally.by_batch.get(batch, 0) == here + before.get(batch, 0)


def test_a_step_that_is_done_again_undoes_those_after_it() -> None:
    tally = SampleCounter()
    for step in (1, 2, 3, 4, 2):
        tally.add(step, 32, 32)
    assert (tally.step, tally.samples) == (2, 64)


def test_a_tally_of_many_epochs_is_small() -> None:
    tally = SampleCounter()
    for step in range(1, 10_001):
        tally.add(step, 32, 32 if step % 100 else 7)
    assert len(tally._runs) == 200
    assert tally.samples == 9_900 * 32 + 100 * 7


# ---- a long run --------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """At `PLACE`, with 12 epochs of ten steps behind it."""
    monkeypatch.setattr(history, "KEPT_STEPS", KEPT)
    made = trainer_of(Scripted(), tmp_path, goal=GoalSpec(max_epochs=10_000))
    made.start(2)
    made.move(PLACE, "test")
    made.until(lambda: made.step >= 120)
    return made


def test_a_long_run_keeps_the_newest_steps_alone(trainer: Trainer) -> None:
    for _ in range(500):
        trainer.pump()
        assert len(trainer.history.steps) < 2 * KEPT
        assert trainer.history.steps[-1].step == trainer.step
    kept = [record.step for record in trainer.history.steps]
    assert kept == list(range(kept[0], trainer.step + 1))
    assert len(kept) >= KEPT
    assert trainer.history.steps_since(trainer.step - 7) == trainer.history.steps[-7:]


def test_what_is_told_of_a_long_run_is_of_all_of_it(trainer: Trainer) -> None:
    trainer.until(lambda: trainer.step >= 700)
    history = trainer.history
    assert history.samples == sum(history.samples_by_batch.values()) == 32 * trainer.step
    assert history.evaluation_s() == ((2, 0.5),)
    assert len(history._workers_at) == len(history.epochs) == 70


def test_a_window_that_is_waited_for_is_kept_however_long_it_gets(trainer: Trainer) -> None:
    begin = trainer.step
    trainer.until(lambda: len(trainer.history.window(PLACE, begin)) >= 7 * KEPT)
    window = trainer.history.window(PLACE, begin)
    assert [record.step for record in window] == list(range(begin + 1, trainer.step + 1))
    # and nobody waits for it any more
    for _ in range(3 * KEPT):
        trainer.pump()
    assert len(trainer.history.steps) < 2 * KEPT


def test_what_was_forgotten_can_still_be_undone(trainer: Trainer) -> None:
    trainer.until(lambda: trainer.step >= 700)
    history = trainer.history
    assert history.roll_back(35) == 665
    assert (history.step, history.samples, history.samples_by_batch[32]) == (35, 35 * 32, 35 * 32)
    assert history.steps_since(0) == []
    assert [epoch.step for epoch in history.epochs] == [10, 20, 30]
    assert history.evaluation_s() == ((2, 0.5),)


def test_the_step_time_is_of_where_the_job_was_to_run_if_it_ever_did(trainer: Trainer) -> None:
    history = trainer.history
    elsewhere, nowhere = Configuration("local-1", 1, 32), Configuration("local-1", 9, 64)
    expected = statistics.median(record.step_time_s for record in history.steps if not record.disturbed)
    assert history.step_time_s(PLACE) == history.step_time_s(nowhere, PLACE) == expected
    assert history.step_time_s(nowhere) == statistics.median(record.step_time_s for record in history.steps)
    assert elsewhere != PLACE


def test_workers_that_are_gone_are_forgotten(trainer: Trainer) -> None:
    assert trainer.history.steps_of("w1") > 0
    trainer.supervisor.coming.append(Leaving("w1"))  # type: ignore[attr-defined]
    trainer.supervisor.membership.lost("w1")  # type: ignore[attr-defined]
    trainer.pump()
    assert trainer.history.steps_of("w1") == 0
    assert trainer.history.recent("w1") == []


# ---- time that passes without steps ------------------------------------------------------------------------


def test_an_attempt_that_dies_before_its_first_step_has_taken_its_time(tmp_path: Path) -> None:
    scripted = Scripted(doomed={"w0"})
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    scripted.launch = lambda workers, vm="", *, threads=None: ()  # type: ignore[method-assign]
    for _ in range(600):  # 60 s in which no worker gets ready
        trainer.pump()
    assert trainer.step == 0

    told = read_history(trainer.journal.path, 0).elapsed_s
    assert trainer.elapsed_s - told <= journals._TELL_S + 1.1
    trainer.journal.end(trainer.elapsed_s)
    assert read_history(trainer.journal.path, 0).elapsed_s == trainer.elapsed_s == pytest.approx(60.0)


def test_a_journal_is_not_filled_with_the_time_while_steps_tell_it(tmp_path: Path) -> None:
    trainer = trainer_of(Scripted(), tmp_path, goal=GoalSpec(max_epochs=10_000))
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "test")
    trainer.until(lambda: trainer.step >= 500)
    assert trainer.journal.path.read_text().count('"kind":"time"') <= 1


@given(times=st.lists(st.floats(0, 1e6), max_size=50).map(sorted))
@examples(12)
def test_a_killed_job_forgets_a_few_seconds_at_most(
    times: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "measurements.jsonl")
    for at_s in times:
        journal.tick(at_s, 0.0)
        assert 0 <= at_s - read_history(journal.path, 0).elapsed_s <= journals._TELL_S
    journal.close()


def test_a_history_is_read_without_having_all_of_the_journal_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(Scripted(), tmp_path)
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "test")
    trainer.until(lambda: trainer.step >= 25)
    monkeypatch.setattr(Path, "read_bytes", None)
    monkeypatch.setattr(Path, "read_text", None)
    assert dict(read_history(trainer.journal.path, 23).samples_by_batch) == {32: 23 * 32}


# ---- what is told at once ----------------------------------------------------------------------------------


def test_a_checkpoint_is_recorded_with_the_event_that_tells_of_it(tmp_path: Path) -> None:
    ticks: list[int] = []
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path, on_tick=lambda: ticks.append(trainer.checkpoint_step))
    trainer.start(1)
    trainer.move(Configuration("local-1", 1, 32), "test")
    for _ in range(3):
        scripted.coming.append(m.CheckpointWritten(trainer.step, 0, 0.1, 100))
        ticks.clear()
        written = trainer.step
        trainer.pump()
        assert ticks == [written]


def test_what_a_supervisor_warns_of_is_noted(tmp_path: Path) -> None:
    scripted = Scripted()
    trainer = trainer_of(scripted, tmp_path)
    trainer.start(1)
    scripted.coming.append(Warned("something is odd"))
    trainer.pump()
    assert trainer.warnings == ["something is odd"]


def test_what_slow_steps_add_to_a_run_is_told_but_no_single_one_decides(tmp_path: Path) -> None:
    class Uneven(Scripted):
        """One step in ten takes three times as long, and the 50th a thousand times."""

        def report(self) -> m.StepReport:
            report = super().report()
            longer = 1000.0 if report.step == 50 else 3.0 if report.step % 10 == 0 else 1.0
            return msgspec.structs.replace(report, step_time_s=report.step_time_s * longer)

    even, uneven = (trainer_of(made(epoch_steps=10**6), tmp_path) for made in (Scripted, Uneven))
    assert even.history.mean_over_median is None
    for trainer in (even, uneven):
        trainer.start(2)
        trainer.move(PLACE, "test")
        trainer.until(lambda trainer=trainer: trainer.step >= 100)  # type: ignore[misc]

    assert even.history.mean_over_median == pytest.approx(1.0)
    assert uneven.history.mean_over_median == pytest.approx(
        (90 + 9 * 3 + history.SLOW_STEP_MAX) / 100, rel=0.02
    )


def test_what_is_compiled_in_the_first_steps_and_evaluation_delays_a_run_once(tmp_path: Path) -> None:
    class Compiled(Scripted):
        """A second more for the first step, half of one for the first evaluation, and slow steps later."""

        def report(self) -> m.StepReport:
            report = super().report()
            more_s = 1.0 if report.step == 1 else 5.0 if report.step in (31, 32) else 0.0
            return msgspec.structs.replace(report, step_time_s=report.step_time_s + more_s)

        def poll(self, *given: Any) -> Any:
            for event in list(super().poll(*given)):
                first = isinstance(event, m.EpochReport) and event.epoch == 0
                yield msgspec.structs.replace(event, evaluation_s=1.0) if first else event

    trainer = trainer_of(Compiled(), tmp_path, goal=GoalSpec(max_epochs=10_000))
    trainer.start(2)
    assert trainer.program_start is None
    trainer.move(PLACE, "test")
    trainer.until(lambda: trainer.step >= 100)

    assert trainer.history.warm_up_s == pytest.approx(1.0 + 0.5, abs=0.05)
    assert trainer.program_start is not None
    assert trainer.program_start.median_s == pytest.approx(1.5, abs=0.05)
