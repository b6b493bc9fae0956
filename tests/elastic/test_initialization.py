"""How a job begins, and begins again: the coordinator's state machine, event by event."""

from __future__ import annotations

from scavenger.elastic import initialization as i

NAMES = ("aggregator-0", "aggregator-1")
HERE = i.Endpoint("tcp://here:1", "key a", "here")
AWAY = i.Endpoint("tcp://away:1", "key b", "away")
BOTH = (HERE, AWAY)


def begun(*, restoring: bool = False) -> i.Initialization:
    """A job whose two aggregators can be reached, the second one with memory of its own."""
    machine = i.Initialization()
    assert machine.handle(i.TakeOver(NAMES, restoring=restoring)) == []
    assert machine.handle(i.PartReady(0, HERE)) == []
    assert machine.handle(i.PartReady(1, AWAY, own_memory=True)) == []
    return machine


def trained() -> i.Initialization:
    """One whose parts come from `w0`."""
    machine = begun()
    machine.handle(i.Greeted("w0"))
    machine.handle(i.WeightsSeeded("w0", "here"))
    for index in (0, 1):
        assert machine.handle(i.PartLoaded(index)) == []
    return machine


def test_the_first_worker_is_prepared_alone_and_its_weights_become_the_job_s() -> None:
    machine = begun()

    assert machine.handle(i.Greeted("w0")) == [i.PrepareWorker("w0", BOTH, initial=True)]
    assert machine.handle(i.Greeted("w1")) == []
    assert machine.handle(i.WeightsSeeded("w0", "here")) == [
        i.InitializePart(0, BOTH, recover=True, seeder=""),
        i.InitializePart(1, BOTH, recover=True, seeder="w0"),
        i.RenewView(),
        i.PrepareWorker("w1", BOTH, initial=False),
    ]


def test_parts_are_updated_in_place_where_each_is_lost_with_its_process() -> None:
    there = i.Endpoint("tcp://there:1", "key c", "there")
    machine = i.Initialization()
    machine.handle(i.TakeOver(NAMES, restoring=True))
    machine.handle(i.PartReady(0, there, own_memory=True))
    machine.handle(i.PartReady(1, AWAY, own_memory=True))

    actions = machine.handle(i.Greeted("w0"))

    assert [one.in_place for one in actions if isinstance(one, i.InitializePart)] == [True, True]


def test_with_a_checkpoint_nobody_is_asked_for_weights() -> None:
    machine = begun(restoring=True)

    assert machine.handle(i.Greeted("w0")) == [
        i.InitializePart(0, BOTH, recover=True, seeder=""),
        i.InitializePart(1, BOTH, recover=True, seeder=""),
        i.RenewView(),
        i.PrepareWorker("w0", BOTH, initial=False),
    ]


def test_the_next_is_asked_where_the_first_is_lost_before_it_answered() -> None:
    machine = begun()
    machine.handle(i.Greeted("w0"))
    machine.handle(i.Greeted("w1"))

    assert machine.handle(i.WorkerLeft("w0")) == [i.PrepareWorker("w1", BOTH, initial=True)]


def test_one_that_was_restarted_beside_its_memory_goes_on_from_it() -> None:
    machine = trained()
    restarted = i.Endpoint("tcp://here:1", "another key", "here")

    assert machine.handle(i.PartReady(0, restarted)) == [
        i.ReconnectAll((restarted, AWAY)),
        i.InitializePart(0, (restarted, AWAY), recover=True, seeder=""),
        i.RenewView(),
    ]


def test_all_begin_again_where_one_part_was_lost_with_its_memory() -> None:
    machine = trained()
    other, again = i.Endpoint("tcp://b:2", "key 2", "b"), i.Endpoint("tcp://here:2", "key 3", "here")

    (action,) = machine.handle(i.PartReady(1, other, own_memory=True))
    assert isinstance(action, i.RestartAggregators)
    assert machine.phase is i.WeightsPhase.ROLLING_BACK
    assert machine.handle(i.PartLoaded(0)) == [], "it is being ended"
    assert machine.handle(i.Rewound(restoring=True)) == []
    assert machine.handle(i.PartReady(0, again)) == []
    assert machine.handle(i.PartReady(1, other, own_memory=True)) == [
        i.ReconnectAll((again, other)),
        i.InitializePart(0, (again, other), recover=False, seeder=""),
        i.InitializePart(1, (again, other), recover=False, seeder=""),
        i.RenewView(),
    ]


def test_the_loss_of_a_part_that_consists_of_nothing_takes_nothing_back() -> None:
    machine = trained()
    other, third = i.Endpoint("tcp://b:2", "key 2", "b"), i.Endpoint("tcp://c:2", "key 3", "c")
    assert machine.handle(i.Spared((1,))) == []
    assert machine.handle(i.WorkerLeft("w0")) == [], "whose initial weights nobody needs"

    assert machine.handle(i.PartReady(1, other, own_memory=True)) == [
        i.ReconnectAll((HERE, other)),
        i.InitializePart(1, (HERE, other), recover=True, seeder="", spare=True),
    ]
    machine.handle(i.PartLoaded(1))
    machine.handle(i.Spared(()))  # something has moved to it
    (action,) = machine.handle(i.PartReady(1, third, own_memory=True))
    assert isinstance(action, i.RestartAggregators)


def test_a_spare_part_that_is_being_taken_up_again_is_a_lost_one_once_something_moved_to_it() -> None:
    machine = trained()
    machine.handle(i.Spared((1,)))
    machine.handle(i.PartReady(1, i.Endpoint("tcp://b:2", "key 2", "b"), own_memory=True))

    (action,) = machine.handle(i.Spared(()))  # what it was given went to the process before
    assert isinstance(action, i.RestartAggregators)


def test_a_spare_part_that_is_lost_before_it_was_taken_up_again_is_a_lost_one_once_something_moved_to_it() -> (
    None
):
    machine = trained()
    machine.handle(i.Spared((1,)))
    machine.handle(i.Spared(()))  # what it was given went to the process before

    (action,) = machine.handle(i.PartReady(1, i.Endpoint("tcp://c:2", "key 3", "c"), own_memory=True))
    assert isinstance(action, i.RestartAggregators)


def test_one_that_takes_over_is_told_of_spare_parts_and_after_a_roll_back_they_begin_as_the_others_do() -> (
    None
):
    machine = i.Initialization()
    machine.handle(i.TakeOver(NAMES, held=(0, 1), spare=(1,)))
    machine.handle(i.PartReady(0, HERE, holds=True))
    assert machine.handle(i.PartReady(1, AWAY, own_memory=True)) == []
    (_, action) = machine.handle(i.Greeted("w0"))[:2]
    assert action == i.PrepareWorker("w0", BOTH, initial=False)

    (action,) = machine.handle(i.PartReady(0, i.Endpoint("tcp://d:1", "key 4", "d"), own_memory=True))
    assert isinstance(action, i.RestartAggregators)
    machine.handle(i.Rewound(restoring=True))
    machine.handle(i.PartReady(0, HERE))
    follows = machine.handle(i.PartReady(1, AWAY, own_memory=True))
    assert i.InitializePart(1, BOTH, recover=False, seeder="") in follows


def test_a_part_that_waits_for_a_worker_that_is_lost_has_all_begin_again() -> None:
    machine = begun()
    machine.handle(i.Greeted("w0"))
    machine.handle(i.WeightsSeeded("w0", "here"))
    machine.handle(i.PartLoaded(0))

    (action,) = machine.handle(i.WorkerLeft("w0"))
    assert isinstance(action, i.RestartAggregators)


def test_a_worker_whose_weights_nobody_needs_any_more_is_not_missed() -> None:
    assert trained().handle(i.WorkerLeft("w0")) == []


def test_one_that_takes_over_sends_nothing_before_it_knows_where_the_job_stands() -> None:
    machine = i.Initialization()
    machine.handle(i.TakeOver(NAMES, held=(0, 1), workers=("w0",), informed=False))
    machine.handle(i.PartReady(0, HERE))
    machine.handle(i.PartReady(1, AWAY, holds=True, own_memory=True))
    assert machine.handle(i.WorkerPresent("w0", prepared=True, seeded=True, memory="here")) == []

    assert machine.handle(i.Informed()) == [
        i.ReconnectAll(BOTH),
        i.InitializePart(0, BOTH, recover=True, seeder=""),
        i.RenewView(),
    ]


def test_one_that_takes_over_asks_nobody_for_weights_while_the_source_may_still_answer() -> None:
    machine = i.Initialization()
    machine.handle(i.TakeOver(NAMES, workers=("w0", "w1"), informed=False))
    machine.handle(i.PartReady(0, HERE))
    machine.handle(i.PartReady(1, AWAY, own_memory=True))
    machine.handle(i.Informed())

    assert machine.handle(i.Greeted("w1")) == []
    assert machine.handle(i.WorkerPresent("w0", prepared=True, seeded=True, memory="here")) == [
        i.ReconnectAll(BOTH),
        i.InitializePart(0, BOTH, recover=True, seeder=""),
        i.InitializePart(1, BOTH, recover=True, seeder="w0"),
        i.RenewView(),
        i.PrepareWorker("w1", BOTH, initial=False),
    ]


def test_one_that_takes_over_half_a_model_of_nobody_s_weights_has_all_begin_again() -> None:
    machine = i.Initialization()
    machine.handle(i.TakeOver(NAMES, held=(0,), workers=("w1",), informed=False))
    machine.handle(i.PartReady(0, HERE, holds=True))
    machine.handle(i.PartReady(1, AWAY, own_memory=True))
    machine.handle(i.Informed())

    (action,) = machine.handle(i.WorkerPresent("w1", prepared=True))
    assert isinstance(action, i.RestartAggregators)
