"""What follows when a process of a job ends: the supervisor's state machine, event by event and at random."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.recovery import (
    DEATHS_MAX,
    DEATHS_WITHIN_S,
    AggregatorEnded,
    Closing,
    CodeEnded,
    ConfirmRollBack,
    CoordinatorEnded,
    EndAggregator,
    Event,
    Leads,
    Lost,
    PartHeld,
    PartsDiffer,
    Recovered,
    Recovery,
    RecoveryPhase,
    Refused,
    RollBack,
    RolledBack,
    StartAggregator,
    StartCoordinator,
    Status,
    TooManyDeaths,
    worker_ended,
)

A, B = "aggregator-0", "aggregator-1"


def held(*names: str, step: int = 0) -> Recovery:
    recovery = Recovery((A, B))
    for name in names:
        assert recovery.handle(PartHeld(name, step, 0.0)) == []
    return recovery


def test_another_aggregator_takes_the_place_of_one_that_ended_and_its_recovery_is_told_once() -> None:
    recovery = held(A, B)

    assert recovery.handle(AggregatorEnded(A, "was killed", 10.0)) == [StartAggregator(A)]
    assert recovery.handle(PartHeld(A, 7, 12.0)) == [Recovered(A, "was killed", 2.0)]
    assert recovery.handle(PartHeld(A, 7, 13.0)) == []
    assert recovery.held == (0, 1)


def test_the_next_coordinator_has_a_higher_token_and_one_that_was_replaced_is_not_missed() -> None:
    recovery = held()

    assert recovery.handle(CoordinatorEnded(1, "was silent", 10.0)) == [StartCoordinator(2)]
    assert recovery.handle(CoordinatorEnded(1, "was killed", 11.0)) == []
    assert recovery.handle(Leads("coordinator-2", 13.0)) == [Recovered("coordinator-2", "was silent", 3.0)]
    assert recovery.handle(Leads("coordinator-2", 14.0)) == []


def test_what_dies_again_and_again_within_a_minute_ends_the_job() -> None:
    recovery = held()
    for _ in range(DEATHS_MAX):
        assert recovery.handle(AggregatorEnded(A, "crashed", 100.0)) == [StartAggregator(A)]
    assert recovery.handle(AggregatorEnded(B, "crashed", 100.0)) == [StartAggregator(B)]

    assert recovery.handle(AggregatorEnded(A, "crashed", 100.0)) == [
        TooManyDeaths(A, "crashed", DEATHS_MAX + 1)
    ]


def test_deaths_that_lie_further_apart_end_nothing() -> None:
    recovery = held()
    for index in range(20):
        at_s = index * (DEATHS_WITHIN_S / DEATHS_MAX + 1.0)
        assert recovery.handle(AggregatorEnded(A, "was killed", at_s)) == [StartAggregator(A)]


def test_what_is_ended_for_a_roll_back_counts_as_no_death() -> None:
    recovery = held(A, B)
    for _ in range(20):
        recovery.handle(RollBack("a part was lost", (A, B), 1.0))
        for name in (A, B):
            assert recovery.handle(AggregatorEnded(name, "was ended", 1.0)) == [StartAggregator(name)]


def test_a_roll_back_is_over_once_every_aggregator_has_begun_again() -> None:
    recovery = held(A, B, step=9)
    recovery.handle(AggregatorEnded(B, "was lost with its memory", 10.0))

    assert recovery.handle(RollBack("a part was lost", (A,), 11.0)) == [
        EndAggregator(A, "a part was lost"),
        ConfirmRollBack(),
    ]
    assert (recovery.phase, recovery.held, recovery.rewinding) == (RecoveryPhase.ROLLING_BACK, (), (0, 1))
    # what the process said that was ended counts no more
    assert recovery.handle(PartHeld(A, 9, 11.0)) == []
    assert recovery.held == ()
    for name in (A, B):
        recovery.handle(AggregatorEnded(name, "was ended", 12.0))
    assert recovery.handle(PartHeld(B, 4, 13.0)) == [Recovered(B, "was ended", 1.0)]
    assert recovery.rewinding == (0,), "the other one holds its part again"
    assert recovery.handle(PartHeld(A, 4, 14.0)) == [
        Recovered(A, "was ended", 2.0),
        RolledBack(4, "a part was lost", 3.0),
    ]
    assert (recovery.phase, recovery.held, recovery.rewinding) == (RecoveryPhase.RUNNING, (0, 1), ())


def test_parts_that_begin_after_different_steps_are_no_model() -> None:
    recovery = held(A, B)
    recovery.handle(RollBack("a part was lost", (A, B), 1.0))
    for name in (A, B):
        recovery.handle(AggregatorEnded(name, "was ended", 2.0))
    recovery.handle(PartHeld(A, 4, 3.0))

    assert PartsDiffer((4, 5)) in recovery.handle(PartHeld(B, 5, 3.0))


@pytest.mark.parametrize(
    ("status", "by_itself", "refused", "expected"),
    [
        (Status.STARTING, False, "no room", [Refused("w0", "no room")]),
        (Status.LEAVING, True, "", []),
        (Status.EXPELLED, True, "", [Lost("w0", "ended")]),
        (Status.FAILED, True, "", [Lost("w0", "ended")]),
        (Status.READY, False, "", [Lost("w0", "ended")]),
        (Status.READY, True, "", [Lost("w0", "ended"), CodeEnded("w0", "ended")]),
    ],
)
def test_what_follows_when_a_worker_ends(
    status: Status, by_itself: bool, refused: str, expected: list[object]
) -> None:
    assert (
        worker_ended("w0", status, "ended", by_itself=by_itself, crashed=False, ready=True, refused=refused)
        == expected
    )


_EVENTS = st.one_of(
    st.builds(CoordinatorEnded, st.integers(1, 5), st.just("died"), st.just(0.0)),
    st.builds(AggregatorEnded, st.sampled_from([A, B]), st.just("died"), st.just(0.0)),
    st.builds(PartHeld, st.sampled_from([A, B]), st.integers(0, 3), st.just(0.0)),
    st.builds(RollBack, st.just("lost"), st.lists(st.sampled_from([A, B]), unique=True), st.just(0.0)),
    st.builds(Leads, st.just("coordinator"), st.just(0.0)),
    st.sampled_from([Closing()]),
)


@given(events=st.lists(_EVENTS, max_size=40))
def test_whatever_happens_when_nothing_is_started_twice_and_nothing_at_all_once_the_job_closes(
    events: list[Event],
) -> None:
    recovery, tokens = Recovery((A, B)), [1]
    for number, event in enumerate(events):
        closed = recovery.phase is RecoveryPhase.CLOSED
        actions = recovery.handle(event)
        assert not (closed and actions), f"event {number} of a job that is closed led to {actions}"
        starts = [action for action in actions if isinstance(action, StartCoordinator | StartAggregator)]
        assert len(starts) <= 1
        for action in starts:
            match action:
                case StartCoordinator():
                    assert isinstance(event, CoordinatorEnded)
                    assert event.token == tokens[-1], "only the newest one is replaced"
                    tokens.append(action.token)
                case StartAggregator():
                    assert isinstance(event, AggregatorEnded)
                    assert event.name == action.name
        assert not set(recovery.held) & set(recovery.rewinding)
        assert bool(recovery.rewinding) <= (recovery.phase is not RecoveryPhase.RUNNING)
        if any(isinstance(action, RolledBack) for action in actions):
            assert recovery.held == (0, 1), "the job goes on with a part that nobody holds"
    assert tokens == sorted(set(tokens))
