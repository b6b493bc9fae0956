"""How many nodes a pool rents, as values: for whom, how many at most, and when they are given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.train.pool.growth import Growth, RentalLimits, RentedSeen, grow, missing_nodes
from scavenger.train.pool.measuring import MeasuredSteps
from scavenger.train.pool.placement import Node
from scavenger.train.pool.planning import PoolPlan

GIB = 1 << 30
OFFERED = Node("", (0, 1), 4 * GIB, 2, "aws/us-east-1", "c5.large", 0.085)
LIMITS = RentalLimits(3, 60.0)


def rented(number: int) -> Node:
    return Node(f"rented-{number}", (0, 1), 4 * GIB, 2, "aws/us-east-1", "192.0.2.1", 0.085)


def plan_of(nodes: int) -> PoolPlan:
    return PoolPlan.of([rented(number) for number in range(nodes)])


def arrived(plan: PoolPlan, *tenants: tuple[str, str]) -> PoolPlan:
    for job, name in tenants:
        found = plan.with_tenant(job, name, {})
        assert found is not None
        plan = found
    return plan


def measured(plan: PoolPlan, job: str, step_time_s: float, execution_s: float) -> PoolPlan:
    return plan.after_steps(job, None, MeasuredSteps(step_time_s, {"aggregator-1": execution_s}, 0.0))[0]


def test_nothing_is_rented_for_nobody() -> None:
    assert missing_nodes(plan_of(0), {}, OFFERED) == (0, "")
    assert missing_nodes(arrived(plan_of(1), ("a", "x")), {}, OFFERED) == (0, "")


@given(
    nodes=st.integers(0, 3),
    jobs=st.lists(st.integers(1, 5), max_size=6),
    coming=st.integers(0, 2),
)
def test_as_many_nodes_are_missing_as_hold_all_that_wait_and_no_more(
    nodes: int, jobs: list[int], coming: int
) -> None:
    plan, waiting = plan_of(nodes), {}
    for number, tenants in enumerate(jobs):
        for index in range(tenants):
            found = plan.with_tenant(f"job-{number}", f"aggregator-{index}", {})
            if found is None:
                waiting[f"job-{number}"] = waiting.get(f"job-{number}", 0) + 1
            plan = found or plan

    count, why = missing_nodes(plan, waiting, OFFERED, coming=coming)

    assert count == max(0, -(-sum(waiting.values()) // OFFERED.tenants_max) - coming)
    assert bool(why) == (count > 0)
    for number in range(count + coming):
        plan = plan.with_node(rented(100 + number))
    for job, tenants in waiting.items():
        plan = arrived(plan, *((job, f"late-{index}") for index in range(tenants)))


def test_what_sequences_a_jobs_steps_needs_a_node_but_no_room_there() -> None:
    assert missing_nodes(plan_of(0), {"a": 0}, OFFERED)[0] == 1
    assert missing_nodes(plan_of(0), {"a": 0}, OFFERED, coming=1)[0] == 0
    assert missing_nodes(plan_of(0), {"a": 0, "b": 2}, OFFERED)[0] == 1


def test_a_node_is_rented_for_a_job_that_the_rules_give_more_room_than_there_is() -> None:
    plan = arrived(plan_of(1), ("a", "aggregator-1"), ("b", "aggregator-1"))
    plan = measured(measured(plan, "a", 0.1, 0.09), "b", 0.1, 0.09)
    assert set(plan.cramped) == {"a", "b"}

    count, why = missing_nodes(plan, {}, OFFERED, cramped=plan.cramped)
    assert (count, why) == (1, "job a has too little room")
    assert missing_nodes(plan, {}, OFFERED, coming=1, cramped=plan.cramped)[0] == 0

    grown = plan.with_node(rented(7))
    assert grown.cramped == ()
    assert len(grown.in_use) == 2


def test_a_job_that_loses_too_much_beside_another_is_parted_once_there_is_another_node() -> None:
    plan = arrived(plan_of(1), ("a", "aggregator-1"), ("b", "aggregator-1"))
    plan = measured(measured(plan, "a", 0.1, 0.01), "b", 0.1, 0.01)
    slow = MeasuredSteps(0.15, {"aggregator-1": 0.014}, 0.05)
    plan = plan.after_steps("b", MeasuredSteps(0.1, {"aggregator-1": 0.01}, 0.0), slow)[0]
    assert set(plan.cramped) == {"a", "b"}
    assert missing_nodes(plan, {}, OFFERED, cramped=plan.cramped)[0] == 1

    grown = plan.with_node(rented(7))

    assert grown.neighbours("b") == frozenset()
    assert grown.period().neighbours("b") == frozenset(), "and packing does not bring them together again"


def test_a_job_that_fits_on_no_such_node_either_rents_none() -> None:
    plan = measured(arrived(plan_of(1), ("a", "aggregator-1")), "a", 0.1, 0.1)
    plan = measured(arrived(plan, ("b", "aggregator-1")), "b", 0.1, 0.1)
    weak = Node("", (0,), 4 * GIB, 2, "aws/us-east-1", "tiny", 0.01)

    assert missing_nodes(plan, {}, weak, cramped=plan.cramped) == (0, "")


def test_a_node_that_has_to_go_is_replaced_if_the_others_have_no_room() -> None:
    plan = arrived(plan_of(2), ("a", "x"), ("a", "y"), ("b", "x"))
    on_one = next(name for name in plan.nodes if plan.tenants_on(name) == 1)
    full = next(name for name in plan.nodes if plan.tenants_on(name) == 2)

    assert missing_nodes(plan, {}, OFFERED, leaving=[on_one])[0] in (0, 1)
    assert missing_nodes(plan, {}, OFFERED, leaving=[full])[0] == 1


def test_no_more_nodes_are_rented_than_may_be() -> None:
    here = [RentedSeen("rented-1"), RentedSeen("rented-2", coming=True)]

    assert grow((5, "job a waits"), here, LIMITS) == Growth(1, reason="job a waits")
    full = grow((1, "job a waits"), [*here, RentedSeen("rented-3")], LIMITS)
    assert (full.starts, full.ends) == (0, ())
    assert "3 rented nodes are the most" in full.reason


def test_a_node_ends_when_nobody_has_used_it_for_a_while_and_a_drained_one_at_once() -> None:
    seen = [
        RentedSeen("used"),
        RentedSeen("idle", idle_s=60.0),
        RentedSeen("spare", idle_s=59.0),
        RentedSeen("drained", drained=True, idle_s=0.0),
        RentedSeen("leaving", drained=True),
        RentedSeen("late", coming=True, idle_s=61.0),
        RentedSeen("on its way", coming=True, idle_s=5.0),
        RentedSeen("sequences", idle_s=61.0, sequences=True),
    ]

    growth = grow((0, ""), seen, RentalLimits(9, 60.0))

    assert growth.ends == ("idle", "drained", "late")
    assert growth.drains == ("sequences",)
    assert growth.starts == 0


@given(
    number=st.integers(0, 20),
    idle=st.lists(st.one_of(st.none(), st.floats(0.0, 200.0)), max_size=3),
)
def test_whatever_is_missing_there_are_never_more_nodes_than_may_be(
    number: int, idle: list[float | None]
) -> None:
    seen = [RentedSeen(f"rented-{index}", idle_s=each) for index, each in enumerate(idle)]

    growth = grow((number, "they wait"), seen, LIMITS)

    assert len(seen) - len(growth.ends) + growth.starts <= LIMITS.nodes_max
    assert growth.starts >= 0


def test_limits_that_allow_nothing_are_refused() -> None:
    for nodes_max, idle_s in ((0, 60.0), (1, -1.0), (1, float("nan"))):
        with pytest.raises(ValueError, match="no node can be rented"):
            RentalLimits(nodes_max, idle_s)
