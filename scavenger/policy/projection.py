"""Projected time and cost of a job at a given size, and whether its limits allow them.

=========  ==============================================================================
k, R_k     workers; samples per second with them
T, C       time and cost from the start of the job to its goal: seconds, US dollars
T_p, C_p   the parts of T and C that are past
n          samples that remain until the goal
P(k)       price of k workers and all that is shared, US dollars per second
V          cost of starting the workers that are not running yet, US dollars
=========  ==============================================================================

T = T_p + n / R_k and C = C_p + (n / R_k) P(k) + V: section 4.2.2 of [1]_, with n / R_k for its step time
times remaining batches, so that sizes with different batches compare. V, which [1]_ leaves out, is what keeps
a job from growing when it is about to end, and from swinging between two sizes of almost equal merit.

References:
    .. [1] Or et al., "Resource Elasticity in Distributed Deep Learning", MLSys 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.domain.snapshot import JobSnapshot

HEADROOM = 0.9
"""Share of the rest of a limit that a *new* size may be projected to use; the current size may use all of it.

Projections vary by some percent between decisions. Without a gap between the two, a job whose projection lies
at its limit would change its size with every decision.
"""


@dataclass(frozen=True, slots=True)
class Projection:
    """T and C, and what must be left of both limits at the end: until the last decision, and for the drain."""

    time_s: float
    cost_usd: float
    reserve_s: float
    reserve_usd: float


Misfit = tuple[int, float]
"""By how much a size misses the job's limits; less is better, and `(0, 0.0)` misses none.

`(1, T)`: past the deadline; `(2, C)`: over the budget, which is the worse.
"""


def usable(samples_per_s: float) -> bool:
    """Whether a throughput is valid: finite and above 0."""
    return math.isfinite(samples_per_s) and samples_per_s > 0.0


def project(job: JobSnapshot, workers: int, samples_per_s: float) -> Projection | None:
    """Project the job's end; None if the remaining work is unknown, or the throughput is not usable."""
    remaining = job.progress.remaining_samples
    if remaining is None or not (math.isfinite(remaining) and remaining >= 0.0) or not usable(samples_per_s):
        return None
    left_s, rate = remaining / samples_per_s, job.costs.rate_usd_per_s(workers)
    newcomers = max(0, workers - len(job.cluster.workers))
    setup_usd = job.delays.setup_s * (job.costs.rate_usd_per_s(newcomers) - job.costs.rate_usd_per_s(0))
    reserve_s = job.delays.look_every_s + job.delays.drain_s
    return Projection(
        time_s=job.progress.elapsed_s + left_s,
        cost_usd=job.costs.cost_usd + left_s * rate + setup_usd,
        reserve_s=reserve_s,
        reserve_usd=reserve_s * rate,
    )


def misfit(job: JobSnapshot, projection: Projection | None, *, headroom: float = 1.0) -> Misfit:
    """By how much a projection misses deadline and budget; an unknown projection misses nothing.

    Args:
        headroom: Share of what is *left* of each limit that may be filled.
    """
    if projection is None:
        return 0, 0.0
    if job.limits.budget_usd is not None:
        limit_usd = job.costs.cost_usd + headroom * (job.limits.budget_usd - job.costs.cost_usd)
        if projection.cost_usd + projection.reserve_usd > limit_usd:
            return 2, projection.cost_usd
    if job.limits.deadline_s is not None:
        limit_s = job.progress.elapsed_s + headroom * (job.limits.deadline_s - job.progress.elapsed_s)
        if projection.time_s + projection.reserve_s > limit_s:
            return 1, projection.time_s
    return 0, 0.0


def affords(job: JobSnapshot, workers: int) -> bool:
    """Whether the budget allows this many workers until the next decision and the drain after it."""
    if job.limits.budget_usd is None:
        return True
    paid = max(workers, len(job.cluster.workers))
    ahead_s = job.delays.look_every_s + job.delays.drain_s
    return job.costs.cost_usd + ahead_s * job.costs.rate_usd_per_s(paid) <= job.limits.budget_usd
