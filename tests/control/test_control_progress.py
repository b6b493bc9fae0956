"""How far a job is, as followed from its events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain import report as report
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import StepRecord
from scavenger.domain.progress import Moved, Progress, ProgressTracker

VIEW = report.ViewChanged(1, Configuration("local-1", 2, 64), 1, 0.0, "begin")
PREDICTED = report.Predicted(100.0, (80.0, 150.0), 1.0, (1.0, 2.0), 0.1, 3.0)


def step(at_s: float, *, loss: float = 0.5) -> report.StepDone:
    return report.StepDone(
        StepRecord(7, 1, 2, 2, 64, 64, 0.1, 0.05, 0.05, loss, 1.0, 1.0, 2, False, at_s), None, 0.0
    )


def test_nothing_is_told_before_the_first_step() -> None:
    tracker = ProgressTracker()
    tracker.on_event(VIEW)

    assert tracker.due(0.0) is None
    assert tracker.final() is None


@pytest.mark.parametrize(
    ("at_s", "left"),
    [(40.0, (60.0, (40.0, 110.0))), (90.0, (10.0, (0.0, 60.0))), (120.0, (0.0, (0.0, 30.0))), (150.0, None)],
)
def test_the_time_left_is_what_remains_of_the_prediction(
    at_s: float, left: tuple[float, tuple[float, float]] | None
) -> None:
    tracker = ProgressTracker()
    tracker.predict(PREDICTED)
    for event in (VIEW, step(at_s)):
        tracker.on_event(event)
    told = tracker.due(0.0)

    assert told is not None
    assert (told.left_s, told.left_interval_s) == (left or (None, None))


def test_the_course_of_the_metric_takes_the_place_of_the_prediction() -> None:
    tracker = ProgressTracker()
    tracker.predict(PREDICTED)
    for event in (VIEW, step(50.0)):
        tracker.on_event(event)
    # 10 epochs of 5 s after 50 s: 15 in all take 100 s, and 12 to 20 take 85 to 125 s
    tracker.on_event(
        report.Forecasted(report.EpochsForecast(5, 15.0, (12.0, 20.0), 100.0, 0.0, 0.0, 1.0), False)
    )
    tracker.predict(PREDICTED)
    tracker.on_event(step(60.0))
    told = tracker.due(0.0)

    assert told is not None
    assert told.left_s == pytest.approx(40.0)
    assert told.left_interval_s == pytest.approx((25.0, 65.0))
    assert told.epochs_interval == (12.0, 20.0)
    assert str(told) == ("epoch 3, step 7, 2 x local-1, batch 64, loss 0.5, 40 s left (90 %: 25 to 65)")


def test_it_is_told_at_intervals_and_at_once_after_a_change_of_view() -> None:
    tracker = ProgressTracker(every_s=10.0)
    for event in (VIEW, step(1.0)):
        tracker.on_event(event)

    assert tracker.due(0.0) is not None
    assert tracker.due(20.0) is None, "nothing new"
    tracker.on_event(step(2.0))
    assert tracker.due(9.0) is None
    assert tracker.due(10.0) is not None
    for event in (VIEW, step(3.0)):
        tracker.on_event(event)
    assert tracker.due(11.0) is not None


def test_what_is_written_is_read_back_also_a_loss_that_is_no_number() -> None:
    progress = Progress(7, 2, VIEW.configuration, 0.5, "loss", 0.5, None, (1.0, 2.0), 3.0, (1.0, 5.0))

    assert Progress.read(progress.data()) == progress
    assert math.isnan(Progress.read({**progress.data(), "loss": None}).loss)


CHOSEN = Configuration("local-1", 1, 64)


def moved_after(sizes: list[int], tracker: ProgressTracker) -> Moved | None:
    """What is told of the move after views of these numbers of workers."""
    for number, workers in enumerate(sizes, start=1):
        view = Configuration("local-1", workers, 64)
        tracker.on_event(report.ViewChanged(number, view, 10 * number, 0.0, f"view {number}"))
    tracker.on_event(step(1.0))
    told = tracker.final()
    assert told is not None
    assert Progress.read(told.data()) == told
    return told.moved


def running_tracker() -> ProgressTracker:
    tracker = ProgressTracker()
    tracker.choose(CHOSEN)
    tracker.on_event(report.PhaseChanged("running", ""))
    return tracker


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_a_job_away_from_its_choice_tells_since_when_and_why(sizes: list[int]) -> None:
    moved, last = moved_after(sizes, running_tracker()), sizes[-1]

    assert (moved is None) == (last == CHOSEN.workers)
    if moved is not None:
        came = int(moved.reason.removeprefix("view "))
        assert moved == Moved(Configuration("local-1", sizes[came - 1], 64), 10 * came, f"view {came}")
        assert sizes[came - 1] == last
    # a worker that is lost and replaced changes nothing of it
    assert moved_after([*sizes, 9, last], running_tracker()) == moved


def test_profiling_is_no_move_and_a_resumed_job_counts_from_what_was_chosen_before() -> None:
    tracker = ProgressTracker()
    assert moved_after([1, 2, 3], tracker) is None
    tracker.choose(CHOSEN)
    assert moved_after([2, 3], tracker) is None
