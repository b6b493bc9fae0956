"""Clusters of nodes under a manager: one job is in one cluster, and all limits hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scheduler_cases import SMALL, check_pool, job

from benchmarks.pools.clusters import ClusterRules, Manager
from scavenger.scheduler import events as ev
from scavenger.scheduler.pool import JobLoad, PoolState, Rules
from scavenger.scheduler.scaling import ScalingRules, SharedPool


def manager(*, nodes_max: int | None = None, cluster: int = 2, starts_min: int = 1) -> Manager:
    """Clusters of so many small nodes."""
    blank = SharedPool(PoolState((SMALL,), Rules(nodes_max=nodes_max)), ScalingRules(starts_min=starts_min))
    return Manager(blank, ClusterRules(nodes_max=cluster))


def sizes(of: Manager) -> list[int]:
    """Nodes of each cluster."""
    return [len(state.pool.nodes) for state in of.clusters.values()]


def test_a_full_cluster_is_followed_by_another() -> None:
    pool = manager()
    for number in range(5):
        pool.handle(ev.JobArrived(job(f"job-{number}", 1.0, 0.9)))

    assert sizes(pool) == [2, 2, 1]
    assert pool.nodes == 5
    names = {name for state in pool.clusters.values() for name in state.pool.nodes}
    assert len(names) == 5


def test_a_job_goes_where_least_processors_are_free_that_suffice() -> None:
    pool = manager(cluster=1)
    for name, work in (("a", 0.3), ("b", 0.8), ("c", 0.9)):
        pool.handle(ev.JobArrived(job(name, 1.0, work)))
    (placed,) = pool.handle(ev.JobArrived(job("d", 1.0, 0.15)))

    assert isinstance(placed, ev.PlaceJob)
    assert placed.nodes == ("cluster-1-node-0",)


def test_a_cluster_whose_free_processors_do_not_suit_the_job_is_passed_over() -> None:
    pool = manager(cluster=1)
    pool.handle(ev.JobArrived(job("slow", 12.0, 1.0)))
    actions = pool.handle(ev.JobArrived(job("quick", 5.0, 1.0)))  # it would lose a sixth beside the slow one

    assert [type(action) for action in actions] == [ev.StartNode, ev.PlaceJob]
    assert sizes(pool) == [1, 1]


def test_empty_clusters_are_forgotten() -> None:
    pool = manager()
    pool.handle(ev.JobArrived(job("a", 1.0, 0.9)))
    pool.handle(ev.JobLeft("a"))

    assert (sizes(pool), pool.nodes) == ([], 0)


def test_the_limit_is_for_all_clusters_and_a_waiting_job_gets_the_place_of_one_that_leaves_another() -> None:
    pool = manager(nodes_max=2, cluster=1)
    for name in ("a", "b"):
        pool.handle(ev.JobArrived(job(name, 1.0, 0.9)))
    assert pool.handle(ev.JobArrived(job("c", 1.0, 0.9))) == ()
    assert pool.nodes == 2

    waiting = next(name for name, state in pool.clusters.items() if state.waiting)
    other = next(state for name, state in pool.clusters.items() if name != waiting)
    pool.handle(ev.JobLeft(next(iter(other.pool.jobs))))
    actions = [action for _ in range(2) for action in pool.handle(ev.PeriodEnded())]
    assert [type(action) for action in actions] == [ev.StartNode, ev.PlaceJob]


@st.composite
def event_lists(draw: st.DrawFn) -> list[ev.Event]:
    names = st.integers(0, 12).map(lambda number: f"job-{number}")
    time_s, share = st.sampled_from([1.0, 2.0, 3.0]), st.floats(0.05, 0.9)
    arrival = st.builds(
        lambda name, time_s, shares: ev.JobArrived(job(name, time_s, *(each * time_s for each in shares))),
        names,
        time_s,
        st.lists(share, min_size=1, max_size=3),
    )
    node = st.builds(
        lambda cluster, number: f"cluster-{cluster}-node-{number}", st.integers(0, 3), st.integers(0, 3)
    )
    events = st.one_of(
        arrival,
        arrival,
        names.map(ev.JobLeft),
        st.builds(ev.StepTimeMeasured, names, st.floats(0.5, 4.0)),
        st.just(ev.PeriodEnded()),
        node.map(ev.DrainNode),
        node.map(ev.NodeLost),
    )
    return draw(st.lists(events, max_size=25))


@examples(40)
@given(event_lists(), st.sampled_from([None, 1, 3]), st.integers(1, 3), st.integers(1, 2))
def test_a_job_is_in_one_cluster_and_all_limits_hold_after_every_event(
    events: list[ev.Event], nodes_max: int | None, cluster: int, starts_min: int
) -> None:
    pool, asked = manager(nodes_max=nodes_max, cluster=cluster, starts_min=starts_min), set()
    for event in events:
        if isinstance(event, ev.JobArrived):
            asked.add(event.load.name)
        if isinstance(event, ev.JobLeft):
            asked.discard(event.job)
        pool.handle(event)
        states = pool.clusters.values()
        there = [name for state in states for name in state.pool.jobs]
        there += [load.name for state in states for load in state.waiting]
        assert sorted(there) == sorted(asked)
        for state in states:
            check_pool(state.pool)
        assert all(size <= cluster for size in sizes(pool))
        assert pool.nodes == sum(sizes(pool))
        assert nodes_max is None or pool.nodes <= nodes_max


def test_clusters_need_nodes() -> None:
    with pytest.raises(ValueError, match="no clusters"):
        ClusterRules(nodes_max=0)


def test_a_job_that_was_measured_again_stays_in_its_cluster() -> None:
    pool = manager(cluster=1)
    pool.handle(ev.JobArrived(job("a", 1.0, 0.2)))

    assert pool.handle(ev.JobArrived(JobLoad("a", 2.0, job("a", 1.0, 0.4).buckets))) == ()
