"""How far policies are from the best, and how long they take to decide.

A few jobs that are all there, against the least mean time of any schedule; a few with deadlines on rented VMs, against
the least dollars; 1,000 jobs on 1,000 slots.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.scheduling import a100_curves
from scavenger.domain.curve import FloatArray
from scavenger.scheduler.jobs.allotting import Rules, allot, with_allotment
from scavenger.scheduler.jobs.bound import least_mean, least_usd
from scavenger.scheduler.jobs.policies import Policy
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.renting import Rental
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes, PoolSeen, Shares, Standing

_CASES, _JOBS, _SLOTS = 1000, (2, 3, 4), 8
_AIM, _WORST = 1.05, 1.15
_MANY, _DECISIONS, _A_NODE = 1000, 200, 8
_AIM_MS = 50.0
_RENTED, _START_S, _PATIENCE = 200, 120.0, (1.1, 3.0)
"""Cases with rented VMs; a VM's start, after which an idle one is also ended; deadlines over the time with what a job
asked for."""


def _case(rng: np.random.Generator) -> Workload:
    """Jobs of two to four models of the A100 curves; with what they asked for they last minutes to hours."""
    jobs = int(rng.choice(_JOBS))
    known = a100_curves().curves.rates[:, : _SLOTS + 1]
    rates = known[rng.integers(0, len(known), jobs)]
    asked = rng.choice([1, 2, 4], jobs)
    work = rng.lognormal(np.log(1800.0), 1.5, jobs) * rates[np.arange(jobs), asked]
    zeros, ones = np.zeros(jobs, dtype=np.int64), np.ones(jobs, dtype=np.int64)
    claims = Claims(zeros, zeros, np.linspace(0.0, 1e-6, jobs), ones, asked, _SLOTS * ones, np.arange(jobs))
    return Workload(claims, Curves(rates), work, work, np.zeros(jobs), np.zeros(jobs))


def _rented(rng: np.random.Generator) -> tuple[float, bool]:
    """Jobs with deadlines that `worth` rents VMs for: dollars over the least, and whether all were in time."""
    jobs = _case(rng)
    count, rates = len(jobs), jobs.curves.rates
    asked_s = jobs.work / rates[np.arange(count), jobs.claims.asked]
    submitted_s = np.sort(rng.uniform(0.0, 3600.0, count))
    deadline_s = submitted_s + _START_S + asked_s * rng.uniform(*_PATIENCE, count)
    claims = replace(jobs.claims, submitted_s=submitted_s, deadline_s=deadline_s)
    rental = Rental(1.0, _START_S, 1_000, idle_s=_START_S, job_usd_per_s=0.0)
    run = simulate(replace(jobs, claims=claims), rental, Rules(POLICIES["worth"]))
    least = least_usd(rates[None], jobs.work, submitted_s, deadline_s, np.ones(1), _START_S)
    assert run.vms is not None
    assert least is not None  # what each asked for is in time
    return run.vms.usd / least, bool((submitted_s + run.completion_s <= deadline_s).all())


def _crowd(nodes: Nodes, rng: np.random.Generator) -> PoolSeen:
    """1,000 jobs that have had something, and hold nothing."""
    curves = a100_curves().curves
    zeros = np.zeros(_MANY, dtype=np.int64)
    asked = rng.choice([1, 1, 1, 1, 2, 4, 8], _MANY)
    curve = rng.integers(0, len(curves.rates), _MANY)
    submitted_s = np.sort(rng.random(_MANY)) * 1e5
    claims = Claims(rng.integers(0, 15, _MANY), zeros, submitted_s, zeros + 1, asked, zeros + 64, curve)
    standing = Standing(
        level=zeros,
        attained_slot_s=rng.lognormal(7.0, 2.0, _MANY),
        waited_s=1e5 - submitted_s,
        ran_s=np.zeros(_MANY),
        left=rng.lognormal(8.0, 2.0, _MANY),
        left_log_sd=np.zeros(_MANY),
        change_s=np.full(_MANY, 10.0),
        fixed=zeros > 0,
    )
    return PoolSeen(nodes, claims, standing, Shares.none(), curves)


def _decisions_ms(policy: Policy, nodes: Nodes) -> FloatArray:
    """Of one processor: each minute a job ends that has slots, and another arrives in its row."""
    rng = np.random.default_rng(0)
    seen, took = _crowd(nodes, rng), list[float]()
    for number in range(_DECISIONS):
        begin = time.process_time()
        allotment = allot(seen, Rules(policy))
        took.append(1e3 * (time.process_time() - begin))
        seen = with_allotment(seen, allotment)
        standing, held, shares = seen.standing, seen.held, seen.shares
        ended = int(rng.choice(np.flatnonzero(held)))
        attained = standing.attained_slot_s + 60.0 * held
        left = np.maximum(standing.left - 60.0 * seen.rate(held), 1.0)
        submitted_s = seen.claims.submitted_s.copy()
        attained[ended], left[ended] = 0.0, rng.lognormal(8.0, 2.0)
        submitted_s[ended] = 1e5 + 60.0 * number
        waited = np.where(held > 0, standing.waited_s, standing.waited_s + 60.0)
        waited[ended] = 0.0
        stays = shares.job != ended
        seen = replace(
            seen,
            claims=replace(seen.claims, submitted_s=submitted_s),
            standing=replace(standing, attained_slot_s=attained, left=left, waited_s=waited),
            shares=Shares(shares.job[stays], shares.node[stays], shares.slots[stays]),
        )
    return np.array(took)


def run(repetitions: int, work_dir: Path) -> Result:
    """The ratio of each policy's mean time to the least, and the time of its decisions."""
    rng = np.random.default_rng(0)
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
    for _ in range(_CASES):
        jobs = _case(rng)
        best_s = least_mean(jobs.curves.rates, jobs.work, _SLOTS)
        for name, policy in POLICIES.items():
            ratios[name].append(simulate(jobs, Nodes.of(_SLOTS), Rules(policy)).mean_s / best_s)
    means = {name: float(np.mean(values)) for name, values in ratios.items()}
    ours = max(ratios["worth"])
    dear, kept = zip(*(_rented(rng) for _ in range(_RENTED)), strict=True)
    dollars = Spread.of([ratio for ratio, in_time in zip(dear, kept, strict=True) if in_time])
    pools = (Nodes.of(_MANY), Nodes.of(*[_A_NODE] * (_MANY // _A_NODE)))
    took = {name: [_decisions_ms(policy, nodes) for nodes in pools] for name, policy in POLICIES.items()}
    late = {name: [float(np.quantile(each, 0.99)) for each in took[name]] for name in POLICIES}
    slowest = max(max(of) for of in late.values())
    return Result(
        headers=(
            "policy",
            "mean time / least",
            "worst",
            "a decision, ms: median",
            "99 %",
            "machines of 8",
            "99 %",
        ),
        rows=tuple(
            (
                name,
                f"{means[name]:.3f}",
                f"{max(values):.3f}",
                *(
                    f"{value:.1f}"
                    for each, at_most in zip(took[name], late[name], strict=True)
                    for value in (np.median(each), at_most)
                ),
            )
            for name, values in sorted(ratios.items(), key=lambda item: means[item[0]])
        ),
        verdict=f"aims for `worth`: at most {_AIM} and {_WORST}: {means['worth']:.3f} and {ours:.3f}; of a decision "
        f"99 % within {slowest:.1f} ms (aim {_AIM_MS:.0f}); rented VMs, dollars over the least: {dollars.text()}",
        figures={"rented": dollars, **{name: Spread.of(values) for name, values in ratios.items()}},
        remarks=(
            f"{_CASES} cases of 2 to 4 jobs on {_SLOTS} slots; curves of A100s",
            "the least: one linear program for each order of ends, HiGHS",
            f"rented VMs: {_RENTED} cases with deadlines 1.1 to 3 times what a job takes with what it asked for; of "
            f"those where `worth` keeps all ({np.mean(kept):.0%}); the least by a mixed-integer program, without VMs "
            "that are idle",
            f"a decision: {_MANY:,} jobs on {_MANY:,} slots, one machine or machines of {_A_NODE}; of one processor",
        ),
    )


BENCHMARK = Benchmark("allotment", 1, run)
