"""Jobs of a trace on a shared pool: time, cost and loss of small cases that can be computed by hand, and laws."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pools.clusters import ClusterRules, Manager
from benchmarks.pools.trace import TracedJob, replay
from scavenger.scheduler.pool import BucketLoad, JobLoad, NodeType, PoolState, Rules
from scavenger.scheduler.scaling import ScalingRules, SharedPool

_TYPE = NodeType("node", 2, 1000, 1e9)


def manager(rules: Rules | None = None, clusters: ClusterRules | None = None) -> Manager:
    return Manager(SharedPool(PoolState((_TYPE,), rules or Rules()), ScalingRules(pack_jobs_max=0)), clusters)


def job(
    name: str, arrival_s: float, work_s: float, *, step_s: float = 1.0, busy: float = 0.2, servers: int = 1
) -> TracedJob:
    """A job that keeps a node busy for that share of its time."""
    buckets = (BucketLoad(busy * step_s / 2),) * 4
    return TracedJob(JobLoad(name, step_s, buckets), arrival_s, work_s, servers)


def test_equal_jobs_share_a_node_at_full_speed() -> None:
    history = replay([job("a", 0.0, 100.0), job("b", 50.0, 100.0, servers=2)], manager())

    assert history.server_seconds() == pytest.approx((150.0, 300.0))
    assert [(one.job.load.name, one.loss) for one in history.finished] == [("a", 0.0), ("b", 0.0)]
    assert max(use.nodes for use in history.uses) == 1
    assert history.worst_ratio() == 1.0


def test_a_job_that_loses_speed_stays_longer() -> None:
    """Steps of 0.95 s in a cycle of 1 s: 5 % slower while they share the node."""
    history = replay([job("a", 0.0, 100.0, step_s=0.95), job("b", 0.0, 50.0)], manager())

    (b, a) = history.finished
    assert b.loss == 0.0
    # 50 s at 95 % of its speed, and the rest alone
    assert a.loss == pytest.approx(2.5 / 102.5)
    assert a.loss_max == pytest.approx(0.05)
    assert history.uses[-1].at_s == pytest.approx(102.5)


def test_moves_are_counted_and_cost_work() -> None:
    """The first two fill a node, so that the third gets another, and moves when one of them has left."""
    jobs = [job("a", 0.0, 10.0, busy=0.5), job("b", 0.0, 100.0, busy=0.5), job("c", 1.0, 100.0, busy=0.5)]

    history = replay(jobs, manager(), move_s=0.5)

    moved = {one.job.load.name: (one.moved, one.moved_buckets) for one in history.finished}
    assert sorted(moved.values()) == [(0, 0), (0, 0), (1, 4)]
    assert max(use.nodes for use in history.uses) == 2
    assert history.uses[-2].nodes == 1
    (late,) = (one for one in history.finished if one.moved)
    assert late.loss == pytest.approx(0.5 / 100.5)


def test_jobs_without_slots_are_reported_and_move_apart() -> None:
    """Both need 95 % of the node together, but one of them in a piece that the slots of the other do not leave."""
    jobs = [job("a", 0.0, 100.0, busy=0.55), job("b", 0.0, 100.0, step_s=0.5, busy=0.4)]

    assert max(use.nodes for use in replay(jobs, manager(), promised=False).uses) == 1
    promised = replay(jobs, manager())

    assert max(use.nodes for use in promised.uses) == 2
    assert not promised.unpromised


def test_jobs_come_in_the_order_of_their_arrivals() -> None:
    with pytest.raises(ValueError, match="job b arrives before"):
        replay([job("a", 1.0, 1.0), job("b", 0.0, 1.0)], manager())


def test_stops_with_the_jobs_that_run() -> None:
    pool = manager()

    replay([job("a", 0.0, 10.0), job("b", 0.0, 90.0)], pool, until_s=50.0)

    assert [name for state in pool.clusters.values() for name in state.pool.jobs] == ["b"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("period_s", [None, 200.0])
def test_laws_of_random_traces(seed: int, period_s: float | None) -> None:
    """Every job ends, within its limit of loss, and there are never more nodes than static servers."""
    generator = np.random.default_rng(seed)
    rules, at_s, jobs = Rules(fill_max=0.8), 0.0, []
    for number in range(60):
        at_s += float(generator.exponential(20.0))
        work_s, step_s = float(generator.exponential(300.0)) + 1.0, float(generator.uniform(0.3, 1.5))
        jobs.append(job(f"j{number}", at_s, work_s, step_s=step_s, busy=float(generator.uniform(0.02, 0.4))))

    history = replay(jobs, manager(rules, ClusterRules(nodes_max=4)), period_s=period_s)

    assert {one.job.load.name for one in history.finished} == {one.load.name for one in jobs}
    assert all(-1e-9 <= one.loss <= rules.loss_limit + 1e-9 for one in history.finished)
    assert history.worst_ratio() <= 1.0
    shared_s, static_s = history.server_seconds()
    assert shared_s < 0.7 * static_s
    # static servers stand as long as the jobs run
    lives_s = sum(one.job.work_s / (1.0 - one.loss) for one in history.finished)
    assert static_s == pytest.approx(lives_s)
    assert not history.unpromised
    assert (history.uses[-1].nodes, history.uses[-1].jobs) == (0, 0)
