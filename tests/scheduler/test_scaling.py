"""Scaling of a shared pool: what each event leads to, and the laws over any series of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scheduler_cases import GB, LARGE, SMALL, check_pool, job, job_lists

from scavenger.scheduler import events as ev
from scavenger.scheduler.pool import JobLoad, PoolState, Rules
from scavenger.scheduler.scaling import Decided, ScalingRules, SharedPool, decide


class World:
    """Nodes and jobs as the actions leave them."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.places: dict[str, list[str]] = {}

    def lose(self, node: str) -> None:
        """A node dies."""
        self.nodes.discard(node)
        for places in self.places.values():
            places[:] = [None if place == node else place for place in places]

    def leave(self, name: str) -> None:
        """A job ends."""
        self.places.pop(name, None)

    def act(self, action: ev.Action) -> None:
        """Carry out an action, which must be possible."""
        match action:
            case ev.StartNode(node):
                assert node.name not in self.nodes
                self.nodes.add(node.name)
            case ev.EndNode(node):
                assert all(node not in places for places in self.places.values())
                self.nodes.remove(node)
            case ev.PlaceJob(name, nodes):
                self.places[name] = list(nodes)
            case ev.MoveBucket(name, bucket, source, target):
                assert self.places[name][bucket] == source
                assert {source, target} <= self.nodes
                self.places[name][bucket] = target


def after(state: SharedPool, *events: ev.Event) -> SharedPool:
    """The state after these events."""
    for event in events:
        state = decide(state, event).state
    return state


def pool(*, nodes_max: int | None = None, loss_limit: float = 0.1, **rules: int) -> SharedPool:
    """An empty pool of small nodes."""
    return SharedPool(
        PoolState((SMALL,), Rules(loss_limit=loss_limit, nodes_max=nodes_max)), ScalingRules(**rules)
    )


def two_on_a_node() -> SharedPool:
    """Jobs a and b on one node, both measured within the limit; then c beside them."""
    state = after(pool(), ev.JobArrived(job("a", 1.0, 0.2)), ev.JobArrived(job("b", 1.0, 0.2)))
    state = after(state, ev.StepTimeMeasured("a", 1.0), ev.StepTimeMeasured("b", 1.05))
    assert state.trials == ()
    return after(state, ev.JobArrived(job("c", 1.0, 0.2)))


@st.composite
def event_lists(draw: st.DrawFn) -> list[ev.Event]:
    loads = draw(job_lists())
    names = st.sampled_from([load.name for load in loads])
    nodes = st.integers(0, 8).map(lambda number: f"node-{number}")
    events = st.one_of(
        st.sampled_from(loads).map(ev.JobArrived),
        st.sampled_from(loads).map(ev.JobArrived),
        names.map(ev.JobLeft),
        st.builds(ev.StepTimeMeasured, names, st.floats(0.1, 5.0)),
        st.just(ev.PeriodEnded()),
        nodes.map(ev.DrainNode),
        nodes.map(ev.NodeLost),
    )
    return draw(st.lists(events, min_size=1, max_size=15))


@examples(40)
@given(
    event_lists(),
    st.sampled_from([None, 1, 2, 3]),
    st.builds(
        ScalingRules,
        starts_min=st.integers(1, 2),
        spare_nodes=st.integers(0, 1),
        moves_max=st.sampled_from([0, 3, 1000]),
    ),
    st.sampled_from([(SMALL,), (LARGE, SMALL)]),
    st.sampled_from([1.0, 4.0]),
)
def test_actions_lead_to_the_state_and_the_rules_hold_after_every_event(
    events: list[ev.Event], nodes_max: int | None, rules: ScalingRules, types: tuple, cycle_max: float
) -> None:
    state = SharedPool(PoolState(types, Rules(nodes_max=nodes_max, cycle_max=cycle_max)), rules)
    world, asked = World(), set()
    for event in events:
        match event:
            case ev.NodeLost(node):
                world.lose(node)
            case ev.JobLeft(name):
                world.leave(name)
                asked.discard(name)
            case ev.JobArrived(load):
                asked.add(load.name)
        decided = decide(state, event)
        state = decided.state
        for load in state.waiting:  # its aggregators are its own until it is placed
            world.leave(load.name)
        for action in decided.actions:
            world.act(action)
        assert decided.reason
        assert world.nodes == set(state.pool.nodes)
        assert {name: tuple(places) for name, places in world.places.items()} == {
            name: placed.nodes for name, placed in state.pool.jobs.items()
        }
        assert {load.name for load in state.waiting} | set(world.places) == asked
        check_pool(state.pool)
        assert nodes_max is None or len(state.pool.nodes) <= nodes_max
        assert sum(not load.tenants for load in state.pool.nodes.values()) <= rules.spare_nodes
        for name in state.pool.jobs:
            assert state.pool.neighbours(name).isdisjoint(state.pool.apart.get(name, frozenset()))


def test_a_first_job_starts_a_node_and_is_placed_there() -> None:
    decided = decide(pool(), ev.JobArrived(job("a", 1.0, 0.2, 0.1)))

    (start, place) = decided.actions
    assert isinstance(start, ev.StartNode)
    assert place == ev.PlaceJob("a", ("node-0", "node-0"))


def test_the_last_jobs_exit_ends_its_node() -> None:
    state = after(pool(), ev.JobArrived(job("a", 1.0, 0.2)))

    assert decide(state, ev.JobLeft("a")).actions == (ev.EndNode("node-0"),)
    spared = after(pool(spare_nodes=1), ev.JobArrived(job("a", 1.0, 0.2)))
    assert decide(spared, ev.JobLeft("a")).actions == ()


def test_on_exit_the_least_loaded_node_is_emptied_onto_the_others() -> None:
    state = after(
        pool(),
        ev.JobArrived(job("a", 1.0, 0.7)),
        ev.JobArrived(job("b", 1.0, 0.6)),
        ev.JobArrived(job("c", 1.0, 0.3)),
    )
    assert len(state.pool.nodes) == 2
    assert state.pool.jobs["c"].nodes == state.pool.jobs["a"].nodes

    decided = decide(state, ev.JobLeft("a"))
    assert decided.actions == (ev.MoveBucket("c", 0, "node-0", "node-1", "pack"), ev.EndNode("node-0"))
    assert decided.state.pool.nodes["node-1"].cycle_s == 1.0


def test_too_many_moves_are_not_made() -> None:
    arrivals = [ev.JobArrived(job(name, 1.0, work)) for name, work in (("a", 0.7), ("b", 0.6), ("c", 0.3))]
    state = after(pool(moves_max=0), *arrivals)

    assert decide(state, ev.JobLeft("a")).actions == ()


def test_on_arrival_jobs_are_moved_together_before_a_node_is_started() -> None:
    state = pool()
    for name, work in (("a", 0.4), ("b", 0.4), ("c", 0.5), ("d", 0.1)):
        state = after(state, ev.JobArrived(job(name, 1.0, work)))
    assert len(state.pool.nodes) == 2

    decided = decide(state, ev.JobArrived(job("e", 1.0, 0.6)))
    assert len(decided.state.pool.nodes) == 2
    assert not any(isinstance(action, ev.StartNode) for action in decided.actions)
    assert any(isinstance(action, ev.MoveBucket) for action in decided.actions)


def test_too_small_a_demand_waits_for_the_period() -> None:
    state = pool(starts_min=2)
    first = decide(state, ev.JobArrived(job("a", 1.0, 0.9)))
    assert first.actions == ()

    second = decide(first.state, ev.JobArrived(job("b", 1.0, 0.9)))
    assert [type(action) for action in second.actions] == [
        ev.StartNode,
        ev.StartNode,
        ev.PlaceJob,
        ev.PlaceJob,
    ]

    period = decide(first.state, ev.PeriodEnded())
    assert [type(action) for action in period.actions] == [ev.StartNode, ev.PlaceJob]


def test_a_newcomer_that_slows_another_job_down_leaves_it_and_never_comes_back() -> None:
    state = two_on_a_node()
    decided = decide(state, ev.StepTimeMeasured("a", 1.3))

    assert [type(action) for action in decided.actions] == [ev.StartNode, ev.MoveBucket]
    assert decided.actions[1] == ev.MoveBucket("c", 0, "node-0", "node-1", "revert")
    assert decided.state.pool.jobs["b"].nodes == ("node-0",)
    later = after(decided.state, ev.StepTimeMeasured("a", 1.0), ev.PeriodEnded(), ev.PeriodEnded())
    assert later.pool.jobs["c"].nodes != later.pool.jobs["a"].nodes


def test_who_has_left_is_not_kept_apart_any_more() -> None:
    state = after(two_on_a_node(), ev.StepTimeMeasured("a", 1.3))
    assert set(state.pool.apart) == {"a", "c"}

    assert after(state, ev.JobLeft("a")).pool.apart == {}


def test_a_newcomer_that_is_slow_itself_gets_a_node_of_its_own() -> None:
    decided = decide(two_on_a_node(), ev.StepTimeMeasured("c", 1.3))

    assert decided.actions[1] == ev.MoveBucket("c", 0, "node-0", "node-1", "revert")


def test_a_newcomer_that_is_slow_beside_others_that_came_with_it_leaves_all_of_them() -> None:
    state = pool(starts_min=2)
    big = (job("x", 1.0, 0.7), job("y", 1.0, 0.7))
    state = after(state, *map(ev.JobArrived, (job("a", 1.0, 0.3), *big)))
    assert state.pool.jobs["a"].nodes == state.pool.jobs["x"].nodes
    assert {"a", "x"} <= state.trials[-1].moved

    decided = decide(state, ev.StepTimeMeasured("a", 1.3))
    assert [action.job for action in decided.actions if isinstance(action, ev.MoveBucket)] == ["a"]


def test_a_job_that_grows_slow_later_leaves_its_neighbours() -> None:
    state = after(
        two_on_a_node(),
        ev.StepTimeMeasured("a", 1.0),
        ev.StepTimeMeasured("b", 1.0),
        ev.StepTimeMeasured("c", 1.0),
    )
    decided = decide(state, ev.StepTimeMeasured("b", 1.5))

    assert decided.actions[1] == ev.MoveBucket("b", 0, "node-0", "node-1", "revert")


def test_a_job_that_is_slow_without_sharing_is_measured_so() -> None:
    state = after(pool(), ev.JobArrived(job("a", 1.0, 0.2)))
    decided = decide(state, ev.StepTimeMeasured("a", 2.0))

    assert decided.actions == ()
    assert decided.state.pool.jobs["a"].load.step_time_s == 2.0
    assert decided.state.pool.nodes["node-0"].cycle_s == 2.0


def test_measuring_every_job_confirms_a_change() -> None:
    state = two_on_a_node()
    assert state.trials[-1].awaited == {"a", "b", "c"}

    state = after(state, ev.StepTimeMeasured("a", 1.0), ev.StepTimeMeasured("c", 1.11))
    assert state.trials[-1].awaited == {"b"}
    assert after(state, ev.StepTimeMeasured("b", 1.0)).trials == ()


def test_a_drained_nodes_buckets_move_and_it_ends() -> None:
    state = after(pool(), ev.JobArrived(job("a", 1.0, 0.4, 0.4)), ev.JobArrived(job("b", 1.0, 0.5)))
    decided = decide(state, ev.DrainNode("node-0"))

    assert decided.actions[-1] == ev.EndNode("node-0")
    assert "node-0" not in decided.state.pool.nodes
    assert {action.why for action in decided.actions if isinstance(action, ev.MoveBucket)} == {"drain"}


def test_where_no_node_may_be_started_a_drained_job_runs_alone() -> None:
    state = after(pool(nodes_max=1), ev.JobArrived(job("a", 1.0, 0.9)))
    full = replace(state, pool=replace(state.pool, types=()))

    decided = decide(full, ev.DrainNode("node-0"))
    assert decided.actions == (ev.EndNode("node-0"),)
    assert [load.name for load in decided.state.waiting] == ["a"]


def test_what_a_lost_node_held_is_placed_again() -> None:
    state = after(pool(), ev.JobArrived(job("a", 1.0, 0.4, 0.4)))
    decided = decide(state, ev.NodeLost("node-0"))

    assert [type(action) for action in decided.actions] == [ev.StartNode, ev.PlaceJob]


@pytest.mark.parametrize(
    "event", [ev.StepTimeMeasured("x", 1.0), ev.DrainNode("x"), ev.NodeLost("x"), ev.JobLeft("x")]
)
def test_events_that_crossed_another_change_nothing(event: ev.Event) -> None:
    state = two_on_a_node()
    decided = decide(state, event)

    assert isinstance(decided, Decided)
    assert (decided.actions, decided.state) == ((), state)


def test_a_job_that_was_measured_again_stays_if_it_fits() -> None:
    state = two_on_a_node()
    assert decide(state, ev.JobArrived(job("a", 1.0, 0.3))).actions == ()

    decided = decide(
        state, ev.JobArrived(JobLoad("a", 1.0, job("a", 1.0, 0.3, memory_bytes=8 * GB).buckets * 2))
    )
    assert decided.actions[-1] == ev.PlaceJob("a", ("node-0", "node-1"))
