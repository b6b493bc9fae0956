"""Who is in: the coordinator's state machine."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scavenger.elastic.membership import Membership, WorkerState, worker_name, worker_slot
from scavenger.elastic.steps import Announce
from scavenger.elastic.view import SLOTS_PER_WORKER, Member, Position, View


def launched(workers: int, *, token: int = 1) -> Membership:
    membership = Membership(token)
    for index in range(workers):
        membership.launch(worker_name(index))
    return membership


def settled(workers: int, *, train: int, batch: int = 8) -> Membership:
    """Some workers, of which the first `train` are in a view that has taken effect."""
    membership = launched(workers)
    for index in range(workers):
        membership.ready(worker_name(index))
    install(membership, membership.resize(train, batch, "start"))
    return membership


def install(membership: Membership, announce: Announce | None) -> None:
    assert announce is not None
    assert membership.installed(announce.number, members(announce)) is None


def members(announce: Announce | None) -> list[str]:
    assert announce is not None
    return [member.worker for member in announce.members]


def view(number: int, *workers: int, batch: int = 8) -> View:
    those = tuple(Member(worker_name(i), worker_slot(worker_name(i))) for i in workers)
    return View(number, 5, batch, those, Position(), lr_scale=2.0)


def test_slots_of_two_workers_never_overlap() -> None:
    slots = [worker_slot(worker_name(index)) for index in range(50)]

    assert all(b - a == SLOTS_PER_WORKER for a, b in pairwise(slots))


def test_no_name_is_given_twice() -> None:
    membership = launched(1)
    membership.lost("w0")

    with pytest.raises(ValueError, match="w0 already"):
        membership.launch("w0")


def test_nobody_trains_before_somebody_asks() -> None:
    membership = launched(1)

    assert membership.ready("w0") is None
    assert membership.state("w0") is WorkerState.STANDBY


def test_a_view_takes_the_oldest_of_the_workers_that_are_ready() -> None:
    membership = settled(3, train=2)

    assert membership.workers(WorkerState.TRAINING) == ("w0", "w1")
    assert members(membership.resize(3, 9, "grow")) == ["w0", "w1", "w2"]
    assert members(membership.resize(1, 9, "shrink")) == ["w0"]


def test_a_view_carries_token_batch_and_learning_rate() -> None:
    membership = launched(1, token=3)
    membership.ready("w0")
    announce = membership.resize(1, 7, "why", lr_scale=0.5)

    assert announce is not None
    assert (announce.token, announce.global_batch_size, announce.lr_scale) == (3, 7, 0.5)
    assert announce.members == (Member("w0", 0),)
    renewed = membership.renew()
    assert renewed is not None
    assert (renewed.number, renewed.lr_scale) == (announce.number + 1, 0.5)


def test_a_worker_that_gets_ready_joins_where_it_is_missed_and_waits_where_not() -> None:
    membership = launched(3)
    membership.ready("w0")
    membership.resize(2, 8, "start")

    announce = membership.ready("w1")

    assert members(announce) == ["w0", "w1"]
    assert announce is not None
    assert announce.lost == ()
    assert membership.ready("w2") is None
    assert membership.ready("w2") is None


@pytest.mark.parametrize(("workers", "batch"), [(3, 2), (0, 2)])
def test_there_are_no_more_members_than_samples(workers: int, batch: int) -> None:
    with pytest.raises(ValueError, match="no view"):
        settled(3, train=1).resize(workers, batch, "too few samples")


def test_a_lost_member_is_named_until_a_view_without_it_is_in_effect_and_a_spare_takes_its_place() -> None:
    membership = settled(3, train=2)

    announce = membership.lost("w0")

    assert members(announce) == ["w1", "w2"]
    assert announce is not None
    assert announce.lost == ("w0",)
    again = membership.resize(2, 9, "other batch")
    assert again is not None
    assert again.lost == ("w0",)
    install(membership, again)
    last = membership.resize(1, 9, "fewer")
    assert last is not None
    assert last.lost == ()


def test_the_loss_of_one_that_nobody_waits_for_changes_nothing() -> None:
    membership = settled(3, train=2)
    membership.launch("w3")

    assert membership.lost("w2") is None
    assert membership.lost("w3") is None
    assert membership.lost("w3") is None


def test_a_leaver_is_awaited_until_the_view_without_it_has_taken_effect() -> None:
    membership = settled(2, train=2)
    announce = membership.resize(1, 8, "shrink")

    with pytest.raises(ValueError, match="member"):
        membership.release("w1")
    again = membership.lost("w1")
    assert members(again) == ["w0"]
    assert announce is not None
    assert again is not None
    assert (again.number, again.lost) == (announce.number + 1, ("w1",))


def test_whoever_is_to_leave_leaves_for_good_as_soon_as_there_is_somebody_else() -> None:
    membership = settled(1, train=1)

    assert members(membership.resize(1, 8, "leave", without=["w0"])) == ["w0"]
    membership.launch("w1")
    membership.ready("w1")
    announce = membership.resize(1, 8, "now")
    assert members(announce) == ["w1"]
    install(membership, announce)
    assert membership.spare(1) == ("w0",)
    assert members(membership.resize(2, 8, "more")) == ["w1"]


def test_the_newest_in_standby_go_first_and_nobody_while_a_view_is_to_come() -> None:
    membership = settled(4, train=1)

    assert membership.spare(2) == ("w2", "w3")
    assert membership.spare(1) == ("w1", "w2", "w3")
    assert membership.spare(9) == ()
    membership.resize(2, 8, "grow")
    assert membership.spare(1) == ()


def test_a_spare_worker_can_be_let_go_and_a_member_cannot() -> None:
    membership = settled(2, train=1)

    membership.release("w1")

    assert membership.state("w1") is WorkerState.GONE
    assert membership.alive == ("w0",)
    with pytest.raises(ValueError, match="member"):
        membership.release("w0")


def test_a_job_without_workers_goes_on_with_the_next_one() -> None:
    membership = settled(1, train=1)

    assert membership.lost("w0") is None
    assert membership.announced is None
    membership.launch("w1")
    announce = membership.ready("w1")

    assert members(announce) == ["w1"]
    assert announce is not None
    assert announce.lost == ("w0",)


def test_a_dead_members_slots_are_kept_until_a_view_without_it_took_effect() -> None:
    membership = settled(2, train=2)
    announce = membership.lost("w1")

    assert not membership.forgotten("w1")
    install(membership, announce)
    assert membership.forgotten("w1")
    assert not membership.forgotten("w0")


def test_a_view_is_announced_again_until_it_takes_effect() -> None:
    membership = settled(2, train=1)
    assert membership.announce_again() is None

    announce = membership.resize(2, 8, "grow")

    assert membership.announce_again() == announce
    install(membership, announce)
    assert membership.announce_again() is None


def test_view_numbers_only_grow() -> None:
    membership = settled(3, train=3)
    numbers = []
    for announce in (membership.lost("w0"), membership.resize(2, 8, "x"), membership.renew()):
        assert announce is not None
        numbers.append(announce.number)

    assert numbers == sorted(set(numbers))
    membership.installed(numbers[-1], ["w1", "w2"])
    membership.installed(numbers[0], ["w1", "w2"])
    assert membership.settled


def test_another_coordinator_goes_on_with_the_members_and_the_number_of_the_one_before() -> None:
    membership = launched(3, token=2)

    membership.restore(6, view(5, 0, 1), {"w0", "w2"})

    assert membership.workers(WorkerState.TRAINING) == ("w0", "w1")
    assert membership.workers(WorkerState.STANDBY) == ("w2",)
    announce = membership.lost("w0")
    assert members(announce) == ["w1", "w2"]
    assert announce is not None
    assert (announce.number, announce.token, announce.global_batch_size, announce.lr_scale) == (7, 2, 8, 2.0)


@pytest.mark.parametrize("known", [True, False])
def test_who_died_while_nobody_led_is_neither_a_member_nor_forgotten(known: bool) -> None:
    membership = launched(1, token=2)
    if known:
        membership.launch("w1")
        membership.lost("w1")

    membership.restore(6, view(5, 0, 1), {"w0"})

    assert membership.state("w1") is WorkerState.GONE
    assert not membership.forgotten("w1")
    announce = membership.resize(2, 8, "as before")
    assert members(announce) == ["w0"]
    assert announce is not None
    assert announce.lost == ("w1",)


def test_one_that_dies_while_it_starts_may_be_awaited_by_what_another_coordinator_announced() -> None:
    membership = launched(2, token=2)
    membership.restore(6, view(5, 0), {"w0"})

    announce = membership.lost("w1")

    assert announce is not None
    assert announce.lost == ("w1",)
    assert not membership.forgotten("w1")


def test_a_view_of_another_coordinator_with_one_that_is_dead_is_replaced() -> None:
    membership = launched(1, token=2)
    membership.restore(6, view(5, 0), {"w0"})

    announce = membership.installed(6, ["w0", "w1"])

    assert members(announce) == ["w0"]
    assert announce is not None
    assert (announce.number, announce.lost) == (7, ("w1",))
    assert membership.installed(5, ["w0", "w2"]) is None


def test_a_member_of_another_coordinators_view_is_awaited_though_it_never_said_that_it_is_ready() -> None:
    membership = launched(2, token=2)
    membership.restore(6, view(5, 0), {"w0"})

    assert membership.installed(6, ["w0", "w1"]) is None
    assert membership.state("w1") is WorkerState.TRAINING
    announce = membership.lost("w1")
    assert announce is not None
    assert announce.lost == ("w1",)


def test_of_workers_that_are_gone_only_the_newest_few_are_remembered() -> None:
    membership = Membership(gone_kept=3)
    membership.launch("w0")
    membership.ready("w0")
    membership.resize(2, 8, "")
    for index in range(1, 50):
        name = f"w{index}"
        membership.launch(name)
        announce = membership.ready(name)
        assert announce is not None
        membership.installed(announce.number, [member.worker for member in announce.members])
        announce = membership.lost(name)
        assert announce is not None
        assert announce.lost == (name,), "those before it are waited for no more"
        assert membership.knows(name)
        membership.installed(announce.number, ["w0"])

    assert membership.workers(*WorkerState) == ("w0", "w47", "w48", "w49")


def test_one_that_a_view_may_wait_for_is_not_forgotten_however_many_are_lost() -> None:
    membership = Membership(gone_kept=0)
    for index in range(5):
        membership.launch(f"w{index}")
        membership.ready(f"w{index}")
    announce = membership.resize(5, 8, "")
    assert announce is not None
    membership.installed(announce.number, [f"w{index}" for index in range(5)])
    for index in range(1, 5):
        announce = membership.lost(f"w{index}")
    assert announce is not None
    assert announce.lost == ("w1", "w2", "w3", "w4")
    assert len(membership.workers(*WorkerState)) == 5

    membership.installed(announce.number, ["w0"])
    assert membership.workers(*WorkerState) == ("w0",)
