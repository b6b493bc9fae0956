"""The bound: no run is below it, and it is met where it is known what is best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import curves
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.bound import least_mean
from scavenger.scheduler.jobs.policy_table import POLICIES
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
def test_no_policy_is_better_than_the_bound(found: Curves, work: list[float], policy: str) -> None:
    rates = found.rates[np.arange(len(work)) % len(found.rates)]
    jobs = there(rates, work, 6)
    mean = simulate(jobs, Nodes.of(6), Rules(POLICIES[policy])).mean_s + 1e-3

    assert least_mean(rates, jobs.work, 6) <= mean
