"""The tradeoff curve, its constraints, its front and its knee."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import CLOUD, SPACE, curve_of, job_model
from speed import UNIT_S, units

from scavenger.domain.configuration import SearchSpace
from scavenger.search.curve import build_curve, find_knee, pareto_front

MODEL = job_model()


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.booleans()), max_size=40))
def test_the_front_is_every_allowed_point_that_no_other_dominates(
    points: list[tuple[int, int, bool]],
) -> None:
    allowed = [(t, c) for t, c, ok in points if ok]
    expected = [
        ok and not any(t2 <= t and c2 <= c and (t2 < t or c2 < c) for t2, c2 in allowed)
        for t, c, ok in points
    ]
    time_s, cost_usd, mask = (
        np.array([p[i] for p in points], dtype=d) for i, d in enumerate((float, float, bool))
    )

    assert pareto_front(time_s, cost_usd, mask).tolist() == expected


def knee_of(*points: tuple[float, float]) -> int | None:
    return curve_of(*points).knee


def test_the_knee_of_a_right_angle_is_its_corner() -> None:
    assert knee_of((1, 10), (1.5, 2), (10, 1)) == 1


def test_the_knee_of_a_hyperbola_is_where_its_slope_is_that_of_the_chord() -> None:
    x = np.linspace(1.0, 10.0, 200)
    found = find_knee(x, 1.0 / x, np.ones(200, dtype=np.bool_))

    assert found is not None
    assert x[found] == pytest.approx(np.sqrt(10.0), rel=0.02)


def test_rags_in_the_front_do_not_move_the_knee() -> None:
    x = np.linspace(1.0, 10.0, 60)
    ragged = 1.0 / x + 0.004 * np.where(np.arange(60) % 3 == 0, 1.0, 0.0)
    front = pareto_front(x, ragged, np.ones(60, dtype=np.bool_))
    found = find_knee(x, ragged, front)

    assert found is not None
    assert x[found] == pytest.approx(np.sqrt(10.0), abs=0.7)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 1)],
        [(1, 2), (2, 1)],
        [(1, 3), (2, 2), (3, 1)],
        [(1, 10), (9, 9), (10, 1)],
        [(1, 0), (2, 0), (3, 0)],
        [(1, 1), (1, 1), (1, 1)],
        [(1, 3.001), (2, 2), (3, 1)],
    ],
)
def test_a_front_that_does_not_bend_has_no_knee(points: list[tuple[float, float]]) -> None:
    assert knee_of(*points) is None


def test_a_knee_at_zero_is_a_knee() -> None:
    front = np.ones(4, dtype=np.bool_)
    time_s, cost_usd = np.array([0.1, -1.0, 5.0, 10.0]), np.array([1.0, 10.0, 0.9, 0.8])

    assert find_knee(time_s, cost_usd, front) == 0


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=1, max_size=30))
def test_a_knee_lies_on_the_front(points: list[tuple[float, float]]) -> None:
    curve = curve_of(*points)

    assert curve.knee is None or curve.marks.on_front[curve.knee]


def test_the_curve_has_every_configuration_in_the_order_of_the_space() -> None:
    curve = build_curve(MODEL, SPACE)

    assert tuple(point.configuration for point in curve) == SPACE.configurations()
    assert not curve.marks.excluded.any()
    assert curve.marks.on_front.any()


def test_configurations_without_a_sample_for_every_worker_are_no_points() -> None:
    space = SearchSpace((CLOUD,), (1, 100), (64, 128))

    assert len(build_curve(MODEL, space)) == 3


def test_each_limit_excludes_what_breaks_it_and_nothing_else() -> None:
    free = build_curve(MODEL, SPACE)
    deadline_s, budget_usd = float(np.median(free.time_s)), float(np.quantile(free.cost_usd, 0.8))
    curve = build_curve(MODEL, SPACE, deadline_s=deadline_s, budget_usd=budget_usd, workers_max=4)

    for point in curve:
        workers, late, dear = (
            point.configuration.workers > 4,
            point.time_s > deadline_s,
            point.cost_usd > budget_usd,
        )
        assert bool(point.excluded) == (workers or late or dear)
        assert ("workers" in point.excluded) == workers
        assert ("deadline" in point.excluded) == (late and not workers)
        assert not (point.excluded and point.on_front)


def test_memory_excludes_what_was_not_seen_to_fit() -> None:
    small = dataclasses.replace(CLOUD, memory_bytes=800 * 2**20)
    curve = build_curve(MODEL, dataclasses.replace(SPACE, offers=(small,)))
    excluded = {(p.configuration.workers, p.configuration.global_batch_size) for p in curve if p.excluded}

    assert excluded == {(1, 512), (2, 1024)}
    assert all("memory" in p.excluded for p in curve if p.excluded)


def test_what_was_found_not_to_fit_is_excluded_though_it_was_run() -> None:
    curve = build_curve(MODEL, SPACE, too_many=256)

    assert any(p.measured and p.excluded for p in curve)
    for point in curve:
        assert ("memory" in point.excluded) == (point.configuration.local_batch_size >= 256)


def test_what_is_already_spent_counts_against_the_limits() -> None:
    deadline_s = float(build_curve(MODEL, SPACE).time_s.max())
    curve = build_curve(MODEL, SPACE, deadline_s=deadline_s, spent_time_s=deadline_s)

    assert np.all(curve.marks.excluded > 0)
    assert curve.knee is None
    assert not curve.marks.on_front.any()


def test_a_limit_within_the_interval_is_said() -> None:
    deadline_s = float(np.median(build_curve(MODEL, SPACE).time_s))

    assert any("90 % interval" in note for note in build_curve(MODEL, SPACE, deadline_s=deadline_s).notes)
    assert not any("90 % interval" in note for note in build_curve(MODEL, SPACE, deadline_s=1e9).notes)


def test_a_mere_bound_on_the_epochs_is_carried_to_the_curve() -> None:
    curve = build_curve(job_model(epochs_hint=None), SPACE)

    assert curve.relative_only
    assert any("only ratios" in note for note in curve.notes)


def test_a_hundred_thousand_configurations_take_less_than_a_second() -> None:
    space = SearchSpace((CLOUD,), tuple(range(1, 101)), tuple(range(100, 100_100, 100)))

    assert len(build_curve(MODEL, space)) == 100_000
    assert units(lambda: build_curve(MODEL, space)) < 1.0 / UNIT_S
