"""Scaling policies: by throughput gain, by utility, by the fitted model, or a fixed size.

=========  ==============================================================================
R_k        samples per second with k workers
s_{k,d}    throughput scaling efficiency of going from k to k + d workers
U(T)       what reaching the goal after T is worth, US dollars
T(k), C(k) projected time and cost from the start of the job to its goal
=========  ==============================================================================

References:
    .. [1] Or et al., "Resource Elasticity in Distributed Deep Learning", MLSys 2020, section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scavenger.domain.decision import ChangeSize, Decision, Hold
from scavenger.domain.figures import rounded
from scavenger.domain.snapshot import JobSnapshot
from scavenger.domain.utility import UtilityCurve
from scavenger.policy.projection import affords, project, usable
from scavenger.policy.schedule import Schedule, Verdict

EFFICIENCY_MIN = 0.1
"""S, the threshold that the paper evaluates with [1]_."""

WORTH_MIN_USD = 1e-6
"""Smallest gain that counts; a smaller one is rounding, since U and C are differences of far larger numbers."""


def scaling_efficiency(
    workers: int, samples_per_s: float, more_workers: int, more_samples_per_s: float
) -> float:
    """`s_{k,d} = ((R_{k+d} - R_k) / d) / (R_k / k)` [1]_.

    Throughput gained per added worker, relative to that of each present one: 1 for perfect scaling, 0 if nothing is
    gained, negative if throughput drops.

    Raises:
        ValueError: If a throughput is not finite and above 0, or not `1 <= workers < more_workers`.
    """
    if not 1 <= workers < more_workers:
        raise ValueError(f"needs 1 <= k < k + d, not {workers} and {more_workers}")
    if not (usable(samples_per_s) and usable(more_samples_per_s)):
        raise ValueError(f"throughputs must be above 0, not {samples_per_s} and {more_samples_per_s}")
    added = (more_samples_per_s - samples_per_s) / (more_workers - workers)
    return added / (samples_per_s / workers)


@dataclass(frozen=True, slots=True)
class ScaleByThroughput:
    """Add workers while each brings more than `efficiency_min` of what the present ones bring each."""

    schedule: Schedule
    efficiency_min: float = EFFICIENCY_MIN

    def __post_init__(self) -> None:
        if not 0.0 <= self.efficiency_min <= 1.0:
            raise ValueError(f"an efficiency threshold lies in [0, 1], not {self.efficiency_min}")

    def decide(self, job: JobSnapshot) -> Decision:
        return self.schedule.decide(job, self.worth_it)

    def worth_it(self, job: JobSnapshot, known: Mapping[int, float], smaller: int, larger: int) -> Verdict:
        """`s_{k,d} > S` [1]_; a `Condition` of the schedule."""
        efficiency = scaling_efficiency(smaller, known[smaller], larger, known[larger])
        worth_it = efficiency > self.efficiency_min
        return Verdict(
            worth_it,
            f"from {smaller} to {larger} workers, {rounded(known[smaller])} to {rounded(known[larger])} samples/s, "
            f"each brings {efficiency:.2f} of a present one, {'more' if worth_it else 'not more'} than "
            f"{self.efficiency_min:g}",
        )


@dataclass(frozen=True, slots=True)
class ScaleByUtility:
    """Add workers while that raises the worth of the result by more than its cost.

    Overrides the throughput condition, which decides only while what remains of the job is unknown.
    """

    schedule: Schedule
    utility: UtilityCurve
    efficiency_min: float = EFFICIENCY_MIN

    def decide(self, job: JobSnapshot) -> Decision:
        return self.schedule.decide(job, self.worth_it)

    def worth_it(self, job: JobSnapshot, known: Mapping[int, float], smaller: int, larger: int) -> Verdict:
        """`U(T(k+d)) - U(T(k)) > C(k+d) - C(k)` [1]_; a `Condition` of the schedule.

        Steps of U are bridged up to the latest T of any known size.
        """
        ends = {size: project(job, size, rate) for size, rate in known.items()}
        few, many = ends[smaller], ends[larger]
        if few is None or many is None:
            fallback = ScaleByThroughput(self.schedule, self.efficiency_min)
            verdict = fallback.worth_it(job, known, smaller, larger)
            return Verdict(verdict.worth_it, f"what remains is unknown; {verdict.words}")
        latest_s = max(end.time_s for end in ends.values() if end is not None)
        gain = self.utility.at(many.time_s, latest_s=latest_s) - self.utility.at(
            few.time_s, latest_s=latest_s
        )
        cost = many.cost_usd - few.cost_usd
        worth_it = gain - cost > WORTH_MIN_USD
        return Verdict(
            worth_it,
            f"from {smaller} to {larger} workers, ending after {rounded(many.time_s)} s instead of "
            f"{rounded(few.time_s)} s is worth ${rounded(gain)} more, {'and' if worth_it else 'but'} costs "
            f"${rounded(cost)} more",
        )


@dataclass(frozen=True, slots=True)
class FollowModel:
    """Run on the configuration that the model now chooses; if it is not asked again, on its first choice."""

    def decide(self, job: JobSnapshot) -> Decision:
        planned, now = job.planned, job.configuration
        if planned is None or planned == now:
            return Hold(f"the model's choice stands: {now}")
        if job.changing:
            return Hold(
                f"a change of workers is under way: {len(job.cluster.training)} of {now.workers} train"
            )
        if planned.vm != now.vm:
            return Hold(f"the model would choose {planned}, but a running job keeps its VM type")
        if not affords(job, planned.workers):
            return Hold(f"the model would choose {planned}, but the budget is too near to pay them")
        why = f", as {job.planned_because}" if job.planned_because else ""
        return ChangeSize(
            planned.workers, planned.global_batch_size, f"the model now chooses it over {now}{why}"
        )


@dataclass(frozen=True, slots=True)
class KeepSize:
    """Never change the number of workers."""

    def decide(self, job: JobSnapshot) -> Decision:
        return Hold(f"the size is fixed: {job.configuration}")
