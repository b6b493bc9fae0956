"""Stragglers: who counts as slow, and who does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import changed
from policy_jobs import paced, supervisor

from scavenger.domain.decision import Hold, Replace
from scavenger.domain.snapshot import Departure, JobSnapshot, WorkerSnapshot
from scavenger.policy.stragglers import ReplaceStragglers, SlowInARow, SlowOnAverage, StragglerRule

RULES: list[StragglerRule] = [SlowOnAverage(), SlowInARow()]
both = pytest.mark.parametrize("rule", RULES, ids=["ewma", "edl"])
paces = st.lists(st.floats(0.05, 20.0), min_size=30, max_size=30)


def slow(snapshot: JobSnapshot, rule: StragglerRule) -> tuple[str, ...]:
    decision = ReplaceStragglers(rule).decide(snapshot)
    return decision.workers if isinstance(decision, Replace) else ()


@both
def test_the_one_slow_worker_is_replaced(rule: StragglerRule) -> None:
    decision = ReplaceStragglers(rule).decide(paced([1.0] * 20, [1.0] * 20, [1.0] * 20, [2.0] * 20))

    assert decision == Replace(("w3",), "slower than the median worker's time per sample: w3 (2.00x)")


@both
@given(st.lists(st.lists(st.floats(0.9, 1.1), min_size=20, max_size=20), min_size=1, max_size=9))
def test_equal_workers_with_noise_below_the_threshold_are_left_alone(
    rule: StragglerRule, series: list[list[float]]
) -> None:
    # a worker of 1.1 beside a median of 0.9 is 1.22 times slower, but not in every step with three or more:
    # bound the noise so that no single step can cross 1.2 or 0.8
    series = [[1.0 + (pace - 1.0) * 0.9 for pace in worker] for worker in series]

    assert slow(paced(*series), rule) == ()


@both
@given(st.lists(paces, min_size=1, max_size=12), st.floats(0.05, 1.0))
def test_never_more_than_the_share_and_never_with_fewer_than_three(
    rule: StragglerRule, series: list[list[float]], share: float
) -> None:
    decision = ReplaceStragglers(rule, fraction_max=share).decide(paced(*series))

    if isinstance(decision, Replace):
        assert len(series) >= 3
        assert len(decision.workers) <= max(1, share * len(series))
        assert len(set(decision.workers)) == len(decision.workers)


@both
@pytest.mark.parametrize("workers", [1, 2])
def test_with_one_or_two_workers_there_is_no_median_to_be_slower_than(
    rule: StragglerRule, workers: int
) -> None:
    series = [[1.0] * 20, [9.0] * 20][:workers]
    decision = ReplaceStragglers(rule).decide(paced(*series))

    assert decision == Hold(f"{workers} workers are too few to detect a slow one")


def test_a_single_slow_step_is_forgiven_and_a_normal_one_does_not_acquit() -> None:
    steady = [1.0] * 30
    once = [1.0] * 29 + [1.6]
    mostly = [2.0 if step % 10 else 1.0 for step in range(30)]  # normal on every tenth step

    assert slow(paced(steady, steady, steady, once), SlowOnAverage()) == ()
    assert slow(paced(steady, steady, steady, mostly), SlowOnAverage()) == ("w3",)
    assert slow(paced(steady, steady, steady, mostly), SlowInARow(steps_min=12)) == ()
    assert slow(paced(steady, steady, steady, once), SlowInARow()) == ()


def test_the_papers_thresholds_are_the_defaults() -> None:
    steady = [1.0] * 40
    for pace, ewma, edl in ((1.19, False, False), (1.22, False, True), (1.27, True, True)):
        snapshot = paced(steady, steady, steady, [pace] * 40)
        assert bool(slow(snapshot, SlowOnAverage())) == ewma
        assert bool(slow(snapshot, SlowInARow())) == edl


@both
def test_when_many_look_slow_it_is_not_the_workers(rule: StragglerRule) -> None:
    decision = ReplaceStragglers(rule).decide(paced(*[[1.0] * 20] * 5, *[[3.0] * 20] * 3))

    assert isinstance(decision, Hold)
    assert "3 of 8 workers look slow" in decision.reason


@both
def test_too_few_steps_prove_nothing(rule: StragglerRule) -> None:
    assert slow(paced(*[[1.0] * 9] * 3, [5.0] * 9), rule) == ()


@both
def test_a_newcomer_is_judged_only_after_enough_steps_of_its_own(rule: StragglerRule) -> None:
    assert slow(paced(*[[1.0] * 30] * 3, [5.0] * 9), rule) == ()
    assert slow(paced(*[[1.0] * 30] * 3, [5.0] * 10), rule) == ("w3",)


@both
def test_uneven_shares_and_empty_ones_are_no_slowness(rule: StragglerRule) -> None:
    even = paced(*[[1.0] * 20] * 4)
    workers = list(even.cluster.workers)
    workers[3] = WorkerSnapshot("w3", "h3", compute_s=(0.128,) * 20, samples=(128,) * 20)
    assert slow(changed(even, workers=tuple(workers)), rule) == ()

    workers[3] = WorkerSnapshot("w3", "h3", compute_s=(5.0,) * 20, samples=(0,) * 20)
    assert slow(changed(even, workers=tuple(workers)), rule) == ()


@both
@pytest.mark.parametrize("time_s", [0.0, math.nan, math.inf, -1.0])
def test_times_that_say_nothing_are_left_out(rule: StragglerRule, time_s: float) -> None:
    even = paced(*[[1.0] * 20] * 4)
    odd = WorkerSnapshot("w3", "h3", compute_s=(time_s,) * 20, samples=(64,) * 20)

    assert slow(changed(even, workers=(*even.cluster.workers[:3], odd)), rule) == ()


@both
def test_steps_that_compare_fewer_than_three_workers_are_left_out(rule: StragglerRule) -> None:
    even = paced(*[[1.0] * 20] * 4)
    silent = [WorkerSnapshot(f"s{i}", "h", compute_s=(math.nan,) * 20, samples=(64,) * 20) for i in range(2)]
    crawling = WorkerSnapshot("w1", "h", compute_s=(0.64,) * 20, samples=(64,) * 20)

    assert slow(changed(even, workers=(even.cluster.workers[0], crawling, *silent)), rule) == ()
    assert slow(
        changed(even, workers=(even.cluster.workers[0], even.cluster.workers[2], crawling, silent[0])), rule
    ) == ("w1",)


def test_replacing_ends_when_it_did_not_help() -> None:
    series = ([1.0] * 20, [1.0] * 20, [1.0] * 20, [2.0] * 20)
    gone = tuple(Departure(f"x{i}", "h9", 900.0, "eviction", 50) for i in range(3))

    assert isinstance(ReplaceStragglers().decide(paced(*series, departures=gone[:2])), Replace)
    assert isinstance(ReplaceStragglers().decide(paced(*series, departures=gone)), Hold)
    later = paced(*series, departures=gone, at_s=900.0 + 3600.0)
    assert isinstance(ReplaceStragglers().decide(later), Replace)


def test_nobody_is_replaced_while_workers_come_or_without_the_money_for_both() -> None:
    snapshot = paced(*[[1.0] * 20] * 3, [2.0] * 20)
    joining = changed(snapshot, workers=(*snapshot.cluster.workers, WorkerSnapshot("n", "h9", "starting")))
    short = changed(snapshot, budget_usd=1.0 + 4.5 * 100 / 3600.0, drain_s=100.0)

    assert isinstance(ReplaceStragglers().decide(joining), Hold)
    assert isinstance(ReplaceStragglers().decide(short), Hold)
    assert isinstance(ReplaceStragglers().decide(changed(snapshot, workers=supervisor(4))), Hold)
