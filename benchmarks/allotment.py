"""How far policies are from the best: a few jobs that are all there, against the least mean time of any schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.scheduling import a100_curves
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.bound import least_mean
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes

_CASES, _JOBS, _SLOTS = 1000, (2, 3, 4), 8
_AIM, _WORST = 1.05, 1.15


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


def run(repetitions: int, work_dir: Path) -> Result:
    """The ratio of each policy's mean time to the least."""
    rng = np.random.default_rng(0)
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
    for _ in range(_CASES):
        jobs = _case(rng)
        best_s = least_mean(jobs.curves.rates, jobs.work, _SLOTS)
        for name, policy in POLICIES.items():
            ratios[name].append(simulate(jobs, Nodes.of(_SLOTS), Rules(policy)).mean_s / best_s)
    means = {name: float(np.mean(values)) for name, values in ratios.items()}
    ours = max(ratios["worth"])
    return Result(
        headers=("policy", "mean time / least", "worst"),
        rows=tuple(
            (name, f"{means[name]:.3f}", f"{max(values):.3f}")
            for name, values in sorted(ratios.items(), key=lambda item: means[item[0]])
        ),
        verdict=f"aims for `worth`: at most {_AIM} and {_WORST}: {means['worth']:.3f} and {ours:.3f}",
        figures={name: Spread.of(values) for name, values in ratios.items()},
        remarks=(
            f"{_CASES} cases of 2 to 4 jobs on {_SLOTS} slots; curves of A100s",
            "the least: one linear program for each order of ends, HiGHS",
        ),
    )


BENCHMARK = Benchmark("allotment", 1, run)
