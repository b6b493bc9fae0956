"""The picture of a curve as a value: what it shows of which curve, whoever draws it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cli_samples import make_choice, make_curve, make_report
from hypothesis import given
from hypothesis import strategies as st
from nested import changed
from scavenger_cli.ui import render
from test_cli_render import printed

from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.report import Actual, Predicted
from scavenger.presentation.axes import time_unit
from scavenger.presentation.formatting import duration, money
from scavenger.presentation.picture import Picture, describe, draw, picture_of, twice_as_fast
from scavenger.search.choose import choose
from scavenger.search.curve import find_knee, pareto_front

sizes = st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True).map(sorted)
batches = st.lists(st.integers(64, 8192), min_size=1, max_size=5, unique=True).map(sorted)


@st.composite
def curves(draws: st.DrawFn) -> TradeoffCurve:
    """Any curve of the usual shape, also free or with points that a deadline rules out."""
    vms = draws(st.sampled_from([("e2-standard-4",), ("e2-standard-4", "n2-standard-8")]))
    price, deadline_s = draws(st.sampled_from([0.134, 0.0])), draws(st.sampled_from([np.inf, 3000.0]))
    curve = make_curve(draws(sizes), draws(batches), vms, price=price, deadline_s=deadline_s)
    front = pareto_front(curve.time_s, curve.cost_usd, curve.marks.excluded == 0)
    knee = find_knee(curve.time_s, curve.cost_usd, front)
    return replace(curve, marks=replace(curve.marks, on_front=front), knee=knee)


def chosen(curve: TradeoffCurve, objective: str) -> Choice | None:
    found = choose(curve, objective)
    return None if isinstance(found, Infeasible) else found


def of_a_run(curve: TradeoffCurve, times: float) -> tuple[Predicted, Actual]:
    predicted = make_report(curve).predicted
    assert predicted is not None
    return predicted, Actual(predicted.time_s * times, predicted.cost_usd * times, 0.1, 9.0)


@given(curves(), st.sampled_from(["time", "cost", "knee"]))
def test_every_number_of_a_label_is_the_tables(curve: TradeoffCurve, objective: str) -> None:
    picture = draw(curve, chosen(curve, objective), "x")
    for label in picture.labels:
        if label.kind != "point":
            assert label.point is not None
            point = curve[label.point]
            assert label.lines[-1] == f"{duration(point.time_s)}, {money(point.cost_usd)}"
            assert f"{point.configuration.workers} x" in " ".join(label.lines)


def test_the_lines_below_the_table_have_the_numbers_of_the_labels_word_by_word() -> None:
    curve = make_curve((1, 2, 4, 8), (64, 128, 256))
    choice = make_choice(curve)
    told = printed(*render.choice_lines(choice))
    named = [label.lines for label in draw(curve, choice, "x").labels if label.kind == "named"]

    assert named
    assert all(lines[-1] in told for lines in named if "twice" not in lines[0])


@given(curves())
def test_the_line_is_the_front_fastest_first(curve: TradeoffCurve) -> None:
    picture = draw(curve, None, "x")
    front = picture.front
    allowed = np.flatnonzero(curve.marks.excluded == 0)

    among = pareto_front(curve.time_s, curve.cost_usd, curve.marks.excluded == 0)
    assert sorted(front.tolist()) == np.flatnonzero(among).tolist()
    assert (np.diff(curve.time_s[front]) >= 0).all()
    assert (np.diff(curve.cost_usd[front]) <= 0).all()
    assert sorted(index for series in picture.series for index in series.points) == allowed.tolist()


@given(curves())
def test_an_axis_is_logarithmic_exactly_where_values_span_more_than_ten_times(curve: TradeoffCurve) -> None:
    picture = draw(curve, None, "x")
    assert picture.axes is not None
    allowed = curve.marks.excluded == 0
    for axis, values in zip(picture.axes, (curve.time_s, curve.cost_usd), strict=True):
        values = values[allowed] if allowed.any() else values
        assert axis.logarithmic == (values.min() > 0 and values.max() > 10 * values.min())
        share = axis.share(values / axis.unit)
        assert ((share > 0.0) & (share < 1.0)).all()
        assert axis.ticks
        assert all(axis.low <= at <= axis.high for at, _ in axis.ticks)
        assert len({text for _, text in axis.ticks}) == len(axis.ticks) <= 16


@given(curves(), st.sampled_from(["time", "cost", "knee"]))
def test_twice_the_speed_is_told_of_the_cheapest_point_that_takes_half_the_time(
    curve: TradeoffCurve, objective: str
) -> None:
    choice = chosen(curve, objective)
    if choice is None:
        return
    fast = [p for p in curve if not p.excluded and 2 * p.time_s <= choice.point.time_s]
    words = " ".join(draw(curve, choice, "x").caption)
    index = twice_as_fast(curve, choice)

    assert ("Twice the speed costs" in words) == bool(fast)
    if not fast:
        assert index is None
        assert "Nothing is" in words
        return
    assert index is not None
    point = curve[index]
    assert point in fast
    assert point.cost_usd == min(p.cost_usd for p in fast)
    assert f"{duration(point.time_s)}, {money(point.cost_usd)}" in words


def test_what_twice_the_speed_costs_is_in_words() -> None:
    curve = make_curve((1, 2, 3, 4), (64, 128, 256, 512))
    picture = draw(curve, chosen(curve, "cost"), "x")

    assert picture.caption == (
        "Chosen: 1 x batch 64, 41 min 13 s, $0.092.",
        "Twice the speed costs 1.3 times as much: 3 x batch 128, 17 min 26 s, $0.117.",
    )
    assert [label.lines[0].split(":")[0] for label in picture.labels if label.kind != "point"] == [
        "chosen, cheapest",
        "twice as fast, knee",
        "fastest",
    ]
    free = make_curve((1, 2, 3, 4), (64, 128, 256, 512), price=0.0)
    slowest = int(free.time_s.argmax())
    assert "Twice the speed costs nothing" in " ".join(
        draw(free, Choice(free[slowest], "cost", ""), "x").caption
    )


def test_where_only_ratios_hold_labels_and_words_tell_ratios() -> None:
    curve = make_curve(relative_only=True)
    picture = draw(curve, make_choice(curve), "x")

    assert all("time x " in label.lines[-1] for label in picture.labels if label.kind != "point")
    assert all("$" not in sentence for sentence in picture.caption)


@pytest.mark.parametrize(
    ("times_s", "unit"),
    [
        ((36.0, 75.0), "seconds"),
        ((66.0, 159.0), "seconds"),
        ((301.0, 3000.0), "minutes"),
        ((0.5, 0.9), "milliseconds"),
        ((30.0, 7200.0), "seconds"),
        ((5.0, 500_000.0), "minutes"),
        ((20_000.0, 90_000.0), "hours"),
    ],
)
def test_an_axis_is_in_the_longest_unit_of_which_no_time_is_a_fraction(
    times_s: tuple[float, float], unit: str
) -> None:
    assert time_unit(np.array(times_s))[1] == unit


def test_an_axis_holds_the_run_and_a_limit_that_is_near() -> None:
    curve = make_curve((1, 2, 3, 4), (64, 128, 256, 512, 1024))
    choice, longest_s = make_choice(curve), float(curve.time_s.max())

    def end_s(picture: Picture) -> float:
        assert picture.axes is not None
        return picture.axes[0].high * picture.axes[0].unit

    assert end_s(draw(curve, choice, "x", deadline_s=1.2 * longest_s)) > 1.2 * longest_s
    far = draw(curve, choice, "x", deadline_s=1e9)
    assert end_s(far) < 1e8
    assert far.caption[-1].startswith("Beyond the picture: deadline")
    predicted, actual = of_a_run(curve, 1.0)
    late = replace(actual, time_s=10 * longest_s)
    assert end_s(draw(curve, choice, "x", run=(predicted, late))) > late.time_s


def test_a_run_predicted_at_the_chosen_point_is_not_told_of_twice() -> None:
    curve = make_curve()
    choice = make_choice(curve)
    predicted, actual = of_a_run(curve, 1.2)
    same = draw(curve, choice, "x", run=(predicted, actual))
    other = draw(curve, choice, "x", run=(replace(predicted, time_s=2 * predicted.time_s), actual))

    assert same.ran is not None
    assert same.ran.predicted is None
    assert not any("predicted" in line for label in same.labels for line in label.lines)
    assert len(same.way) == len(other.way) == 2
    assert any("predicted" in line for label in other.labels for line in label.lines)


def test_a_plan_and_a_run_that_was_cut_short_show_no_run() -> None:
    report = make_report(make_curve())

    assert picture_of(report, "x").ran is not None
    assert picture_of(changed(report, state="stopped"), "x").ran is None
    assert picture_of(make_report(make_curve(), planned=True), "x").ran is None
    assert picture_of(report, "x", with_run=False).ran is None


def test_a_curve_without_a_point_says_so() -> None:
    curve = make_curve()
    nothing = replace(curve, time_s=np.full(len(curve), np.inf))

    assert describe(draw(nothing, None, "x")) == "No configuration has a predicted time and cost."
