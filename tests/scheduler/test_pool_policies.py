"""What holds of every allotment, whatever the policy, the pool and its jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import BY_SPEED, RIGID, fits, pools, rules
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules, allot, same, with_allotment
from scavenger.scheduler.jobs.placing import Placement
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes, PoolSeen, Shares, Standing
from scavenger.scheduler.jobs.worth import Worth

Ruled = tuple[str, Rules]


@examples(40)
@given(pools(), rules())
def test_no_node_is_over_its_slots_and_no_job_outside_its_bounds(seen: PoolSeen, ruled: Ruled) -> None:
    name, how = ruled
    shares = allot(seen, how).shares
    claims, slots = seen.claims, shares.by_job(seen.jobs)

    assert np.all(shares.slots > 0)
    assert len(set(zip(shares.job.tolist(), shares.node.tolist(), strict=True))) == len(shares.job)
    assert np.all(shares.by_node(len(seen.nodes.slots)) <= seen.nodes.room)
    has = slots > 0
    assert np.all(slots[has] >= claims.least[has])
    assert np.all(slots[has] <= claims.most[has])
    free = ~seen.standing.fixed
    if name in RIGID:
        assert np.all(slots[has & free] == claims.asked[has & free])
    assert np.all(slots[~free] == seen.held[~free])
    largest = max(1, int(seen.nodes.room.max()))
    for job in np.flatnonzero(has & free).tolist():
        assert np.count_nonzero(shares.job == job) <= -(-int(slots[job]) // largest)


@examples(40)
@given(pools(), rules())
def test_no_slot_is_idle_while_a_job_would_gain_from_it(seen: PoolSeen, ruled: Ruled) -> None:
    """Unless it is kept for a job that waits for more of them: with `fifo` and `elastic-tiresias`."""
    name, how = ruled
    shares = allot(seen, how).shares
    slots = shares.by_job(seen.jobs)
    idle = seen.nodes.room - shares.by_node(len(seen.nodes.slots))
    need = seen.claims.asked if name in (*RIGID, "elastic-tiresias") else seen.claims.least
    waits = (slots == 0) & ~seen.standing.fixed & (need > 0)
    largest = max(1, int(seen.nodes.room.max()))
    keeps = name == "fifo" and bool(np.any(waits & (seen.standing.waited_s < how.patience.kept_s)))
    if not keeps:
        for job in np.flatnonzero(waits).tolist():
            assert not fits(idle, int(need[job]), largest)
    if name not in RIGID and not (name == "elastic-tiresias" and waits.any()):
        for job, node in zip(shares.job.tolist(), shares.node.tolist(), strict=True):
            if seen.standing.fixed[job] or not idle[node]:
                continue
            more = min(int(slots[job] + idle[node]), int(seen.useful[job]))
            assert slots[job] >= more or (
                name in BY_SPEED and seen.fastest_of(job, more) <= max(slots[job], seen.claims.least[job])
            )


@examples(40)
@given(pools(), rules(BY_SPEED), st.integers(2, 4))
def test_no_job_is_slower_than_with_fewer_of_its_slots(seen: PoolSeen, ruled: Ruled, step: int) -> None:
    """For policies that go by speeds; here each is a little slower with a number that is no multiple of the step."""
    rates = seen.curves.rates * np.where(np.arange(seen.curves.rates.shape[1]) % step, 0.6, 1.0)
    seen = replace(seen, curves=Curves(rates))
    slots = allot(seen, ruled[1]).shares.by_job(seen.jobs)
    slower = slots > np.maximum(seen.fastest(slots), seen.claims.least)
    assert not np.any(slower & (slots > 0) & ~seen.standing.fixed)


@examples(40)
@given(pools(), rules())
def test_nobody_of_lower_priority_holds_what_a_waiting_job_could_use(seen: PoolSeen, ruled: Ruled) -> None:
    name, how = ruled
    how = replace(how, patience=type(how.patience)(), placement=Placement(how.placement.fit))
    shares = allot(seen, how).shares
    slots = shares.by_job(seen.jobs)
    need = seen.claims.asked if name in (*RIGID, "elastic-tiresias") else seen.claims.least
    priority, fixed = seen.claims.priority, seen.standing.fixed
    for job in np.flatnonzero((slots == 0) & ~fixed).tolist():
        stays = (priority[shares.job] >= priority[job]) | fixed[shares.job]
        taken = np.bincount(shares.node[stays], shares.slots[stays], len(seen.nodes.slots))
        lower = np.any(priority[shares.job[~stays]] < priority[job])
        assert not (lower and fits(seen.nodes.room - taken, int(need[job]), max(1, seen.nodes.room.max())))


@examples(40)
@given(pools(), rules())
def test_deciding_again_changes_nothing(seen: PoolSeen, ruled: Ruled) -> None:
    _, how = ruled
    first = allot(seen, how)
    again = allot(with_allotment(seen, first), how)

    assert same(first.shares, again.shares)
    assert again.number == first.number
    assert not again.promoted.any()
    assert np.array_equal(first.level, again.level)


@examples(40)
@given(pools(), rules(), st.data())
def test_the_order_in_which_jobs_are_listed_does_not_matter(
    seen: PoolSeen, ruled: Ruled, data: st.DataObject
) -> None:
    _, how = ruled
    order = np.array(data.draw(st.permutations(range(seen.jobs))), dtype=np.int64)
    place = np.empty_like(order)
    place[order] = np.arange(seen.jobs)

    def listed(value: object) -> object:
        columns = {name: getattr(value, name)[order] for name in value.__dataclass_fields__}  # type: ignore[attr-defined]
        return type(value)(**columns)

    shares = seen.shares
    other = replace(
        seen,
        claims=listed(seen.claims),
        standing=listed(seen.standing),
        shares=Shares(place[shares.job], shares.node, shares.slots),
    )
    here, there = allot(seen, how), allot(other, how)
    mapped = Shares(order[there.shares.job], there.shares.node, there.shares.slots)

    assert same(here.shares, mapped)
    assert np.isclose(here.again_s, there.again_s) or here.again_s == there.again_s


@examples(40)
@given(pools(), rules(), st.floats(0.0, 0.999))
def test_nothing_changes_before_a_policy_is_to_be_asked_again(
    seen: PoolSeen, ruled: Ruled, part: float
) -> None:
    """If no work is done, nobody comes or ends. So who has his turn, because he waited for too long, keeps it."""
    _, how = ruled
    first = allot(seen, how)
    now = with_allotment(seen, first)
    passes_s = part * min(first.again_s, 1e5)
    standing, runs = now.standing, now.held > 0
    later = replace(
        now,
        standing=replace(
            standing,
            attained_slot_s=standing.attained_slot_s + now.held * passes_s,
            waited_s=standing.waited_s + np.where(runs, 0.0, passes_s),
            ran_s=standing.ran_s + np.where(runs, passes_s, 0.0),
            left=np.where(np.isnan(standing.left), 1e4, standing.left),
        ),
    )
    known = replace(now, standing=replace(standing, left=later.standing.left))
    before = allot(known, how)  # what is unknown is taken for what a job has had, and that grows

    if same(before.shares, now.shares):
        assert same(allot(later, how).shares, now.shares)


def test_a_slot_stays_where_it_is_unless_another_job_gains_more_than_the_change_costs() -> None:
    """Of two like jobs that with less to do shall have more; what costs a minute is not done for one that ends soon."""
    curve = np.array([[0.0, 1.0, 1.9, 2.7, 3.4]])
    ones, zeros = np.ones(2, dtype=np.int64), np.zeros(2, dtype=np.int64)

    def slots(left: tuple[float, float], change_s: float, worker_s: float = 0.0) -> list[int]:
        seen = PoolSeen(
            Nodes.of(5),
            Claims(zeros, zeros, np.array([0.0, 1.0]), ones, ones, 4 * ones, zeros),
            Standing(
                level=zeros,
                attained_slot_s=np.zeros(2),
                waited_s=np.zeros(2),
                ran_s=np.full(2, 100.0),
                left=np.array(left),
                left_log_sd=np.zeros(2),
                change_s=np.full(2, change_s),
                fixed=np.zeros(2, dtype=bool),
                worker_s=np.full(2, worker_s),
            ),
            Shares(np.array([0, 1]), zeros, np.array([2, 3])),
            Curves(curve),
        )
        return allot(seen, Rules(Worth())).shares.by_job(2).tolist()

    assert slots((900.0, 1000.0), 0.0) == [4, 1]
    assert slots((900.0, 1000.0), 60.0) == [2, 3]
    assert slots((90_000.0, 100_000.0), 60.0) == [4, 1]
    assert slots((900.0, 1000.0), 0.0, worker_s=360.0) == [
        2,
        3,
    ]  # it would be idle for nearly all that is left
    assert slots((90_000.0, 100_000.0), 0.0, worker_s=360.0) == [4, 1]
