"""Many nodes: clusters of them, each decided on by itself, under one manager.

To assign a job, all nodes of a pool are looked at. The manager therefore divides the nodes into clusters of at
most `nodes_max`, as AutoPS does [1]_: it chooses a cluster for each job by the processors that are free there,
and the cluster decides the rest, by `scaling.decide`. So the time of an assignment depends on the size of a
cluster, not on that of the whole pool, and what one job changes stays within its cluster.

The best fit comes first: the cluster with least free processors that suffice. Those of its roomiest node
count, where AutoPS counts all that are free: they lie on many nodes of which none may have room for the job.
If the cluster does not take it after all, the next ones are tried, and at last one in which a node may be
started, the fullest one first.

References:
    .. [1] Gu et al., "Elastic Model Aggregation with Parameter Service", 2022, section 3.3.3.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from scavenger.scheduler.events import (
    Action,
    DrainNode,
    Event,
    JobArrived,
    JobLeft,
    NodeLost,
    PeriodEnded,
    StepTimeMeasured,
)
from scavenger.scheduler.pool import JobLoad, PoolState
from scavenger.scheduler.scaling import SharedPool, decide


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """Sizes of the clusters.

    Attributes:
        nodes_max: Most nodes of a cluster.
        tries_max: Clusters that are tried for a job without starting a node.
    """

    nodes_max: int = 32
    tries_max: int = 3

    def __post_init__(self) -> None:
        if self.nodes_max < 1 or self.tries_max < 0:
            raise ValueError(f"there are no clusters with {self}")


class Manager:
    """The clusters of a pool; events in, actions out, like `scaling.decide`.

    Args:
        blank: An empty pool, of which every cluster begins as a copy. Its `nodes_max` is for all clusters.
    """

    def __init__(self, blank: SharedPool, rules: ClusterRules | None = None) -> None:
        self._blank = blank
        self._rules = rules or ClusterRules()
        self._clusters: dict[str, SharedPool] = {}
        self._by_free = _Ranking()
        self._by_nodes = _Ranking()
        self._of_job: dict[str, str] = {}
        self._of_node: dict[str, str] = {}
        self._nodes = 0
        self._numbered = 0

    @property
    def clusters(self) -> Mapping[str, SharedPool]:
        """The clusters, by name."""
        return self._clusters

    @property
    def nodes(self) -> int:
        """Nodes of all clusters."""
        return self._nodes

    def handle(self, event: Event) -> tuple[Action, ...]:
        """What is done about an event.

        `PeriodEnded` is the end of a period of one cluster, of that whose last one is longest ago: to be
        sent as often as there are clusters in a period.
        """
        match event:
            case JobArrived(load):
                return self._arrived(load)
            case JobLeft(job) | StepTimeMeasured(job, _):
                name = self._of_job.get(job)
            case DrainNode(node) | NodeLost(node):
                name = self._of_node.get(node)
            case PeriodEnded():
                return self._period()
        if name is None:
            return ()
        actions = self._decide(name, event)
        if isinstance(event, JobLeft):
            self._of_job.pop(event.job, None)
        return actions

    def _arrived(self, load: JobLoad) -> tuple[Action, ...]:
        if (home := self._of_job.get(load.name)) is not None:
            return self._decide(home, JobArrived(load))
        demand = sum(bucket.execution_s for bucket in load.buckets) / load.step_time_s
        for name in islice(self._by_free.from_least(demand), self._rules.tries_max):
            decided = decide(_closed(self._clusters[name]), JobArrived(load))
            if load.name in decided.state.pool.jobs:
                self._of_job[load.name] = name
                self._keep(name, replace(decided.state, pool=_open(decided.state.pool, self._clusters[name])))
                return decided.actions
        name = self._growing()
        self._of_job[load.name] = name
        return self._decide(name, JobArrived(load))

    def _period(self) -> tuple[Action, ...]:
        """The period of the first cluster, which becomes the last; its waiting jobs may go to another one."""
        name = next(iter(self._clusters), None)
        if name is None:
            return ()
        self._clusters[name] = self._clusters.pop(name)
        actions = self._decide(name, PeriodEnded())
        state = self._clusters.get(name)
        if state is None or not state.waiting:
            return actions
        self._keep(name, replace(state, waiting=()))
        for load in state.waiting:
            del self._of_job[load.name]
            actions += self._arrived(load)
        return actions

    def _growing(self) -> str:
        """The fullest cluster that may start a node; a new one if there is none."""
        fullest = next(self._by_nodes.down_from(self._rules.nodes_max - 1), None)
        if fullest is not None:
            return fullest
        if self._all_started() and self._clusters:
            return next(self._by_free.down_from(float("inf")))
        name = f"cluster-{self._numbered}"
        self._numbered += 1
        pool = replace(self._blank.pool, prefix=f"{name}-{self._blank.pool.prefix}")
        self._keep(name, replace(self._blank, pool=pool))
        return name

    def _all_started(self) -> bool:
        limit = self._blank.pool.rules.nodes_max
        return limit is not None and self._nodes >= limit

    def _decide(self, name: str, event: Event) -> tuple[Action, ...]:
        """Let a cluster decide, with as many nodes as it and the whole pool may have."""
        state = self._clusters[name]
        allowed, limit = self._rules.nodes_max, self._blank.pool.rules.nodes_max
        if limit is not None:
            allowed = min(allowed, len(state.pool.nodes) + limit - self._nodes)
        rules = replace(state.pool.rules, nodes_max=allowed)
        decided = decide(replace(state, pool=replace(state.pool, rules=rules)), event)
        self._keep(name, decided.state)
        return decided.actions

    def _keep(self, name: str, state: SharedPool) -> None:
        """Replace a cluster's state; a cluster without nodes and jobs is forgotten."""
        known = self._clusters.get(name)
        before = known.pool.nodes.keys() if known is not None else frozenset()
        now = state.pool.nodes.keys()
        self._nodes += len(now) - len(before)
        for node in before - now:
            del self._of_node[node]
        self._of_node.update((node, name) for node in now - before)
        if known is not None and not now and not state.waiting:
            del self._clusters[name]
            self._by_free.remove(name)
            self._by_nodes.remove(name)
            return
        self._clusters[name] = state
        self._by_free.put(name, _free_processors(state.pool))
        self._by_nodes.put(name, len(now))


class _Ranking:
    """Names in the order of a number that each has."""

    def __init__(self) -> None:
        self._order: list[tuple[float, str]] = []
        self._values: dict[str, float] = {}

    def put(self, name: str, value: float) -> None:
        """Give a name its number."""
        self.remove(name)
        insort(self._order, (value, name))
        self._values[name] = value

    def remove(self, name: str) -> None:
        """Forget a name, if it is there."""
        if name in self._values:
            del self._order[bisect_left(self._order, (self._values.pop(name), name))]

    def from_least(self, value: float) -> Iterator[str]:
        """Those with at least this number, least first."""
        return (name for _, name in islice(self._order, bisect_left(self._order, (value, "")), None))

    def down_from(self, value: float) -> Iterator[str]:
        """Those with at most this number, greatest first."""
        end = bisect_left(self._order, (value, "\U0010ffff"))
        return (self._order[index][1] for index in range(end - 1, -1, -1))


def _free_processors(pool: PoolState) -> float:
    """Free processors of the node that has most of them."""
    return max(
        (load.node.type.cores * (pool.rules.fill_max - load.utilisation) for load in pool.nodes.values()),
        default=0.0,
    )


def _closed(state: SharedPool) -> SharedPool:
    """A cluster that may not start nodes."""
    return replace(state, pool=replace(state.pool, types=()))


def _open(pool: PoolState, before: SharedPool) -> PoolState:
    return replace(pool, types=before.pool.types)
