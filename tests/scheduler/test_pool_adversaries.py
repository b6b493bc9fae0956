"""Users who want more than their part, arrivals that never cease, and jobs of which nothing is known."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_cases import curves
from properties import examples

from scavenger.domain.pool import POLICY_NAMES, JobStanding, Pool, PoolShare, RatePoint, WorkLeft
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.moving import Wanted, moves
from scavenger.scheduler.jobs.policies import Fair, Patience
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.seeing import CHANGES_MAX, PoolJob, Sizes, decided
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes

pytestmark = pytest.mark.slow

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


@dataclass
class Running:
    """A job of a real pool in virtual time: it takes seconds to begin, and does at once what it is told."""

    id: str
    number: int
    left: float
    workers: int = 0
    began_at: float = 0.0
    had_s: float = 0.0
    starts: int = 0
    changes: int = 0
    changed_at: float = -inf


CHANGE_S, START_S = 0.5, 8.0


def seen(job: Running, share: PoolShare | None, at: float, noise: float) -> PoolJob:
    """The job with a curve of which each look says something else."""
    curve = tuple(RatePoint(slots, slots**0.8 * noise ** (slots % 3), True) for slots in range(1, 5))
    standing = None
    if job.workers:
        starts = at - job.began_at < START_S
        standing = JobStanding(
            1,
            "starting" if starts else "training",
            job.workers,
            10**6,
            left=WorkLeft(max(1.0, job.left * noise), 0.3),
            ran_s=at - job.began_at,
            change_s=CHANGE_S if job.changes else None,
            curve=curve,
            start_s=None if starts else START_S,
        )
    sizes = Sizes(1, 4, 4)
    changed_s = at - job.changed_at
    return PoolJob(
        job.id, "ann", 0, job.number, sizes, 0.0, standing, share, not job.workers, changed_s=changed_s
    )


@pytest.mark.parametrize(
    ("policy", "coming"),
    [*((name, 0.1) for name in POLICY_NAMES), ("worth", 1.0), ("fair", 1.0), ("elastic-tiresias", 1.0)],
)
def test_changes_and_pauses_cost_a_job_little_whatever_arrives_and_however_curves_vary(
    policy: str, coming: float
) -> None:
    """Each at most 2 % of the time that the job has slots, and one more: two long jobs, and short ones that come.

    Args:
        coming: So many come in a second, while fewer than six are there.
    """
    seed = POLICY_NAMES.index(policy)
    chance, pool, shares = random.Random(seed), Pool("gpu", 4, policy), dict[str, PoolShare]()
    jobs = [Running(f"long-{number}", number, inf) for number in (1, 2)]
    for at in range(300):
        if chance.random() < coming and len(jobs) < 6:
            jobs.append(Running(f"job-{at}", at + 3, chance.uniform(1.0, 10.0)))
        rows = [seen(job, shares.get(job.id), at, chance.lognormvariate(0.0, 0.4)) for job in jobs]
        wanted = {key: Wanted(count) for key, count in decided(pool, rows, at).slots.items()}
        shares, done = moves(pool, rows, wanted, at + 1, datetime(2026, 1, 1, tzinfo=UTC))
        by_id = {job.id: job for job in jobs}
        for move in done:
            job = by_id[move.job]
            if move.kind == "begin":
                job.began_at, job.starts, job.changed_at = float(at), job.starts + 1, -inf
            elif move.kind != "pause":
                job.changes, job.changed_at = job.changes + 1, float(at)
            job.workers = move.slots
        for job in jobs:
            job.had_s += job.workers > 0
            job.left -= job.workers**0.8 if at - job.began_at >= START_S else 0.0
        assert sum(job.workers for job in jobs) <= pool.slots
        jobs = [job for job in jobs if job.left > 0.0]
        shares = {job.id: shares[job.id] for job in jobs}
    for job in jobs:
        # what a change costs is known from the first on; what a start costs, once the job trains
        assert max(0, job.changes - 2) * CHANGE_S <= CHANGES_MAX * job.had_s
        assert max(0, job.starts - 1) * START_S <= CHANGES_MAX * job.had_s
