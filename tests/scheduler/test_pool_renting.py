"""VMs that a pool rents: as many as are worth their price, never more than may be or can be paid."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import pools, rules
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.renting import Rental, Rented, Renting, idle_ended, rent, worthwhile
from scavenger.scheduler.jobs.simulation import Run, Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes, PoolSeen, Shares, Standing

ROOT = Curves(np.sqrt(np.arange(33.0))[None])
"""Speed is the root of the slots: with `k` slots a unit of work takes `k ** 0.5` slot-seconds."""
CENT = Rental(usd_per_s=0.01, start_s=100.0, most=1000, job_usd_per_s=0.04)
"""An hour of a job is worth four VMs: on such curves, four slots have the least cost."""


def pool(
    jobs: int, held: int = 0, *, left: float = 1e6, least: int = 1, most: int = 32, change_s: float = 0.0
) -> PoolSeen:
    """Jobs that are alike, each with so many slots."""
    whole, real = np.zeros(jobs, dtype=np.int64), np.zeros(jobs)
    rows = np.arange(jobs if held else 0)
    return PoolSeen(
        nodes=Nodes.of(jobs * held),
        claims=Claims(
            whole, whole, np.arange(jobs, dtype=float), whole + least, whole + least, whole + most, whole
        ),
        standing=Standing(whole, real, real, real, real + left, real, real + change_s, whole > 0),
        shares=Shares(rows, np.zeros_like(rows), np.full_like(rows, held)),
        curves=ROOT,
    )


def run(rental: Rental, *jobs: tuple[float, int, float], policy: str = "worth", elastic: bool = False) -> Run:
    """Jobs of (submitted, slots asked for, work); elastic ones take from 1 to 32."""
    submitted, asked, work = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    slots, zeros = asked.astype(np.int64), np.zeros(len(jobs), dtype=np.int64)
    least, most = (np.ones_like(slots), np.full_like(slots, 32)) if elastic else (slots, slots)
    told = np.zeros(len(jobs))
    claims = Claims(zeros, zeros, submitted, least, slots, most, zeros)
    return simulate(Workload(claims, ROOT, work, work, told, told), rental, Rules(POLICIES[policy]))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_burst_on_an_empty_pool_rents_for_all_of_it_at_once(policy: str) -> None:
    burst, ours = pool(100, most=1), Rules(POLICIES[policy])

    assert rent(burst, ours, CENT, Rented(0)).wanted == 100
    assert rent(burst, ours, replace(CENT, most=16), Rented(0)).wanted == 16
    assert rent(burst, ours, CENT, Rented(0, left_usd=5 * 0.01 * 700.0)).wanted == 5
    assert rent(burst, ours, CENT, Rented(0, left_usd=0.0)).wanted == 0


def test_a_job_has_as_many_vms_as_are_worth_their_price_until_its_end() -> None:
    assert worthwhile(pool(1), CENT, 100.0).tolist() == [4]
    assert worthwhile(pool(1), replace(CENT, usd_per_s=0.02), 100.0).tolist() == [2]
    # by itself an hour is worth what was asked for
    assert worthwhile(pool(1, least=3), replace(CENT, job_usd_per_s=None), 100.0).tolist() == [3]


def test_no_vm_is_rented_that_has_hardly_started_when_the_job_ends() -> None:
    assert worthwhile(pool(1, 1, left=50.0), CENT, 100.0).tolist() == [1]
    assert worthwhile(pool(1, 1, left=50.0), CENT, 0.0).tolist() == [4]
    assert worthwhile(pool(1, 1, left=50.0, change_s=40.0), CENT, 0.0).tolist() == [1]


def test_who_can_be_in_time_is_whatever_it_costs() -> None:
    seen = pool(1, left=400.0)
    due = replace(seen, claims=replace(seen.claims, deadline_s=np.array([200.0])))

    assert worthwhile(due, CENT, 100.0).tolist() == [16]


@pytest.mark.parametrize("policy", ["even", "fair", "throughput", "goodput"])
def test_where_first_slots_come_first_jobs_shrink_before_any_is_paused(policy: str) -> None:
    seen, left_usd = pool(8, 4), 16 * 0.01 * 700.0
    found = rent(seen, Rules(POLICIES[policy]), CENT, Rented(32, left_usd=left_usd))

    assert (found.most, found.wanted) == (16, 16)
    slots = found.allotment.shares.by_job(8)
    assert slots.min() >= 1
    assert slots.sum() == 16


@examples(60)
@given(pools(), rules(), st.integers(0, 3), st.integers(3, 40), st.floats(0.0, 300.0), st.data())
def test_what_is_rented_is_within_bounds_and_worth_it(
    seen: PoolSeen, case: tuple[str, Rules], least: int, most: int, left_usd: float, data: st.DataObject
) -> None:
    rental = replace(CENT, least=least, most=most)
    held = int(seen.held.sum())
    up = held + data.draw(st.integers(0, 5))
    seen = replace(seen, shares=replace(seen.shares, node=np.zeros_like(seen.shares.node)))
    found = rent(seen, case[1], rental, Rented(up, left_usd=left_usd))

    assert found.most <= most
    assert found.most * 0.01 * 700.0 <= left_usd + 1e-6
    assert min(least, found.most) <= found.wanted <= found.most
    dearer = replace(rental, usd_per_s=0.03)
    assert (worthwhile(seen, dearer, 100.0) <= worthwhile(seen, rental, 100.0)).all()
    assert (worthwhile(seen, rental, 100.0) <= worthwhile(seen, rental, 0.0)).all()
    if not seen.standing.fixed.any():
        slots = found.allotment.shares.by_job(seen.jobs)
        assert slots.sum() <= min(up, found.most)
        allowed = np.maximum(worthwhile(seen, rental, 0.0), seen.claims.asked)
        assert (slots <= allowed).all()


@examples(100)
@given(*(st.integers(0, 20) for _ in range(5)), st.integers(-20, 20))
def test_vms_without_a_job_end_after_their_time_and_at_once_where_there_may_not_be_so_many(
    idle: int, over: int, used: int, wanted: int, most: int, lacking: int
) -> None:
    over, there, wanted = min(over, idle), idle + used, min(wanted, most)
    none = rent(pool(0), Rules(POLICIES["even"]), CENT, Rented(0)).allotment
    ended = idle_ended(idle, over, there, Renting(none, wanted, most), lacking)
    left = there - ended

    assert 0 <= ended <= idle
    assert left <= most or ended == idle
    assert ended >= min(idle, lacking)
    assert not (ended < over and left > wanted)
    # none ends for which there is no reason
    assert ended <= max(0, there - most, lacking, min(over, there - wanted))


def test_a_vm_is_paid_for_from_its_request_until_it_has_been_idle_for_its_time() -> None:
    rental = replace(CENT, start_s=5.0, idle_s=3.0)
    found = run(rental, (0.0, 4, 20.0))

    assert found.completion_s.tolist() == [15.0]
    assert found.vms is not None
    assert (found.vms.vm_s, found.vms.started, found.vms.at_once) == pytest.approx((4 * 18.0, 4, 4))
    assert found.vms.usd == pytest.approx(0.72)


def test_the_next_job_has_vms_that_are_there_and_later_ones_do_not() -> None:
    rental = replace(CENT, start_s=5.0, idle_s=3.0)
    found = run(rental, (0.0, 1, 10.0), (17.0, 1, 10.0), (40.0, 1, 10.0))

    assert found.completion_s.tolist() == [15.0, 10.0, 15.0]
    assert found.vms is not None
    assert found.vms.started == 2
    kept = run(replace(rental, least=1), (0.0, 1, 10.0), (17.0, 1, 10.0), (40.0, 1, 10.0))
    assert kept.vms is not None
    assert kept.vms.started == 1


@examples(25)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 2000.0), st.integers(1, 8), st.floats(10.0, 1e4)), min_size=1, max_size=8
    ),
    st.floats(8 * 7.0, 500.0),
    st.sampled_from(["fifo", "even", "worth"]),
)
def test_a_budget_is_never_crossed(
    jobs: list[tuple[float, int, float]], budget_usd: float, policy: str
) -> None:
    rental = replace(CENT, budget_usd=budget_usd)
    submitted, asked, work = (np.array(column, dtype=float) for column in zip(*sorted(jobs), strict=True))
    slots, zeros = asked.astype(np.int64), np.zeros(len(jobs), dtype=np.int64)
    told = np.zeros(len(jobs))
    claims = Claims(zeros, zeros, submitted, np.ones_like(slots), slots, slots * 4, zeros)
    found = simulate(
        Workload(claims, ROOT, work, work, told, told), rental, Rules(POLICIES[policy]), until_s=20 * 86_400.0
    )

    assert found.vms is not None
    assert found.vms.usd <= budget_usd
    assert inf in found.completion_s or found.vms.usd > 0.0
