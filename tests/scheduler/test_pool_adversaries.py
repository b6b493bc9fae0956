"""Users who want more than their part, arrivals that never cease, and jobs of which nothing is known."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import curves
from properties import examples

from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policies import Fair, Patience
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes

SLOTS = 12


def flooded(
    flood: int, *, at_once: float, lasts_s: float, most: int, work: float, curve: Curves, alone: bool = False
) -> Workload:
    """One elastic job of user 1, then so many of user 0, each of `lasts_s` with one slot; or the first alone."""
    count = 1 if alone else 1 + flood
    row, zeros = np.arange(count), np.zeros(count, dtype=np.int64)
    ones = np.ones_like(zeros)
    works = np.where(row == 0, work, lasts_s * curve.rates[0, 1])
    return Workload(
        Claims(
            np.where(row == 0, 1, 0),
            zeros,
            np.maximum(row - 1.0, 0.0) * at_once,
            ones,
            ones,
            np.where(row == 0, SLOTS, most),
            zeros,
        ),
        curve,
        work=works,
        told=works,
        told_log_sd=np.zeros(count),
        change_s=np.zeros(count),
    )


@examples(3)
@given(
    curves(),
    st.sampled_from([1.0, 2.0, 5.0]),
    st.sampled_from([1, 3, SLOTS]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([inf, 60.0]),
)
def test_a_user_of_many_jobs_or_of_one_that_was_split_takes_nothing_of_anothers_part(
    curve: Curves, part: float, most: int, at_once: float, starved_s: float
) -> None:
    """A thousand of them make a job end at most a tenth later than with its user's part of the slots alone."""
    curve = Curves(curve.rates[:1, : SLOTS + 1])
    mine = int(SLOTS * part / (part + 1.0))
    work = 600.0 * float(curve.rates[0, mine])
    rules = Rules(Fair((1.0, part)), Patience(starved_s))
    given_ = {"at_once": at_once, "lasts_s": 20.0, "most": most, "work": work, "curve": curve}

    own = simulate(flooded(0, alone=True, **given_), Nodes.of(mine), rules).completion_s[0]
    found = simulate(flooded(1000, **given_), Nodes.of(SLOTS), rules, until_s=2.0 * own).completion_s[0]

    assert found <= 1.1 * own


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_jobs_of_which_nothing_is_known_end_though_others_keep_coming(policy: str) -> None:
    """One never says how much it has to do, and gains nothing from further slots; short ones come all the time."""
    count, coming_s = 120, 5.0
    row = np.arange(count)
    zeros = np.zeros(count, dtype=np.int64)
    rates = np.array([np.arange(5.0), [0.0, 1.0, 1.0, 1.0, 1.0]])
    work = np.where(row == 0, 100.0, 18.0)
    jobs = Workload(
        Claims(zeros, zeros, row * coming_s, zeros + 1, zeros + 1, zeros + 4, np.where(row == 0, 1, 0)),
        Curves(rates),
        work=work,
        told=np.where(row == 0, nan, work),
        told_log_sd=np.zeros(count),
        change_s=np.full(count, 0.5),
    )
    patience = Patience(starved_s=60.0, turn_s=60.0, kept_s=60.0)
    found = simulate(jobs, Nodes.of(4), Rules(POLICIES[policy], patience))

    assert np.all(np.isfinite(found.completion_s))
    assert found.completion_s[0] < row[-1] * coming_s
