"""Which node each aggregator of a pool is on, as values: by what was measured, packed, parted, drained."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.train.pool.measuring import STEPS_MAX, JobMeter, MeasuredSteps, TenantUsage, charged_step_time
from scavenger.train.pool.placement import Node
from scavenger.train.pool.planning import PoolPlan, TenantMove, moves, touched

GIB = 1 << 30


def plan_of(nodes: int, *, tenants_max: int = 4) -> PoolPlan:
    return PoolPlan.of([Node(f"node-{i}", (i,), GIB, tenants_max) for i in range(nodes)])


def arrived(plan: PoolPlan, *jobs: str) -> PoolPlan:
    for job in jobs:
        found = plan.with_tenant(job, "aggregator-0", {})
        assert found is not None
        plan = found
    return plan


def measured(step_time_s: float, execution_s: float, waited_s: float = 0.0) -> MeasuredSteps:
    return MeasuredSteps(step_time_s, {"aggregator-0": execution_s}, waited_s)


def after(plan: PoolPlan, job: str, found: MeasuredSteps, alone: MeasuredSteps | None = None) -> PoolPlan:
    return plan.after_steps(job, alone, found)[0]


def where(plan: PoolPlan, *jobs: str) -> list[str]:
    found = [plan.node_of(job, "aggregator-0") for job in jobs]
    return ["" if node is None else node.name for node in found]


def test_jobs_begin_alone_and_are_packed_when_they_were_measured() -> None:
    plan = arrived(plan_of(3), "a", "b", "c")
    assert len(plan.in_use) == 3, "each is measured on a node of its own"

    plan = after(plan, "a", measured(0.1, 0.01))
    assert len(plan.in_use) == 3, "the others are still being measured alone"
    before = plan = after(plan, "b", measured(0.07, 0.01))
    plan = after(plan, "c", measured(0.3, 0.1))

    assert len(set(where(plan, "a", "b", "c"))) == 1
    assert len(plan.in_use) == 1
    assert plan.planned(where(plan, "a")[0]) == pytest.approx(0.1 + 1 / 7 + 1 / 3, rel=0.15)
    assert {move.job for move in moves(before, plan)} <= {"a", "b", "c"}
    assert touched(before, plan) == {"a", "b", "c"}


def test_a_job_that_is_started_again_stays_where_it_was() -> None:
    plan = arrived(plan_of(2), "a", "b")

    assert arrived(plan, "a") == plan


def test_where_every_node_is_taken_a_job_goes_to_the_least_loaded_one() -> None:
    plan = after(after(arrived(plan_of(2), "a", "b"), "a", measured(0.1, 0.05)), "b", measured(0.1, 0.04))

    found = plan.with_tenant("c", "aggregator-0", {where(plan, "a")[0]: 0.5, where(plan, "b")[0]: 0.2})

    assert found is not None
    assert where(found, "c") == where(plan, "b")


def test_a_node_is_not_filled_beyond_what_is_planned_and_a_job_that_needs_more_moves_out() -> None:
    plan = after(after(arrived(plan_of(3), "a", "b"), "a", measured(0.1, 0.02)), "b", measured(0.1, 0.03))
    assert len(plan.in_use) == 1

    grown = after(plan, "b", measured(0.1, 0.05), measured(0.1, 0.03))

    assert len(grown.in_use) == 2
    assert len(after(grown, "b", measured(0.1, 0.02), measured(0.1, 0.05)).in_use) == 1


def test_jobs_that_fit_on_no_node_share_the_nodes_that_there_are() -> None:
    plan = arrived(plan_of(1), "a", "b")

    plan = after(after(plan, "a", measured(0.1, 0.07)), "b", measured(0.1, 0.06))

    assert where(plan, "a", "b") == ["node-0", "node-0"]
    assert plan.shared.waiting == ()


def test_a_job_that_loses_too_much_is_parted_and_not_brought_back() -> None:
    alone = measured(0.1, 0.01)
    plan = after(after(arrived(plan_of(2), "a", "b"), "a", alone), "b", measured(0.1, 0.01))
    assert len(plan.in_use) == 1

    parted = after(plan, "a", measured(0.13, 0.01, waited_s=0.03), alone)

    assert len(parted.in_use) == 2
    assert len(parted.period().in_use) == 2
    assert len(parted.without_job("b").in_use) == 1


def test_a_step_that_is_longer_for_another_reason_parts_nobody() -> None:
    alone = measured(0.1, 0.01, waited_s=0.001)
    plan = after(after(arrived(plan_of(2), "a", "b"), "a", alone), "b", measured(0.1, 0.01))

    assert after(plan, "a", measured(0.2, 0.012, waited_s=0.002), alone).in_use == plan.in_use
    assert charged_step_time(alone, measured(0.2, 0.01, 0.002)) == pytest.approx(0.101)
    assert charged_step_time(alone, measured(0.2, 0.01, 0.5)) == pytest.approx(0.2)
    assert charged_step_time(alone, measured(0.08, 0.01, 0.5)) == pytest.approx(0.08)


def test_a_measurement_without_neighbours_is_the_one_to_compare_with() -> None:
    plan, alone = arrived(plan_of(1), "a").after_steps("a", None, measured(0.1, 0.01))

    plan, alone = plan.after_steps("a", alone, measured(0.15, 0.012))

    assert alone.step_time_s == 0.15
    assert plan.shared.pool.jobs["a"].load.step_time_s == 0.15


def test_a_node_is_drained_and_used_again() -> None:
    plan = arrived(plan_of(2), "a", "b")
    node = where(plan, "a")[0]

    drained = plan.draining(node)

    assert node in drained.drained
    assert where(drained, "a") == where(plan, "b")
    assert [move.job for move in moves(plan, drained)] == ["a"]
    assert drained.draining(node) == drained
    assert arrived(drained, "c").tenants_on(node) == 0
    again = drained.opened(node)
    assert where(arrived(again, "c"), "c") == [node]
    with pytest.raises(KeyError):
        plan.draining("node-7")


def test_a_node_whose_tenants_fit_nowhere_is_not_drained() -> None:
    plan = arrived(plan_of(2, tenants_max=2), "a", "b", "c")
    fuller = max(("node-0", "node-1"), key=plan.tenants_on)

    with pytest.raises(ValueError, match="2 aggregators, and the other nodes have room for 1"):
        plan.draining(fuller)


def test_a_pool_shrinks_when_a_job_leaves_and_forgets_a_tenant_that_was_given_up() -> None:
    plan = arrived(plan_of(2), "a", "b")
    more = plan.with_tenant("b", "aggregator-1", {})
    assert more is not None

    assert more.without_tenant("b", "aggregator-1").tenants == plan.tenants
    assert more.without_tenant("b", "aggregator-0").tenants["b"] == ("aggregator-1",)
    assert where(plan.without_tenant("a", "aggregator-0"), "a", "b") == ["", where(plan, "b")[0]]
    assert plan.without_job("a").in_use == {where(plan, "b")[0]}
    assert plan.without_job("a").without_job("b").in_use == frozenset()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["tenant", "tenant", "steps", "steps", "leave", "give up", "period", "drain", "open"]
        ),
        st.integers(0, 4),
        st.integers(0, 2),
        st.floats(0.01, 1.0),
        st.floats(0.0, 1.2),
        st.floats(0.0, 1.0),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_every_tenant_has_a_place_that_has_room_for_it(
    events: list[tuple[str, int, int, float, float, float]],
) -> None:
    plan, alone, expected = plan_of(3, tenants_max=3), dict[str, MeasuredSteps](), dict[str, set[str]]()
    for what, number, index, step_s, share, waited in events:
        job, tenant, node = f"job-{number}", f"aggregator-{index}", f"node-{index}"
        if what == "tenant":
            found = plan.with_tenant(job, tenant, {})
            assert (found is None) == (plan.free == 0 and tenant not in expected.get(job, ()))
            if found is not None:
                plan = found
                expected.setdefault(job, set()).add(tenant)
        elif what == "steps" and job in expected:
            used = MeasuredSteps(step_s, dict.fromkeys(expected[job], step_s * share), waited * step_s)
            plan, alone[job] = plan.after_steps(job, alone.get(job), used)
        elif what == "leave":
            plan = plan.without_job(job)
            alone.pop(job, None)
            expected.pop(job, None)
        elif what == "give up":
            plan = plan.without_tenant(job, tenant)
            expected.get(job, set()).discard(tenant)
            expected = {name: tenants for name, tenants in expected.items() if tenants}
        elif what == "period":
            plan = plan.period()
        elif what == "drain":
            try:
                plan = plan.draining(node)
            except ValueError:
                assert plan.tenants_on(node) > plan.free - 3 + plan.tenants_on(node)
        elif what == "open":
            plan = plan.opened(node)

        assert {name: set(tenants) for name, tenants in plan.tenants.items()} == expected
        places = [plan.node_of(name, tenant) for name, tenants in expected.items() for tenant in tenants]
        for place in plan.nodes:
            assert plan.tenants_on(place) == sum(at is not None and at.name == place for at in places) <= 3
        assert all(at is not None and at.name not in plan.drained for at in places)
        assert plan.shared.waiting == ()
        assert plan.shared.pool.apart.keys() <= expected.keys()
        assert plan.measuring <= expected.keys()


def test_steps_are_a_measurement_when_they_are_enough() -> None:
    meter = JobMeter()
    assert meter.note(1, [9.0], {"a": TenantUsage(1.0, 1.0)}, 0.0) is None  # only the begin of a window

    assert meter.note(1, [0.1] * 60, {"a": TenantUsage(1.3, 1.0)}, 6.0) is None
    found = meter.note(1, [0.1] * 39 + [5.0], {"a": TenantUsage(2.0, 1.5)}, 7.0)

    assert found == MeasuredSteps(0.1, {"a": pytest.approx(1.0 / STEPS_MAX)}, pytest.approx(0.5 / STEPS_MAX))
    assert meter.note(1, [1.0] * 9, {"a": TenantUsage(2.0, 1.5)}, 16.0) is None
    assert meter.note(1, [1.0] * 2, {"a": TenantUsage(2.1, 1.5)}, 18.0) is not None, "slow steps: by time"


@pytest.mark.parametrize("what", ["another view", "a tenant started again", "another tenant", "a move"])
def test_a_window_begins_again_after(what: str) -> None:
    meter = JobMeter(alone=measured(0.1, 0.01))
    meter.note(1, [], {"a": TenantUsage(1.0, 0.0)}, 0.0)
    meter.alone = measured(0.1, 0.01)
    if what == "a move":
        meter.restart()
    used = {"a": TenantUsage(0.1 if what == "a tenant started again" else 1.1, 0.0)}
    if what == "another tenant":
        used["b"] = TenantUsage(0.0, 0.0)

    assert meter.note(2 if what == "another view" else 1, [0.1] * STEPS_MAX, used, 1.0) is None

    assert (meter.alone is None) == (what == "another view")
    assert meter.note(meter._view, [0.1] * STEPS_MAX, used, 2.0) is not None


def test_a_move_names_the_job_the_tenant_and_the_new_node() -> None:
    plan = arrived(plan_of(2), "a")
    node = where(plan, "a")[0]

    (move,) = moves(plan, plan.draining(node))

    assert (move.job, move.tenant) == ("a", "aggregator-0")
    assert isinstance(move, TenantMove)
    assert move.node.name != node


def test_a_machine_that_joins_takes_what_is_too_much_elsewhere() -> None:
    plan = PoolPlan.of([])
    assert plan.with_tenant("a", "aggregator-1", {}) is None, "no machine has joined"
    plan = plan.with_node(Node("one", (0,), GIB, 4))
    for job, execution_s in (("a", 0.05), ("b", 0.04)):
        plan = after(arrived(plan, job), job, measured(0.1, execution_s))
    assert where(plan, "a", "b") == ["one", "one"]

    wider = plan.with_node(Node("two", (0,), GIB, 4))

    assert wider.in_use == {"one", "two"}
    assert len([*moves(plan, wider)]) == 1


def test_what_was_on_a_node_that_is_lost_has_no_place_and_nobody_else_moves() -> None:
    plan = after(
        after(arrived(plan_of(3), "a", "b", "c"), "a", measured(0.1, 0.05)), "b", measured(0.1, 0.05)
    )
    (lost,) = where(plan, "a")
    others = where(plan, "b", "c")

    left = plan.without_node(lost)

    assert left.node_of("a", "aggregator-0") is None
    assert where(left, "b", "c") == others
    assert lost not in left.nodes
    again = arrived(left, "a")
    assert where(again, "a")[0] in left.nodes
    assert len(again.measuring) == 2, "it is measured again, as c still is"


def test_a_drained_node_that_is_lost_is_forgotten() -> None:
    plan = arrived(plan_of(2), "a")
    (node,) = where(plan, "a")

    gone = plan.draining(node).without_node(node)

    assert gone.drained == frozenset()
    assert len(gone.nodes) == 1
    assert where(gone, "a")[0] in gone.nodes


def test_jobs_do_not_share_a_node_whose_network_does_not_carry_both() -> None:
    for carried, nodes in ((0, 1), (10_000_000, 1), (1_000_000, 2)):
        plan = PoolPlan.of([Node(f"node-{i}", (i,), GIB, 4, bytes_per_s=carried) for i in range(2)])
        plan = arrived(plan, "a", "b")
        for job in ("a", "b"):
            plan = plan.after_steps(job, None, measured(0.1, 0.01), 40_000)[0]

        assert len(plan.in_use) == nodes, "each moves 0.4 MB a second"
