"""Pools whose nodes are of several types: where jobs lie, whatever the policy, and who gets which type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import RIGID, fits, pools, rules
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules, allot, same, with_allotment
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes, PoolSeen, Shares

Ruled = tuple[str, Rules]


@st.composite
def typed_pools(draw: st.DrawFn) -> PoolSeen:
    """A pool of up to three types; of shares on several types nothing is left, and some jobs run on some types only."""
    seen = draw(pools())
    count = len(seen.nodes.slots)
    types = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), dtype=np.int64)
    types[0] = 1
    nodes = replace(seen.nodes, type=types)
    factor = st.lists(st.sampled_from([0.0, 0.5, 1.0, 4.0]), min_size=len(seen.curves.rates))
    others = tuple(
        seen.curves.rates * np.array(draw(factor)[: len(seen.curves.rates)])[:, None] for _ in range(2)
    )
    shares = seen.shares
    here = types[shares.node]
    mixed = {job for job in shares.job.tolist() if len(set(here[shares.job == job].tolist())) > 1}
    runs = np.stack([seen.curves.rates, *others])[here, seen.claims.curve[shares.job]].any(axis=1)
    kept = runs & np.array([job not in mixed for job in shares.job.tolist()], dtype=bool)
    shares = Shares(shares.job[kept], shares.node[kept], shares.slots[kept])
    held = shares.by_job(seen.jobs) > 0
    standing = replace(
        seen.standing, fixed=seen.standing.fixed & held, ran_s=np.where(held, seen.standing.ran_s, 0.0)
    )
    return replace(
        seen, nodes=nodes, shares=shares, standing=standing, curves=Curves(seen.curves.rates, others)
    )


@examples(60)
@given(typed_pools(), rules())
def test_a_job_lies_on_nodes_of_one_type_within_its_bounds(seen: PoolSeen, ruled: Ruled) -> None:
    name, how = ruled
    shares = allot(seen, how).shares
    claims, slots = seen.claims, shares.by_job(seen.jobs)
    assert seen.nodes.type is not None
    on = {
        (job, int(seen.nodes.type[node])) for job, node in zip(shares.job.tolist(), shares.node, strict=True)
    }

    assert len(on) == np.count_nonzero(slots)
    assert np.all(shares.slots > 0)
    assert np.all(shares.by_node(len(seen.nodes.slots)) <= seen.nodes.room)
    has, free = slots > 0, ~seen.standing.fixed
    assert np.all(slots[has] >= claims.least[has])
    assert np.all(slots[has] <= claims.most[has])
    assert np.all(slots[~free] == seen.held[~free])
    if name in RIGID:
        assert np.all(slots[has & free] == claims.asked[has & free])
    moved = has & (shares.types(seen.jobs, seen.nodes) != seen.shares.types(seen.jobs, seen.nodes))
    assert np.all(seen.rate_on(shares)[moved] > 0.0)


@examples(60)
@given(typed_pools(), rules())
def test_nobody_waits_while_some_type_has_room_for_him(seen: PoolSeen, ruled: Ruled) -> None:
    name, how = ruled
    shares = allot(seen, how).shares
    slots = shares.by_job(seen.jobs)
    idle = seen.nodes.room - shares.by_node(len(seen.nodes.slots))
    need = seen.claims.asked if name in (*RIGID, "elastic-tiresias") else seen.claims.least
    if name == "fifo":
        return
    for job in np.flatnonzero((slots == 0) & ~seen.standing.fixed & (need > 0)).tolist():
        for number, curves in enumerate(seen.curves.by_type[: seen.nodes.types]):
            here = seen.nodes.type == number
            if curves.rates[seen.claims.curve[job]].any() and seen.nodes.room[here].any():
                assert not fits(idle[here], int(need[job]), int(seen.nodes.room[here].max()))


@examples(60)
@given(typed_pools(), rules())
def test_deciding_again_changes_nothing(seen: PoolSeen, ruled: Ruled) -> None:
    _, how = ruled
    first = allot(seen, how)
    again = allot(with_allotment(seen, first), how)

    assert same(first.shares, again.shares)
    assert again.number == first.number


@examples(30)
@given(pools(), rules())
def test_a_type_that_no_node_has_changes_nothing(seen: PoolSeen, ruled: Ruled) -> None:
    _, how = ruled
    typed = replace(
        seen,
        nodes=replace(seen.nodes, type=np.zeros_like(seen.nodes.slots)),
        curves=Curves(seen.curves.rates, (9.0 * seen.curves.rates,)),
    )

    assert same(allot(seen, how).shares, allot(typed, how).shares)


def two_models() -> Workload:
    """Jobs of two models come in turn: the second type is twice as fast for one, and eight times for the other."""
    one = np.arange(5.0)
    jobs = 8
    claims = Claims(
        user=np.zeros(jobs, dtype=np.int64),
        priority=np.zeros(jobs, dtype=np.int64),
        submitted_s=np.arange(jobs) * 1e-3,
        least=np.ones(jobs, dtype=np.int64),
        asked=np.ones(jobs, dtype=np.int64),
        most=np.ones(jobs, dtype=np.int64),
        curve=np.arange(jobs, dtype=np.int64) % 2,
    )
    work = np.full(jobs, 100.0)
    curves = Curves(np.stack([one, one]), (np.stack([2.0 * one, 8.0 * one]),))
    return Workload(claims, curves, work, work, np.zeros(jobs), np.zeros(jobs))


NODES = Nodes(np.array([4, 4]), np.ones(2, dtype=bool), np.array([0, 1]))


def test_the_fast_type_goes_to_those_who_gain_most_from_it() -> None:
    """Four fast slots, four jobs that are eight times as fast there: they end in 12.5 s, and the others follow them."""
    done = simulate(two_models(), NODES, Rules(POLICIES["worth"])).completion_s

    assert done[1::2] == pytest.approx(12.5, rel=1e-3)
    assert done[::2] == pytest.approx(12.5 + 87.5 / 2.0, rel=1e-3)


def test_a_policy_that_knows_speeds_chooses_better_than_one_that_takes_whichever_fits() -> None:
    means = [simulate(two_models(), NODES, Rules(POLICIES[name])).mean_s for name in ("goodput", "even")]

    assert means[0] < 0.9 * means[1]


def test_a_policy_that_does_not_choose_takes_whichever_fits() -> None:
    done = simulate(two_models(), NODES, Rules(POLICIES["fifo"])).completion_s

    assert done.max() == pytest.approx(100.0, rel=1e-3)
