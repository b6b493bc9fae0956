"""The steps of jobs on shared nodes, request by request."""

from __future__ import annotations

import pytest

from benchmarks.pools.nodes import Delays, JobSpeed, Steps, run_nodes, step_time_alone
from scavenger.scheduler.pool import AggregatorNode, BucketLoad, JobLoad, NodeType, PoolState, Rules

_TYPE = NodeType("node", 2, 1000, 1e9)
_READY_S = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def pool_of(*executions_s: float, rules: Rules | None = None, scale: tuple[float, ...] = ()) -> PoolState:
    """A node with jobs of six equal buckets, whose steps compute for 1 s or as `scale` says."""
    pool = PoolState((_TYPE,), rules or Rules()).with_node(AggregatorNode("n", _TYPE))
    for number, execution_s in enumerate(executions_s):
        factor = scale[number] if scale else 1.0
        buckets = (BucketLoad(execution_s),) * len(_READY_S)
        alone_s = step_time_alone(buckets, _READY_S, 1, 2, factor)
        pool = pool.with_job(JobLoad(f"j{number}", alone_s, buckets), ("n",) * len(_READY_S))
    return pool


def steps_of(pool: PoolState, scale: tuple[float, ...] = ()) -> dict[str, Steps]:
    factors = scale or (1.0,) * len(pool.jobs)
    return {
        name: Steps(tuple(factor * ready for ready in _READY_S))
        for name, factor in zip(pool.jobs, factors, strict=True)
    }


def test_step_time_alone_ends_with_the_last_bucket() -> None:
    buckets = (BucketLoad(0.1),) * 3
    assert step_time_alone(buckets, (0.1, 0.2, 1.0), 1, 1) == pytest.approx(1.1)
    assert step_time_alone(buckets, (1.0, 1.0, 1.0), 1, 1) == pytest.approx(1.3)
    assert step_time_alone(buckets, (1.0, 1.0, 1.0), 1, 2) == pytest.approx(1.2)
    assert step_time_alone(buckets, (1.0, 1.0, 1.0), 3, 1) == pytest.approx(1.1)
    assert step_time_alone(buckets, (1.0, 1.0, 1.0), 3, 1, 2.0) == pytest.approx(2.1)


@pytest.mark.parametrize("slots", [True, False])
def test_a_job_alone_loses_nothing(slots: bool) -> None:
    pool = pool_of(0.05)
    (speed,) = run_nodes(
        pool, steps_of(pool), Delays(0.05, 0.1, 1.5), count=20, warm_up=2, seed=1, slots=slots
    ).values()

    assert speed.steps >= 10
    assert speed.loss == pytest.approx(0.0, abs=1e-9)


def test_equal_jobs_keep_out_of_each_others_way_in_slots() -> None:
    """Five jobs of 0.3 s in 1.05 s on two cores: by the order of arrival, those that collide go on to."""
    pool = pool_of(*[0.05] * 5)
    assert pool.nodes["n"].utilisation > 0.7

    in_slots, in_order = (
        run_nodes(pool, steps_of(pool), Delays(), count=30, warm_up=5, seed=1, slots=slots)
        for slots in (True, False)
    )

    assert max(speed.loss for speed in in_slots.values()) < 0.03
    assert min(speed.loss for speed in in_order.values()) > 0.05


def test_jobs_in_slots_lose_what_the_cycle_costs_them() -> None:
    """The prediction of the pool holds request by request, where every job has slots."""
    scale = (1.0, 0.93, 0.48, 0.31)
    pool = pool_of(0.05, 0.04, 0.03, 0.02, scale=scale)

    speeds = run_nodes(pool, steps_of(pool, scale), Delays(), count=30, warm_up=5, seed=1)

    for name, speed in speeds.items():
        assert speed.loss <= pool.loss(name) + 0.01


def test_slots_hold_under_stragglers_where_the_order_of_arrival_does_not() -> None:
    scale = (1.0, 0.97, 0.96, 0.93, 0.48, 0.49)
    pool = pool_of(0.04, 0.05, 0.04, 0.05, 0.03, 0.02, scale=scale)
    delays = Delays(0.02, 0.02, 1.5)

    in_slots, in_order = (
        run_nodes(pool, steps_of(pool, scale), delays, count=40, warm_up=5, seed=2, slots=slots)
        for slots in (True, False)
    )

    assert _mean_loss(in_slots) < _mean_loss(in_order)
    assert all(speed.late_s <= speed.late_allowed_s + 1e-9 for speed in in_slots.values())
    assert all(speed.outliers == 1.0 for speed in in_order.values())


def _mean_loss(speeds: dict[str, JobSpeed]) -> float:
    return sum(speed.loss for speed in speeds.values()) / len(speeds)


def test_a_run_can_be_repeated() -> None:
    pool = pool_of(0.05, 0.05)
    first, second = (
        run_nodes(pool, steps_of(pool), Delays(0.1), count=5, warm_up=2, seed=3) for _ in range(2)
    )
    assert first == second
