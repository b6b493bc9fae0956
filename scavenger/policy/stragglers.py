"""The straggler policy: detects workers slower than their peers by one of two rules, and replaces them.

Of every step, each training worker's gradient computation is compared with the median worker's, per sample,
so that shares which differ by a sample are equal. Time on the network is not looked at: a synchronous step
makes all wait for the slowest transfer, and says nothing of whose it was.

The median needs peers. Of two workers it lies midway between both, so the two rules measure one and the same
ratio and cannot confirm each other, and nothing tells which of the two is the odd one: with fewer than
`PEERS_MIN` workers none is replaced.

References:
    .. [1] Or et al., "Resource Elasticity in Distributed Deep Learning", MLSys 2020, section 5, algorithm 1.
    .. [2] Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", 2021, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from scavenger.domain.decision import Decision, Hold, Replace
from scavenger.domain.snapshot import JobSnapshot
from scavenger.models.noise import Ewma
from scavenger.policy.projection import affords

PEERS_MIN = 3
"""With three workers the median is a worker's own time, and one slow worker cannot move it."""

Step = Mapping[str, float]
"""Seconds per sample of each worker that computed in a step; at least `PEERS_MIN` of them."""


class StragglerRule(Protocol):
    """Detects slow workers."""

    def slow(self, steps: Sequence[Step]) -> dict[str, float]:
        """The slow workers, each with how many times slower than the median it is.

        Args:
            steps: The last steps, oldest first.
        """
        ...


@dataclass(frozen=True, slots=True)
class SlowOnAverage:
    """The smoothed share of the median throughput lies below `fraction_min` [1]_.

    One slow step, or a few, only move the average; a worker that is slow most of the time is found out even
    if it runs at full speed now and then.

    Attributes:
        fraction_min: 0.8 tolerates steps that take 1.25 times as long [1]_.
        alpha: Weight of the newest step [1]_; the average spans some 2 / alpha - 1 = 19 steps.
        steps_min: Fewest steps of a worker; with fewer, one slow step would weigh too much.
    """

    fraction_min: float = 0.8
    alpha: float = 0.1
    steps_min: int = 10

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction_min < 1.0 or self.steps_min < 1:
            raise ValueError(f"no rule with a share of {self.fraction_min} after {self.steps_min} steps")

    def slow(self, steps: Sequence[Step]) -> dict[str, float]:
        averages: dict[str, Ewma] = {}
        for step in steps:
            typical = median(1.0 / pace for pace in step.values())
            for worker, pace in step.items():
                averages[worker] = averages.get(worker, Ewma(self.alpha)).update(1.0 / pace / typical)
        found = {}
        for worker, average in averages.items():
            fraction = average.value
            if fraction is not None and average.count >= self.steps_min and fraction < self.fraction_min:
                found[worker] = 1.0 / fraction
        return found


@dataclass(frozen=True, slots=True)
class SlowInARow:
    """More than `slowdown_max` times the median time in each of the last `steps_min` steps [2]_."""

    slowdown_max: float = 1.2
    steps_min: int = 10

    def __post_init__(self) -> None:
        if not self.slowdown_max > 1.0 or self.steps_min < 1:
            raise ValueError(f"no rule of {self.steps_min} steps above {self.slowdown_max} times the median")

    def slow(self, steps: Sequence[Step]) -> dict[str, float]:
        last = steps[-self.steps_min :]
        if len(last) < self.steps_min:
            return {}
        typical = [median(step.values()) for step in last]
        found = {}
        for worker in last[-1]:
            slowdowns = [
                step[worker] / middle for step, middle in zip(last, typical, strict=True) if worker in step
            ]
            if len(slowdowns) == self.steps_min and min(slowdowns) > self.slowdown_max:
                found[worker] = median(slowdowns)
        return found


@dataclass(frozen=True, slots=True)
class ReplaceStragglers:
    """Replace slow workers, the replacement joining before the slow one leaves [1]_.

    Where more than a share of `fraction_max` looks slow, none is replaced: the median itself is in doubt
    then, and the cause is likelier what they have in common than the workers. Nor is one replaced where
    `evictions_max` went within the last `window_s`: the new ones were no faster, so the VMs are not at fault.
    """

    rule: StragglerRule = SlowOnAverage()
    fraction_max: float = 0.25
    evictions_max: int = 3
    window_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0.0 < self.fraction_max <= 1.0 or self.evictions_max < 1:
            raise ValueError(
                f"cannot replace a share of {self.fraction_max}, {self.evictions_max} in a window"
            )

    def decide(self, job: JobSnapshot) -> Decision:
        workers = len(job.cluster.training)
        if workers < PEERS_MIN:
            return Hold(f"{workers} workers are too few to detect a slow one")
        if job.changing:
            return Hold("a change of workers is in progress; no worker is replaced during it")
        slow = self.rule.slow(_steps(job))
        if not slow:
            return Hold("no worker is slower than its peers")
        worst = sorted(slow, key=lambda worker: (-slow[worker], worker))
        named = ", ".join(f"{worker} ({slow[worker]:.2f}x)" for worker in worst)
        limit = max(1, math.floor(self.fraction_max * workers))
        if len(slow) > limit:
            return Hold(
                f"{len(slow)} of {workers} workers look slow ({named}), more than {limit}: a cause that they share"
            )
        since = job.at_s - self.window_s
        gone = sum(1 for left in job.cluster.departures if left.kind == "eviction" and left.at_s > since)
        if gone + len(slow) > self.evictions_max:
            return Hold(
                f"{named} slow, but {gone} were replaced within {self.window_s:g} s and it did not help"
            )
        if not affords(job, len(job.cluster.workers) + len(slow)):
            return Hold(f"{named} slow, but the budget is too near to pay for a replacement while they run")
        return Replace(tuple(worst), f"slower than the median worker's time per sample: {named}")


def _steps(job: JobSnapshot) -> list[Step]:
    """The steps in the snapshot, aligned at the newest, without those of fewer than `PEERS_MIN` workers."""
    training = job.cluster.training
    steps: list[Step] = []
    for back in range(max(len(worker.compute_s) for worker in training), 0, -1):
        step = {
            worker.name: worker.compute_s[-back] / worker.samples[-back]
            for worker in training
            if back <= len(worker.compute_s)
            and worker.samples[-back] > 0
            and 0.0 < worker.compute_s[-back] < math.inf
        }
        if len(step) >= PEERS_MIN:
            steps.append(step)
    return steps
