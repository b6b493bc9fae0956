"""The live display: whatever is known of a job, it fits the terminal, and says nothing that is no number."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from cli_samples import make_choice, make_curve
from hypothesis import example, given
from hypothesis import strategies as st

from scavenger.domain import report as report
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import EpochRecord, StepRecord
from scavenger.domain.progress import Moved, Progress
from scavenger.presentation.live import Dollars, JobNow, JobWatch, ToldEvent, cells, cut, rows

NUMBERS = st.one_of(
    st.floats(min_value=-1e12, max_value=1e12), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-300])
)
COUNTS = st.integers(min_value=1, max_value=10**9)
TEXTS = st.text(alphabet="abc \u6587\u5b57\u0301\U0001f680", max_size=120)
PAIRS = st.tuples(NUMBERS, NUMBERS)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    workers = draw(st.integers(1, 5000))
    return Configuration(draw(TEXTS), workers, workers * draw(st.integers(1, 5000)))


PROGRESS = st.builds(
    Progress,
    COUNTS,
    COUNTS,
    configurations(),
    st.one_of(st.floats(min_value=0.0, max_value=1e12), st.just(math.nan)),
    TEXTS,
    st.none() | st.floats(min_value=0.0, max_value=1.0),
    st.none() | st.floats(min_value=0.0, max_value=1.0),
    st.none() | st.tuples(st.floats(1.0, 1e9), st.floats(1.0, 1e9)),
    st.none() | NUMBERS,
    st.none() | PAIRS,
    st.none() | st.builds(Moved, configurations(), COUNTS, TEXTS),
)
JOBS = st.builds(
    JobNow,
    st.builds(
        report.PhaseChanged, st.sampled_from(["starting", "profiling", "fitting", "running", "saving"]), TEXTS
    ),
    NUMBERS,
    st.none() | NUMBERS,
    st.none() | PROGRESS,
    NUMBERS,
    NUMBERS,
    st.lists(st.from_regex(r"w[0-9]{1,4}", fullmatch=True), max_size=200).map(tuple),
    st.builds(Dollars, NUMBERS, st.none() | NUMBERS, PAIRS, st.none() | NUMBERS, st.none() | NUMBERS),
    st.lists(st.builds(ToldEvent, NUMBERS, TEXTS, st.booleans()), max_size=8).map(tuple),
)


@given(JOBS, st.integers(1, 300), st.integers(1, 100), st.booleans())
@example(JobNow(), 1, 1, True)
@example(JobNow(share=-0.0), 40, 9, False)
def test_whatever_is_known_it_fits_and_holds_no_negative_time_or_money_and_no_nan(
    now: JobNow, columns: int, most: int, plain: bool
) -> None:
    found = rows(now, columns=columns, most=most, plain=plain)

    assert 1 <= len(found) <= min(most, 24)
    for row in found:
        assert cells(row.text) <= columns
        assert "\n" not in row.text
        assert not re.search(r"\bnan\b|\binf\b|(?<![\w.])-\$?\d", row.text), row.text


@given(TEXTS, st.integers(1, 60), st.booleans())
def test_a_text_that_is_cut_is_a_beginning_with_a_mark(text: str, columns: int, plain: bool) -> None:
    kept = cut(text, columns, plain=plain)

    assert cells(kept) <= columns
    assert kept == text or (text.startswith(kept[:-1]) and kept[-1] == ("." if plain else "\u2026"))


def step(number: int, at_s: float = 10.0, cost_usd: float = 0.0042) -> report.StepDone:
    record = StepRecord(number, 1, 3, 2, 128, 128, 0.012, 0.008, 0.004, 0.5, 1.0, 0.5, 2, False, at_s)
    return report.StepDone(record, 0.25, cost_usd)


PREDICTED = report.Predicted(100.0, (60.0, 200.0), 0.5, (0.25, 1.5), 0.012, 10.0)
CURVE = make_curve()
EVENTS: tuple[report.Event, ...] = (
    report.PhaseChanged("starting", "2 workers on local"),
    report.WorkerChanged("w0", "starting"),
    report.WorkerChanged("w1", "starting"),
    report.WorkerChanged("w0", "ready"),
    report.ViewChanged(2, Configuration("local-1", 2, 128), 1, 0.0, "profiling"),
    report.PhaseChanged("running", "to val_accuracy>=0.97"),
    report.ChoiceMade(CURVE, make_choice(CURVE), PREDICTED),
    step(587),
    report.EpochEnded(EpochRecord(3, 587, {"val_accuracy": 0.91}, 10.0, 9.0), "val_accuracy", 0.97),
    step(588),
)


def watched(*events: report.Event) -> JobWatch:
    watch = JobWatch(100.0)
    for event in events:
        watch.on_event(event, 110.0)
    return watch


def shown(watch: JobWatch, now_s: float = 110.0, *, columns: int = 80, most: int = 24) -> list[str]:
    return [row.text for row in rows(watch.now(now_s), columns=columns, most=most)]


def test_a_screen_tells_phase_configuration_progress_time_and_dollars() -> None:
    watch = watched(*EVENTS)
    watch.limit(budget_usd=1.0)
    found = shown(watch)

    assert found[0] == "running: to val_accuracy>=0.97"
    assert found[1].startswith("done      25 %   \u2501\u2501\u2501")
    assert found[2:8] == [
        "time      10 s so far, about 1 min 30 s left (90 %: 50 s to 3 min 10 s)",
        "cost      $0.0042 so far, about $0.50 in all (90 %: $0.25 to $1.50)",
        "budget    $1.00, 0.42 % of it spent",
        "runs on   2 x local-1, batch 128",
        "step      588, epoch 4, 12 ms a step",
        "metric    val_accuracy 0.91 (target 0.97), loss 0.5",
    ]
    assert any(row.startswith("10 s  chosen: ") for row in found[8:])


def test_time_goes_on_between_steps_and_what_is_left_shrinks_with_it() -> None:
    watch = watched(*EVENTS)

    assert "time      13 s so far, about 1 min 27 s left (90 %: 47 s to 3 min 10 s)" in shown(watch, 113.0)
    assert not any("no step" in row for row in shown(watch, 114.0))


def test_a_job_without_a_step_for_long_says_for_how_long_and_who_is_starting() -> None:
    watch = watched(*EVENTS, report.WorkerChanged("w1", "starting"))

    waits = "waits     no step for 30 s: w1 is starting"
    assert waits in shown(watch, 140.0)
    assert waits in shown(watch, 140.0, most=3)  # what matters most is not left out
    assert "workers   w1 is starting" in shown(watch, 112.0)
    watch.on_event(report.PhaseChanged("saving", "/model.keras"), 140.0)
    assert not any("no step" in row or "left" in row for row in shown(watch, 200.0))


def test_what_happened_to_workers_is_told_and_what_other_rows_tell_is_not_repeated() -> None:
    watch = watched(
        *EVENTS,
        report.WorkerChanged("w1", "preempted", "the cloud takes it in 30 s"),
        report.WorkerChanged("w1", "lost", "killed by signal 9"),
        report.WorkerChanged("w2", "leaving"),
        report.Noted("warning", "the disk is\x1b[2J nearly full"),
        report.ViewChanged(3, Configuration("local-1", 1, 64), 600, 0.1, "asked to scale"),
    )
    found = rows(watch.now(110.0), columns=80, most=24)

    assert [(row.text.removeprefix("10 s  "), row.style) for row in found[-4:]] == [
        ("worker: w1 preempted: the cloud takes it in 30 s", "warning"),
        ("worker: w1 lost: killed by signal 9", "warning"),
        ("warning: the disk is nearly full", "warning"),
        ("trains on 1 x local-1, batch 64 from step 600: asked to scale", "dim"),
    ]
    assert not any("epoch 4: " in row.text or "leaving" in row.text for row in found)


def test_the_course_of_the_metric_replaces_what_was_predicted() -> None:
    forecast = report.EpochsForecast(4, 8.0, (6.0, 12.0), 20.0, 0.0084, 0.05, 0.93)
    watch = watched(*EVENTS, report.Forecasted(forecast, False), step(589))
    found = shown(watch)

    assert "time      10 s so far, about 10 s left (90 %: 5 s to 20 s)" in found
    assert "cost      $0.0042 so far, about $0.0084 in all (90 %: $0.0063 to $0.013)" in found
    assert "step      589, epoch 4 of 6-12, 12 ms a step" in found


def test_epochs_that_are_not_known_predict_nothing() -> None:
    relative = replace(CURVE, relative_only=True)
    watch = watched(*EVENTS[:6], report.ChoiceMade(relative, make_choice(relative), PREDICTED), step(3))

    assert "cost      $0.0042 so far" in shown(watch)


@pytest.mark.parametrize("columns", [40, 20, 8])
def test_a_narrow_terminal_has_the_beginnings(columns: int) -> None:
    found = shown(watched(*EVENTS), columns=columns, most=9)

    assert len(found) == 9
    assert found[0].startswith("running"[: columns - 1])
    assert all(cells(row) <= columns for row in found)
