"""Who is in: the coordinator's state machine."""

from __future__ import annotations

import pytest

from scavenger.elastic.barrier import Announce
from scavenger.elastic.membership import Membership, WorkerState


def settled(workers: int, *, train: int, batch: int = 8) -> Membership:
    """Some workers, of which the first `train` are in a view that has taken effect."""
    membership = Membership()
    for _ in range(workers):
        membership.ready(membership.launch().worker)
    install(membership, membership.resize(train, batch, "start"))
    return membership


def install(membership: Membership, announce: Announce | None) -> None:
    assert announce is not None
    membership.installed(announce.number)


def members(announce: Announce | None) -> list[str]:
    assert announce is not None
    return [member.worker for member in announce.members]


def test_names_and_slots_are_never_given_twice() -> None:
    membership = Membership()
    first = membership.launch()
    membership.lost(first.worker)
    second = membership.launch()

    assert first.worker != second.worker
    assert first.slot != second.slot


def test_nobody_trains_before_somebody_asks() -> None:
    membership = Membership()

    assert membership.ready(membership.launch().worker) is None
    assert membership.state("w0") is WorkerState.STANDBY


def test_a_view_takes_the_oldest_of_the_workers_that_are_ready() -> None:
    membership = settled(3, train=2)

    assert membership.workers(WorkerState.TRAINING) == ("w0", "w1")
    assert members(membership.resize(3, 9, "grow")) == ["w0", "w1", "w2"]
    assert members(membership.resize(1, 9, "shrink")) == ["w0"]


def test_a_worker_that_gets_ready_joins_where_it_is_missed_and_waits_where_not() -> None:
    membership = Membership()
    membership.launch(), membership.launch(), membership.launch()
    membership.ready("w0")
    membership.resize(2, 8, "start")

    announce = membership.ready("w1")

    assert members(announce) == ["w0", "w1"]
    assert announce is not None
    assert not announce.urgent
    assert membership.ready("w2") is None
    assert membership.ready("w2") is None


def test_there_are_no_more_members_than_samples() -> None:
    membership = settled(3, train=1)

    with pytest.raises(ValueError, match="no view"):
        membership.resize(3, 2, "too few samples")
    with pytest.raises(ValueError, match="no view"):
        membership.resize(0, 2, "nobody")


def test_the_loss_of_a_member_is_urgent_and_a_spare_takes_its_place() -> None:
    membership = settled(3, train=2)

    announce = membership.lost("w0")

    assert members(announce) == ["w1", "w2"]
    assert announce is not None
    assert announce.urgent


def test_the_loss_of_one_that_nobody_waits_for_changes_nothing() -> None:
    membership = settled(3, train=2)

    assert membership.lost("w2") is None
    assert membership.lost(membership.launch().worker) is None


def test_a_leaver_is_awaited_until_the_view_without_it_has_taken_effect() -> None:
    membership = settled(2, train=2)
    announce = membership.resize(1, 8, "shrink")

    with pytest.raises(ValueError, match="member"):
        membership.release("w1")
    assert members(membership.lost("w1")) == ["w0"]
    assert announce is not None
    assert membership.announced is not None
    assert membership.announced.number == announce.number + 1


def test_a_spare_worker_can_be_let_go_and_a_member_cannot() -> None:
    membership = settled(2, train=1)

    membership.release("w1")

    assert membership.state("w1") is WorkerState.GONE
    assert membership.alive == ("w0",)
    with pytest.raises(ValueError, match="member"):
        membership.release("w0")


def test_a_job_without_workers_goes_on_urgently_with_the_next_one() -> None:
    membership = settled(1, train=1)
    assert membership.lost("w0") is None
    assert membership.announced is None
    joiner = membership.launch().worker

    announce = membership.ready(joiner)

    assert members(announce) == [joiner]
    assert announce is not None
    assert announce.urgent


def test_a_dead_members_slot_is_kept_until_a_view_without_it_took_effect() -> None:
    membership = settled(2, train=2)
    announce = membership.lost("w1")

    assert not membership.forgotten("w1")
    install(membership, announce)
    assert membership.forgotten("w1")
    assert not membership.forgotten("w0")


def test_the_slot_of_the_last_worker_is_kept_for_the_step_that_it_may_have_completed() -> None:
    membership = settled(1, train=1)
    membership.lost("w0")

    assert not membership.forgotten("w0")
    install(membership, membership.ready(membership.launch().worker))
    assert membership.forgotten("w0")


def test_view_numbers_only_grow() -> None:
    membership = settled(3, train=3)
    numbers = []
    for announce in (membership.lost("w0"), membership.resize(2, 8, "x"), membership.lost("w1")):
        assert announce is not None
        numbers.append(announce.number)

    assert numbers == sorted(set(numbers))
    membership.installed(numbers[-1])
    membership.installed(numbers[0])
    assert membership.settled
