"""Assignment of buckets: the laws that both schemes keep, and what each does in plain cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_cases import GB, LARGE, SMALL, check_pool, job, job_lists, rules

from benchmarks.pools.by_bucket import assign_by_bucket
from scavenger.scheduler.joint import assign
from scavenger.scheduler.pool import BucketLoad, JobLoad, NodeType, NoRoom, Placement, PoolState, Rules

SCHEMES = (assign_by_bucket, assign)
schemes = pytest.mark.parametrize("scheme", SCHEMES)


@schemes
@given(loads=job_lists(), rules=rules, types=st.sampled_from([(SMALL,), (SMALL, LARGE), (LARGE,)]))
def test_every_bucket_has_one_node_and_no_job_loses_more_than_the_limit(
    scheme, loads: list[JobLoad], rules: Rules, types: tuple[NodeType, ...]
) -> None:
    pool = PoolState(types, rules)
    for load in loads:
        placement = scheme(pool, load)
        assert isinstance(placement, Placement)
        assert set(placement.nodes) <= {*pool.nodes, *(node.name for node in placement.started)}
        pool = placement.pool
        check_pool(pool)
    assert set(pool.jobs) == {load.name for load in loads}


@schemes
@given(loads=job_lists(), rules=rules)
def test_the_same_jobs_get_the_same_nodes(scheme, loads: list[JobLoad], rules: Rules) -> None:
    def nodes(order: list[JobLoad]) -> dict[str, tuple[str, ...]]:
        pool = PoolState((SMALL,), rules)
        for load in order:
            pool = scheme(pool, load).pool
        shuffled = replace(pool, nodes=dict(reversed(pool.nodes.items())))
        last = job("last", 0.5, 0.1, 0.1)
        assert scheme(pool, last).nodes == scheme(shuffled, last).nodes
        return {name: placed.nodes for name, placed in pool.jobs.items()}

    assert nodes(loads) == nodes(loads)


@given(loads=job_lists(), rules=rules, types=st.sampled_from([(SMALL,), (SMALL, LARGE)]))
def test_sharing_never_costs_more_than_nodes_of_each_jobs_own(
    loads: list[JobLoad], rules: Rules, types: tuple[NodeType, ...]
) -> None:
    shared, own_usd = PoolState(types, rules), 0.0
    for load in loads:
        own_usd += assign(PoolState(types, rules), load).pool.price_usd_per_hour
        shared = assign(shared, load).pool

    assert shared.price_usd_per_hour <= own_usd + 1e-9


@schemes
def test_the_papers_two_jobs_share_a_node(scheme) -> None:
    pool = PoolState((SMALL,))
    for load in (job("J1", 6.0, 2.0), job("J2", 12.0, 3.0)):
        pool = scheme(pool, load).pool

    (node,) = pool.nodes.values()
    assert (node.cycle_s, node.busy_s, node.free_s) == (12.0, 7.0, 5.0)
    assert pool.loss("J1") == pool.loss("J2") == 0.0


@schemes
def test_a_job_that_would_lose_a_sixth_gets_another_node(scheme) -> None:
    pool = scheme(scheme(PoolState((SMALL,)), job("J2", 12.0, 3.0)).pool, job("J1", 5.0, 1.0)).pool
    assert len(pool.nodes) == 2

    tolerant = PoolState((SMALL,), Rules(loss_limit=0.2))
    pool = scheme(scheme(tolerant, job("J2", 12.0, 3.0)).pool, job("J1", 5.0, 1.0)).pool
    assert len(pool.nodes) == 1
    assert pool.loss("J1") == pytest.approx(1 / 6)


@schemes
def test_a_job_that_fits_by_one_step_but_not_by_all_of_a_cycle_gets_another_node(scheme) -> None:
    pool = scheme(scheme(PoolState((SMALL,)), job("long", 4.0, 2.5)).pool, job("short", 1.0, 0.5)).pool

    assert len(pool.nodes) == 2  # 1.5 s are free, one step needs 0.5 s, four need 2 s


@schemes
def test_best_fit_leaves_the_larger_gap_for_the_next_job(scheme) -> None:
    pool = PoolState((SMALL,), Rules(nodes_max=2))
    for load in (job("a", 1.0, 0.6), job("b", 1.0, 0.5), job("c", 1.0, 0.4), job("d", 1.0, 0.5)):
        pool = scheme(pool, load).pool

    assert pool.jobs["c"].nodes == pool.jobs["a"].nodes
    assert pool.jobs["d"].nodes == pool.jobs["b"].nodes


@schemes
@pytest.mark.parametrize(
    "bucket", [BucketLoad(0.01, memory_bytes=5 * GB), BucketLoad(0.01, traffic_bytes=int(0.6 * GB))]
)
def test_memory_and_bandwidth_bound_a_node(scheme, bucket: BucketLoad) -> None:
    pool = PoolState((SMALL,))
    for name in ("a", "b"):
        pool = scheme(pool, JobLoad(name, 1.0, (bucket,))).pool

    assert len(pool.nodes) == 2


@schemes
def test_what_fits_nowhere_is_refused(scheme) -> None:
    assert isinstance(scheme(PoolState((SMALL,)), job("huge", 1.0, 0.1, memory_bytes=9 * GB)), NoRoom)
    full = scheme(PoolState((SMALL,), Rules(nodes_max=1)), job("first", 1.0, 0.9)).pool
    assert isinstance(scheme(full, job("second", 1.0, 0.5)), NoRoom)
    assert isinstance(scheme(PoolState(), job("any", 1.0, 0.1)), NoRoom)


@schemes
def test_nodes_to_avoid_get_nothing(scheme) -> None:
    pool = scheme(PoolState((SMALL,)), job("a", 1.0, 0.1)).pool

    assert scheme(pool, job("b", 1.0, 0.1), avoid={"node-0"}).nodes == ("node-1",)


def test_a_job_whose_buckets_fit_one_node_is_not_spread() -> None:
    pool = PoolState((SMALL,))
    for name in ("a", "b"):
        pool = assign(pool, job(name, 1.0, 0.9)).pool  # 0.1 s of a step are free on each
    pool = assign(pool, job("c", 1.0, 0.1, 0.1, 0.1)).pool

    assert set(pool.jobs["c"].nodes) == {"node-2"}
    pool = assign(pool, job("d", 1.0, 0.3, 0.3)).pool
    assert set(pool.jobs["d"].nodes) == {"node-2"}


def test_a_job_is_spread_where_that_saves_a_node() -> None:
    pool = PoolState((SMALL,), Rules(nodes_max=2))
    for load in (job("a", 1.0, 0.8), job("b", 1.0, 0.7), job("c", 1.0, 0.3, 0.2)):
        pool = assign(pool, load).pool

    assert pool.jobs["c"].nodes == ("node-1", "node-0")


def test_a_new_node_is_of_the_type_that_costs_least_for_the_job() -> None:
    pool = assign(PoolState((SMALL, LARGE)), job("little", 1.0, 0.5)).pool
    assert [load.node.type for load in pool.nodes.values()] == [SMALL]

    pool = assign(PoolState((SMALL, LARGE)), job("much", 1.0, *[0.9] * 4)).pool
    assert [load.node.type for load in pool.nodes.values()] == [LARGE]


def test_longer_cycles_let_more_jobs_share() -> None:
    loads = (job("a", 2.0, 0.4), job("b", 3.0, 0.6))
    autops, longer = PoolState((SMALL,)), PoolState((SMALL,), Rules(cycle_max=2.0))
    for load in loads:
        autops, longer = assign(autops, load).pool, assign(longer, load).pool

    assert len(autops.nodes) == 2
    assert [load.cycle_s for load in longer.nodes.values()] == [6.0]
    assert longer.loss("a") == longer.loss("b") == 0.0


def test_a_jobs_exit_does_not_slow_the_others_down() -> None:
    pool = PoolState((SMALL,), Rules(nodes_max=1))
    for load in (job("long", 20.0, 1.0), job("a", 5.0, 1.0), job("b", 4.0, 1.0)):
        pool = assign(pool, load).pool
    pool = pool.without_job("long")

    assert pool.nodes["node-0"].cycle_s == 20.0  # in a cycle of 5 s, b would lose a fifth
    check_pool(pool)


def test_a_load_that_cannot_have_been_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 2"):
        job("a", 1.0, 2.0)
    with pytest.raises(ValueError, match="no bucket"):
        job("a", 1.0)
    with pytest.raises(ValueError, match="step of 0"):
        job("a", 0.0, 0.0)
