"""What is said while a job runs."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace

import pytest
from cli_samples import make_choice, make_curve
from scavenger_cli.ui.observer import (
    LiveObserver,
    PlainObserver,
    make_observer,
)

from scavenger.domain import report as report
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import EpochRecord, Measurement, StepRecord
from scavenger.pipelines.progress import LINE_MAX_S, LINE_S


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(number: int) -> report.StepDone:
    record = StepRecord(
        number, 1, 0, 2, 128, 128, 0.012, 0.008, 0.004, 0.5, 1.0, 0.5, 2, False, number * 0.01
    )
    return report.StepDone(record, 0.25, 0.0042)


FORECAST = report.EpochsForecast(8, 26.2, (18.7, 40.1), 80.0, 0.0061, 0.05, 0.93)
CURVE = make_curve()
EVENTS: tuple[report.Event, ...] = (
    report.PhaseChanged("profiling", "6 configurations"),
    report.WorkerChanged("worker-0", "starting"),
    report.WorkerChanged("worker-1", "ready"),
    report.ViewChanged(2, Configuration("local", 2, 128), 21, 0.05, "profiling the next"),
    step(1),
    report.EpochEnded(EpochRecord(0, 400, {"val_accuracy": 0.91}, 1.2, 9.0), "val_accuracy", 0.97),
    report.Profiled(
        Measurement(Configuration("local", 2, 128), 20, 0.012, 0.001, 0.008, 0.004, 1.2, 220.0, 1), 1, 6
    ),
    report.ChoiceMade(CURVE, make_choice(CURVE)),
    report.Noted("warning", "the disk is\x1b[2J nearly full"),
    report.WorkerChanged("worker-1", "lost", "killed by signal 9"),
)


def plain(clock: list[float], *, verbose: bool = True) -> tuple[PlainObserver, io.StringIO]:
    stream = io.StringIO()
    return PlainObserver(stream, verbose=verbose, clock=lambda: clock[0]), stream


@pytest.mark.parametrize("verbose", [False, True])
def test_plain_lines_start_with_fixed_words(verbose: bool) -> None:
    observer, stream = plain([0.0], verbose=verbose)
    for event in EVENTS:
        observer.on_event(event)

    firsts = [line.split()[0].rstrip(":,") for line in stream.getvalue().splitlines()]
    if verbose:
        assert firsts == ["profiling", "view", "step", "epoch", "profiled", "chosen", "warning", "worker"]
    else:
        assert firsts == ["profiling", "step", "profiled", "chosen", "warning", "worker"]
    assert "\x1b" not in stream.getvalue()


def test_of_ten_thousand_steps_in_a_hundred_seconds_eleven_lines_are_written() -> None:
    clock = [0.0]
    observer, stream = plain(clock)
    for number in range(10_001):
        clock[0] = number / 100
        observer.on_event(step(number + 1))

    assert len(stream.getvalue().splitlines()) == 100 / LINE_S + 1


def test_a_phase_is_told_more_and_more_rarely_and_a_job_that_hangs_within_minutes() -> None:
    clock = [0.0]
    observer, stream = plain(clock, verbose=False)
    told: list[float] = []
    for number in range(2 * 36_000):
        clock[0] = number / 10
        before = stream.tell()
        observer.on_event(step(number + 1))
        if stream.tell() > before:
            told.append(clock[0])

    within = {end: sum(at <= end for at in told) for end in (60.0, 240.0, 3600.0)}
    assert within[60.0] <= 5
    assert within[240.0] <= 9
    assert within[3600.0] <= 21
    assert max(after - before for before, after in itertools.pairwise(told)) <= LINE_MAX_S + 0.1

    observer.on_event(report.PhaseChanged("running", ""))
    clock[0] += LINE_MAX_S
    before = stream.tell()
    observer.on_event(step(1))
    assert stream.tell() > before


def test_a_step_line_holds_configuration_step_time_loss_metric_target_and_cost() -> None:
    clock = [0.0]
    observer, stream = plain(clock)
    observer.on_event(EVENTS[5])
    observer.on_event(step(7))

    line = stream.getvalue().splitlines()[-1]
    for words in ("2 x batch 128", "12 ms", "loss 0.5", "val_accuracy 0.91 (target 0.97)", "$0.0042", "25 %"):
        assert words in line


def test_a_short_step_line_fits_80_columns_and_tells_progress_metric_and_cost() -> None:
    observer, stream = plain([0.0], verbose=False)
    observer.on_event(EVENTS[5])
    observer.on_event(report.Forecasted(FORECAST, False))
    observer.on_event(step(7))

    line = stream.getvalue().splitlines()[-1]
    assert line == "step 7, 25 %, epoch 1 of about 26 (19-40), val_accuracy 0.91, $0.0042"
    assert len(line) <= 80


def test_a_quiet_display_says_warnings_and_lost_workers_alone() -> None:
    stream = io.StringIO()
    observer = make_observer(stream, quiet=True)
    for event in EVENTS:
        observer.on_event(event)

    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["warning", "worker"]


def test_a_reader_who_left_does_not_end_the_training() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    PlainObserver(Gone()).on_event(EVENTS[0])


def test_where_there_is_no_terminal_the_plain_one_is_used() -> None:
    assert isinstance(make_observer(io.StringIO()), PlainObserver)


def test_the_live_display_draws_the_last_step_and_costs_nothing_per_step() -> None:
    stream = Terminal()
    observer = LiveObserver(stream)
    for event in EVENTS:
        observer.on_event(event)
    for number in range(1000):
        observer.on_event(step(number))
    assert stream.getvalue() == ""

    observer.start()
    observer.stop()
    drawn = stream.getvalue()
    assert "step      999, epoch 1" in drawn
    assert "profiling: 6 configurations" in drawn
    assert drawn.index("\x1b[?25l") < drawn.rindex("\x1b[?25h")
    assert drawn.endswith("\x1b[1A\x1b[2K")


def test_every_event_is_printed_above_the_live_display_where_that_was_asked_for() -> None:
    stream = Terminal()
    observer = LiveObserver(stream, verbose=True)
    for event in EVENTS:
        observer.on_event(event)

    firsts = re.findall(r"^(?:\x1b\[33m)?(\w+)(?::| \d)", stream.getvalue(), re.MULTILINE)
    assert firsts == ["profiling", "view", "epoch", "profiled", "chosen", "warning", "worker"]


def test_a_forecast_is_a_line_when_it_is_kept_and_stands_beside_the_epoch() -> None:
    observer, stream = plain([0.0])
    observer.on_event(report.Forecasted(FORECAST, False))
    observer.on_event(step(1))
    observer.on_event(report.Forecasted(FORECAST, True))
    steps, forecast = stream.getvalue().splitlines()

    assert "epoch 1 of about 26 (19-40)" in steps
    assert forecast == "forecast: 26 epochs in all (90 %: 18 to 41), target within the limits: 93 %"


def test_a_forecast_that_could_be_anything_says_that_nothing_is_known() -> None:
    observer, stream = plain([0.0])
    observer.on_event(report.Forecasted(replace(FORECAST, epochs=10.0, epochs_interval=(4.0, 5000.0)), True))
    observer.on_event(step(1))
    forecast, steps = stream.getvalue().splitlines()

    assert forecast.startswith("forecast: epochs in all not known yet (90 %: 4 to 5000)")
    assert "epoch 1 (end not known yet)" in steps

    short, stream = plain([0.0], verbose=False)
    short.on_event(report.Forecasted(replace(FORECAST, epochs_interval=(4.0, 5000.0)), True))
    short.on_event(step(1))
    assert stream.getvalue() == "step 1, epoch 1 (end not known yet), loss 0.5, $0.0042\n"
