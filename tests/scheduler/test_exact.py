"""The exact optimum: against every possible assignment of tiny cases, and against the schemes."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scheduler_cases import LARGE, SMALL, check_pool, job, job_lists

from benchmarks.pools.exact import cheapest, least_loss
from scavenger.scheduler.cycles import cyclic_step_time, speed_loss, steps_in_cycle
from scavenger.scheduler.joint import assign
from scavenger.scheduler.packing import repack
from scavenger.scheduler.pool import JobLoad, NodeType, PoolState, Rules


def all_assignments(jobs: list[JobLoad], nodes: int):
    """Every way to put the buckets on nodes, as a list of the buckets' nodes, job by job."""
    return product(range(nodes), repeat=sum(len(load.buckets) for load in jobs))


def outcome(jobs: list[JobLoad], places: tuple[int, ...], cycles_of) -> float:
    """The least possible worst loss of an assignment, infinite if a node is overloaded in each of its cycles."""
    buckets = [(load, bucket) for load in jobs for bucket in load.buckets]
    times = {load.step_time_s for load in jobs}
    worst = 0.0
    for node in set(places):
        here = [each for each, place in zip(buckets, places, strict=True) if place == node]
        alone = {load.step_time_s for load, _ in here}
        losses = [math.inf]
        for cycle in cycles_of(alone, times):
            work = sum(steps_in_cycle(cycle, load.step_time_s) * bucket.execution_s for load, bucket in here)
            if work <= cycle * (1 + 1e-9):
                losses.append(max(speed_loss(cyclic_step_time(cycle, each), each) for each in alone))
        worst = max(worst, min(losses))
    return worst


def autops_cycles(alone: set[float], _times: set[float]) -> set[float]:
    return {max(alone)}


def longer_cycles(alone: set[float], times: set[float]) -> set[float]:
    """Multiples of all step times, which leave room in a cycle, up to twice the longest on the node."""
    longest = max(alone)
    return {
        k * each
        for each in times
        for k in range(1, int(2 * longest / each + 1e-9) + 1)
        if k * each >= longest
    }


small_jobs = st.lists(
    st.tuples(
        st.sampled_from([0.5, 0.7, 1.0, 1.5, 2.0]), st.lists(st.floats(0.05, 0.9), min_size=1, max_size=2)
    ),
    min_size=1,
    max_size=3,
).map(
    lambda cases: [
        job(f"job-{number}", time_s, *(part * time_s for part in parts))
        for number, (time_s, parts) in enumerate(cases)
    ]
)


@examples(12)
@given(small_jobs, st.sampled_from([(1.0, autops_cycles), (2.0, longer_cycles)]))
def test_no_assignment_needs_fewer_nodes(jobs: list[JobLoad], cycles) -> None:
    rules = Rules(cycle_max=cycles[0])
    solution = cheapest(jobs, [NodeType("free", 1.0, 1, 1.0)], rules, nodes_max=3)
    fewest = next(
        (
            nodes
            for nodes in range(1, 4)
            if any(outcome(jobs, each, cycles[1]) <= 0.1 + 1e-9 for each in all_assignments(jobs, nodes))
        ),
        None,
    )

    assert (solution and round(solution.value)) == fewest


@examples(12)
@given(small_jobs, st.integers(1, 2))
def test_no_assignment_has_a_smaller_worst_loss(jobs: list[JobLoad], nodes: int) -> None:
    solution = least_loss(jobs, [NodeType("free", 1.0, 1, 1.0)], Rules(), nodes=nodes)
    least = min(outcome(jobs, each, autops_cycles) for each in all_assignments(jobs, nodes))

    assert (solution.value if solution else math.inf) == pytest.approx(least, abs=1e-6)


@examples(12)
@given(job_lists(jobs_max=3), st.sampled_from([(SMALL,), (SMALL, LARGE)]), st.sampled_from([1.0, 2.0]))
def test_no_scheme_is_cheaper_than_the_best(
    jobs: list[JobLoad], types: tuple[NodeType, ...], cycle_max: float
) -> None:
    rules = Rules(cycle_max=cycle_max)
    pool = PoolState(types, rules)
    for load in jobs:
        pool = assign(pool, load).pool
    packed = repack(pool)
    check_pool(packed)
    used = [load.node.type for load in packed.nodes.values() if load.tenants]
    price = sum(type_.price_usd_per_hour for type_ in used)
    solution = cheapest(jobs, types, rules, nodes_max=int(price / SMALL.price_usd_per_hour + 1e-6))

    assert solution is not None
    assert solution.value <= price + 1e-6
    assert price <= pool.price_usd_per_hour + 1e-9


def test_a_solution_names_its_nodes() -> None:
    solution = cheapest([job("a", 1.0, 0.6, 0.6), job("b", 1.0, 0.4)], [SMALL], Rules(), nodes_max=3)

    assert solution is not None
    assert solution.proven
    assert [cycle for _, cycle in solution.nodes] == [1.0, 1.0]
    first, second = solution.assignments
    assert first[0] != first[1]
    assert second[0] in first
