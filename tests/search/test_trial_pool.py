"""Laws of the pool of workers and the budget that trials share."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scavenger.search.trial_pool import RunningTrial, plan_pool


@st.composite
def pools(draw: st.DrawFn) -> tuple[RunningTrial, ...]:
    count = draw(st.integers(1, 8))
    return tuple(
        RunningTrial(
            f"t{number}",
            draw(st.floats(-10, 10)),
            draw(st.integers(1, 9)),
            9,
            draw(st.floats(0.0, 5.0)),
            draw(st.integers(1, 4)),
        )
        for number in range(count)
    )


@given(pools(), st.integers(1, 20), st.floats(0.0, 20.0), st.integers(0, 3))
def test_each_trial_goes_on_or_is_stopped_and_the_best_goes_on(
    trials: tuple[RunningTrial, ...], workers: int, left_usd: float, unknown: int
) -> None:
    plan = plan_pool(trials, workers=workers, left_usd=left_usd, unknown=unknown)
    assert plan.workers.keys() | plan.stopped.keys() == {trial.id for trial in trials}
    assert not plan.workers.keys() & plan.stopped.keys()
    assert max(trials, key=lambda trial: trial.score).score == max(
        trial.score for trial in trials if trial.id in plan.workers
    )


@given(pools(), st.integers(1, 20), st.floats(0.0, 20.0), st.integers(0, 3))
def test_the_pool_and_the_budget_hold(
    trials: tuple[RunningTrial, ...], workers: int, left_usd: float, unknown: int
) -> None:
    plan = plan_pool(trials, workers=workers, left_usd=left_usd, unknown=unknown)
    going = sorted(
        (trial for trial in trials if trial.id in plan.workers), key=lambda trial: (-trial.score, trial.id)
    )
    assert sum(plan.workers.values()) <= max(workers - unknown, len(going))
    assert all(1 <= plan.workers[trial.id] <= trial.workers_max for trial in going)
    rest_usd = sum(trial.rest_usd for trial in going)
    assert rest_usd <= left_usd + 1e-9 or rest_usd - going[0].rest_usd <= max(
        0.0, left_usd - going[0].rest_usd
    )
    idle = workers - unknown - sum(plan.workers.values())
    if idle > 0:  # none is kept from a trial that could have it
        assert all(plan.workers[trial.id] == trial.workers_max for trial in going)
    more = [plan.workers[trial.id] < trial.workers_max for trial in going]
    after = more.index(True) + 1 if True in more else len(going)
    assert all(plan.workers[trial.id] == 1 for trial in going[after:])  # the best is served first


def test_without_a_budget_none_is_stopped() -> None:
    trials = [RunningTrial(str(number), number, 1, 9, 1.0, 4) for number in range(5)]
    plan = plan_pool(trials, workers=7, left_usd=math.inf)
    assert plan.stopped == {}
    assert plan.workers == {"4": 3, "3": 1, "2": 1, "1": 1, "0": 1}


def test_the_worst_are_stopped_when_the_budget_gets_short() -> None:
    trials = [RunningTrial(str(number), number, 3, 9, 1.0, 4) for number in range(3)]  # two dollars each
    plan = plan_pool(trials, workers=3, left_usd=4.5)
    assert set(plan.stopped) == {"0"}
    assert plan.workers == {"2": 2, "1": 1}
