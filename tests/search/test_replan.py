"""When a search ends, and when a running job moves to what its refitted models would choose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from spaces import curve_of

from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.search.choose import choose
from scavenger.search.replan import (
    GAIN_MIN,
    Relocation,
    SwitchCost,
    staying,
    why_measure_no_more,
    worth_moving,
    worth_repeating,
)

FREE = SwitchCost(0.0, 0.0)
POINTS = st.lists(
    st.tuples(st.floats(1.0, 1e4), st.floats(0.01, 100.0)), min_size=2, max_size=6, unique_by=lambda p: p[0]
)


def move(
    curve: TradeoffCurve, objective: str, now: int, *, remaining: float = 1.0, switch: SwitchCost = FREE
) -> Relocation | None:
    choice = choose(curve, objective)
    assert isinstance(choice, Choice)
    return worth_moving(curve, choice, curve[now].configuration, remaining=remaining, switch=switch)


def test_a_faster_configuration_is_moved_to_only_if_it_gains_more_than_the_switch_takes() -> None:
    curve = curve_of((100.0, 10.0), (200.0, 4.0))

    found = move(curve, "time", 1, switch=SwitchCost(60.0, 1.0))
    assert found is not None
    assert found.configuration == curve[0].configuration
    assert (found.saved_s, found.saved_usd) == (40.0, -7.0)
    assert move(curve, "time", 1, switch=SwitchCost(95.0, 1.0)) is None


def stays(
    curve: TradeoffCurve, objective: str, now: int, switch: SwitchCost, remaining: float = 1.0
) -> Choice:
    choice = choose(curve, objective)
    assert isinstance(choice, Choice)
    return staying(curve, choice, curve[now].configuration, remaining=remaining, switch=switch)


def test_a_program_that_starts_slowly_is_not_started_again_for_less_than_its_start() -> None:
    curve = curve_of((35.0, 1.0), (37.2, 1.1))
    found = stays(curve, "time", 1, SwitchCost(27.5, 0.5))

    assert found.configuration == curve[1].configuration
    assert found.reason.endswith(
        "is not worth a pause of 28 s: with it, it takes 25.3 s longer and $0.4 more"
    )
    assert stays(curve, "time", 1, SwitchCost(2.0, 0.0)).configuration == curve[0].configuration


@given(
    points=POINTS,
    objective=st.sampled_from(("time", "cost")),
    stall_s=st.floats(0.0, 1e4),
    usd=st.floats(0.0, 100.0),
    remaining=st.floats(0.01, 1.0),
    data=st.data(),
)
def test_a_job_goes_where_what_is_left_is_least_the_change_included(
    points: list[tuple[float, float]],
    objective: str,
    stall_s: float,
    usd: float,
    remaining: float,
    data: st.DataObject,
) -> None:
    curve = curve_of(*points)
    now = data.draw(st.integers(0, len(points) - 1))
    found = stays(curve, objective, now, SwitchCost(stall_s, usd), remaining)
    rest = [point.rest_s(remaining) if objective == "time" else remaining * point.cost_usd for point in curve]
    change = stall_s if objective == "time" else usd
    least = min(one + (change if index != now else 0.0) for index, one in enumerate(rest))
    chosen = curve.configurations.index(found.configuration)
    assert chosen is not None
    assert rest[chosen] + (change if chosen != now else 0.0) == pytest.approx(least)


@pytest.mark.parametrize(
    ("saved_s", "saved_usd", "words"),
    [
        (13.9, 0.02, "it saves 13.9 s and $0.02 of what is left"),
        (13.9, -0.02, "it saves 13.9 s of what is left for $0.02 more"),
        (-13.9, 0.02, "it saves $0.02 of what is left and takes 13.9 s longer"),
        (-13.9, -0.02, "it takes 13.9 s longer and $0.02 more"),
        (12345.0, 0.0002, "it saves 12,300 s and $0.0002 of what is left"),
    ],
)
def test_a_loss_of_a_move_is_not_told_as_a_negative_saving(
    saved_s: float, saved_usd: float, words: str
) -> None:
    where = curve_of((100.0, 10.0))[0].configuration
    assert Relocation(where, saved_s, saved_usd, "").effect == words


def test_the_less_is_left_the_less_a_move_is_worth() -> None:
    curve = curve_of((100.0, 10.0), (200.0, 4.0))

    assert move(curve, "time", 1, remaining=0.5, switch=SwitchCost(30.0, 0.0)) is not None
    assert move(curve, "time", 1, remaining=0.3, switch=SwitchCost(30.0, 0.0)) is None


@pytest.mark.parametrize("objective", ["time", "cost", "knee"])
def test_a_difference_within_the_error_of_predictions_is_no_reason_to_move(objective: str) -> None:
    bent = [(100.0, 10.0), (120.0, 4.0), (500.0, 2.0)]
    near = [(time_s * (1 + GAIN_MIN / 3), cost_usd * (1 + GAIN_MIN / 3)) for time_s, cost_usd in bent]
    curve = curve_of(*bent, *near)

    for index in range(3):
        choice = choose(curve, objective)
        assert isinstance(choice, Choice)
        if curve[index].configuration == choice.configuration:
            assert move(curve, objective, index + 3) is None


def test_what_no_longer_meets_the_constraints_is_left_whatever_it_gains() -> None:
    curve = curve_of((100.0, 10.0), (101.0, 9.9), excluded=(0,))

    found = move(curve, "time", 0)
    assert found is not None
    assert "past the deadline" in found.reason


def test_a_configuration_that_the_curve_does_not_have_is_left_alone() -> None:
    curve = curve_of((100.0, 10.0), (200.0, 4.0))
    choice = choose(curve, "time")
    assert isinstance(choice, Choice)

    assert worth_moving(curve, choice, Configuration("elsewhere", 1, 8), remaining=1.0, switch=FREE) is None


@given(points=POINTS, now=st.integers(0, 5), objective=st.sampled_from(["time", "cost", "knee"]))
def test_after_a_move_nothing_speaks_for_another(
    points: list[tuple[float, float]], now: int, objective: str
) -> None:
    assume(now < len(points))
    curve = curve_of(*points)
    found = move(curve, objective, now)

    if found is not None:
        there = curve.configurations.index(found.configuration)
        assert there is not None
        assert there != now
        assert move(curve, objective, there) is None


@given(points=POINTS, now=st.integers(0, 5), time_s=st.floats(0.0, 1e5), cost_usd=st.floats(0.0, 1e3))
def test_by_time_a_move_always_saves_time_and_by_cost_money(
    points: list[tuple[float, float]], now: int, time_s: float, cost_usd: float
) -> None:
    assume(now < len(points))
    curve, switch = curve_of(*points), SwitchCost(time_s, cost_usd)

    if (found := move(curve, "time", now, switch=switch)) is not None:
        assert found.saved_s > 0.0
    if (found := move(curve, "cost", now, switch=switch)) is not None:
        assert found.saved_usd > 0.0


def why(curve: TradeoffCurve, objective: str, log_sd: float, price: SwitchCost) -> str:
    choice = choose(curve, objective)
    assert isinstance(choice, Choice)
    chosen = curve.configurations.index(choice.configuration)
    doubt = np.full(len(curve), log_sd)
    doubt[chosen] = 0.0
    return why_measure_no_more(curve, choice, doubt, remaining=1.0, measuring=price)


def test_where_others_are_surely_worse_no_measurement_pays() -> None:
    curve = curve_of((100.0, 10.0), (200.0, 20.0), (400.0, 40.0))

    for objective in ("time", "cost", "knee"):
        assert "% of what is left at most" in why(curve, objective, 0.02, SwitchCost(0.1, 0.01))


def test_where_another_may_be_better_measuring_pays_as_long_as_it_is_cheap() -> None:
    curve = curve_of((100.0, 10.0), (102.0, 10.2))

    for objective in ("time", "cost", "knee"):
        assert why(curve, objective, 0.3, SwitchCost(0.1, 0.01)) == ""
        assert why(curve, objective, 0.3, SwitchCost(90.0, 9.0))


def test_what_is_ruled_out_is_not_worth_measuring() -> None:
    curve = curve_of((100.0, 10.0), (90.0, 9.0), (300.0, 30.0), excluded=(1,))

    assert why(curve, "time", 0.2, SwitchCost(1.0, 0.1))


@given(points=POINTS, log_sd=st.floats(0.001, 1.0), price=st.floats(0.0, 1e3))
def test_more_doubt_never_ends_a_search_sooner(
    points: list[tuple[float, float]], log_sd: float, price: float
) -> None:
    curve = curve_of(*points)

    if why(curve, "time", 2.0 * log_sd, SwitchCost(price, 0.0)):
        assert why(curve, "time", log_sd, SwitchCost(price, 0.0))


def test_a_point_is_measured_again_for_two_hundredths_of_the_rest_and_at_another_moment() -> None:
    assert worth_repeating(since_s=10.0, takes_s=4.0, lost=0.5, left_s=100.0)
    assert worth_repeating(since_s=10.0, takes_s=4.0, lost=0.0, left_s=0.0)  # where the job goes on anyway
    assert not worth_repeating(since_s=10.0, takes_s=4.0, lost=0.5, left_s=99.0)
    assert not worth_repeating(since_s=7.9, takes_s=4.0, lost=0.5, left_s=100.0)
