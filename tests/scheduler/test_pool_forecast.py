"""What a pool says of the future agrees with what then comes, and of what is unknown it says nothing."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pool_cases import pools, rules
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules, allot, with_allotment
from scavenger.scheduler.jobs.explaining import explain, further_slot, in_words
from scavenger.scheduler.jobs.forecast import NewJob, Range, forecast, what_if, with_job
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes, PoolSeen, Shares, Standing

Ruled = tuple[str, Rules]
LINEAR = np.arange(9.0)


def pool(*jobs: tuple[int, int, int, float, int], slots: int, sd: float = 0.0) -> PoolSeen:
    """Jobs of (least, asked, most, work left, slots held) on one node, with linear curves, in order of arrival."""
    least, asked, most, left, held = (np.array(column) for column in zip(*jobs, strict=True))
    count, zeros = len(jobs), np.zeros(len(jobs), dtype=np.int64)
    has = np.flatnonzero(held)
    return PoolSeen(
        Nodes.of(slots),
        Claims(zeros, zeros, np.arange(count) - float(count), least, asked, most, zeros),
        Standing(
            level=zeros,
            attained_slot_s=np.zeros(count),
            waited_s=np.zeros(count),
            ran_s=np.zeros(count),
            left=left.astype(float),
            left_log_sd=np.full(count, sd),
            change_s=np.zeros(count),
            fixed=zeros > 0,
        ),
        Shares(has, np.zeros(len(has), dtype=np.int64), held[has]),
        Curves(LINEAR[None]),
    )


def listed(found: Range) -> list[tuple[float, float, float]]:
    return list(zip(found.low.tolist(), found.middle.tolist(), found.high.tolist(), strict=True))


def test_the_next_job_begins_when_the_one_before_it_has_ended() -> None:
    seen = pool((2, 2, 2, 20.0, 2), (2, 2, 2, 6.0, 0), slots=2)
    found = forecast(seen, Rules(POLICIES["fifo"]), usd_per_slot_s=np.array([0.5]))

    assert found.start_s.middle.tolist() == [0.0, 10.0]
    assert found.end_s.middle.tolist() == pytest.approx([10.0, 13.0])
    assert found.slot_s.middle.tolist() == pytest.approx([20.0, 6.0])
    assert found.usd.middle.tolist() == pytest.approx([10.0, 3.0])
    assert np.isnan(forecast(seen, Rules(POLICIES["fifo"])).usd.middle).all()


def test_a_job_of_unknown_length_has_no_end_and_what_waits_for_it_no_latest_one() -> None:
    """The third job has slots of its own: nothing of it is unknown."""
    seen = pool((2, 2, 2, np.nan, 2), (3, 3, 3, 6.0, 0), (1, 1, 1, 4.0, 1), slots=4)
    found = forecast(seen, Rules(POLICIES["fifo"]))

    assert np.isnan(found.end_s.middle[0])
    assert np.isnan(found.slot_s.middle[0])
    assert listed(found.start_s)[1] == (0.0, inf, inf)
    assert listed(found.end_s)[1] == (pytest.approx(2.0), inf, inf)
    assert listed(found.end_s)[2] == pytest.approx((4.0, 4.0, 4.0))


def test_nine_of_ten_draws_of_the_work_left_are_within_the_interval() -> None:
    seen = pool((1, 1, 1, 1000.0, 1), slots=1, sd=0.4)
    [(low, middle, high)] = listed(forecast(seen, Rules(POLICIES["fifo"])).end_s)
    drawn = 1000.0 * np.random.default_rng(1).lognormal(0.0, 0.4, 20_000)

    assert np.mean((drawn >= low) & (drawn <= high)) == pytest.approx(0.9, abs=0.03)
    assert middle == pytest.approx(1000.0, rel=0.05)


def test_another_job_delays_those_that_its_slots_are_taken_from() -> None:
    seen = pool((1, 1, 4, 40.0, 4), slots=4)
    found = what_if(seen, Rules(POLICIES["even"]), NewJob(1, 1, 2, LINEAR, left=20.0))

    assert found.forecast.start_s.middle.tolist() == [0.0, 0.0]
    assert found.forecast.end_s.middle.tolist() == pytest.approx([15.0, 10.0])
    assert found.later_s.middle.tolist() == pytest.approx([5.0])


def test_a_job_that_waits_behind_all_others_delays_nobody() -> None:
    seen = pool((2, 2, 2, 20.0, 2), (2, 2, 2, 6.0, 0), slots=2, sd=0.5)
    found = what_if(seen, Rules(POLICIES["fifo"]), NewJob(2, 2, 2, LINEAR, left=2.0))

    assert listed(found.later_s) == [(0.0, 0.0, 0.0)] * 2
    assert found.forecast.start_s.middle[2] == found.forecast.end_s.middle[1]


def on_one_node(seen: PoolSeen) -> PoolSeen:
    """The same pool with all slots on one node that is open; those who held some of a closed one have none."""
    held = np.where(seen.runs, seen.held, 0)
    has = np.flatnonzero(held)
    return replace(
        seen, nodes=Nodes.of(seen.slots), shares=Shares(has, np.zeros(len(has), dtype=np.int64), held[has])
    )


CERTAIN = tuple(name for name in POLICIES if name != "worth")
"""Those that say when they would decide otherwise; `worth` follows the work left, which changes all the time."""


@examples(30)
@given(pools(), st.sampled_from(CERTAIN), st.floats(0.05, 0.95))
def test_a_forecast_says_the_same_some_time_later(seen: PoolSeen, policy: str, part: float) -> None:
    """Nobody arrives, nothing is unknown, changes take no time: what is told now is what is told on the way there."""
    how = Rules(POLICIES[policy])
    assume(seen.jobs > 0 and seen.slots > 0)
    seen = on_one_node(seen)
    left = np.where(np.isnan(seen.standing.left), 77.0, seen.standing.left)
    nothing = np.zeros(seen.jobs)
    none = np.zeros(seen.jobs, dtype=bool)
    at_rest = replace(
        seen.standing, left=left, left_log_sd=nothing, change_s=nothing, fixed=none, worker_s=nothing
    )
    seen = replace(seen, standing=at_rest)
    allotment = allot(seen, how)
    now = with_allotment(seen, allotment)
    rate = now.rate(now.held)
    with np.errstate(divide="ignore"):
        ends_s = float((left / rate).min())
    passes_s = part * min(ends_s, allotment.again_s, 1000.0)
    has = now.held > 0
    standing = now.standing
    later = replace(
        now,
        standing=replace(
            standing,
            attained_slot_s=standing.attained_slot_s + now.held * passes_s,
            waited_s=standing.waited_s + ~has * passes_s,
            ran_s=standing.ran_s + has * passes_s,
            left=left - rate * passes_s,
        ),
    )
    first, second = (forecast(one, how).end_s.middle for one in (seen, later))

    assert second + passes_s == pytest.approx(first, rel=1e-5, abs=1e-3)


@examples(20)
@given(pools(), rules())
def test_ranges_are_in_order_and_nothing_is_told_of_unknown_work(seen: PoolSeen, ruled: Ruled) -> None:
    _, how = ruled
    found = forecast(seen, how, horizon_s=1e5, runs=5)
    unknown = np.isnan(seen.standing.left)

    for name in ("end_s", "slot_s"):
        one = getattr(found, name)
        assert np.isnan(one.middle).tolist() == unknown.tolist()
        known = ~unknown
        assert np.all(one.low[known] <= one.high[known])
        assert np.all(one.middle[known] <= one.high[known])
    assert np.all(found.start_s.low <= found.start_s.high)
    assert np.all(found.start_s.middle[seen.held > 0] == 0.0)
    known = ~unknown
    assert np.all(found.start_s.middle[known] <= found.end_s.middle[known])


_HORIZON_S = 5e4
"""Two gangs that wait for too long take turns of 1000 s, and a forecast looks so far only as its time allows."""


@examples(20)
@given(pools(), rules())
def test_a_standing_pool_without_slots_is_a_trace_whose_jobs_all_arrive_at_once(
    seen: PoolSeen, ruled: Ruled
) -> None:
    _, how = ruled
    assume(seen.jobs > 0)
    claims = seen.claims
    order = np.argsort(claims.submitted_s)
    claims = Claims(*(getattr(claims, name)[order] for name in Claims.__dataclass_fields__))
    claims = replace(claims, submitted_s=np.zeros(seen.jobs))
    nothing, whole = np.zeros(seen.jobs), np.zeros(seen.jobs, dtype=np.int64)
    work = np.where(np.isnan(seen.standing.left), 50.0, seen.standing.left)
    change_s = seen.standing.change_s
    begin = replace(
        seen,
        claims=claims,
        standing=Standing(whole, nothing, nothing, nothing, work, nothing, change_s, whole > 0),
        shares=Shares.none(),
    )
    run = simulate(
        Workload(claims, seen.curves, work, work, nothing, change_s), seen.nodes, how, until_s=_HORIZON_S
    )
    found = forecast(begin, how, horizon_s=_HORIZON_S)

    assert found.end_s.middle.tolist() == run.completion_s.tolist()
    assert found.slot_s.middle[np.isfinite(run.completion_s)].tolist() == pytest.approx(
        run.slot_s[np.isfinite(run.completion_s)].tolist()
    )


def test_a_slot_more_is_told_with_whom_it_would_be_taken_from() -> None:
    seen = pool((1, 1, 8, 80.0, 2), (1, 1, 8, 40.0, 2), slots=4)
    found = explain(seen, Rules(POLICIES["even"]), 0)

    assert (found.slots, found.held, found.free) == (2, 2, 0)
    assert found.more is not None
    assert found.less is not None
    assert (found.more.slots, found.more.faster, found.more.idle) == (3, pytest.approx(0.5), 0)
    assert found.more.sooner_s == pytest.approx(80.0 / 2 - 80.0 / 3)
    assert [(one.job, one.more, one.sooner_s) for one in found.more.others] == [(1, -1, pytest.approx(-20.0))]
    assert [(one.job, one.more) for one in found.less.others] == [(1, 1)]
    assert in_words(found, ("a", "b")) == (
        "has 2 slots; one more makes it 50.0% faster, 13.3 s sooner, and would come from b (2 to 1: 20 s later)"
    )
    assert found.more is not None
    costly = replace(found, more=replace(found.more, sooner_s=-2.0, others=()))
    assert in_words(costly, ("a", "b")) == "has 2 slots; one more makes it 50.0% faster, 2 s later"
    assert in_words(found, ("a", "b"), known=False).startswith(
        f"has {found.slots} slots; one more makes it faster by nobody knows how much, and "
    )


def test_a_job_that_waits_is_told_who_has_what_it_needs() -> None:
    seen = pool((3, 3, 3, 80.0, 3), (2, 2, 2, 40.0, 0), slots=4)
    found = explain(seen, Rules(POLICIES["fifo"]), 1)

    assert in_words(found, ("a", "b")) == (
        "waits: needs 2 slots, 1 free, and would take from a (3 to 0: it would wait)"
    )
    assert found.less is None


def test_a_job_that_has_what_was_asked_for_gets_no_more_from_policies_without_elasticity() -> None:
    seen = pool((1, 2, 8, 80.0, 2), slots=4)

    assert explain(seen, Rules(POLICIES["fifo"]), 0).why_no_more == "it has what was asked for"
    assert explain(seen, Rules(POLICIES["even"]), 0).slots == 4
    assert in_words(explain(seen, Rules(POLICIES["even"]), 0), "a") == "has 4 slots: it has the whole pool"


def test_a_further_slot_goes_where_the_policy_would_give_it() -> None:
    seen = pool((1, 1, 2, 80.0, 2), (1, 1, 8, 40.0, 2), slots=4)
    [one] = further_slot(seen, Rules(POLICIES["even"]), 0)

    assert (one.job, one.slots, one.sooner_s) == (1, 3, pytest.approx(20.0 - 40.0 / 3))
    full = pool((1, 1, 2, 80.0, 2), slots=4)
    assert further_slot(full, Rules(POLICIES["even"]), 0) == ()


@examples(30)
@given(pools(), rules(), st.data())
def test_what_a_step_takes_is_what_others_lose_or_what_was_idle(
    seen: PoolSeen, ruled: Ruled, data: st.DataObject
) -> None:
    _, how = ruled
    assume(seen.jobs > 0)
    found = explain(seen, how, data.draw(st.integers(0, seen.jobs - 1)))

    for step in (found.more, found.less):
        if step is None:
            continue
        assert step.slots - found.slots == step.idle - sum(one.more for one in step.others)
        assert all(one.job != found.job and one.more for one in step.others)
    if found.more is not None:
        assert found.more.faster > 0.0
        assert found.more.fits or not found.slots
        assert found.slots < found.more.slots <= seen.claims.most[found.job]
        assert found.more.idle <= found.free + seen.slots
    assert in_words(found, [f"j{row}" for row in range(seen.jobs)])


def test_a_new_job_is_the_last_row_with_its_own_curve() -> None:
    seen = pool((1, 1, 2, 80.0, 2), slots=4)
    more = with_job(seen, NewJob(1, 2, 12, np.arange(13.0) * 2.0, priority=3, left=5.0))

    assert more.jobs == 2
    assert more.claims.priority.tolist() == [0, 3]
    assert more.rate(np.array([2, 12])).tolist() == [2.0, 24.0]
    assert more.standing.left.tolist() == [80.0, 5.0]
    assert more.standing.fixed.tolist() == [False, False]
    assert more.claims.submitted_s[1] > more.claims.submitted_s[0]
