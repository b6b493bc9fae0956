"""The pieces of a step, and which of them the sequencer blames for the deaths of their workers."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from scavenger.elastic import steps as st
from scavenger.elastic.barrier import Barrier
from scavenger.elastic.pieces import Pieces
from scavenger.elastic.quarantine import DEATHS_MIN, Cause, Suspects
from scavenger.elastic.quarantine import SampleRange as Suspected
from scavenger.elastic.view import SLOTS_PER_WORKER, Member, Piece, Share

SIZE = 40


def test_pieces_are_ordered_at_once_or_one_by_one_for_each_worker() -> None:
    pieces, members = Pieces([0]), (Member("w0", 0), Member("w1", SLOTS_PER_WORKER))
    pieces.cut((Share(0, 2), Share(2, 4)), members)
    pieces.divide([(Share(4, 6), True)], members[:1])

    assert [piece.worker for piece in pieces.order(one_by_one=True)] == ["w0", "w1"]
    assert pieces.order(one_by_one=True) == []
    pieces.finish(pieces.outstanding[0].number)
    [third] = pieces.order(one_by_one=True)
    assert third.share == Share(4, 6)

    pieces.divide([(Share(6, 8), True)], members[:1])
    assert [piece.share for piece in pieces.order(one_by_one=False)] == [Share(6, 8)]
    assert pieces.open == pieces.outstanding


def announce(number: int, *workers: int, batch: int, died: str = "") -> st.Announce:
    members = tuple(Member(f"w{i}", i * SLOTS_PER_WORKER) for i in workers)
    deaths = (st.Death(died, "h0", Cause.CRASHED),) if died else ()
    return st.Announce(number, members, batch, lost=(died,) if died else (), deaths=deaths)


def ordered(instructions: list[st.Instruction]) -> list[tuple[str, int, int]]:
    return [
        (piece.worker, piece.share.start, piece.share.stop)
        for order in instructions
        if isinstance(order, st.Proceed)
        for piece in order.pieces
    ]


def result_of(barrier: Barrier, worker: str) -> list[st.Instruction]:
    """The result of the piece that is asked for again arrives."""
    assert barrier.view is not None
    [number] = [
        piece.number
        for order in barrier.handle(st.Tick())
        if isinstance(order, st.Proceed) and order.worker == worker
        for piece in order.pieces
    ]
    return barrier.handle(st.Contribution(worker, barrier.view.number, barrier.step + 1, number))


def two_workers() -> tuple[Barrier, Suspects]:
    suspects = Suspects(samples_max=1)
    barrier = Barrier(SIZE, suspects=suspects)
    assert ordered(barrier.handle(announce(1, 0, 1, batch=8))) == [("w0", 0, 4), ("w1", 4, 8)]
    return barrier, suspects


def test_a_suspected_piece_is_ordered_when_its_worker_has_no_other_left() -> None:
    barrier, suspects = two_workers()

    assert ordered(barrier.handle(announce(2, 0, batch=8, died="w1"))) == []
    assert barrier.missing == ("w0",)
    assert ordered(barrier.handle(st.Tick())) == [("w0", 0, 4)]
    assert ordered(result_of(barrier, "w0")) == [("w0", 4, 8)]
    assert suspects.suspected == (Suspected(0, 4, 8),)


def test_a_death_blames_the_piece_that_is_outstanding_and_none_that_waits() -> None:
    barrier, suspects = two_workers()
    barrier.handle(announce(2, 0, batch=8, died="w1"))

    # one after the other: w0 died of its own piece, not of the one that it did not have yet
    assert ordered(barrier.handle(announce(3, 2, batch=8, died="w0"))) == [("w2", 0, 4)]
    deaths = {(s, e): n for _, s, e, n in _counts(suspects)}
    assert deaths == {(0, 4): 1, (4, 8): 1}


def test_what_waited_is_ordered_once_nothing_is_suspected() -> None:
    barrier, _ = two_workers()
    barrier.handle(announce(2, 0, batch=8, died="w1"))
    barrier.handle(announce(3, 2, batch=8, died="w0"))

    assert ordered(result_of(barrier, "w2")) == [("w2", 4, 8)]
    assert [type(each) for each in result_of(barrier, "w2")] == [st.Apply]


def test_who_died_of_one_of_several_pieces_is_evidence_against_none() -> None:
    suspects = Suspects(samples_max=1)
    barrier = Barrier(SIZE, suspects=suspects)
    barrier.handle(announce(1, 0, 1, batch=8))
    # w1 was taken by the cloud: nothing is suspected, and w0 gets its piece beside its own
    taken = st.Announce(2, (Member("w0", 0),), 8, lost=("w1",))
    assert ordered(barrier.handle(taken)) == [("w0", 4, 8)]

    barrier.handle(announce(3, 2, batch=8, died="w0"))

    assert [(s, e, n) for _, s, e, n in _counts(suspects)] == [(0, 4, 0), (4, 8, 0)]


def _counts(suspects: Suspects) -> list[tuple[int, int, int, int]]:
    return sorted((*entry[:3], len(entry[4])) for entry in suspects.snapshot()["suspects"])


@pytest.mark.parametrize("seed", range(60))
def test_the_one_sample_that_kills_is_found_though_results_are_lost_with_their_workers(seed: int) -> None:
    draw = random.Random(seed)
    poison, batch = draw.randrange(SIZE), draw.choice([4, 8, 20])
    workers, launched = draw.randint(1, 3), 3
    barrier = Barrier(SIZE, suspects=Suspects(samples_max=1))
    members, number, deaths = list(range(workers)), 1, 0
    inbox: dict[str, list[Piece]] = defaultdict(list)
    sent: list[tuple[str, int, int]] = []
    found: list[Suspected] = []
    todo = barrier.handle(announce(1, *members, batch=batch))

    while barrier.position.epoch == 0 and barrier.phase.value in ("step", "apply"):
        for each in todo:
            if isinstance(each, st.Proceed):
                inbox[each.worker] += each.pieces
            elif isinstance(each, st.QuarantineSamples):
                found.append(each.piece)
        if applied := [each for each in todo if isinstance(each, st.Apply)]:
            todo = barrier.handle(st.Applied(applied[0].plan.step))
            continue
        todo = []
        busy = [worker for worker in inbox if inbox[worker]]
        if sent and (not busy or draw.random() < 0.5):
            worker, view, piece = sent.pop(draw.randrange(len(sent)))
            todo = barrier.handle(st.Contribution(worker, view, barrier.step + 1, piece))
        else:
            assert barrier.view is not None
            worker = draw.choice(busy)
            piece = inbox[worker].pop(0)
            kills = not found and piece.share.start <= poison < piece.share.stop
            if not kills:
                sent.append((worker, barrier.view.number, piece.number))
                continue
            # what it has computed but not sent is lost with it
            sent = [message for message in sent if message[0] != worker]
            inbox[worker], deaths, number, launched = [], deaths + 1, number + 1, launched + 1
            members = [launched if f"w{member}" == worker else member for member in members]
            todo = barrier.handle(announce(number, *members, batch=batch, died=worker))
        assert deaths <= 1 + 2 * DEATHS_MIN + SIZE.bit_length(), found

    assert found == [Suspected(0, poison, poison + 1)]
