"""Bounds: no run is below them, and they are met where it is known what is best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import curves
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.bound import alone_mean, least_mean, least_usd, srpt_mean
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.renting import Rental
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes


def there(rates: np.ndarray, work: list[float], slots: int) -> Workload:
    """Elastic jobs that are all there from the beginning, each with its own curve."""
    count = len(work)
    ones, zeros = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    amount = np.array(work)
    claims = Claims(
        zeros, zeros, np.arange(count) * 1e-6, ones, ones, slots * ones, np.arange(count, dtype=np.int64)
    )
    return Workload(claims, Curves(rates), amount, amount, np.zeros(count), np.zeros(count))


def test_jobs_that_scale_perfectly_are_best_served_one_after_the_other() -> None:
    rates = np.tile(np.arange(5.0), (3, 1))

    assert least_mean(rates, np.array([4.0, 8.0, 12.0]), 4) == pytest.approx((1.0 + 3.0 + 6.0) / 3)


def test_jobs_that_gain_nothing_from_slots_run_side_by_side() -> None:
    rates = np.tile(np.array([0.0, 1.0, 1.0]), (2, 1))

    assert least_mean(rates, np.array([3.0, 5.0]), 2) == pytest.approx(4.0)


@examples(10)
@given(curves(), st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=3), st.sampled_from(sorted(POLICIES)))
def test_no_policy_is_better_than_the_bounds(found: Curves, work: list[float], policy: str) -> None:
    rates = found.rates[np.arange(len(work)) % len(found.rates)]
    jobs = there(rates, work, 6)
    mean = simulate(jobs, Nodes.of(6), Rules(POLICIES[policy])).mean_s + 1e-3

    assert least_mean(rates, jobs.work, 6) <= mean
    assert srpt_mean(jobs, 6) <= mean
    assert alone_mean(jobs, 6) <= mean


def test_the_bound_for_traces_is_met_by_jobs_that_scale_perfectly() -> None:
    jobs = there(np.tile(np.arange(7.0), (3, 1)), [6.0, 60.0, 600.0], 6)

    assert srpt_mean(jobs, 6) == pytest.approx((1.0 + 11.0 + 111.0) / 3, rel=1e-5)


@examples(10)
@given(
    curves(),
    st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=3),
    st.floats(1.05, 4.0),
    st.sampled_from(sorted(POLICIES)),
)
def test_no_pool_that_keeps_all_deadlines_is_cheaper(
    found: Curves, work: list[float], patience: float, policy: str
) -> None:
    rates = found.rates[np.arange(len(work)) % len(found.rates)]
    jobs = there(rates, work, rates.shape[1] - 1)
    submitted_s, start_s = np.arange(len(work)) * 60.0, 30.0
    deadline_s = submitted_s + start_s + patience * jobs.work / np.maximum(rates[:, 1], 1e-9)
    claims = replace(jobs.claims, submitted_s=submitted_s, deadline_s=deadline_s)
    rental = Rental(1.0, start_s, 100, idle_s=0.0, job_usd_per_s=0.0)
    run = simulate(replace(jobs, claims=claims), rental, Rules(POLICIES[policy]))
    least = least_usd(rates[None], jobs.work, submitted_s, deadline_s, np.ones(1), start_s)

    if (submitted_s + run.completion_s <= deadline_s).all():
        assert run.vms is not None
        assert least is not None
        assert least <= run.vms.usd + 1e-3


def test_the_least_dollars_are_those_of_the_cheapest_type_that_is_fast_enough() -> None:
    """Two jobs one after the other share a cheap VM; one that is due sooner needs the fast type."""
    one, price = np.array([[[0.0, 1.0]], [[0.0, 4.0]]]), np.array([1.0, 5.0])
    two, work = one.repeat(2, axis=1), np.full(1, 100.0)
    begins = np.array([0.0, 50.0])

    shared = least_usd(two, np.full(2, 50.0), begins, begins + 50.0, price, 10.0)
    assert shared == pytest.approx(1.0 * (10.0 + 100.0))
    assert least_usd(one, work, np.zeros(1), np.full(1, 40.0), price, 10.0) == pytest.approx(
        5.0 * (10.0 + 100.0 / 4.0)
    )
    assert least_usd(one, work, np.zeros(1), np.full(1, 20.0), price, 10.0) is None
