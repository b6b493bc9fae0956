"""Sums are formed on arrival, in the order of the pieces, within a budget; and faults in that are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sums_simulation import SumsWorld, ViolationError

from scavenger.elastic import sum_events as se
from scavenger.elastic.sums import Sums, unasked

A, B = se.Term(1, "w0", 3), se.Term(2, "w1", 5)
LIST = se.PieceList(1, 1, 1, (A, B))


def test_what_waits_for_its_turn_is_kept_and_added_in_the_order_of_the_list() -> None:
    sums = Sums([4], 100)
    assert sums.handle(LIST) == []
    assert sums.handle(se.PieceOffered("w1", 2)) == [se.FetchBuckets("w1", 2, 1, (0,))]
    assert sums.handle(se.BucketArrived("w1", 2, 0)) == [se.Keep(2, 0)]
    assert sums.awaited == ("w0", "w1")
    assert sums.handle(se.PieceOffered("w0", 1)) == [se.FetchBuckets("w0", 1, 2, (0,))]
    assert sums.handle(se.BucketArrived("w0", 1, 0)) == [
        se.Add(1, 0, 0),
        se.Add(2, 0, 1),
        se.ListSummed(LIST),
    ]
    assert sums.handle(se.BucketArrived("w0", 1, 0)) == []
    assert sums.handle(LIST) == [se.ListSummed(LIST)], "a repeated list is answered again"
    assert (sums.used_bytes, sums.awaited) == (0, ())


def test_a_piece_in_the_own_memory_is_added_without_being_asked_for() -> None:
    sums = Sums([4, 4], 100)
    sums.handle(LIST)
    assert sums.handle(se.PieceOffered("w0", 1, own=True)) == [se.Add(1, 0, 0), se.Add(1, 1, 0)]
    assert sums.handle(se.PieceOffered("w1", 2)) == [se.FetchBuckets("w1", 2, 1, (0, 1))]


def test_one_bucket_in_turn_is_asked_for_however_small_the_budget_is() -> None:
    sums = Sums([4, 4], 1)
    sums.handle(LIST)
    assert sums.handle(se.PieceOffered("w1", 2)) == [], "it would have to wait for another"
    assert sums.handle(se.PieceOffered("w0", 1)) == [se.FetchBuckets("w0", 1, 1, (0,))]
    assert sums.handle(se.BucketArrived("w0", 1, 0)) == [se.Add(1, 0, 0), se.FetchBuckets("w1", 2, 2, (0,))]


def test_what_an_answer_overtook_was_lost_and_only_that_is_asked_for_again() -> None:
    sums = Sums([4, 4, 4], 100)
    sums.handle(se.PieceList(1, 1, 1, (A,)))
    assert sums.handle(se.PieceOffered("w0", 1)) == [se.FetchBuckets("w0", 1, 1, (0, 1, 2))]
    sums.handle(se.BucketArrived("w0", 1, 1))
    assert sums.handle(se.NothingArrived()) == [se.FetchBuckets("w0", 1, 2, ())], (
        "no payload is asked for that may be on its way"
    )
    assert sums.handle(se.Answered("w1", 1, 2)) == [], "of another worker"
    assert sums.handle(se.Answered("w0", 1, 2)) == [se.FetchBuckets("w0", 1, 3, (0, 2))]
    assert sums.handle(se.Answered("w0", 1, 2)) == []


def test_the_first_buckets_come_without_being_asked_for() -> None:
    assert unasked([4, 4, 4], 40, 3) == 3, "all of them, as the budget holds those of all workers"
    assert unasked([4, 4, 4], 40, 4) == 1
    assert unasked([4, 4, 4], 40, 9) == 0
    sums = Sums([4, 4, 4], 40)
    sums.handle(se.BucketArrived("w0", 1, 0))  # before the list
    sums.handle(se.PieceList(1, 1, 1, (replace(A, unasked=2), replace(B, unasked=2))))
    assert sums.used_bytes == 12
    sums.handle(se.BucketArrived("w1", 2, 0))
    assert sums.handle(se.PieceOffered("w1", 2)) == [se.FetchBuckets("w1", 2, 1, (1, 2))], (
        "the second one was lost"
    )


def test_a_new_list_keeps_the_sums_that_begin_it_and_what_waits_for_it() -> None:
    sums = Sums([4, 4], 100)
    sums.handle(LIST)
    sums.handle(se.PieceOffered("w0", 1))
    sums.handle(se.PieceOffered("w1", 2))
    sums.handle(se.BucketArrived("w0", 1, 0))
    sums.handle(se.BucketArrived("w0", 1, 1))
    sums.handle(se.BucketArrived("w1", 2, 1))
    again = se.PieceList(1, 1, 2, (A, se.Term(3, "w2", 2), se.Term(4, "w0", 3)))

    assert sums.handle(again) == [se.FetchBuckets("w0", 1, 3, (1,))], (
        "the second bucket had a piece that is lost"
    )
    assert sums.handle(se.BucketArrived("w1", 2, 0)) == []
    assert sums.handle(LIST) == [], "an outdated list"
    heavier = se.PieceList(1, 1, 3, (A, se.Term(3, "w2", 9)))
    assert sums.handle(heavier) == [se.FetchBuckets("w0", 1, 4, (0,))], "the weights are others"
    third = se.PieceList(2, 1, 1, (se.Term(5, "w0", 1),))
    assert sums.handle(se.BucketArrived("w2", 3, 0)) == [se.Keep(3, 0)]
    assert sums.handle(third) == [se.Drop(3, 0)]


class CountsTwice(Sums):
    """Adds what arrives again."""

    def _arrived(self, event: se.BucketArrived) -> list[se.Action]:
        if self._is_added(event.piece, event.bucket):
            return [se.Add(event.piece, event.bucket, self._positions[event.piece])]
        return super()._arrived(event)


class AsItComes(Sums):
    """Adds whatever arrives, in the order of arrival."""

    def _arrived(self, event: se.BucketArrived) -> list[se.Action]:
        position = self._positions.get(event.piece)
        if position is None or self._added[event.bucket] > position or self.formed:
            return super()._arrived(event)
        asked = self._asked.get(event.piece, {}).pop(event.bucket, None)
        if asked is None:
            return super()._arrived(event)
        self.used_bytes -= self._sizes[event.bucket]
        self._step_on(event.bucket)
        return [se.Add(event.piece, event.bucket, position), *self._go_on(changed=True)]


class KeepsEverySum(Sums):
    """Goes on with the sums that it has when pieces are given to others."""

    def _keep_sums(self, before: se.PieceList | None, now: se.PieceList) -> None:
        added = list(self._added)
        super()._keep_sums(before, now)
        if before is not None and before.step == now.step:
            self._added = [min(count, len(now.terms)) for count in added]
            self._open = sum(count < len(now.terms) for count in self._added)


class AsksForAll(Sums):
    """Asks for everything at once."""

    def _want(self, bucket: int, last: int, wanted: dict[int, list[int]]) -> None:
        budget, self._budget = self._budget, 1 << 40
        super()._want(bucket, last, wanted)
        self._budget = budget


class NeverMissesAnything(Sums):
    """Trusts that what was asked for arrives."""

    def _lose(self, piece: int, question: int) -> list[se.Action]:
        return self._go_on()


class NoExceptions(Sums):
    """Never asks for more than the budget."""

    def _is_moving(self) -> bool:
        return True


class AsksAgainAtOnce(Sums):
    """Asks again for what may be on its way."""

    def _tick(self) -> list[se.Action]:
        for piece in list(self._asked):
            self._lose(piece, self._questions)
        return super()._tick()


class ForgetsToFree(Sums):
    """Keeps what was kept of pieces that are given to others."""

    def _forget_pieces(self) -> list[se.Action]:
        return [action for action in super()._forget_pieces() if not isinstance(action, se.Drop)]


@pytest.mark.parametrize("block", range(4))
def test_sums_are_right_within_the_budget_whatever_is_lost_or_late(block: int) -> None:
    losses = 0
    for seed in range(100 * block, 100 * block + 100):
        world = SumsWorld(seed)
        try:
            world.run()
        except ViolationError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        losses += world.losses
        assert world.steps == 3, seed
    assert losses > 50


def test_no_payload_is_sent_twice_where_nothing_is_lost() -> None:
    for seed in range(150):
        SumsWorld(seed, faults=False).run()


@pytest.mark.parametrize(
    ("mutant", "complaint", "faults"),
    [
        (CountsTwice, "is no sum|not here|kept", True),
        (AsItComes, "is no sum|not here", True),
        (KeepsEverySum, "is no sum", True),
        (AsksForAll, "bytes are kept", True),
        (NeverMissesAnything, "stuck", True),
        (NoExceptions, "stuck", True),
        (AsksAgainAtOnce, "sent twice", False),
        (ForgetsToFree, "bytes are kept", True),
    ],
)
def test_the_simulation_finds_every_fault(mutant: type[Sums], complaint: str, faults: bool) -> None:
    def schedules() -> None:
        for seed in range(400):
            SumsWorld(seed, mutant, faults=faults).run()

    with pytest.raises((ViolationError, KeyError), match=complaint):
        schedules()
