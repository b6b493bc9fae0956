"""Scaling: the conditions, the schedule, and where both lead."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import changed
from policy_jobs import BATCH, Cluster, at, job, saturating, supervisor

from scavenger.domain.configuration import Configuration
from scavenger.domain.decision import ChangeSize, Decision, Hold
from scavenger.domain.snapshot import JobSnapshot, Throughput, WorkerSnapshot
from scavenger.domain.utility import ConcaveUtility, LinearUtility, StepUtility, UtilityCurve, UtilityStep
from scavenger.policy.batch import WeakScaling
from scavenger.policy.scaling import (
    FollowModel,
    KeepSize,
    ScaleByThroughput,
    ScaleByUtility,
    scaling_efficiency,
)
from scavenger.policy.schedule import Schedule

rates = st.floats(1.0, 1e6)
EIGHT = Schedule(workers_min=1, workers_max=8)
FOURS = Schedule(workers_min=4, workers_max=24, add=4)
LINEAR = UtilityCurve(linear=LinearUtility(worth=100.0, until=3600.0))


def aim(decision: Decision, now: int) -> int:
    """The size that the job has after a decision."""
    return decision.workers if isinstance(decision, ChangeSize) else now


# ---- s_{k,d} ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "efficiency"), [(500.0, 1.0), (450.0, 0.5), (400.0, 0.0), (350.0, -0.5)])
def test_the_papers_example_of_four_and_five_workers(more: float, efficiency: float) -> None:
    assert scaling_efficiency(4, 400.0, 5, more) == pytest.approx(efficiency)


@given(rates, st.integers(1, 100), st.integers(1, 100))
def test_linear_scaling_has_an_efficiency_of_one(each: float, workers: int, added: int) -> None:
    more = workers + added
    assert scaling_efficiency(workers, each * workers, more, each * more) == pytest.approx(1.0)


@given(rates, rates, st.integers(1, 100), st.integers(1, 100))
def test_efficiency_has_the_sign_of_the_gain(rate: float, more: float, workers: int, added: int) -> None:
    efficiency = scaling_efficiency(workers, rate, workers + added, more)
    assert math.copysign(1, efficiency) == math.copysign(1, more - rate)
    assert (efficiency == 0) == (more == rate)


@pytest.mark.parametrize(
    "arguments",
    [(0, 1.0, 1, 1.0), (2, 1.0, 2, 1.0), (1, 0.0, 2, 1.0), (1, math.nan, 2, 1.0), (1, 1.0, 2, math.inf)],
)
def test_efficiency_of_what_is_no_throughput_is_refused(arguments: tuple[int, float, int, float]) -> None:
    with pytest.raises(ValueError, match=r"needs|must be above 0"):
        scaling_efficiency(*arguments)


@given(
    st.dictionaries(st.integers(1, 8), rates, min_size=1),
    st.integers(1, 8),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_a_higher_threshold_never_asks_for_more_workers(
    known: dict[int, float], now: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    snapshot = job(known, workers=now)

    few = aim(ScaleByThroughput(EIGHT, high).decide(snapshot), now)
    many = aim(ScaleByThroughput(EIGHT, low).decide(snapshot), now)

    assert few <= many


# ---- the schedule ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "known", "then"),
    [
        (4, {}, None),  # nothing measured yet
        (4, {4: 400}, 8),  # one point is not enough: always add first
        (8, {4: 400, 8: 790}, 12),  # worth it: on
        (12, {4: 400, 8: 790, 12: 795}, 8),  # not worth it: settle before it
        (8, {4: 400, 8: 790, 12: 795}, None),  # settled
        (20, {16: 1000, 20: 1001}, 12),  # not worth it, and what is below is not known: jump there
        (12, {12: 999, 16: 1000, 20: 1001}, 8),  # on to the next lower without data
        (8, {8: 700, 12: 999, 16: 1000, 20: 1001}, 12),  # the condition begins to pass: settle
        (4, {4: 990, 8: 995}, None),  # nothing lower is allowed
        (24, {24: 1000}, 20),  # at the upper limit the first step is down
        (24, {20: 900, 24: 1000}, None),  # every step was worth it up to the limit
        (20, {20: 900, 24: 1000}, 24),
    ],
)
def test_the_schedule_of_the_papers_third_figure(now: int, known: dict[int, float], then: int | None) -> None:
    decision = ScaleByThroughput(FOURS).decide(job(known, workers=now, reference=4))

    if then is None:
        assert isinstance(decision, Hold), decision
    else:
        assert isinstance(decision, ChangeSize), decision
        assert (decision.workers, decision.global_batch_size) == (then, BATCH)


def test_the_reason_holds_the_numbers() -> None:
    decision = ScaleByThroughput(FOURS).decide(job({4: 400, 8: 420}, workers=8, reference=4))

    assert decision == ChangeSize(
        4,
        BATCH,
        "settles on 4 workers: from 4 to 8 workers, 400 to 420 samples/s, each brings 0.05 of a present one, "
        "not more than 0.1",
    )


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 9), st.integers(1, 40))
def test_sizes_hold_both_limits_and_the_start_and_lie_add_apart(
    low: int, span: int, add: int, start: int
) -> None:
    high = low + span
    start = min(max(start, low), high)
    sizes = Schedule(low, high, add=add).sizes(job(workers=start))

    assert sizes == tuple(sorted(set(sizes)))
    assert {low, high, start} <= set(sizes)
    assert all((size - start) % add == 0 for size in sizes if size not in (low, high))
    assert all(b - a <= add for a, b in pairwise(sizes))


def test_no_size_is_tried_that_the_batch_cannot_feed() -> None:
    fed = job({4: 100.0}, workers=4)
    starved = changed(fed, configuration=at(4, 5), reference=at(4, 5))

    assert Schedule(1, 8).sizes(fed)[-1] == 8
    assert Schedule(1, 8).sizes(starved)[-1] == 5


def test_workers_in_motion_hold_everything() -> None:
    joining = (*supervisor(4), WorkerSnapshot("n0", "h9", "starting"))

    for snapshot in (changed(job({4: 400}), workers=joining), job({4: 400}, configuration=at(5))):
        assert isinstance(ScaleByThroughput(EIGHT).decide(snapshot), Hold)


def test_a_size_outside_the_range_is_brought_into_it() -> None:
    assert aim(ScaleByThroughput(Schedule(2, 3)).decide(job(workers=6)), 6) == 3
    assert aim(ScaleByThroughput(Schedule(2, 3)).decide(job(workers=1)), 1) == 2


@pytest.mark.parametrize("rate", [0.0, math.nan, math.inf, -1.0])
def test_a_throughput_that_says_nothing_decides_nothing(rate: float) -> None:
    assert isinstance(ScaleByThroughput(EIGHT).decide(job({4: rate}, workers=4)), Hold)
    assert aim(ScaleByThroughput(EIGHT).decide(job({4: 400, 5: rate}, workers=4)), 4) == 5


def test_too_few_steps_decide_nothing() -> None:
    early = job(workers=4, throughput=(Throughput(at(4), 400.0, 9),))

    assert ScaleByThroughput(EIGHT).decide(early) == Hold("9 of 10 steps measured with 4 workers")
    enough = job(workers=4, throughput=(Throughput(at(4), 400.0, 10),))
    assert aim(ScaleByThroughput(EIGHT).decide(enough), 4) == 5


def test_an_efficiency_of_just_the_threshold_is_not_worth_it() -> None:
    assert aim(ScaleByThroughput(Schedule(4, 8), 0.5).decide(job({4: 400.0, 5: 450.0}, workers=5)), 5) == 4


def test_while_a_limit_is_missed_the_limits_decide_alone() -> None:
    snapshot = job({4: 200.0, 3: 199.0}, workers=4, remaining_samples=7.2e5)

    assert aim(ScaleByThroughput(EIGHT).decide(snapshot), 4) != 4
    assert aim(ScaleByThroughput(EIGHT).decide(changed(snapshot, budget_usd=4.9)), 4) == 4


def test_no_worker_is_added_that_the_budget_does_not_pay_to_the_next_look() -> None:
    known = job({4: 400.0, 5: 500.0}, workers=4, drain_s=360.0)
    short = changed(known, budget_usd=1.45)

    assert aim(ScaleByThroughput(Schedule(1, 5)).decide(known), 4) == 5
    held = ScaleByThroughput(Schedule(1, 5)).decide(short)
    assert isinstance(held, Hold)
    assert "the budget is too near to pay 5 workers" in held.reason
    assert aim(ScaleByThroughput(EIGHT).decide(changed(short, throughput=known.throughput[:1])), 4) != 5


def test_with_weak_scaling_the_batch_grows_with_the_workers() -> None:
    schedule = Schedule(1, 64, add=4, batch=WeakScaling(batch_max=3000))

    assert ScaleByThroughput(schedule).decide(job({4: 400.0}, workers=4)).global_batch_size == 2048  # type: ignore[union-attr]
    assert schedule.configuration(job(workers=4), 12) == at(12, 3000)


@given(
    st.floats(50, 500),
    st.floats(0.0, 0.5),
    st.integers(1, 8),
    st.integers(0, 3),
    st.sampled_from([0.05, 0.1, 0.5]),
)
def test_by_throughput_a_job_settles_where_the_curve_says_whatever_it_started_on(
    one: float, overhead: float, start: int, seed: int, efficiency: float
) -> None:
    curve = saturating(one, overhead)
    steps = [scaling_efficiency(k, curve(k), k + 1, curve(k + 1)) for k in range(1, 8)]
    # where noise decides, no size is the right one; 2 % of throughput are 2 k % of an efficiency
    near = [abs(step - efficiency) < 0.05 * (k + 1) for k, step in enumerate(steps, start=1)]
    expected = next((k for k, step in enumerate(steps, start=1) if step <= efficiency), 8)
    cluster = Cluster(curve, start, samples=math.inf, knows_remaining=False, seed=seed)

    cluster.run(ScaleByThroughput(EIGHT, efficiency), looks=60)

    assert len(cluster.history) < 60
    if not any(near):
        assert cluster.history[-1] == expected
        assert len(cluster.history) <= 2 + 8  # each size once, and back


# ---- utility ---------------------------------------------------------------------------------------------

flat = UtilityCurve(step=StepUtility(steps=(UtilityStep(worth=1000.0, until=1e7),)))
stepped = st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e3)), min_size=1, max_size=5).map(
    lambda gaps: StepUtility(
        steps=tuple(
            UtilityStep(worth=sum(w for _, w in gaps[i:]), until=sum(t for t, _ in gaps[: i + 1]))
            for i in range(len(gaps))
        )
    )
)


@given(stepped, st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1, 1e5))
def test_a_bridged_step_never_rises_and_never_jumps(
    utility: StepUtility, one: float, other: float, latest: float
) -> None:
    early, late = sorted((one, other))
    latest = max(latest, utility.steps[-1].until * 1.01)
    slopes = [utility.steps[-1].worth / (latest - utility.steps[-1].until)]
    for a, b in pairwise(utility.steps):
        slopes.append((a.worth - b.worth) / (b.until - a.until))

    drop = utility.at(early, latest_s=latest) - utility.at(late, latest_s=latest)

    assert -1e-9 <= drop <= max(slopes) * (late - early) * (1 + 1e-9) + 1e-6
    assert 0.0 <= utility.at(late, latest_s=latest) <= utility.steps[0].worth


@given(stepped)
def test_a_bridged_step_keeps_every_worth_at_the_end_of_its_step(utility: StepUtility) -> None:
    for step in utility.steps:
        assert utility.at(step.until, latest_s=1e6) == pytest.approx(step.worth)
    assert utility.at(1e6, latest_s=1e6) == pytest.approx(0.0, abs=1e-9)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_utilities_never_rise_and_a_concave_one_bends_down(one: float, other: float) -> None:
    early, late = sorted((one, other))
    for form in (LinearUtility(worth=50.0, until=3600.0), ConcaveUtility(worth=50.0, until=3600.0)):
        assert form.at(0.0) == 50.0
        assert form.at(3600.0) == pytest.approx(0.0)
        assert form.at(late) <= form.at(early)
        middle = form.at((early + late) / 2)
        assert middle >= (form.at(early) + form.at(late)) / 2 - 1e-6 * abs(form.at(late))


@given(st.dictionaries(st.integers(1, 8), rates, min_size=1), st.integers(1, 8), st.floats(1, 1e9))
def test_a_flat_utility_never_pays_for_more_workers(
    known: dict[int, float], now: int, remaining: float
) -> None:
    sublinear = {
        k: min(rate / k for j, rate in known.items() if j <= k) * k for k in known if min(known) <= k
    }
    snapshot = job(sublinear, workers=now, remaining_samples=remaining / 1e3, price_usd_per_hour=1.0)

    assert aim(ScaleByUtility(EIGHT, flat).decide(snapshot), now) <= now


def test_the_utility_overrides_the_throughput() -> None:
    known = {4: 400.0, 5: 420.0}  # an efficiency of 0.2
    worthless = UtilityCurve(linear=LinearUtility(worth=0.01, until=3600.0))

    for remaining, utility, settled in ((1e6, LINEAR, 5), (1e6, worthless, 4), (None, worthless, 5)):
        schedule = Schedule(4, 5)
        snapshot = job(known, workers=4, remaining_samples=remaining)
        assert aim(ScaleByUtility(schedule, utility).decide(snapshot), 4) == settled


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "utility",
    [
        LINEAR,
        UtilityCurve(linear=LinearUtility(worth=3.0, until=36000.0)),
        UtilityCurve(concave=ConcaveUtility(worth=40.0, until=7200.0)),
        flat,
    ],
)
def test_by_utility_a_job_settles_where_worth_above_cost_is_largest(utility: UtilityCurve, seed: int) -> None:
    curve, samples = saturating(100.0, 0.05), 3e6
    profit = {k: utility.at(samples / curve(k)) - samples / curve(k) * k / 3600.0 for k in range(1, 9)}
    cluster = Cluster(curve, 3, samples=samples, look_every_s=1.0, boot_s=2.0, seed=seed)

    cluster.run(ScaleByUtility(EIGHT, utility), looks=200)

    best = max(profit.values())
    assert profit[cluster.history[-1]] >= best - 0.02 * abs(best)
    assert len(cluster.history) <= 10


@pytest.mark.slow
def test_a_step_utility_reaches_its_target_time_with_no_more_workers_than_that_takes() -> None:
    curve, samples = saturating(100.0, 0.0), 3.6e6
    # 36000 / K seconds: 6000 with six workers
    utility = UtilityCurve(step=StepUtility(steps=(UtilityStep(worth=100.0, until=6100.0),)))
    cluster = Cluster(curve, 2, samples=samples, look_every_s=1.0, boot_s=1.0, price_usd_per_hour=1.0)

    last = cluster.run(ScaleByUtility(EIGHT, utility), looks=20_000)

    assert last.progress.elapsed_s <= 6100.0 * 1.02
    steps = {configuration.workers: len(rates) for configuration, rates in cluster.seen.items()}
    assert max(steps, key=steps.__getitem__) == 6
    assert steps[6] > 0.8 * sum(steps.values())
    assert max(steps) <= 7


# ---- the others ------------------------------------------------------------------------------------------


def test_the_model_is_followed_when_it_changes_its_mind_and_money_allows() -> None:
    assert isinstance(FollowModel().decide(job()), Hold)
    assert isinstance(FollowModel().decide(job(planned=at(4))), Hold)
    assert aim(FollowModel().decide(job(planned=at(6, 512))), 4) == 6
    assert isinstance(FollowModel().decide(job(planned=Configuration("other", 6, BATCH))), Hold)
    near = job(planned=at(6), budget_usd=1.001, drain_s=3.0)
    assert isinstance(FollowModel().decide(near), Hold)


def test_a_fixed_size_stays() -> None:
    assert isinstance(KeepSize().decide(job(planned=at(6))), Hold)


def test_a_snapshot_without_a_price_is_refused() -> None:
    for price in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match="price_usd_per_hour"):
            job(price_usd_per_hour=price)
    assert isinstance(job(), JobSnapshot)
