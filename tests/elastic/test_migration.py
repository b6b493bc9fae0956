"""Migrations of buckets: the state machine event by event, and its laws under chaos."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation import World

from scavenger.elastic.barrier import Barrier
from scavenger.elastic.migration import (
    AdoptMap,
    BucketMap,
    Copied,
    Copy,
    Migration,
    MigrationEnded,
    MigrationPhase,
    RequestMigration,
    Take,
    Taken,
    respread,
    spared,
)
from scavenger.elastic.steps import (
    Announce,
    Applied,
    Apply,
    Contribution,
    Expect,
    Formed,
    Halt,
    Instruction,
    Tick,
)
from scavenger.elastic.view import Member

START = BucketMap(0, 0, (0, 0, 1, 1))
MB = 1 << 20


def migration(**more: object) -> Migration:
    machine = Migration(START, aggregators=3, sizes=[4 * MB] * 4, **more)  # type: ignore[arg-type]
    machine.new_view(1)
    return machine


def copied(machine: Migration, step: int) -> BucketMap:
    """Begin a step, and copy what it orders."""
    [copy] = machine.begin(step)
    assert isinstance(copy, Copy)
    adopt, take = machine.handle(Copied(copy.target, copy.number))
    assert isinstance(adopt, AdoptMap)
    assert isinstance(take, Take)
    for aggregator in take.aggregators:
        machine.handle(Taken(aggregator, machine.map.number))
    machine.applied()
    return machine.map


def test_buckets_are_copied_then_released_then_held_by_another() -> None:
    machine = migration()
    assert machine.handle(RequestMigration(1, (0, 2, 2, 1))) == []
    [copy] = machine.begin(7)
    assert copy == Copy((1 << 32) + 1, 7, 2, ((1, 0), (2, 1)))
    assert not machine.holds_up, "nothing waits for a copy"
    assert machine.handle(Copied(1, copy.number)) == [], "of another aggregator"
    assert machine.handle(Copied(2, copy.number - 1)) == [], "of another request"

    after = BucketMap(copy.number, 8, (0, 2, 2, 1))
    assert machine.handle(Copied(2, copy.number)) == [AdoptMap(after, START), Take(after, (0, 1))]
    assert machine.repeat() == [Take(after, (0, 1))]
    machine.handle(Taken(0, copy.number))
    assert machine.holds_up, "the step waits for those that give something up"
    machine.handle(Taken(1, copy.number))
    assert not machine.holds_up
    assert machine.applied() == [MigrationEnded(1, after)]
    assert machine.handle(RequestMigration(1, (0, 2, 2, 1))) == [MigrationEnded(1, after)], (
        "asked again, it says so again"
    )
    assert machine.begin(8) == []


def test_a_copy_that_is_late_counts_for_nothing_and_the_next_is_smaller() -> None:
    machine = migration()
    machine.handle(RequestMigration(1, (2, 2, 2, 2)))
    [first] = machine.begin(0)
    machine.results_complete()
    assert machine.handle(Copied(2, first.number)) == []
    assert machine.map == START
    machine.applied()
    [second] = machine.begin(1)
    assert (len(first.buckets), len(second.buckets)) == (4, 2)
    machine.results_complete()
    [third] = machine.begin(2)
    assert len(third.buckets) == 1
    machine.results_complete()
    [fourth] = machine.begin(3)
    machine.results_complete()
    assert machine.holds_up, "one bucket that was late is waited for"
    adopt, _ = machine.handle(Copied(2, fourth.number))
    assert isinstance(adopt, AdoptMap)
    assert adopt.map.holders == (2, 0, 1, 1)


def test_more_is_moved_at_a_time_as_long_as_nothing_is_late() -> None:
    machine = Migration(BucketMap(0, 0, (0,) * 40), aggregators=2, sizes=[4 * MB] * 40)
    machine.handle(RequestMigration(1, (1,) * 40))

    moved = [sum(copied(machine, step).holders) for step in range(4)]

    assert moved == [4, 12, 28, 40]


def test_a_copy_that_never_comes_is_given_up() -> None:
    machine = Migration(BucketMap(0, 0, (0,)), aggregators=2)
    machine.handle(RequestMigration(1, (1,)))
    machine.begin(0)
    machine.results_complete()
    machine.applied()
    machine.begin(1)
    ends = [end for _ in range(40) for end in machine.repeat() if isinstance(end, MigrationEnded)]

    assert [end.reason for end in ends] == ["aggregator 1 did not copy its state in time"]
    assert not machine.holds_up
    assert machine.begin(2) == []


def test_a_restarted_sequencer_asks_again_who_has_confirmed_its_map() -> None:
    decided = BucketMap(9, 8, (0, 2, 2, 1))
    machine = Migration(decided, aggregators=3, before=START)
    assert machine.holds_up
    assert machine.begin(7) == [Take(decided, (0, 1))]
    machine.handle(RequestMigration(1, decided.holders))
    machine.handle(Taken(0, 9))
    machine.handle(Taken(1, 9))
    assert machine.begin(7) == [], "an early confirmation leaves nothing to do"
    assert machine.applied() == [MigrationEnded(1, decided)]


def test_what_cannot_be_moved_is_refused_with_the_reason() -> None:
    assert migration().handle(RequestMigration(1, (0, 0))) == [
        MigrationEnded(1, START, "the job has 4 buckets and 3 aggregators, and not those of the request")
    ]
    assert migration(refusal="all in one place").handle(RequestMigration(1, (2, 2, 2, 2))) == [
        MigrationEnded(1, START, "all in one place")
    ]


def test_a_request_replaces_the_one_before() -> None:
    machine = migration()
    machine.handle(RequestMigration(1, (2, 2, 2, 2)))
    [copy] = machine.begin(0)
    assert machine.handle(RequestMigration(2, START.holders)) == [
        MigrationEnded(1, START, "another request has replaced it"),
        MigrationEnded(2, START),
    ]
    assert machine.phase is MigrationPhase.RESTING
    assert machine.handle(Copied(2, copy.number)) == []
    assert machine.handle(RequestMigration(1, (2, 2, 2, 2))) == []


def test_who_is_left_out_holds_nothing_and_the_others_about_as_much_each() -> None:
    assert respread(START, (1, 2), [4, 3, 1, 1]) == (2, 1, 1, 1)
    assert respread(START, (0, 1), [1] * 4) == START.holders, "nothing moves without need"
    assert respread(BucketMap(3, 5, (0, 0, 0, 0)), (0, 1), [1] * 4) == (0, 0, 1, 1)
    with pytest.raises(ValueError, match="no other aggregator"):
        respread(START, (), [1] * 4)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=40),
    st.sets(st.integers(0, 3)),
)
def test_no_one_bucket_could_move_to_a_better_balance(buckets: list[tuple[int, int]], over: set[int]) -> None:
    over = over or {2}
    holders, sizes = zip(*buckets, strict=True)
    found = respread(BucketMap(0, 0, holders), over, sizes)
    loads = {one: sum(s for s, a in zip(sizes, found, strict=True) if a == one) for one in over}

    assert {*found} <= over
    fullest = max(loads, key=lambda one: loads[one])
    gap = loads[fullest] - min(loads.values())
    assert all(size >= gap for size, holder in zip(sizes, found, strict=True) if holder == fullest)


def test_an_aggregator_is_spared_once_the_step_for_which_its_last_bucket_moved_was_applied() -> None:
    decided = BucketMap(5, 7, (0, 0, 2, 2))

    assert spared((), decided, 3, settled=False) == frozenset()
    assert spared((), decided, 3, settled=True) == {1}
    assert spared((1,), BucketMap(6, 9, (0, 1, 2, 2)), 3, settled=False) == frozenset()
    assert spared((1,), BucketMap(6, 9, (0, 0, 0, 2)), 3, settled=False) == {1}
    assert spared((), BucketMap(6, 9, (1, 1, 1, 1)), 2, settled=True) == frozenset(), (
        "the first has the metrics"
    )


# ---- in the sequencer --------------------------------------------------------------------------------------


def barrier(*, sums: bool = False) -> tuple[Barrier, list[Instruction]]:
    """A barrier with one worker, in a step in which buckets are copied."""
    machine = Barrier(8, aggregators=3, sums=sums, migration=Migration(START, aggregators=3))
    machine.handle(RequestMigration(1, (0, 0, 2, 2)))
    return machine, machine.handle(Announce(1, (Member("w0", 0),), 4))


def one(instructions: list[Instruction], kind: type) -> Instruction:
    [found] = [instruction for instruction in instructions if isinstance(instruction, kind)]
    return found


def piece(machine: Barrier) -> int:
    [found] = machine._pieces.all
    return found.number


def test_only_those_that_hold_something_take_part_in_a_step() -> None:
    machine, begun = barrier()
    copy = one(begun, Copy)
    assert isinstance(copy, Copy)
    machine.handle(Copied(2, copy.number))
    for aggregator in (0, 2):
        assert machine.handle(Contribution("w0", 1, 1, piece(machine), aggregator)) == []
    apply = one(machine.handle(Taken(1, copy.number)), Apply)

    assert isinstance(apply, Apply)
    assert (apply.aggregators, apply.map.holders) == ((0, 2), (0, 0, 2, 2))
    machine.handle(Applied(1, 0))
    assert one(machine.handle(Applied(1, 2)), MigrationEnded) == MigrationEnded(1, apply.map)


def test_a_new_map_begins_a_new_list_which_is_told_once_it_is_confirmed() -> None:
    machine, begun = barrier(sums=True)
    copy, first = one(begun, Copy), one(begun, Expect)
    assert isinstance(copy, Copy)
    assert isinstance(first, Expect)
    machine.handle(Formed(1, 1, first.number, 1))
    follows = machine.handle(Copied(2, copy.number))
    assert [type(instruction) for instruction in follows] == [AdoptMap, Take]
    assert not any(isinstance(instruction, Expect) for instruction in machine.handle(Tick()))
    second = one(machine.handle(Taken(1, copy.number)), Expect)

    assert isinstance(second, Expect)
    assert second.number > first.number
    assert [index for index, _ in second.aggregators] == [0, 2]
    assert machine.handle(Formed(1, 1, first.number, 2)) == [], "sums under the map before are void"


def test_the_step_is_the_old_holders_once_the_workers_are_done() -> None:
    machine, begun = barrier(sums=True)
    copy = one(begun, Copy)
    assert isinstance(copy, Copy)
    machine.handle(Contribution("w0", 1, 1, piece(machine), None))

    assert machine.handle(Copied(2, copy.number)) == []
    assert machine.map == START


def test_nothing_is_decided_once_the_job_has_ended() -> None:
    machine, begun = barrier()
    copy = one(begun, Copy)
    assert isinstance(copy, Copy)
    machine.handle(Halt())

    assert machine.handle(Copied(2, copy.number)) == []


# ---- under chaos -------------------------------------------------------------------------------------------

SEEDS = 150


@pytest.mark.slow
def test_each_bucket_is_updated_once_by_whoever_holds_it_and_every_migration_ends() -> None:
    losses = maps = done = steps = 0
    for seed in range(SEEDS):
        world = World(seed, migrates=True)
        world.run()
        losses += world.losses
        maps += world.maps
        done += world.requests.done
        steps += world.steps

    # a simulation in which nothing moves would prove nothing
    assert losses > 5 * SEEDS
    assert maps > 2 * SEEDS
    assert done > SEEDS
    assert steps > 8 * SEEDS
