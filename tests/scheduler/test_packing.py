"""Packing of a pool: fewer nodes, with few bytes moved."""

from __future__ import annotations

from hypothesis import given
from properties import examples
from scheduler_cases import GB, SMALL, assigned, check_pool, job, job_lists, rules

from scavenger.scheduler.packing import moved_buckets, recycle, repack
from scavenger.scheduler.pool import JobLoad, PoolState, Rules


@examples(20)
@given(job_lists(), rules)
def test_packing_never_costs_more_and_keeps_the_rules(loads: list[JobLoad], rules: Rules) -> None:
    pool = assigned(PoolState((SMALL,), rules), *loads)
    for packed in (recycle(pool), repack(pool)):
        check_pool(packed)
        assert set(packed.jobs) == set(pool.jobs)
        assert sum(bool(load.tenants) for load in packed.nodes.values()) <= len(pool.nodes)


def test_packing_again_keeps_the_cycle_in_which_the_jobs_fit() -> None:
    """Assigned to one node in another order, the last two would get a cycle of 4.5 s and 4.6 s of work in it."""
    loads = (
        job("a", 1.0, 0.5),
        job("b", 1.5, 0.1875),
        job("c", 1.0, 0.125, 0.125),
        job("d", 0.109375, 0.0478515625, 0.05126953125),
        job("e", 1.0, 0.125, 0.125),
    )
    packed = repack(assigned(PoolState((SMALL,), Rules(cycle_max=4.0)), *loads))

    check_pool(packed)
    assert sum(bool(load.tenants) for load in packed.nodes.values()) == 2


def placed(*nodes: tuple[JobLoad, ...]) -> PoolState:
    """A pool in which each of the nodes has these jobs."""
    pool = PoolState((SMALL,))
    for loads in nodes:
        pool, node = pool.started(SMALL)
        for load in loads:
            pool = pool.with_job(load, (node.name,) * len(load.buckets))
    return pool


def test_packing_again_finds_what_emptying_nodes_does_not_and_leaves_most_bytes_where_they_are() -> None:
    pool = placed(
        (job("a", 1.0, 0.5, memory_bytes=4 * GB), job("b", 1.0, 0.2)),
        (job("c", 1.0, 0.5, memory_bytes=GB), job("d", 1.0, 0.2)),
        (job("e", 1.0, 0.6, memory_bytes=4 * GB),),
    )
    assert recycle(pool, failures_max=3) == pool

    packed = repack(pool)
    assert sum(bool(load.tenants) for load in packed.nodes.values()) == 2
    assert {job for job, _, _, _ in moved_buckets(pool, packed)} == {"b", "c", "d"}


def test_an_empty_node_is_used_before_one_that_would_have_to_be_started() -> None:
    pool = assigned(PoolState((SMALL,)), job("a", 1.0, 0.6), job("b", 1.0, 0.6)).without_job("a")

    assert repack(pool, unstarted={"node-1"}).jobs["b"].nodes == ("node-0",)


def test_a_cheap_large_node_takes_the_place_of_small_ones() -> None:
    large = SMALL.__class__("large", 2.0, 16 * GB, 2e9, 0.06)
    pool = assigned(PoolState((SMALL,)), job("a", 1.0, 0.9), job("b", 1.0, 0.9))
    packed = repack(PoolState((SMALL, large), pool.rules, pool.nodes, pool.jobs, numbered=2))

    (used,) = (load for load in packed.nodes.values() if load.tenants)
    assert used.node.type == large
