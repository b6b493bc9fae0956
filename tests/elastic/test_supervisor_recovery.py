"""What follows when a process of a job ends: the supervisor's state machine, event by event and at random."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic import recovery as r

A, B = "aggregator-0", "aggregator-1"


def held(*names: str, step: int = 0) -> r.Recovery:
    recovery = r.Recovery((A, B))
    for name in names:
        assert recovery.handle(r.PartHeld(name, step, 0.0)) == []
    return recovery


def test_another_aggregator_takes_the_place_of_one_that_ended_and_its_recovery_is_told_once() -> None:
    recovery = held(A, B)

    assert recovery.handle(r.AggregatorEnded(A, "was killed", 10.0)) == [r.StartAggregator(A)]
    assert recovery.handle(r.PartHeld(A, 7, 12.0)) == [r.Recovered(A, "was killed", 2.0)]
    assert recovery.handle(r.PartHeld(A, 7, 13.0)) == []
    assert recovery.held == (0, 1)


def test_the_next_coordinator_has_a_higher_token_and_one_that_was_replaced_is_not_missed() -> None:
    recovery = held()

    assert recovery.handle(r.CoordinatorEnded(1, "was silent", 10.0)) == [r.StartCoordinator(2)]
    assert recovery.handle(r.CoordinatorEnded(1, "was killed", 11.0)) == []
    assert recovery.handle(r.Leads("coordinator-2", 13.0)) == [
        r.Recovered("coordinator-2", "was silent", 3.0)
    ]
    assert recovery.handle(r.Leads("coordinator-2", 14.0)) == []


def test_what_dies_again_and_again_within_a_minute_ends_the_job() -> None:
    recovery = held()
    for _ in range(r.DEATHS_MAX):
        assert recovery.handle(r.AggregatorEnded(A, "crashed", 100.0)) == [r.StartAggregator(A)]
    assert recovery.handle(r.AggregatorEnded(B, "crashed", 100.0)) == [r.StartAggregator(B)]

    assert recovery.handle(r.AggregatorEnded(A, "crashed", 100.0)) == [
        r.TooManyDeaths(A, "crashed", r.DEATHS_MAX + 1)
    ]


def test_deaths_that_lie_further_apart_end_nothing() -> None:
    recovery = held()
    for index in range(20):
        at_s = index * (r.DEATHS_WITHIN_S / r.DEATHS_MAX + 1.0)
        assert recovery.handle(r.AggregatorEnded(A, "was killed", at_s)) == [r.StartAggregator(A)]


def test_what_is_ended_for_a_roll_back_counts_as_no_death() -> None:
    recovery = held(A, B)
    for _ in range(20):
        recovery.handle(r.RollBack("a part was lost", (A, B), 1.0))
        for name in (A, B):
            assert recovery.handle(r.AggregatorEnded(name, "was ended", 1.0)) == [r.StartAggregator(name)]


def test_a_roll_back_is_over_once_every_aggregator_has_begun_again() -> None:
    recovery = held(A, B, step=9)
    recovery.handle(r.AggregatorEnded(B, "was lost with its memory", 10.0))

    assert recovery.handle(r.RollBack("a part was lost", (A,), 11.0)) == [
        r.EndAggregator(A, "a part was lost"),
        r.ConfirmRollBack(),
    ]
    assert (recovery.phase, recovery.held, recovery.rewinding) == (r.RecoveryPhase.ROLLING_BACK, (), (0, 1))
    # what the process said that was ended counts no more
    assert recovery.handle(r.PartHeld(A, 9, 11.0)) == []
    assert recovery.held == ()
    for name in (A, B):
        recovery.handle(r.AggregatorEnded(name, "was ended", 12.0))
    assert recovery.handle(r.PartHeld(B, 4, 13.0)) == [r.Recovered(B, "was ended", 1.0)]
    assert recovery.rewinding == (0,), "the other one holds its part again"
    assert recovery.handle(r.PartHeld(A, 4, 14.0)) == [
        r.Recovered(A, "was ended", 2.0),
        r.RolledBack(4, "a part was lost", 3.0),
    ]
    assert (recovery.phase, recovery.held, recovery.rewinding) == (r.RecoveryPhase.RUNNING, (0, 1), ())


def test_parts_that_begin_after_different_steps_are_no_model() -> None:
    recovery = held(A, B)
    recovery.handle(r.RollBack("a part was lost", (A, B), 1.0))
    for name in (A, B):
        recovery.handle(r.AggregatorEnded(name, "was ended", 2.0))
    recovery.handle(r.PartHeld(A, 4, 3.0))

    assert r.PartsDiffer((4, 5)) in recovery.handle(r.PartHeld(B, 5, 3.0))


@pytest.mark.parametrize(
    ("status", "by_itself", "refused", "expected"),
    [
        (r.Status.STARTING, False, "no room", [r.Refused("w0", "no room")]),
        (r.Status.LEAVING, True, "", []),
        (r.Status.EXPELLED, True, "", [r.Lost("w0", "ended")]),
        (r.Status.FAILED, True, "", [r.Lost("w0", "ended")]),
        (r.Status.READY, False, "", [r.Lost("w0", "ended")]),
        (r.Status.READY, True, "", [r.Lost("w0", "ended"), r.CodeEnded("w0", "ended")]),
    ],
)
def test_what_follows_when_a_worker_ends(
    status: r.Status, by_itself: bool, refused: str, expected: list[object]
) -> None:
    assert (
        r.worker_ended("w0", status, "ended", by_itself=by_itself, crashed=False, ready=True, refused=refused)
        == expected
    )


_EVENTS = st.one_of(
    st.builds(r.CoordinatorEnded, st.integers(1, 5), st.just("died"), st.just(0.0)),
    st.builds(r.AggregatorEnded, st.sampled_from([A, B]), st.just("died"), st.just(0.0)),
    st.builds(r.PartHeld, st.sampled_from([A, B]), st.integers(0, 3), st.just(0.0)),
    st.builds(r.RollBack, st.just("lost"), st.lists(st.sampled_from([A, B]), unique=True), st.just(0.0)),
    st.builds(r.Leads, st.just("coordinator"), st.just(0.0)),
    st.sampled_from([r.Closing()]),
)


@given(events=st.lists(_EVENTS, max_size=40))
def test_whatever_happens_when_nothing_is_started_twice_and_nothing_at_all_once_the_job_closes(
    events: list[r.Event],
) -> None:
    recovery, tokens = r.Recovery((A, B)), [1]
    for number, event in enumerate(events):
        closed = recovery.phase is r.RecoveryPhase.CLOSED
        actions = recovery.handle(event)
        assert not (closed and actions), f"event {number} of a job that is closed led to {actions}"
        starts = [action for action in actions if isinstance(action, r.StartCoordinator | r.StartAggregator)]
        assert len(starts) <= 1
        for action in starts:
            match action:
                case r.StartCoordinator():
                    assert isinstance(event, r.CoordinatorEnded)
                    assert event.token == tokens[-1], "only the newest one is replaced"
                    tokens.append(action.token)
                case r.StartAggregator():
                    assert isinstance(event, r.AggregatorEnded)
                    assert event.name == action.name
        assert not set(recovery.held) & set(recovery.rewinding)
        assert bool(recovery.rewinding) <= (recovery.phase is not r.RecoveryPhase.RUNNING)
        if any(isinstance(action, r.RolledBack) for action in actions):
            assert recovery.held == (0, 1), "the job goes on with a part that nobody holds"
    assert tokens == sorted(set(tokens))
