"""The report as a document."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from cli_samples import make_choice, make_curve, make_infeasible_report, make_report
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nested import with_arrays

from scavenger.domain.configuration import Configuration
from scavenger.domain.cost import CostEstimate, CostItem
from scavenger.domain.curve import (
    Choice,
    CurveConfigurations,
    Infeasible,
    Interval,
    PointMarks,
    TradeoffCurve,
)
from scavenger.domain.document import curve_from_document, report_document, report_from_document
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import (
    Actual,
    EpochsForecast,
    JobState,
    MetricOutcome,
    Predicted,
    ReportedJob,
    RunReport,
    SearchOutcome,
    TrainingResult,
)

FIGURES = st.floats(-1e12, 1e12, allow_nan=False)
ANY_FIGURES = st.floats() | FIGURES
WORDS = st.text(max_size=8)


@st.composite
def curves(draw: st.DrawFn, figures: st.SearchStrategy[float] = FIGURES) -> TradeoffCurve:
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3, unique=True))
    reasons = ["", *draw(st.lists(st.text(min_size=1, max_size=8), max_size=3, unique=True))]
    cells = st.tuples(
        st.integers(0, len(names) - 1),
        st.integers(1, 64),
        st.integers(64, 4096),
        *[figures] * 8,
        *[st.booleans()] * 3,
        st.integers(0, len(reasons) - 1),
        st.floats(0.0, 1e5),
    )
    rows = draw(st.lists(cells, min_size=1, max_size=9, unique_by=lambda row: row[:3]))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    floats = [column.astype(np.float64) for column in columns[3:11]]
    knee = draw(st.none() | st.integers(0, len(rows) - 1))
    notes = tuple(draw(st.lists(WORDS, max_size=2)))
    return TradeoffCurve(
        CurveConfigurations(tuple(names), *columns[:3]),
        floats[0],
        Interval(*floats[1:3]),
        floats[3],
        Interval(*floats[4:6]),
        *floats[6:],
        PointMarks(*columns[11:15], tuple(reasons)),
        draw(st.booleans()),
        notes,
        knee,
        setup_s=draw(st.none() | st.just(columns[15])),
        progress_share=draw(st.none() | st.just(floats[0])),
    )


def choices(draw: st.DrawFn, curve: TradeoffCurve) -> Choice | Infeasible | None:
    points = st.integers(0, len(curve) - 1).map(lambda index: curve[index])
    alternatives = st.lists(st.tuples(WORDS, points), max_size=3).map(tuple)
    return draw(
        st.none()
        | st.builds(Choice, points, WORDS, WORDS, alternatives)
        | st.builds(Infeasible, WORDS, st.none() | points)
    )


@st.composite
def reports(draw: st.DrawFn, figures: st.SearchStrategy[float] = FIGURES) -> RunReport:
    """Every field of every value that a report is made of."""
    pairs = st.tuples(figures, figures)
    sizes = st.integers(1, 64)
    configurations = st.builds(Configuration, WORDS, sizes, st.integers(64, 4096))
    measurements = st.builds(
        Measurement,
        configurations,
        sizes,
        *[figures] * 4,
        st.none() | FIGURES,
        st.none() | FIGURES,
        sizes,
        st.none() | FIGURES,
    )
    items = st.builds(CostItem, WORDS, figures, WORDS)
    forecasts = st.builds(EpochsForecast, sizes, figures, pairs, figures, figures, figures, figures)
    curve = draw(st.none() | curves(figures))
    search = st.builds(
        SearchOutcome,
        WORDS,
        WORDS,
        st.lists(measurements, max_size=3).map(tuple),
        figures,
        figures,
        st.none() | FIGURES,
        st.none() | FIGURES,
    )
    return RunReport(
        job=ReportedJob(draw(WORDS), draw(WORDS), draw(st.sampled_from(get_args(JobState)))),
        search=draw(search),
        curve=curve,
        choice=None if curve is None else choices(draw, curve),
        predicted=draw(st.none() | st.builds(Predicted, figures, pairs, figures, pairs, figures, figures)),
        result=TrainingResult(
            actual=draw(st.none() | st.builds(Actual, figures, figures, figures, figures)),
            metric=draw(
                st.none()
                | st.builds(MetricOutcome, WORDS, st.none() | FIGURES, st.none() | FIGURES, st.booleans())
            ),
            steps=draw(sizes),
            model_path=draw(st.none() | WORDS),
            quarantined=tuple(draw(st.lists(sizes, max_size=3))),
            forecasts=tuple(draw(st.lists(forecasts, max_size=2))),
        ),
        measurements_path=draw(st.none() | WORDS),
        warnings=tuple(draw(st.lists(WORDS, max_size=2))),
        error=draw(WORDS),
        exit_code=draw(st.integers(0, 130)),
        estimate=draw(
            st.none()
            | st.builds(
                CostEstimate,
                figures,
                st.lists(items, max_size=3).map(tuple),
                st.lists(WORDS, max_size=2).map(tuple),
            )
        ),
    )


FAR_APART = RunReport(
    ReportedJob("", "", "succeeded"),
    SearchOutcome("", "", (), 0.0, 0.0),
    predicted=Predicted(1e-238, (0.0, 0.0), 0.0, (0.0, 0.0), 1e-300, 1.0),
    result=TrainingResult(actual=Actual(1e85, 0.0, 1e300, 1.0), steps=1),
)


def through_json(report: RunReport) -> dict[str, Any]:
    document = json.loads(json.dumps(report_document(report), allow_nan=False))
    assert isinstance(document, dict)
    return document


@settings(max_examples=25)
@given(reports())
def test_a_report_survives_the_way_through_json_with_all_that_it_holds(report: RunReport) -> None:
    read = report_from_document(through_json(report))

    assert replace(read, curve=None) == replace(report, curve=None)
    if report.curve is None or read.curve is None:
        assert read.curve is report.curve
        return
    assert list(read.curve) == list(report.curve)
    for name in ("knee", "relative_only", "notes"):
        assert getattr(read.curve, name) == getattr(report.curve, name)
    assert (read.curve.setup_s is None) is (report.curve.setup_s is None)


@settings(max_examples=25)
@given(reports(ANY_FIGURES))
@example(FAR_APART)
def test_whatever_the_figures_a_document_is_plain_json_and_means_the_same_when_read(
    report: RunReport,
) -> None:
    document = through_json(report)

    assert through_json(report_from_document(document)) == document


@pytest.mark.parametrize("report", [make_report(), make_report(planned=True), make_infeasible_report()])
def test_a_report_read_back_gives_the_same_document(report) -> None:  # type: ignore[no-untyped-def]
    document = report_document(report)

    assert report_document(report_from_document(json.loads(json.dumps(document)))) == document


def test_numbers_that_are_not_finite_become_null_and_come_back_unknown() -> None:
    curve = make_curve()
    curve.time_interval_s.high[0] = math.inf
    curve.epochs[1] = math.nan
    document = report_document(replace(make_report(), curve=curve))

    text = json.dumps(document, allow_nan=False)
    assert document["curve"][0]["interval"]["time_s"][1] is None
    assert document["curve"][1]["epochs"] is None
    assert math.isnan(curve_from_document(json.loads(text)).epochs[1])


def test_a_plan_has_the_fields_of_a_run_but_nothing_actual() -> None:
    run, plan = report_document(make_report()), report_document(make_report(planned=True))

    assert plan.keys() == run.keys()
    assert plan["actual"] is None
    assert plan["choice"] == run["choice"]


def test_where_nothing_is_feasible_the_choice_is_null_and_the_reason_stands_beside_it() -> None:
    document = report_document(make_infeasible_report())

    assert document["choice"] is None
    assert "deadline" in document["infeasible"]["reason"]
    assert document["infeasible"]["nearest"]["workers"] == 1


def test_exactly_the_knee_is_marked() -> None:
    curve = make_curve()
    rows = report_document(make_report(curve))["curve"]

    assert [i for i, row in enumerate(rows) if row["knee"]] == [curve.knee]
    assert make_choice(curve).configuration == curve[curve.knee or 0].configuration


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"schema_version": 2},
        {"schema_version": 1},
        {**report_document(make_report()), "job": None},
        {**report_document(make_report()), "curve": [{}]},
        {**report_document(make_report()), "choice": {"workers": 9, "global_batch_size": 9, "vm": "no"}},
    ],
)
def test_what_is_no_report_is_refused_by_name(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"report|curve|schema"):
        report_from_document(broken)


@pytest.mark.slow
def test_thirty_thousand_points_become_a_document_within_seconds() -> None:
    small = make_curve(range(1, 11), range(128, 138))
    curve = with_arrays(small, lambda column: np.tile(column, 300))

    assert len(report_document(replace(make_report(), curve=curve, choice=None))["curve"]) == 30_000
