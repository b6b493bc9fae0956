"""The jobs of a trace on a shared pool, in virtual time.

Jobs arrive, run until they have done the work that they have in the trace, and leave. A manager, which asks the
scheduler of real pools, is told of each arrival and each end, and decides. Beside it stands the cost of a static set
of servers for each job.

A job does `1 - loss` seconds of its work in a second, where the loss is the one that the pool predicts by its
execution cycles. So a job that is slowed down stays longer, and costs more, in the shared pool alone. `nodes` runs
pools request by request, and shows how far this holds: for jobs that have slots. So after each change the nodes that
it touched plan their timetables. A job that gets no slots is reported to the manager as a job whose measured step
time is too long, and others as those who run as predicted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from benchmarks.pools.timetable import CyclicJob, plan_timetable
from scavenger.scheduler.events import (
    Action,
    Event,
    JobArrived,
    JobLeft,
    MoveBucket,
    PeriodEnded,
    StepTimeMeasured,
)
from scavenger.scheduler.pool import JobLoad, NodeLoad, PoolState
from scavenger.scheduler.scaling import SharedPool

_UNPROMISED_LOSS = 0.5
"""Loss that is reported for a job without slots: in the worst case each request waits for a whole step."""

_CHECKS_MAX = 20
"""How often a change is followed by another one because a job got no slots."""


class PoolManager(Protocol):
    """What decides for the pool, such as `clusters.Manager`."""

    @property
    def clusters(self) -> Mapping[str, SharedPool]:
        """The pools that together are the pool, by name."""

    def handle(self, event: Event) -> tuple[Action, ...]:
        """What is done about an event."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job of a trace.

    Attributes:
        arrival_s: From the begin of the trace.
        work_s: How long it runs alone.
        servers: That it would have for itself, of the pool's type of node.
    """

    load: JobLoad
    arrival_s: float
    work_s: float
    servers: int


@dataclass(frozen=True, slots=True)
class Use:
    """What was in use from one event until the next.

    Attributes:
        at_s: When it began.
        nodes: Of the pool, and of jobs for which it has no place.
        servers: That the jobs of the pool would have for themselves.
        jobs: In the pool.
    """

    at_s: float
    nodes: int
    servers: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that has ended.

    Attributes:
        loss: Share of its speed that it lost over its life.
        loss_max: Greatest loss that was ever predicted for it.
        moved: How often some of its buckets were moved.
        moved_buckets: How many buckets were moved in all.
    """

    job: TracedJob
    loss: float
    loss_max: float
    moved: int
    moved_buckets: int


@dataclass
class History:
    """What happened.

    Attributes:
        uses: One per event, in order; the last one has no end.
        finished: Jobs in the order of their ends.
        unpromised: Jobs that were without slots when a change was complete.
    """

    uses: list[Use] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    unpromised: set[str] = field(default_factory=set)

    def server_seconds(self) -> tuple[float, float]:
        """Seconds of nodes of the pool, and of servers of their own for the jobs that were there meanwhile."""
        shared_s = static_s = 0.0
        for use, following in itertools.pairwise(self.uses):
            shared_s += use.nodes * (following.at_s - use.at_s)
            static_s += use.servers * (following.at_s - use.at_s)
        return shared_s, static_s

    def worst_ratio(self) -> float:
        """The greatest number of nodes over servers at any time when there were jobs; infinite without servers."""
        lasting = (use for use, following in itertools.pairwise(self.uses) if following.at_s > use.at_s)
        return max(
            (use.nodes / use.servers if use.servers else float("inf") for use in lasting if use.nodes),
            default=0.0,
        )


@dataclass(slots=True)
class _Running:
    """A job in the pool: the work that was left at some time, and its speed since."""

    job: TracedJob
    begun_s: float
    left_s: float
    at_s: float
    loss: float = 0.0
    loss_max: float = 0.0
    moved: int = 0
    moved_buckets: int = 0
    ends: int = 0


def replay(
    jobs: Iterable[TracedJob],
    manager: PoolManager,
    *,
    period_s: float | None = None,
    move_s: float = 0.0,
    promised: bool = True,
    until_s: float = float("inf"),
) -> History:
    """Run all jobs to their ends.

    Args:
        jobs: In the order of their arrivals, with names of their own.
        manager: Of an empty pool.
        period_s: How often the manager looks at each of its clusters, or never.
        move_s: Work that a job loses whenever some of its buckets move.
        promised: Whether a job that gets no slots is reported as too slow.
        until_s: When to stop, after the last arrival. The manager then still has the jobs that run.

    Raises:
        ValueError: If jobs are not in the order of their arrivals.
    """
    return _Replay(manager, period_s, move_s, promised).run(jobs, until_s)


class _Replay:
    def __init__(self, manager: PoolManager, period_s: float | None, move_s: float, promised: bool) -> None:
        self._manager, self._period_s, self._move_s, self._promised = manager, period_s, move_s, promised
        self._seen: dict[str, SharedPool] = {}
        self._running: dict[str, _Running] = {}
        self._ends: list[tuple[float, int, str]] = []
        self._ended = 0
        self._planned: dict[str, tuple[NodeLoad, str | None]] = {}
        self._history = History()
        self._period_ends_s = period_s or float("inf")

    def run(self, jobs: Iterable[TracedJob], until_s: float) -> History:
        before_s = 0.0
        for job in jobs:
            if job.arrival_s < before_s:
                raise ValueError(f"job {job.load.name} arrives before the one ahead of it")
            before_s = job.arrival_s
            self._until(job.arrival_s)
            self._running[job.load.name] = _Running(job, job.arrival_s, job.work_s, job.arrival_s)
            self._pace(job.arrival_s, job.load.name, 0.0)
            self._handle(job.arrival_s, JobArrived(job.load))
        self._until(until_s)
        return self._history

    def _until(self, at_s: float) -> None:
        """All ends and periods before a time."""
        while self._running:
            while not self._is_current(*self._ends[0][1:]):
                heappop(self._ends)
            next_s = min(self._ends[0][0], self._period_ends_s)
            if next_s > at_s:
                return
            if next_s == self._period_ends_s:
                self._period_ends_s += (self._period_s or 0.0) / max(1, len(self._manager.clusters))
                self._handle(next_s, PeriodEnded())
            else:
                end_s, _, name = heappop(self._ends)
                self._end(end_s, name)
        if self._period_s and at_s < float("inf"):  # an empty pool has no periods
            self._period_ends_s = max(self._period_ends_s, at_s)

    def _is_current(self, number: int, name: str) -> bool:
        """Whether the job still has the speed from which this end was computed."""
        return name in self._running and self._running[name].ends == number

    def _end(self, at_s: float, name: str) -> None:
        one = self._running.pop(name)
        took_s = at_s - one.begun_s
        loss = max(0.0, 1.0 - one.job.work_s / took_s) if took_s > 0.0 else 0.0
        self._history.finished.append(Finished(one.job, loss, one.loss_max, one.moved, one.moved_buckets))
        self._handle(at_s, JobLeft(name))

    def _handle(self, at_s: float, event: Event) -> None:
        actions = list(self._manager.handle(event))
        changed = self._changed()
        if self._promised:
            self._settle(changed, actions)
        self._count_moves(actions)
        for cluster, node in changed:
            for name in self._tenants(cluster, node):
                self._pace(at_s, name, self._manager.clusters[cluster].pool.loss(name))
        for state in self._manager.clusters.values():
            for load in state.waiting:  # with aggregators of its own
                self._pace(at_s, load.name, 0.0)
        self._use(at_s)

    def _changed(self) -> set[tuple[str, str]]:
        """Clusters and nodes that are not as they were when this was asked last."""
        found = set()
        clusters = self._manager.clusters
        for name, state in clusters.items():
            before = self._seen.get(name)
            if before is not state:
                nodes = before.pool.nodes if before else {}
                found |= {
                    (name, node) for node, load in state.pool.nodes.items() if nodes.get(node) is not load
                }
        self._seen = dict(clusters)
        return found

    def _settle(self, changed: set[tuple[str, str]], actions: list[Action]) -> None:
        """Report jobs without slots until there are none on the changed nodes, and then the others."""
        for _ in range(_CHECKS_MAX):
            if (late := self._without_slots(changed)) is None:
                break
            pool, name = late
            step_s = pool.jobs[name].load.step_time_s / (1.0 - _UNPROMISED_LOSS)
            actions += self._manager.handle(StepTimeMeasured(name, step_s))
            changed |= self._changed()
        else:
            self._history.unpromised.add(name)
        for cluster, node in changed:
            for name in self._tenants(cluster, node):
                step_s = self._manager.clusters[cluster].pool.step_time_s(name)
                actions += self._manager.handle(StepTimeMeasured(name, step_s))
        changed |= self._changed()

    def _tenants(self, cluster: str, node: str) -> list[str]:
        state = self._manager.clusters.get(cluster)
        load = state.pool.nodes.get(node) if state else None
        return list(load.tenants) if load else []

    def _without_slots(self, changed: Iterable[tuple[str, str]]) -> tuple[PoolState, str] | None:
        """A job on one of the nodes for which the timetable has no slots, and its pool; None if there is none."""
        for cluster, node in sorted(changed):
            if not self._tenants(cluster, node):
                continue
            pool = self._manager.clusters[cluster].pool
            load = pool.nodes[node]
            known = self._planned.get(node)
            if known is None or known[0] is not load:
                known = self._planned[node] = load, _without_slots(pool, load)
            if known[1]:
                return pool, known[1]
        return None

    def _count_moves(self, actions: Iterable[Action]) -> None:
        moves = Counter(action.job for action in actions if isinstance(action, MoveBucket))
        for name, buckets in moves.items():
            one = self._running[name]
            one.moved, one.moved_buckets = one.moved + 1, one.moved_buckets + buckets
            one.left_s += self._move_s

    def _pace(self, at_s: float, name: str, loss: float) -> None:
        """The job's speed may have changed, and with it its end."""
        one = self._running[name]
        one.left_s = max(0.0, one.left_s - (at_s - one.at_s) * (1.0 - one.loss))
        one.at_s, one.loss = at_s, loss
        one.loss_max = max(one.loss_max, one.loss)
        self._ended += 1
        one.ends = self._ended
        heappush(self._ends, (at_s + one.left_s / (1.0 - one.loss), one.ends, name))

    def _use(self, at_s: float) -> None:
        clusters = self._manager.clusters.values()
        nodes = sum(len(state.pool.nodes) for state in clusters)
        nodes += sum(self._running[load.name].job.servers for state in clusters for load in state.waiting)
        servers = sum(one.job.servers for one in self._running.values())
        self._history.uses.append(Use(at_s, nodes, servers, len(self._running)))


def _without_slots(pool: PoolState, load: NodeLoad) -> str | None:
    """The job with most to do of those without slots on a node."""
    name = load.node.name
    jobs = [
        CyclicJob(
            job,
            tenant.step_time_s,
            {index: pool.jobs[job].load.buckets[index].execution_s for index in pool.jobs[job].on(name)},
        )
        for job, tenant in load.tenants.items()
    ]
    timetable = plan_timetable(jobs, load.cycle_s, max(1, int(load.node.type.cores)))
    return max(timetable.without_promise, key=lambda job: (load.tenants[job].execution_s, job), default=None)
