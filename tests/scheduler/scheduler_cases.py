"""Random jobs and pools for the tests of the scheduler."""

from __future__ import annotations

from hypothesis import strategies as st

from scavenger.scheduler.joint import assign
from scavenger.scheduler.pool import (
    BucketLoad,
    JobLoad,
    JobOnNode,
    NodeType,
    NoRoom,
    PoolState,
    Rules,
)

GB = 10**9
SMALL = NodeType("small", 1.0, 8 * GB, 1.0 * GB, 0.05)
LARGE = NodeType("large", 4.0, 32 * GB, 4.0 * GB, 0.18)


@st.composite
def buckets(draw: st.DrawFn, step_time_s: float) -> BucketLoad:
    """A bucket that a small node can hold."""
    return BucketLoad(
        execution_s=draw(st.floats(0.0, 0.5)) * step_time_s,
        memory_bytes=draw(st.integers(0, 4 * GB)),
        traffic_bytes=draw(st.integers(0, int(0.5 * GB * step_time_s))),
    )


@st.composite
def job_lists(draw: st.DrawFn, jobs_max: int = 6) -> list[JobLoad]:
    """Jobs whose steps take 0.1 to 3 s, some of them multiples of each other."""
    times = st.one_of(st.floats(0.1, 3.0), st.sampled_from([0.1, 0.2, 0.3, 0.6, 1.2]))
    loads = []
    for number in range(draw(st.integers(1, jobs_max))):
        step_time_s = draw(times)
        parts = draw(st.lists(buckets(step_time_s), min_size=1, max_size=5))
        loads.append(JobLoad(f"job-{number}", step_time_s, tuple(parts)))
    return loads


rules = st.builds(
    Rules,
    loss_limit=st.sampled_from([0.0, 0.1, 0.3]),
    cycle_max=st.sampled_from([1.0, 1.1, 4.0]),
    fill_max=st.sampled_from([0.8, 1.0]),
)
"""Each of these leaves room for every bucket on a node of its own."""


def job(name: str, step_time_s: float, *execution_s: float, memory_bytes: int = 0) -> JobLoad:
    """A job with buckets of these execution times."""
    return JobLoad(name, step_time_s, tuple(BucketLoad(each, memory_bytes) for each in execution_s))


def assigned(pool: PoolState, *loads: JobLoad) -> PoolState:
    """The pool with these jobs, which fit."""
    for load in loads:
        placement = assign(pool, load)
        assert not isinstance(placement, NoRoom)
        pool = placement.pool
    return pool


def check_pool(pool: PoolState) -> None:
    """Each bucket is on a node of the pool, no node and no job is beyond the rules, and the sums are right."""
    expected: dict[str, dict[str, JobOnNode]] = {name: {} for name in pool.nodes}
    for name, placed in pool.jobs.items():
        assert len(placed.nodes) == len(placed.load.buckets)
        for node in set(placed.nodes):
            here = [placed.load.buckets[index] for index in placed.on(node)]
            expected[node][name] = JobOnNode.of(placed.load.step_time_s, here)
        assert pool.loss(name) <= pool.rules.loss_limit + 1e-6
    assert {name: dict(load.tenants) for name, load in pool.nodes.items()} == expected
    assert all(load.within(pool.rules) for load in pool.nodes.values())
