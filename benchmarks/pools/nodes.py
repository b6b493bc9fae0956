"""The nodes of a pool, request by request: how fast its jobs are while they share them.

Each job repeats its step: its workers compute, the gradients of its buckets become whole one after the other, each is
executed by the node that holds the bucket, and when all are, the next step begins. Nodes are `CyclicExecution`s.
Network time is part of a bucket's `ready_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy as np

from benchmarks.pools.serving import CyclicExecution, Execute, Request
from benchmarks.pools.timetable import CyclicJob, Timetable, plan_timetable
from scavenger.scheduler.pool import BucketLoad, PoolState


@dataclass(frozen=True, slots=True)
class Steps:
    """How a job's workers send gradients.

    Attributes:
        ready_s: By bucket, from the begin of a step until its gradient is whole.
    """

    ready_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Delays:
    """How much the workers' computing varies, the same for all jobs.

    Attributes:
        scatter: Standard deviation of the logarithm of a step's computing time.
        late_share: Of the steps: those with a transient straggler.
        late_factor: How much longer these compute.
    """

    scatter: float = 0.0
    late_share: float = 0.0
    late_factor: float = 1.0

    def factors(self, generator: np.random.Generator, steps: int) -> list[float]:
        """Computing time of each step over its usual one."""
        scattered = np.exp(self.scatter * generator.standard_normal(steps))
        late = generator.random(steps) < self.late_share
        return [float(factor) for factor in np.where(late, scattered * self.late_factor, scattered)]


@dataclass(frozen=True, slots=True)
class JobSpeed:
    """The steps of a job on shared nodes.

    Attributes:
        steps: That were measured.
        step_time_s: Their mean.
        alone_s: Mean time of the same steps, with the same delays, if the job had its nodes to itself.
        outliers: Share of its requests that were not executed in their slot.
        late_s: Longest time from when a request was due to when it was complete; 0 if there was none.
        late_allowed_s: The most that cyclic execution allows: the longest bucket of the node.
    """

    steps: int
    step_time_s: float
    alone_s: float
    outliers: float
    late_s: float
    late_allowed_s: float

    @property
    def loss(self) -> float:
        """Share of its speed that the job loses to others; below 0 where it is faster."""
        return 1.0 - self.alone_s / self.step_time_s


def step_time_alone(
    buckets: Sequence[BucketLoad], ready_s: Sequence[float], servers: int, cores: int, factor: float = 1.0
) -> float:
    """Step time of a job on servers of its own: each bucket is executed as soon as its server has an idle core.

    Args:
        ready_s: Of each bucket.
        servers: Buckets are placed on them largest first, each on the one with least to do.
        factor: By which the gradients take longer.
    """
    loads = [0.0] * servers
    of: list[list[int]] = [[] for _ in range(servers)]
    for index in sorted(range(len(buckets)), key=lambda i: (-buckets[i].execution_s, i)):
        least = min(range(servers), key=lambda s: (loads[s], s))
        loads[least] += buckets[index].execution_s
        of[least].append(index)
    end_s = factor * max(ready_s)
    for indices in of:
        idle = [0.0] * cores
        for index in sorted(indices, key=lambda i: ready_s[i]):
            done_s = max(idle[0], factor * ready_s[index]) + buckets[index].execution_s
            heapreplace(idle, done_s)
            end_s = max(end_s, done_s)
    return end_s


def run_nodes(
    pool: PoolState,
    steps: Mapping[str, Steps],
    delays: Delays,
    *,
    count: int,
    warm_up: int,
    seed: int,
    slots: bool = True,
) -> dict[str, JobSpeed]:
    """Run the jobs of a pool, each for at least so many steps, from random phases.

    After `warm_up` steps of a job that makes the longest, each node plans its timetable from what it has seen of its
    jobs, and measuring begins.

    Args:
        steps: Of every job of the pool.
        count: Steps of the slowest job that are measured.
        slots: Without them, each node executes requests in the order in which they arrive.

    Returns:
        By job.
    """
    run = _Run(pool, steps, delays, seed)
    longest_s = max(placed.load.step_time_s for placed in pool.jobs.values())
    run.until(warm_up * longest_s)
    if slots:
        run.plan()
    run.until(2 * warm_up * longest_s)
    run.measure()
    run.until((2 * warm_up + count) * longest_s)
    return run.speeds()


class _Job:
    """A job that runs: its step in progress and what was measured."""

    def __init__(self, name: str, pool: PoolState, steps: Steps, factors: list[float]) -> None:
        placed = pool.jobs[name]
        self.name, self.buckets, self.nodes = name, placed.load.buckets, placed.nodes
        self.ready_s, self.factors = steps.ready_s, factors
        self.cores = {node: pool.nodes[node].node.type.cores for node in set(placed.nodes)}
        self.step, self.left, self.begun_s = -1, 0, 0.0
        self.measured_from, self.measured_at_s = 0, 0.0
        self.requests = self.outliers = 0
        self.late_s = 0.0

    def factor(self, step: int) -> float:
        return self.factors[step % len(self.factors)]

    def alone_s(self, step: int) -> float:
        """Time of this step if the job had its nodes to itself."""
        end_s = self.factor(step) * max(self.ready_s)
        for node, cores in self.cores.items():
            here = [index for index, name in enumerate(self.nodes) if name == node]
            found_s = step_time_alone(
                [self.buckets[index] for index in here],
                [self.ready_s[index] for index in here],
                1,
                int(cores),
                self.factor(step),
            )
            end_s = max(end_s, found_s)
        return end_s


_FACTORS = 64
"""Delays that a job draws; then it repeats them."""


class _Run:
    """All nodes and jobs, and the events to come: (time, number, what to do)."""

    def __init__(self, pool: PoolState, steps: Mapping[str, Steps], delays: Delays, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._pool = pool
        self._jobs = {
            name: _Job(name, pool, steps[name], delays.factors(generator, _FACTORS)) for name in pool.jobs
        }
        self._nodes = {name: CyclicExecution(self._timetable(name).without_slots()) for name in pool.nodes}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._now_s = 0.0
        for name, placed in pool.jobs.items():
            self._at(float(generator.random()) * placed.load.step_time_s, self._begin(self._jobs[name]))

    def until(self, at_s: float) -> None:
        """Everything that happens before this time."""
        while self._events and self._events[0][0] < at_s:
            self._now_s, _, act = heappop(self._events)
            act()

    def plan(self) -> None:
        """Give every node a timetable in which each job's slot ends when its step would be complete."""
        for name, node in self._nodes.items():
            self._execute(name, node.planned(self._now_s, self._timetable(name)))

    def measure(self) -> None:
        """Forget what was measured; each job begins with its next step."""
        for job in self._jobs.values():
            job.measured_from, job.measured_at_s = -1, 0.0
            job.requests = job.outliers = 0
            job.late_s = 0.0

    def speeds(self) -> dict[str, JobSpeed]:
        """What was measured."""
        found = {}
        for name, job in self._jobs.items():
            steps = range(job.measured_from, job.step)
            alone = {step % _FACTORS: job.alone_s(step) for step in steps[:_FACTORS]}
            took_s = job.begun_s - job.measured_at_s
            longest_s = max(
                bucket.execution_s
                for node in job.cores
                for tenant in self._pool.nodes[node].tenants
                for bucket in self._jobs[tenant].buckets
            )
            found[name] = JobSpeed(
                len(steps),
                took_s / len(steps),
                sum(alone[step % _FACTORS] for step in steps) / len(steps),
                job.outliers / max(job.requests, 1),
                job.late_s,
                longest_s,
            )
        return found

    def _timetable(self, node: str) -> Timetable:
        load = self._pool.nodes[node]
        jobs = []
        for name, tenant in load.tenants.items():
            job = self._jobs[name]
            executions = {i: job.buckets[i].execution_s for i, where in enumerate(job.nodes) if where == node}
            due_s = job.begun_s + tenant.step_time_s if job.step >= 0 else 0.0
            jobs.append(CyclicJob(name, tenant.step_time_s, executions, due_s % load.cycle_s))
        return plan_timetable(jobs, load.cycle_s, max(1, int(load.node.type.cores)))

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._events, (at_s, self._number, act))

    def _begin(self, job: _Job) -> Callable[[], None]:
        def act() -> None:
            job.step += 1
            job.begun_s, job.left = self._now_s, len(job.buckets)
            if job.measured_from < 0:
                job.measured_from, job.measured_at_s = job.step, self._now_s
            factor = job.factor(job.step)
            for bucket, ready_s in enumerate(job.ready_s):
                self._at(self._now_s + factor * ready_s, self._arrive(job, bucket, job.step))

        return act

    def _arrive(self, job: _Job, bucket: int, step: int) -> Callable[[], None]:
        def act() -> None:
            node = job.nodes[bucket]
            self._execute(node, self._nodes[node].arrived(self._now_s, Request(job.name, bucket, step)))

        return act

    def _execute(self, node: str, instructions: Iterable[Execute]) -> None:
        for one in instructions:
            self._at(self._now_s + one.execution_s, self._finish(node, one))

    def _finish(self, node: str, done: Execute) -> Callable[[], None]:
        def act() -> None:
            job = self._jobs[done.request.job]
            job.requests += 1
            job.outliers += not done.in_slot
            if done.in_slot:
                job.late_s = max(job.late_s, self._now_s - done.due_s)
            job.left -= 1
            if not job.left:
                # its workers have the weights of every bucket: the next step
                self._at(max(self._now_s, job.begun_s), self._begin(job))
            self._execute(node, self._nodes[node].finished(self._now_s, done.core))

        return act
