"""The scaling schedule of the autoscaling engine [1]_: which size to try next, given the known throughputs.

The sizes lie `add` workers apart, counted from the one that the run was started on, and the job's fewest and
most are among them. Of each size it is known whether it was measured for long enough; nothing else is kept,
so the schedule continues where it was if the deciding process is restarted.

    what is known around the present size                       decision
    ----------------------------------------------------------  ----------------------------------------------
    the present size itself is not measured yet                 hold
    every known size was worth its step; a larger one is left   try the next larger
    likewise, but the present size is all that is known, and    try the next smaller
      no larger one may be tried
    some step up was not worth it, the one below it was         settle before the step that was not
    some step up was not worth it, none below it is known       try the next smaller that is not known

References:
    .. [1] Or et al., "Resource Elasticity in Distributed Deep Learning", MLSys 2020, section 4.1 and figure 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from scavenger.domain.configuration import Configuration
from scavenger.domain.decision import ChangeSize, Decision, Hold
from scavenger.domain.snapshot import JobSnapshot
from scavenger.policy.batch import BatchRule, StrongScaling
from scavenger.policy.projection import HEADROOM, affords, misfit, project, usable
from scavenger.presentation.formatting import plural


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a step from one size to the next larger is worth it, with an explanation."""

    worth_it: bool
    words: str


Condition = Callable[[JobSnapshot, Mapping[int, float], int, int], Verdict]
"""`(job, samples per second by size, smaller size, larger size)`; both sizes are in the mapping."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The sizes that a job may have, and when each counts as measured.

    Attributes:
        workers_min, workers_max: Fewest and most workers.
        add: Workers from one size to the next; "the number of GPUs on a machine" is a good one [1]_.
        every_steps: Undisturbed steps after which a size counts as measured; 10 are "often sufficient" [1]_.
        batch: Rule that gives the global batch of a size.
    """

    workers_min: int
    workers_max: int
    add: int = 1
    every_steps: int = 10
    batch: BatchRule = field(default_factory=StrongScaling)

    def __post_init__(self) -> None:
        if not 1 <= self.workers_min <= self.workers_max:
            raise ValueError(
                f"needs 1 <= workers_min <= workers_max, not {self.workers_min}, {self.workers_max}"
            )
        if self.add < 1 or self.every_steps < 1:
            raise ValueError(f"add and every_steps must be at least 1, not {self.add} and {self.every_steps}")

    def configuration(self, job: JobSnapshot, workers: int) -> Configuration | None:
        """The configuration with this many workers; None if the batch cannot give each a sample."""
        batch = self.batch.global_batch_size(workers, job.reference)
        return Configuration(job.configuration.vm, workers, batch) if batch >= workers else None

    def sizes(self, job: JobSnapshot) -> tuple[int, ...]:
        """Every size that may be tried, and the present one, strictly increasing."""
        low, high, start = self.workers_min, self.workers_max, job.reference.workers
        first = low + (start - low) % self.add
        sizes = {low, high, *range(first, high + 1, self.add)}
        fed = {size for size in sizes if self.configuration(job, size) is not None}
        return tuple(sorted(fed | {job.configuration.workers}))

    def known(self, job: JobSnapshot) -> dict[int, float]:
        """Throughput in samples/s of each size that was measured for long enough, by size."""
        known = {}
        for size in self.sizes(job):
            # the present size counts as it runs, with whatever batch it was given
            present = size == job.configuration.workers
            configuration = job.configuration if present else self.configuration(job, size)
            throughput = None if configuration is None else job.measured(configuration)
            if (
                throughput is not None
                and throughput.steps >= self.every_steps
                and usable(throughput.samples_per_s)
            ):
                known[size] = throughput.samples_per_s
        return known

    def decide(self, job: JobSnapshot, condition: Condition) -> Decision:
        """The next size to try, or to settle on."""
        now = job.configuration.workers
        if job.changing:
            return Hold(f"a change of workers is under way: {len(job.cluster.training)} of {now} train")
        if not self.workers_min <= now <= self.workers_max:
            bound = min(max(now, self.workers_min), self.workers_max)
            return self.move(
                job, bound, f"{plural(now, 'worker')}, outside {self.workers_min} to {self.workers_max}"
            )
        known, sizes = self.known(job), self.sizes(job)
        if now not in known:
            return Hold(self.unmeasured(job))
        if misfit(job, project(job, now, known[now])) > (0, 0.0):
            return Hold(f"{_missing(now)}, which comes first")
        here = low = high = sizes.index(now)
        while low > 0 and sizes[low - 1] in known:
            low -= 1
        while high + 1 < len(sizes) and sizes[high + 1] in known:
            high += 1
        for smaller, larger in pairwise(range(low, high + 1)):
            verdict = self._step(job, condition, known, sizes[smaller], sizes[larger])
            if not verdict.worth_it:
                return self._back(job, sizes, here, low, smaller, verdict)
        return self._out(job, condition, known, sizes, (low, high))

    def _back(
        self,
        job: JobSnapshot,
        sizes: tuple[int, ...],
        here: int,
        low: int,
        before: int,
        verdict: Verdict,
    ) -> Decision:
        """Decide after a step up from `before` that was not worth it."""
        if before == low and low > 0:
            return self.move(
                job, sizes[low - 1], f"{verdict.words}; {sizes[low - 1]} is a size that is not known yet"
            )
        if before == here:
            return Hold(f"settled on {plural(sizes[here], 'worker')}: {verdict.words}")
        return self.move(job, sizes[before], f"settles on {plural(sizes[before], 'worker')}: {verdict.words}")

    def _out(
        self,
        job: JobSnapshot,
        condition: Condition,
        known: Mapping[int, float],
        sizes: tuple[int, ...],
        run: tuple[int, int],
    ) -> Decision:
        """Decide after every known step up was worth it."""
        now, (low, high) = job.configuration.workers, run
        top = sizes[high]
        if high + 1 < len(sizes):
            following = sizes[high + 1]
            # not even perfect scaling would be worth it: then trying only costs money
            hoped = {**known, following: known[top] * following / top}
            verdict = self._step(job, condition, hoped, top, following)
            if verdict.worth_it and affords(job, following):
                return self.move(
                    job, following, f"every step up to {plural(top, 'worker')} was worth it, tries the next"
                )
            why = (
                f"even with perfect scaling {verdict.words}" if not verdict.worth_it else "the budget is near"
            )
            if top != now:
                return self.move(job, top, f"settles on {plural(top, 'worker')}: {why}")
        else:
            why = f"{top} are the most workers that the job may have"
            if top != now:
                return self.move(
                    job, top, f"settles on {plural(top, 'worker')}: every step up to them was worth it"
                )
        if low == high and low > 0:
            return self.move(job, sizes[low - 1], f"{why}, and nothing else is known; tries a smaller size")
        return Hold(f"settled on {plural(now, 'worker')}: {why}")

    def _step(
        self, job: JobSnapshot, condition: Condition, known: Mapping[int, float], smaller: int, larger: int
    ) -> Verdict:
        """Evaluate the condition, overruled if one size meets the job's limits and the other does not."""
        below, above = (
            misfit(
                job,
                project(job, size, known[size]),
                headroom=1.0 if size == job.configuration.workers else HEADROOM,
            )
            for size in (smaller, larger)
        )
        if above > below:
            return Verdict(False, _missing(larger))
        if above < below:
            return Verdict(True, _missing(smaller))
        return condition(job, known, smaller, larger)

    def move(self, job: JobSnapshot, workers: int, reason: str) -> Decision:
        """Change to this many workers and their batch, if batch and budget allow it; else hold."""
        target = self.configuration(job, workers)
        if target is None:
            return Hold(
                f"{reason}, but the global batch has no sample for each of {plural(workers, 'worker')}"
            )
        if not affords(job, workers):
            return Hold(f"{reason}, but the budget is too near to pay {plural(workers, 'worker')}")
        return ChangeSize(target.workers, target.global_batch_size, reason)

    def unmeasured(self, job: JobSnapshot) -> str:
        """Why the throughput of the present size is not known."""
        now, throughput = job.configuration.workers, job.measured(job.configuration)
        if throughput is None or throughput.steps < self.every_steps:
            steps = 0 if throughput is None else throughput.steps
            return f"{steps} of {self.every_steps} steps measured with {plural(now, 'worker')}"
        return f"a throughput of {throughput.samples_per_s:g} samples/s with {plural(now, 'worker')} says nothing"


def _missing(workers: int) -> str:
    return f"with {plural(workers, 'worker')} it is projected to miss a limit of the job"
