"""Budget and deadline are never crossed, whatever the predictions were."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import changed
from policy_jobs import Cluster, at, job, saturating, supervisor
from properties import examples

from scavenger.domain.decision import ChangeSize, Hold, Stop
from scavenger.policy.base import Chain
from scavenger.policy.limits import StayWithinLimits
from scavenger.policy.projection import affords, misfit, project
from scavenger.policy.scaling import ScaleByThroughput
from scavenger.policy.schedule import Schedule

EIGHT = Schedule(1, 8)
GUARDED = Chain((StayWithinLimits(EIGHT), ScaleByThroughput(EIGHT)))


def test_time_and_cost_are_projected_by_the_papers_formula() -> None:
    ends = project(job(remaining_samples=7.2e5, shared_usd_per_hour=1.0), 4, 200.0)

    assert ends is not None
    assert ends.time_s == 1000.0 + 3600.0
    assert ends.cost_usd == pytest.approx(1.0 + 5.0)


def test_workers_that_are_not_there_yet_cost_their_start() -> None:
    starting = job(remaining_samples=7.2e5, setup_s=1800.0, shared_usd_per_hour=1.0)
    there, more = project(starting, 4, 200.0), project(starting, 6, 200.0)

    assert there is not None
    assert more is not None
    assert there.cost_usd == pytest.approx(1.0 + 5.0)
    assert more.cost_usd == pytest.approx(1.0 + 7.0 + 2 * 0.5)


def test_what_the_last_look_and_the_drain_take_must_be_left_of_the_limits() -> None:
    limits: tuple[dict[str, Any], ...] = ({"budget_usd": 5.05}, {"deadline_s": 4650.0})
    for limit in limits:
        exact = job(remaining_samples=7.2e5, **limit)
        drained = changed(exact, drain_s=60.0)
        assert misfit(exact, project(exact, 4, 200.0)) == (0, 0.0)
        assert misfit(drained, project(drained, 4, 200.0))[0] > 0


@pytest.mark.parametrize("remaining", [None, math.nan, math.inf, -1.0])
def test_what_is_not_known_is_not_projected(remaining: float | None) -> None:
    assert project(job(remaining_samples=remaining), 4, 200.0) is None


def test_zero_throughput_projects_nothing_and_misses_nothing() -> None:
    assert project(job(remaining_samples=1.0), 4, 0.0) is None
    assert misfit(job(budget_usd=0.0), None) == (0, 0.0)


def test_over_the_budget_is_worse_than_past_the_deadline() -> None:
    tight = job(remaining_samples=7.2e5, budget_usd=2.0, deadline_s=2000.0)

    assert misfit(tight, project(tight, 4, 200.0))[0] == 2
    assert misfit(tight, project(tight, 4, 2000.0))[0] == 0
    assert misfit(job(remaining_samples=7.2e5, deadline_s=2000.0), project(tight, 4, 200.0))[0] == 1


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 600), st.floats(0, 600), st.integers(1, 20))
def test_it_stops_exactly_when_going_on_to_the_next_look_could_cross_the_budget(
    spent: float, budget: float, look: float, drain: float, workers: int
) -> None:
    snapshot = job(
        workers=workers, cost_usd=spent, budget_usd=budget, look_every_s=look, drain_s=drain, deadline_s=None
    )
    crossing = spent + (look + drain) * workers / 3600.0 > budget

    decision = StayWithinLimits().decide(snapshot)

    assert isinstance(decision, Stop) == crossing
    if isinstance(decision, Stop):
        assert decision.cause == "budget"


def test_workers_that_do_not_train_are_paid_for_too() -> None:
    snapshot = job(workers=4, budget_usd=2.0, look_every_s=400.0, drain_s=400.0)
    booting = changed(snapshot, workers=supervisor(5))

    assert isinstance(StayWithinLimits().decide(snapshot), Hold)
    assert isinstance(StayWithinLimits().decide(booting), Stop)
    assert not affords(snapshot, 5)
    assert not affords(booting, 4)
    assert affords(snapshot, 4)


def test_the_deadline_stops_in_time_to_drain() -> None:
    assert isinstance(
        StayWithinLimits().decide(job(deadline_s=1030.0, look_every_s=10.0, drain_s=20.0)), Hold
    )
    late = StayWithinLimits().decide(job(deadline_s=1029.0, look_every_s=10.0, drain_s=20.0))
    assert isinstance(late, Stop)
    assert late.cause == "deadline"


def test_a_free_job_may_have_a_budget_of_nothing() -> None:
    free = job(budget_usd=0.0, cost_usd=0.0, price_usd_per_hour=0.0, look_every_s=10.0)

    assert isinstance(StayWithinLimits(EIGHT).decide(free), Hold)


@pytest.mark.parametrize(
    ("known", "limits", "then"),
    [
        ({4: 200.0}, {"budget_usd": 4.9}, 3),  # over budget: smaller is cheaper, if not known to be worse
        ({4: 200.0, 2: 150.0}, {"budget_usd": 4.9}, 2),  # $3.67
        ({4: 200.0, 2: 90.0, 3: 150.0, 1: 49.0}, {"budget_usd": 4.9}, None),  # nothing known is cheaper
        ({4: 200.0, 3: 155.0, 2: 140.0, 1: 75.0}, {"budget_usd": 2.0}, 1),  # none meets it: the cheapest
        ({4: 200.0, 3: 162.0, 2: 107.0, 1: 54.0}, {"budget_usd": 2.0}, None),  # cheaper, but by too little
        ({4: 200.0, 6: 400.0}, {"deadline_s": 4000.0}, 6),
        ({4: 200.0}, {"deadline_s": 4500.0}, 5),  # perfect scaling would do
        ({4: 200.0}, {"deadline_s": 1500.0}, None),  # not even eight workers could
        ({4: 200.0, 5: 205.0}, {"deadline_s": 4000.0}, 6),
        ({4: 200.0}, {"budget_usd": 6.0, "deadline_s": 5000.0}, None),  # meets both
        ({}, {"budget_usd": 4.9}, None),
    ],
)
def test_it_steers_to_a_size_that_meets_the_limits(
    known: dict[int, float], limits: dict[str, Any], then: int | None
) -> None:
    snapshot = job(known, remaining_samples=7.2e5, **limits)

    decision = StayWithinLimits(EIGHT).decide(snapshot)

    assert (decision.workers if isinstance(decision, ChangeSize) else None) == then, decision
    assert isinstance(StayWithinLimits().decide(snapshot), Hold)


@examples(60)
@given(
    one=st.floats(20, 500),
    overhead=st.floats(0.0, 0.5),
    start=st.integers(1, 8),
    budget=st.none() | st.floats(0.1, 4.0),
    deadline=st.none() | st.floats(100, 4000),
    knows=st.booleans(),
    seed=st.integers(0, 9),
)
def test_no_run_crosses_its_budget_or_deadline(
    one: float,
    overhead: float,
    start: int,
    budget: float | None,
    deadline: float | None,
    knows: bool,
    seed: int,
) -> None:
    cluster = Cluster(
        saturating(one, overhead),
        start,
        samples=5e5,
        budget_usd=budget,
        deadline_s=deadline,
        knows_remaining=knows,
        seed=seed,
    )

    last = cluster.run(GUARDED)

    assert budget is None or last.costs.cost_usd <= budget * (1 + 1e-9)
    assert deadline is None or last.progress.elapsed_s <= deadline * (1 + 1e-9)
    assert last.progress.remaining_samples == 0 or isinstance(cluster.decisions[-1], Stop) or not knows
    assert len(cluster.history) < 40  # limits and schedule do not pull against each other


@pytest.mark.slow
def test_a_budget_that_a_smaller_cluster_meets_is_met_by_a_smaller_cluster() -> None:
    curve = saturating(100.0, 0.05)
    cost = {k: 7e5 / curve(k) * k / 3600.0 for k in range(1, 9)}
    assert cost[8] > 1.2 * cost[3]
    cluster = Cluster(curve, 8, samples=7e5, look_every_s=1.0, boot_s=1.0, budget_usd=cost[3])

    last = cluster.run(GUARDED, looks=20_000)

    assert last.progress.remaining_samples == 0
    assert last.costs.cost_usd <= cost[3]


def test_a_deadline_overrules_the_efficiency_without_swinging_back() -> None:
    curve = saturating(100.0, 0.4)
    settled = next(k for k in range(1, 8) if (curve(k + 1) / curve(k) - 1) * k <= 0.5)
    samples, deadline = 7e5, 7e5 / curve(settled + 1) * 1.06
    guarded = Chain((StayWithinLimits(EIGHT), ScaleByThroughput(EIGHT, 0.5)))
    cluster = Cluster(curve, settled, samples=samples, look_every_s=1.0, boot_s=2.0, deadline_s=deadline)

    last = cluster.run(guarded, looks=20_000)

    assert last.progress.remaining_samples == 0
    assert last.progress.elapsed_s <= deadline
    assert len(cluster.history) < 10


def test_the_other_batch_sizes_of_a_job_are_not_mixed_up() -> None:
    measured = job({4: 200.0}, remaining_samples=7.2e5, budget_usd=4.9)
    other = changed(measured, configuration=at(4, 512), reference=at(4, 512))

    assert isinstance(StayWithinLimits(EIGHT).decide(measured), ChangeSize)
    assert isinstance(StayWithinLimits(EIGHT).decide(other), Hold)
