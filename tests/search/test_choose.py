"""The choice and its reason."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import SPACE, curve_of, job_model

from scavenger.domain.curve import Choice, Infeasible
from scavenger.domain.utility import UtilityCurve
from scavenger.search.choose import _front, choose
from scavenger.search.curve import build_curve
from scavenger.search.replan import GAIN_MIN, loss_of

BENT = ((100.0, 10.0), (120.0, 4.0), (500.0, 2.0), (600.0, 11.0))


def chosen(*points: tuple[float, float], objective: str = "knee", **more: object) -> Choice:
    choice = choose(curve_of(*points, **more), objective)  # type: ignore[arg-type]
    assert isinstance(choice, Choice)
    return choice


@pytest.mark.parametrize(("objective", "workers"), [("time", 1), ("cost", 3), ("knee", 2)])
def test_each_objective_chooses_its_point(objective: str, workers: int) -> None:
    choice = chosen(*BENT, objective=objective)

    assert choice.configuration.workers == workers
    assert [(label, p.configuration.workers) for label, p in choice.alternatives] == [
        ("fastest", 1),
        ("cheapest", 3),
        ("knee", 2),
    ]


@pytest.mark.parametrize(("share", "told"), [(0.4, True), (0.6, False), (None, False)])
def test_a_choice_above_the_critical_batch_size_says_what_its_epochs_are_worth(
    share: float | None, told: bool
) -> None:
    curve = curve_of(*BENT)
    shares = None if share is None else np.full(len(curve), share)
    choice = choose(replace(curve, progress_share=shares), "time")

    assert isinstance(choice, Choice)
    assert ("10 epochs do the work of 4 of very small batches" in choice.reason) is told


@given(
    points=st.lists(
        st.tuples(st.floats(1.0, 1e4), st.floats(0.0, 100.0)),
        min_size=1,
        max_size=6,
        unique_by=lambda p: p[0],
    ),
    worth_usd=st.floats(0.0, 200.0),
    until_s=st.floats(1.0, 1e5),
    spent_s=st.floats(0.0, 1e3),
    spent_usd=st.floats(0.0, 50.0),
    remaining=st.floats(0.01, 1.0),
)
def test_by_utility_no_other_point_is_worth_more_above_its_cost(
    points: list[tuple[float, float]],
    worth_usd: float,
    until_s: float,
    spent_s: float,
    spent_usd: float,
    remaining: float,
) -> None:
    utility = UtilityCurve.model_validate({"linear": {"worth": worth_usd, "until": f"{until_s:.3f}s"}})
    choice = choose(
        curve_of(*points),
        "utility",
        spent_time_s=spent_s,
        spent_usd=spent_usd,
        remaining=remaining,
        worth=utility.worth_at,
    )

    def above_cost(time_s: float, cost_usd: float) -> float:
        return utility.worth_at(time_s * remaining + spent_s) - (cost_usd * remaining + spent_usd)

    assert isinstance(choice, Choice)
    best = max(above_cost(*point) for point in points)
    assert above_cost(choice.point.time_s, choice.point.cost_usd) == pytest.approx(best, abs=1e-9)


def test_a_step_of_worth_that_is_missed_by_a_second_is_missed() -> None:
    utility = UtilityCurve.model_validate(
        {"step": [{"worth": 50, "until": "110s"}, {"worth": 20, "until": "400s"}]}
    )

    choice = choose(curve_of((111.0, 10.0), (109.0, 14.0)), "utility", worth=utility.worth_at)

    assert isinstance(choice, Choice)
    assert choice.configuration.workers == 2
    assert (utility.worth_at(110.0), utility.worth_at(110.1), utility.worth_at(401.0)) == (50.0, 20.0, 0.0)


def test_the_reason_compares_with_the_fastest() -> None:
    assert chosen(*BENT).reason == "knee: 20 % slower than the fastest at 40 % of its cost"
    assert (
        chosen(*BENT, objective="time").reason
        == "fastest of 4: 5.0 times faster than the cheapest at 500 % of its cost"
    )
    assert chosen((2, 5), (3, 0), objective="time").reason.endswith("at $5.00 instead of nothing")


def test_without_a_knee_the_point_nearest_to_the_ideal_is_taken_and_said() -> None:
    choice = chosen((1, 3), (2, 2), (3, 1))

    assert choice.configuration.workers == 2
    assert choice.reason.startswith("the front has no knee; nearest to both")


def test_a_single_allowed_point_is_said_to_be_the_only_one() -> None:
    choice = chosen((1, 2), (2, 1), excluded=(0,))

    assert choice.configuration.workers == 2
    assert choice.reason == "the only configuration that the constraints allow"


def test_a_point_that_is_fastest_and_cheapest_leaves_no_tradeoff() -> None:
    choice = chosen((1, 1), (2, 2), (3, 3))

    assert choice.configuration.workers == 1
    assert "no tradeoff" in choice.reason


def test_ties_are_broken_by_the_other_objective() -> None:
    assert chosen((1, 0), (2, 0), objective="cost").configuration.workers == 1
    assert chosen((1, 2), (1, 1), objective="time").configuration.workers == 2


def test_free_points_have_a_knee_or_a_reason() -> None:
    assert chosen((1, 5), (2, 0), (3, 0)).reason


def test_nothing_feasible_names_the_nearest_and_by_how_much_it_misses() -> None:
    curve = build_curve(job_model(), SPACE, deadline_s=1.0)
    verdict = choose(curve, "knee", deadline_s=1.0)

    assert isinstance(verdict, Infeasible)
    assert verdict.nearest is not None
    assert verdict.nearest.time_s == pytest.approx(float(curve.time_s.min()))
    assert str(verdict.nearest.configuration) in verdict.reason
    assert f"{verdict.nearest.time_s - 1.0:.0%}".replace("%", " %") in verdict.reason


def test_the_nearest_option_is_one_that_can_run() -> None:
    model = job_model()
    curve = build_curve(model, SPACE, workers_max=1, deadline_s=1.0)
    verdict = choose(curve, "time", deadline_s=1.0)

    assert isinstance(verdict, Infeasible)
    assert verdict.nearest is not None
    assert verdict.nearest.configuration.workers == 1


def test_where_nothing_can_run_the_reason_says_why() -> None:
    verdict = choose(build_curve(job_model(), SPACE, workers_max=0), "time")

    assert verdict == Infeasible("no configuration can run: more than 0 workers", None)


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="beauty"):
        choose(curve_of((1, 1)), "beauty")


@given(
    st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.0, 1e6)), min_size=1, max_size=20),
    st.sampled_from(["time", "cost", "knee"]),
)
def test_every_choice_is_on_the_front_and_explained(
    points: list[tuple[float, float]], objective: str
) -> None:
    curve = curve_of(*points)
    choice = choose(curve, objective)

    assert isinstance(choice, Choice)
    assert choice.point.on_front
    assert choice.reason
    assert not math.isnan(choice.point.time_s)
    if objective == "time":
        assert choice.point.time_s == np.min(curve.time_s)
    if objective == "cost":
        assert choice.point.cost_usd == np.min(curve.cost_usd)


def test_what_was_spent_already_is_told_with_how_far_the_nearest_misses() -> None:
    curve = build_curve(job_model(), SPACE, deadline_s=60.0, spent_time_s=50.0)
    verdict = choose(curve, "knee", deadline_s=60.0, spent_time_s=50.0)

    assert isinstance(verdict, Infeasible)
    assert verdict.nearest is not None
    assert f"{verdict.nearest.time_s + 50.0:.4g} s with the 50 s spent so far" in verdict.reason


@pytest.mark.parametrize("objective", ["time", "cost", "knee"])
def test_where_batch_sizes_cannot_be_compared_the_choice_is_among_those_of_one(objective: str) -> None:
    curve = build_curve(job_model(), SPACE)
    free = choose(curve, objective)
    batches = {point.configuration.global_batch_size for point in curve}
    assert len(batches) > 1
    for batch in batches:
        choice = choose(curve, objective, only=(batch, "others are unknown"))
        assert isinstance(choice, Choice)
        assert choice.configuration.global_batch_size == batch
        assert f"at batch {batch} alone, as others are unknown" in choice.reason
    assert choose(curve, objective, only=(7, "others are unknown")) == free


@given(
    points=st.lists(
        st.tuples(st.floats(1.0, 1e4), st.floats(0.0, 100.0)),
        min_size=1,
        max_size=8,
        unique_by=lambda p: p[0],
    )
)
def test_the_front_of_all_points_is_the_front_that_the_curve_shows(points: list[tuple[float, float]]) -> None:
    curve = curve_of(*points)

    assert sorted(_front(curve, np.arange(len(curve)))) == list(np.flatnonzero(curve.marks.on_front))


@given(
    points=st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(0.01, 100.0)), min_size=2, max_size=8),
    measured=st.sets(st.integers(0, 7)),
    objective=st.sampled_from(["time", "cost", "knee"]),
)
def test_workers_that_were_never_measured_are_chosen_for_a_gain_alone_and_never_silently(
    points: list[tuple[float, float]], measured: set[int], objective: str
) -> None:
    curve = curve_of(*points)
    free = choose(curve, objective)  # nothing measured: nothing is surer than another
    seen = np.isin(np.arange(len(points)), sorted(measured))
    choice = choose(replace(curve, marks=replace(curve.marks, measured=seen)), objective)
    assert isinstance(choice, Choice)
    assert isinstance(free, Choice)
    assert "never measured" not in free.reason
    loss = loss_of(objective, curve)

    def lost(one: Choice) -> float:
        return loss(one.point.time_s, one.point.cost_usd)

    if choice.point.measured:
        moved = choice.configuration != free.configuration
        assert ("never measured" in choice.reason) is moved
        assert lost(choice) <= lost(free) / (1.0 - GAIN_MIN) * (1.0 + 1e-12)
    else:
        assert choice.configuration == free.configuration
        assert choice.reason.endswith("never measured") is bool(seen.any())
        if objective != "knee":
            surest = min((loss(*points[i]) for i in np.flatnonzero(seen)), default=math.inf)
            assert lost(choice) <= surest * (1.0 - GAIN_MIN) * (1.0 + 1e-12)


def test_a_size_is_known_by_any_of_its_batches_on_its_own_type_alone() -> None:
    model = job_model()
    curve = build_curve(model, SPACE)
    of = curve.configurations
    measured = {int(k) for k in of.workers[curve.marks.measured]}
    assert measured < set(SPACE.workers)
    assert [bool(one) for one in curve.workers_measured] == [int(k) in measured for k in of.workers]
    types = replace(of, vms=("vm", "other"), vm_index=np.where(of.workers == max(measured), 1, of.vm_index))
    apart = replace(curve, configurations=types)
    apart = replace(apart, marks=replace(apart.marks, measured=apart.marks.measured & (of.workers < 8)))
    assert not apart.workers_measured[of.workers == 8].any()
