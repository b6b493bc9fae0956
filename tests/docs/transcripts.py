"""`python -m tests.docs.transcripts`: writes what a job shows into docs/report.md, as today's code shows it.

A block of text below a comment that names one of `TRANSCRIPTS` is written by it. tests/docs/test_docs.py holds the page
to them, and a test of a real job holds the rows of its summary to those of the page.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from scavenger_cli.ui import console, render
from scavenger_cli.ui.observer import PlainObserver

from scavenger.domain import report as report
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, CurveConfigurations, Interval, PointMarks, TradeoffCurve
from scavenger.domain.measurement import EpochRecord, Measurement, StepRecord
from scavenger.presentation.live import JobWatch, rows

PAGE = Path(__file__).parents[2] / "docs" / "report.md"
_BLOCK = "<!-- python -m tests.docs.transcripts writes this: {name} -->\n\n```text\n"


def _at(workers: int, batch: int) -> Configuration:
    return Configuration("local-1", workers, batch)


def _curve() -> TradeoffCurve:
    """The two ends of the front of the run whose table the page shows."""
    time_s, cost_usd = np.array([306.0, 504.0]), np.array([0.0228, 0.0188])
    return TradeoffCurve(
        CurveConfigurations(("local-1",), np.zeros(2, np.int64), np.array([2, 1]), np.array([32, 128])),
        time_s,
        Interval(time_s / 2.2, time_s * 2.3),
        cost_usd,
        Interval(cost_usd / 2.3, cost_usd * 2.3),
        np.array([0.228, 1.27]),
        np.array([26.4, 27.0]),
        PointMarks(
            np.array([True, True]), np.array([True, True]), np.array([False, False]), np.zeros(2, np.int64)
        ),
    )


CURVE = _curve()
CHOICE = Choice(
    CURVE[0],
    "knee",
    "the front has no knee; nearest to both the least time and the least cost: also the fastest",
    (("fastest", CURVE[0]), ("cheapest", CURVE[1])),
)
PREDICTED = report.Predicted(380.0, (210.0, 780.0), 0.025, (0.012, 0.053), 0.228, 26.4)
REPORT = report.RunReport(
    report.ReportedJob("0d9d3fb2-5a0e-4c6c-9d39-7a1f52c4e0aa", "digits-cnn", "succeeded"),
    report.SearchOutcome(
        "partial",
        "no model of the same job on the same hardware is stored",
        tuple(Measurement(_at(1, 32), 20, 0.5, 0.01, 0.4, 0.1, 1.2, 260.0, 1) for _ in range(4)),
        93.0,
        0.00488,
        33.4,
        0.000896,
    ),
    CURVE,
    CHOICE,
    PREDICTED,
    result=report.TrainingResult(
        report.Actual(525.0, 0.0357, 0.359, 26.0),
        report.MetricOutcome("val_accuracy", 0.9917, 0.99, True),
        1073,
        "examples/digits/.scavenger/0d9d3fb2-5a0e-4c6c-9d39-7a1f52c4e0aa/model.keras",
    ),
)


def _profiled(index: int, at: Configuration, step_time_s: float, steps: int, noise: float) -> report.Profiled:
    return report.Profiled(Measurement(at, steps, step_time_s, 0.001, 0.1, 0.1, 1.2, noise, 1), index, 6)


EVENTS: tuple[tuple[float, report.Event], ...] = (
    (0.0, report.PhaseChanged("starting", "1 worker on local")),
    (
        9.0,
        report.PhaseChanged(
            "profiling", "6 configurations at most: no model of the same job on the same hardware is stored"
        ),
    ),
    (10.0, report.ViewChanged(1, _at(1, 32), 1, 0.0, "start")),
    (24.0, _profiled(1, _at(1, 32), 0.496, 23, 260.0)),
    (24.0, report.ViewChanged(2, _at(1, 128), 24, 0.004, "profiling")),
    (51.0, _profiled(2, _at(1, 128), 1.27, 20, 334.0)),
    (52.0, report.ViewChanged(3, _at(2, 32), 74, 0.00457, "profiling")),
    (66.0, _profiled(3, _at(2, 32), 0.227, 20, 378.0)),
    (67.0, report.ViewChanged(4, _at(1, 64), 94, 0.004, "profiling")),
    (92.0, _profiled(4, _at(1, 64), 0.743, 20, 516.0)),
    (
        93.0,
        report.PhaseChanged(
            "fitting",
            "4 measured configurations: another measurement could gain 2.7 % of what is left at most, and would cost "
            "5.5 %",
        ),
    ),
    (93.0, report.ChoiceMade(CURVE, CHOICE, PREDICTED)),
    (
        94.0,
        report.PhaseChanged("running", "to val_accuracy>=0.99 within 120 epochs at 2 x local-1, batch 32"),
    ),
    (94.0, report.ViewChanged(5, _at(2, 32), 114, 0.004, "chosen")),
    (
        200.0,
        report.Noted(
            "warning", "at this rate val_accuracy 0.99 is reached with 42 % probability within 120 epochs"
        ),
    ),
)


def _step(number: int, epoch: int, at_s: float, cost_usd: float) -> report.StepDone:
    record = StepRecord(number, 5, epoch, 2, 32, 32, 0.359, 0.3, 0.059, 0.0823, 1.0, 0.5, 2, False, at_s)
    return report.StepDone(record, 0.58, cost_usd)


def display() -> str:
    """The display in the middle of the run."""
    watch = JobWatch(0.0)
    for at_s, event in EVENTS:
        watch.on_event(event, at_s)
    watch.on_event(_step(630, 13, 318.0, 0.0208), 318.0)
    watch.on_event(
        report.EpochEnded(EpochRecord(13, 630, {"val_accuracy": 0.9667}, 3.0, 318.0), "val_accuracy", 0.99),
        318.0,
    )
    watch.on_event(
        report.Forecasted(report.EpochsForecast(14, 24.4, (17.0, 45.0), 520.0, 0.0352, 0.05, 0.9), False),
        318.0,
    )
    watch.on_event(_step(665, 14, 330.0, 0.0217), 330.0)
    watch.limit(approved_usd=PREDICTED.cost_usd)
    return "\n".join(row.text for row in rows(watch.now(330.0), columns=80, most=24)) + "\n"


def lines() -> str:
    """What a pipe gets, without the lines of steps."""
    stream = io.StringIO()
    observer = PlainObserver(stream, clock=lambda: 0.0)
    for _, event in (*EVENTS, (525.0, report.PhaseChanged("done", "succeeded"))):
        observer.on_event(event)
    return stream.getvalue()


def summary() -> str:
    """The report at the end of the run."""
    stream = io.StringIO()
    console.emit(*render.report_text(REPORT), stream=stream)
    return stream.getvalue()


TRANSCRIPTS: Mapping[str, Callable[[], str]] = {"display": display, "lines": lines, "summary": summary}


def written(page: str, made: Mapping[str, Callable[[], str]] = TRANSCRIPTS) -> str:
    """The page with its transcripts made anew.

    Raises:
        ValueError: If the page has no block for one.
    """
    for name, make in made.items():
        before, begin, rest = page.partition(_BLOCK.format(name=name))
        if not begin:
            raise ValueError(f"the page has no block for {name}")
        page = before + begin + make() + "```" + rest.partition("```")[2]
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
