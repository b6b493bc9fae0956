"""Deadlines: what is promised can be kept, is kept when all is as told, and what is refused has an earliest end."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import pools
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules, allot, same, with_allotment
from scavenger.scheduler.jobs.deadlines import CERTAIN, Caution, Edf, due_at, kept_shares, promise, promised
from scavenger.scheduler.jobs.simulation import Run, Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes, PoolSeen, Shares, Standing
from scavenger.scheduler.jobs.worth import Worth


@st.composite
def with_deadlines(draw: st.DrawFn) -> PoolSeen:
    """A pool of which about every second job has a deadline, before now or after it."""
    seen = draw(pools())
    due = st.one_of(st.just(inf), st.floats(-10.0, 20_000.0))
    deadlines = np.array(draw(st.lists(due, min_size=seen.jobs, max_size=seen.jobs)))
    return replace(seen, claims=replace(seen.claims, deadline_s=deadlines))


def jobs_of(*rows: tuple[float, float, float]) -> Workload:
    """Jobs of (submitted, slot-seconds, deadline) that scale perfectly to 8 slots; what is told of them is true."""
    submitted, work, deadline = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    zeros, ones = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=np.int64)
    claims = Claims(zeros, zeros, submitted, ones, ones, 8 * ones, zeros, deadline)
    none = np.zeros(len(rows))
    return Workload(claims, Curves(np.arange(9.0)[None]), work, work, none, none)


def admitted(jobs: Workload, policy: Worth) -> Run:
    """A run in which a job is let in only if its deadline can be promised."""
    return simulate(
        jobs,
        Nodes.of(8),
        Rules(policy),
        accepts=lambda seen, row: promise(seen, row, policy.caution).kept,
    )


@examples(40)
@given(with_deadlines(), st.sampled_from([CERTAIN, Caution()]))
def test_shares_that_keep_promises_fit_the_pool_and_the_bounds_of_jobs(
    seen: PoolSeen, caution: Caution
) -> None:
    slots, kept = kept_shares(seen, caution, np.isfinite(seen.claims.deadline_s))
    certain = kept_shares(seen, CERTAIN, np.isfinite(seen.claims.deadline_s))
    least = np.where(seen.standing.fixed, seen.held, seen.claims.least)

    assert slots.sum() <= seen.slots
    assert np.all(np.isfinite(seen.claims.deadline_s[kept | (slots > 0)]))
    assert np.all(certain[1][certain[0] > 0])
    assert np.all(slots[slots > 0] >= least[slots > 0])
    assert np.all(slots <= np.maximum(seen.useful, least))


@examples(40)
@given(with_deadlines())
def test_the_earliest_end_of_a_refused_job_can_be_promised(seen: PoolSeen) -> None:
    for job in range(seen.jobs):
        said = promise(seen, job)
        deadlines = seen.claims.deadline_s.copy()
        deadlines[job] = said.earliest_s

        if said.earliest_s < inf:
            assert promise(replace(seen, claims=replace(seen.claims, deadline_s=deadlines)), job).kept
        assert not said.kept or said.earliest_s == seen.claims.deadline_s[job]


@examples(40)
@given(with_deadlines(), st.data())
def test_who_was_promised_stays_so_and_one_more_breaks_no_promise(
    seen: PoolSeen, data: st.DataObject
) -> None:
    due_s = seen.claims.deadline_s
    already = np.array(data.draw(st.lists(st.booleans(), min_size=seen.jobs, max_size=seen.jobs)), dtype=bool)
    before = replace(seen, claims=replace(seen.claims, deadline_s=np.where(already, due_s, inf)))
    has = promised(before, due_s)

    after = replace(seen, claims=replace(seen.claims, deadline_s=np.where(has, due_s, inf)))
    assert np.all(has[already & np.isfinite(due_s)])
    assert not np.any(has & ~already & ~((due_s > 0.0) & np.isfinite(seen.standing.left)))
    could = kept_shares(before, Caution(), already)[1]
    new = has & ~np.isfinite(before.claims.deadline_s)
    assert np.all(kept_shares(after, Caution(), could | new)[1][could | new])
    assert np.array_equal(promised(after, due_s), has)


@examples(40)
@given(with_deadlines(), st.sampled_from([Worth(), Edf()]))
def test_deciding_again_changes_nothing(seen: PoolSeen, policy: Worth | Edf) -> None:
    first = allot(seen, Rules(policy))

    assert same(first.shares, allot(with_allotment(seen, first), Rules(policy)).shares)


times = st.floats(1.0, 100.0)


@examples(40)
@given(st.lists(st.tuples(times, times, times), min_size=1, max_size=10))
def test_every_promise_is_kept_when_all_is_as_told(rows: list[tuple[float, float, float]]) -> None:
    rows.sort()
    jobs = jobs_of(*((at, work, at + within) for at, work, within in rows))
    done = admitted(jobs, Worth(caution=CERTAIN)).completion_s
    let_in = np.isfinite(done)

    assert np.all(done[let_in] <= (jobs.claims.deadline_s - jobs.claims.submitted_s)[let_in] + 1e-3)


def test_a_job_is_refused_whose_deadline_would_break_a_promise_and_told_when_it_could_end() -> None:
    """8 slots for 10 s are promised; 40 slot-seconds more can be through by 15 s, not by 12 s."""
    jobs = jobs_of((0.0, 80.0, 10.0), (0.0, 40.0, 12.0))
    done = admitted(jobs, Worth(caution=CERTAIN)).completion_s
    assert done.tolist() == [10.0, inf]

    done = admitted(jobs_of((0.0, 80.0, 10.0), (0.0, 40.0, 15.0)), Worth(caution=CERTAIN)).completion_s
    assert done == pytest.approx([10.0, 15.0], rel=1e-3)


def test_who_has_a_deadline_goes_first_and_the_rest_goes_where_it_is_worth_most() -> None:
    jobs = jobs_of((0.0, 40.0, 10.0), (0.0, 16.0, inf))
    done = admitted(jobs, Worth(caution=CERTAIN)).completion_s

    assert done[0] <= 10.0
    assert done[1] == pytest.approx(4.0, rel=0.4)


def test_a_promise_is_of_slots_of_one_type_of_nodes_and_at_the_speed_there() -> None:
    """Of 2 slots of each of two types nobody has 4, and what runs on the second type alone can be promised that."""
    perfect, nothing, jobs = np.arange(9.0)[None], np.zeros((1, 9)), jobs_of((0.0, 300.0, 200.0))
    zeros = np.zeros(1, dtype=np.int64)
    standing = Standing(
        zeros, zeros + 0.0, zeros + 0.0, zeros + 0.0, jobs.work, zeros + 0.0, zeros + 0.0, zeros > 0
    )
    alone = PoolSeen(Nodes.of(2, 2), jobs.claims, standing, Shares.none(), jobs.curves)
    types = replace(alone.nodes, type=np.array([0, 1]))
    both, second = (
        replace(alone, nodes=types, curves=Curves(first, (other,)))
        for first, other in ((perfect, perfect), (nothing, 2.0 * perfect))
    )

    def earliest_s(seen: PoolSeen) -> float:
        return promise(due_at(seen, 0, 1.0), 0, CERTAIN).earliest_s

    assert earliest_s(alone) == pytest.approx(300.0 / 4.0, rel=1e-3)
    assert earliest_s(both) == pytest.approx(300.0 / 2.0, rel=1e-3)
    assert earliest_s(second) == pytest.approx(300.0 / 4.0, rel=1e-3)
    assert promise(both, 0, CERTAIN).kept
