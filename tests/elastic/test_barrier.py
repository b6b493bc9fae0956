"""The sequencer's state machine, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scavenger.elastic import steps as st
from scavenger.elastic.barrier import Barrier, BarrierPhase
from scavenger.elastic.view import SLOTS_PER_WORKER, Member, Position


def announce(
    number: int, *workers: int, batch: int = 4, lost: tuple[str, ...] = (), token: int = 0
) -> st.Announce:
    members = tuple(Member(f"w{i}", i * SLOTS_PER_WORKER) for i in workers)
    return st.Announce(number, members, batch, lost=lost, token=token)


def orders(instructions: list[st.Instruction]) -> list[tuple[str, str]]:
    return [(i.worker, i.action) for i in instructions if isinstance(i, st.Proceed)]


def pieces(instructions: list[st.Instruction]) -> list[tuple[str, int, int]]:
    return [
        (piece.worker, piece.share.start, piece.share.stop)
        for i in instructions
        if isinstance(i, st.Proceed | st.Apply | st.Sum)
        for piece in i.pieces
    ]


def training(
    *workers: int, dataset_size: int = 8, batch: int = 4, validation_size: int = 0, aggregators: int = 1
) -> Barrier:
    barrier = Barrier(dataset_size, validation_size, aggregators=aggregators)
    barrier.handle(announce(1, *workers, batch=batch))
    return barrier


def awaited(barrier: Barrier) -> dict[str, list[int]]:
    """Numbers of the pieces that are asked for again, by worker."""
    return {
        order.worker: [piece.number for piece in order.pieces]
        for order in barrier.handle(st.Tick())
        if isinstance(order, st.Proceed)
    }


def do(barrier: Barrier, *workers: str, aggregators: int = 1) -> list[st.Instruction]:
    """Have workers do all that is awaited of them."""
    assert barrier.view is not None
    follows: list[st.Instruction] = []
    number, evaluates = barrier.view.number, barrier.phase is BarrierPhase.EVALUATE
    todo = awaited(barrier)
    for worker in workers:
        for piece in todo[worker]:
            if evaluates:
                follows += barrier.handle(st.PieceEvaluated(worker, number, barrier.step, piece))
            else:
                for aggregator in range(aggregators):
                    event = st.Contribution(worker, number, barrier.step + 1, piece, aggregator)
                    follows += barrier.handle(event)
    return follows


def at_epochs_end(*, validation_size: int = 6) -> Barrier:
    """Two workers after the only step of the first epoch."""
    barrier = training(0, 1, dataset_size=4, validation_size=validation_size)
    do(barrier, "w0", "w1")
    barrier.handle(st.Applied(1))
    return barrier


def test_the_first_view_takes_effect_at_once() -> None:
    installed, *follows = Barrier(8).handle(announce(1, 0, 1))

    assert isinstance(installed, st.Installed)
    assert installed.view.first_step == 1
    assert orders(follows) == [("w0", "train"), ("w1", "train")]
    assert pieces(follows) == [("w0", 0, 2), ("w1", 2, 4)]


def test_a_job_with_callbacks_begins_with_the_verdict_on_the_epoch_before_the_first() -> None:
    barrier = Barrier(8, asks_first=True)
    installed, report = barrier.handle(announce(1, 0, 1))

    assert isinstance(installed, st.Installed)
    assert isinstance(report, st.ReportMetrics)
    assert (report.plan.epoch, report.plan.step) == (-1, 0)
    assert barrier.awaits(st.EpochDecision(-1, stop=False))
    assert barrier.handle(st.Tick()) == [report]
    # another view, for a worker that is lost meanwhile, waits for the verdict, too
    assert barrier.handle(announce(2, 1, lost=("w0",))) == []
    assert barrier.handle(st.EpochDecision(0, stop=False)) == []
    second, *follows = barrier.handle(st.EpochDecision(-1, stop=False))
    assert isinstance(second, st.Installed)
    assert (second.view.first_step, second.view.position) == (1, Position())
    assert pieces(follows) == [("w1", 0, 4)]
    assert not barrier.awaits(st.EpochDecision(-1, stop=False))


def test_a_job_with_callbacks_that_has_steps_behind_it_does_not_begin_again() -> None:
    barrier = Barrier(8, asks_first=True, step=1, position=Position(0, 4))

    assert orders(barrier.handle(announce(1, 0))) == [("w0", "train")]


def test_where_callbacks_run_at_every_step_the_next_one_waits_for_the_verdict() -> None:
    barrier = Barrier(8, asks_each=True)
    barrier.handle(announce(1, 0))
    do(barrier, "w0")
    (report,) = barrier.handle(st.Applied(1))

    assert isinstance(report, st.ReportMetrics)
    assert (report.plan.epoch, report.plan.step, report.plan.ends_epoch) == (0, 1, False)
    assert barrier.handle(st.Tick()) == [report]
    # neither the verdict on the epoch nor that on another step
    assert (
        barrier.handle(st.EpochDecision(0, stop=True))
        == barrier.handle(st.EpochDecision(0, stop=True, step=2))
        == []
    )
    assert orders(barrier.handle(st.EpochDecision(0, stop=False, step=1))) == [("w0", "train")]
    assert barrier.handle(st.EpochDecision(0, stop=True, step=1)) == []  # late


def test_a_verdict_that_stops_within_an_epoch_ends_it_with_that_step() -> None:
    barrier = Barrier(8, 3, asks_each=True)
    barrier.handle(announce(1, 0))
    do(barrier, "w0")
    barrier.handle(st.Applied(1))

    assert pieces(barrier.handle(st.EpochDecision(0, stop=True, step=1))) == [("w0", 0, 3)]
    (total,) = barrier.handle(st.PieceEvaluated("w0", 1, 1, awaited(barrier)["w0"][0]))
    assert isinstance(total, st.Sum)
    (report,) = barrier.handle(st.Summed("w0", 1, 1))
    assert isinstance(report, st.ReportMetrics)
    assert (report.plan.epoch, report.plan.step, report.plan.ends_epoch) == (0, 1, True)
    assert orders(barrier.handle(st.EpochDecision(0, stop=True))) == [("w0", "stop")]


def test_a_job_resumed_within_an_epoch_asks_again_about_its_last_step() -> None:
    barrier = Barrier(8, asks_first=True, asks_each=True, step=1, position=Position(0, 4))
    installed, report = barrier.handle(announce(1, 0))

    assert isinstance(installed, st.Installed)
    assert isinstance(report, st.ReportMetrics)
    assert (report.plan.epoch, report.plan.step, report.plan.ends_epoch) == (0, 1, False)
    assert pieces(barrier.handle(st.EpochDecision(0, stop=False, step=1))) == [("w0", 4, 8)]


def test_a_step_is_applied_when_every_aggregator_has_every_piece_and_follows_when_all_have_applied_it() -> (
    None
):
    barrier = training(0, 1, aggregators=2)
    do(barrier, "w0", aggregators=2)
    (piece,) = awaited(barrier)["w1"]

    assert barrier.handle(st.Contribution("w1", 1, 1, piece, 1)) == []
    assert barrier.missing == ("w1",)
    (apply,) = barrier.handle(st.Contribution("w1", 1, 1, piece, 0))
    assert isinstance(apply, st.Apply)
    assert apply.aggregators == (0, 1)
    assert pieces([apply]) == [("w0", 0, 2), ("w1", 2, 4)]
    assert barrier.handle(st.Applied(1, 1)) == []
    assert barrier.handle(st.Applied(1, 1)) == []
    assert orders(barrier.handle(st.Applied(1, 0))) == [("w0", "train"), ("w1", "train")]
    assert (barrier.step, barrier.position) == (1, Position(0, 4))


@pytest.mark.parametrize(
    "late",
    [
        st.Contribution("w0", view=0, step=1, piece=0),
        st.Contribution("w0", view=1, step=2, piece=0),
        st.Contribution("w0", view=1, step=0, piece=0),
        st.Contribution("w1", view=1, step=1, piece=0),
        st.Contribution("stranger", view=1, step=1, piece=0),
        st.PieceEvaluated("w0", view=1, step=0, piece=0),
        st.Summed("w0", view=1, step=0),
    ],
)
def test_what_is_not_awaited_is_refused_and_changes_nothing(late: st.Contribution) -> None:
    barrier = training(0, 1)
    (number,) = awaited(barrier)["w0"]
    if not isinstance(late, st.Summed):
        late = type(late)(late.worker, late.view, late.step, number)

    (refusal,) = barrier.handle(late)

    assert isinstance(refusal, st.Refuse)
    assert barrier.missing == ("w0", "w1")


def test_a_contribution_counts_once() -> None:
    barrier = training(0, 1)
    (piece,) = awaited(barrier)["w0"]
    for _ in range(3):
        assert barrier.handle(st.Contribution("w0", 1, 1, piece)) == []

    assert barrier.missing == ("w1",)


def test_a_view_waits_for_the_step_under_way() -> None:
    barrier = training(0, 1)
    do(barrier, "w0")

    assert barrier.handle(announce(2, 0, 2, batch=6)) == []
    do(barrier, "w1")
    installed, *follows = barrier.handle(st.Applied(1))

    assert isinstance(installed, st.Installed)
    assert (installed.view.first_step, installed.view.position.consumed) == (2, 4)
    assert orders(follows) == [("w1", "idle"), ("w0", "train"), ("w2", "train")]


def test_what_a_lost_worker_has_not_done_is_cut_up_among_the_others_and_what_is_complete_stays() -> None:
    barrier = training(0, 1, 2, dataset_size=12, batch=12)
    do(barrier, "w0")
    (old,) = awaited(barrier)["w1"]

    follows = barrier.handle(announce(2, 0, 2, batch=12, lost=("w1",)))

    assert pieces(follows) == [("w0", 4, 6), ("w2", 6, 8)]
    assert isinstance(barrier.handle(st.Contribution("w1", 1, 1, old))[0], st.Refuse)
    (apply,) = do(barrier, "w0", "w2")
    assert pieces([apply]) == [("w0", 0, 4), ("w0", 4, 6), ("w2", 6, 8), ("w2", 8, 12)]
    slots = [piece.slot for piece in apply.pieces] if isinstance(apply, st.Apply) else []
    assert len(set(slots)) == len(slots)


def test_what_a_lost_worker_has_done_counts() -> None:
    barrier = training(0, 1)
    do(barrier, "w1")

    assert barrier.handle(announce(2, 0, lost=("w1",))) == []
    (apply,) = do(barrier, "w0")
    assert pieces([apply]) == [("w0", 0, 2), ("w1", 2, 4)]


def test_where_nobody_has_room_for_more_pieces_the_step_begins_again_with_few() -> None:
    barrier = training(*range(SLOTS_PER_WORKER + 2), dataset_size=100, batch=90)
    do(barrier, "w0")
    lost: tuple[str, ...] = ()
    for number in range(1, SLOTS_PER_WORKER + 1):
        lost = (*lost, f"w{number}")
        barrier.handle(announce(1 + number, 0, SLOTS_PER_WORKER + 1, batch=90, lost=lost))

    (apply,) = do(barrier, "w0", f"w{SLOTS_PER_WORKER + 1}")
    assert isinstance(apply, st.Apply)
    assert [piece.share.stop for piece in apply.pieces][-1] == 90
    assert all(0 <= p.slot - int(p.worker[1:]) * SLOTS_PER_WORKER < SLOTS_PER_WORKER for p in apply.pieces)


def test_where_everybody_is_lost_the_next_views_members_do_the_step_that_is_under_way() -> None:
    barrier = training(0)

    assert orders(barrier.handle(announce(2, 1, lost=("w0",)))) == [("w1", "train")]
    (apply,) = do(barrier, "w1")
    assert isinstance(apply, st.Apply)
    assert apply.view.number == 1
    assert isinstance(barrier.handle(st.Applied(1))[0], st.Installed)


def test_one_who_stood_in_for_a_view_that_never_came_is_not_waited_for() -> None:
    barrier = training(0)
    barrier.handle(announce(2, 1, lost=("w0",), token=1))

    # another coordinator has never heard of w1
    assert orders(barrier.handle(announce(3, 2, lost=("w0",), token=2))) == [("w2", "train")]


def test_a_worker_that_another_coordinator_counts_on_is_lost_no_more() -> None:
    barrier = training(0, 1)
    barrier.handle(announce(2, 0, lost=("w1",), token=1))
    barrier.handle(announce(3, 1, lost=("w0",), token=2))
    do(barrier, "w1")
    barrier.handle(st.Applied(1))

    assert barrier.handle(announce(4, 1, batch=6, token=2)) == []
    assert barrier.missing == ("w1",)


@pytest.mark.parametrize("number", [0, 1])
def test_an_older_view_is_passed_over_and_the_one_in_effect_told_again(number: int) -> None:
    barrier = training(0, 1)

    (installed,) = barrier.handle(announce(number, 2, lost=("w0",)))

    assert isinstance(installed, st.Installed)
    assert installed.view == barrier.view
    assert barrier.missing == ("w0", "w1")


def test_which_view_is_in_effect_is_told_again_while_another_is_to_follow() -> None:
    barrier = training(0, 1)
    barrier.handle(announce(2, 1))

    (installed,) = barrier.handle(announce(2, 1))

    assert isinstance(installed, st.Installed)
    assert installed.view.number == 1


def test_a_coordinator_that_was_replaced_is_refused_whatever_number_it_gives() -> None:
    barrier = training(0)

    assert barrier.handle(st.Lead(2)) == [st.Inform(2, 1, barrier.view, 0)]
    for event in (announce(9, 1, lost=("w0",), token=1), st.Lead(1)):
        (refusal,) = barrier.handle(event)
        assert isinstance(refusal, st.Refuse)
    assert (barrier.token, barrier.number, barrier.missing) == (2, 1, ("w0",))


@pytest.mark.parametrize(
    "phase",
    [
        BarrierPhase.STEP,
        BarrierPhase.APPLY,
        BarrierPhase.EVALUATE,
        BarrierPhase.SUMMARISE,
        BarrierPhase.VERDICT,
    ],
)
def test_a_tick_repeats_what_is_awaited_and_changes_nothing(phase: BarrierPhase) -> None:
    barrier = training(0, dataset_size=4, validation_size=3)
    if phase is not BarrierPhase.STEP:
        do(barrier, "w0")
    if phase not in (BarrierPhase.STEP, BarrierPhase.APPLY):
        barrier.handle(st.Applied(1))
    if phase in (BarrierPhase.SUMMARISE, BarrierPhase.VERDICT):
        do(barrier, "w0")
    if phase is BarrierPhase.VERDICT:
        barrier.handle(st.Summed("w0", 1, 1))
    assert barrier.phase is phase

    first = barrier.handle(st.Tick())
    assert len(first) == 1
    assert barrier.handle(st.Tick()) == first
    assert barrier.phase is phase


def test_a_tick_asks_only_those_aggregators_that_have_not_applied_the_step() -> None:
    barrier = training(0, aggregators=3)
    do(barrier, "w0", aggregators=3)
    barrier.handle(st.Applied(1, 1))

    (again,) = barrier.handle(st.Tick())

    assert isinstance(again, st.Apply)
    assert again.aggregators == (0, 2)


def test_an_epoch_ends_with_evaluation_summary_report_and_verdict() -> None:
    barrier = at_epochs_end()

    assert do(barrier, "w0") == []
    (total,) = do(barrier, "w1")
    assert isinstance(total, st.Sum)
    assert pieces([total]) == [("w0", 0, 3), ("w1", 3, 6)]
    assert barrier.missing == ("w0",)
    (report,) = barrier.handle(st.Summed("w0", 1, 1))
    assert isinstance(report, st.ReportMetrics)
    assert len(barrier.missing) == 0
    assert orders(barrier.handle(st.EpochDecision(0, stop=False))) == [("w0", "train"), ("w1", "train")]
    assert barrier.position == Position(1, 0)


def test_without_validation_data_the_sums_of_training_are_still_turned_into_metrics() -> None:
    barrier = training(0, dataset_size=4)
    do(barrier, "w0")

    (total,) = barrier.handle(st.Applied(1))

    assert isinstance(total, st.Sum)
    assert total.pieces == ()


def test_an_evaluation_loses_nothing_with_a_worker() -> None:
    barrier = at_epochs_end()
    do(barrier, "w0")

    assert pieces(barrier.handle(announce(2, 0, lost=("w1",)))) == [("w0", 3, 6)]
    (total,) = do(barrier, "w0")
    assert pieces([total]) == [("w0", 0, 3), ("w0", 3, 6)]
    assert barrier.step == 1


def test_whoever_was_to_sum_up_is_replaced_when_it_is_lost() -> None:
    barrier = at_epochs_end()
    do(barrier, "w0", "w1")

    (total,) = barrier.handle(announce(2, 1, lost=("w0",)))

    assert isinstance(total, st.Sum)
    assert total.worker == "w1"
    assert isinstance(barrier.handle(st.Summed("w0", 1, 1))[0], st.Refuse)


def test_a_verdict_stops_and_nothing_starts_it_again() -> None:
    barrier = at_epochs_end(validation_size=0)
    barrier.handle(st.Summed("w0", 1, 1))

    assert orders(barrier.handle(st.EpochDecision(0, stop=True))) == [("w0", "stop"), ("w1", "stop")]
    events: list[st.Event] = [
        announce(2, 0, lost=("w1",)),
        st.Halt(),
        st.Tick(),
        st.EpochDecision(0, stop=False),
    ]
    assert not any(orders(barrier.handle(event)) for event in events)
    assert barrier.phase is BarrierPhase.STOPPED


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_a_verdict_that_nobody_asked_for_does_nothing(epoch: int) -> None:
    barrier = training(0, 1)

    assert barrier.handle(st.EpochDecision(epoch, stop=True)) == []
    assert barrier.phase is BarrierPhase.STEP


def test_a_verdict_on_another_epoch_does_nothing() -> None:
    barrier = at_epochs_end(validation_size=0)
    barrier.handle(st.Summed("w0", 1, 1))

    assert barrier.handle(st.EpochDecision(1, stop=True)) == []
    assert barrier.phase is BarrierPhase.VERDICT


def test_a_halt_does_not_wait_for_a_step_that_may_never_be_complete() -> None:
    barrier = training(0, 1)
    (piece,) = awaited(barrier)["w1"]

    assert orders(barrier.handle(st.Halt())) == [("w0", "stop"), ("w1", "stop")]
    assert isinstance(barrier.handle(st.Contribution("w1", 1, 1, piece))[0], st.Refuse)
    assert barrier.step == 0


def test_a_halt_before_the_first_view_stops_too() -> None:
    barrier = Barrier(4)

    assert barrier.handle(st.Halt()) == []
    assert barrier.handle(announce(1, 0)) == []


def test_a_restarted_sequencer_goes_on_where_the_record_stands() -> None:
    barrier = Barrier(10, step=3, position=Position(1, 4), number=7)

    assert barrier.handle(announce(7, 0)) == []
    installed, order = barrier.handle(announce(8, 0, batch=4))

    assert isinstance(installed, st.Installed)
    assert (installed.view.first_step, installed.view.position) == (4, Position(1, 4))
    assert pieces([order]) == [("w0", 4, 8)]


def test_a_restarted_sequencer_evaluates_again_what_it_has_no_verdict_on() -> None:
    barrier = Barrier(4, 6, step=3, position=Position(2, 0), number=7)

    installed, order = barrier.handle(announce(8, 0))

    assert isinstance(installed, st.Installed)
    assert orders([order]) == [("w0", "evaluate")]
    do(barrier, "w0")
    (report,) = barrier.handle(st.Summed("w0", 8, 3))
    assert isinstance(report, st.ReportMetrics)
    assert report.plan.epoch == 1


def test_no_piece_of_a_restarted_sequencer_has_the_number_of_one_before() -> None:
    before = training(0, 1)
    numbers = {number for mine in awaited(before).values() for number in mine}
    after = Barrier(8, number=before.number)
    after.handle(announce(2, 0, 1))

    assert not numbers & {number for mine in awaited(after).values() for number in mine}


def test_a_step_that_was_not_to_be_applied_changes_nothing() -> None:
    barrier = training(0)

    assert barrier.handle(st.Applied(1)) == []
    assert barrier.step == 0


@pytest.mark.parametrize(("dataset_size", "aggregators"), [(0, 1), (4, 0)])
def test_a_job_has_a_sample_and_an_aggregator(dataset_size: int, aggregators: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Barrier(dataset_size, aggregators=aggregators)


def test_a_view_in_effect_is_told_again_while_another_is_pending() -> None:
    barrier = Barrier(40)
    first = announce(1, 0, 1, batch=8)
    barrier.handle(first)
    installed = st.Installed(barrier.view) if barrier.view else None

    assert barrier.handle(announce(2, 0, 1, batch=4)) == []
    assert barrier.handle(first) == [installed]
    assert barrier.handle(announce(2, 0, 1, batch=4)) == [installed]


def test_a_step_in_place_is_applied_to_its_end_whoever_is_lost() -> None:
    barrier = Barrier(40, aggregators=2, sums=True, in_place=True)
    (expect,) = [one for one in barrier.handle(announce(1, 0, 1, batch=8)) if isinstance(one, st.Expect)]
    for worker, piece in zip(("w0", "w1"), expect.pieces, strict=True):
        barrier.handle(st.Contribution(worker, 1, 1, piece.number, None))
    for aggregator in (0, 1):
        follows = barrier.handle(st.Formed(1, 1, expect.number, aggregator))
    (apply,) = follows
    assert isinstance(apply, st.Apply)
    assert barrier.handle(st.Applied(1, 0)) == []

    assert barrier.handle(announce(2, 0, batch=4, lost=("w1",))) == []

    (again,) = barrier.handle(st.Tick())
    assert again == replace(apply, aggregators=(1,))
    told = barrier.handle(st.Applied(1, 1))
    assert (barrier.step, barrier.phase) == (1, BarrierPhase.STEP)
    assert [piece.worker for one in told if isinstance(one, st.Expect) for piece in one.pieces] == ["w0"]


def test_sums_of_a_list_count_until_the_list_changes_and_the_step_goes_back_for_a_lost_gradient() -> None:
    barrier = Barrier(40, aggregators=2, sums=True)
    told = barrier.handle(announce(1, 0, 1, batch=8))
    (expect,) = [one for one in told if isinstance(one, st.Expect)]
    assert expect.aggregators == ((0, ()), (1, ()))
    first, second = (piece.number for piece in expect.pieces)
    assert barrier.handle(st.Contribution("w0", 1, 1, first, 0)) == []
    assert barrier.handle(st.Contribution("w1", 1, 1, second, None)) == []
    assert barrier.handle(st.Formed(1, 1, expect.number - 1, 1)) == [], "of another list"
    assert barrier.handle(st.Formed(1, 1, expect.number, 1)) == []
    (apply,) = barrier.handle(st.Formed(1, 1, expect.number, 0))
    assert isinstance(apply, st.Apply)
    assert apply.number == expect.number

    told = barrier.handle(announce(2, 0, batch=4, lost=("w1",)))

    (again,) = [one for one in told if isinstance(one, st.Expect)]
    assert again.number > expect.number
    assert barrier.phase is BarrierPhase.STEP
    assert again.aggregators == ((0, (first,)), (1, ()))
    assert [piece.worker for piece in again.pieces] == ["w0", "w0"]
    assert barrier.handle(st.Formed(1, 1, expect.number, 1)) == []
