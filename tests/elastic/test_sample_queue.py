"""The sample queue: steps are those of one process, whoever computes them; the rest is in `test_rounds`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic import leases as le
from scavenger.elastic.quarantine import DEATHS_MIN, Cause, NotTheData
from scavenger.elastic.sample_queue import SampleQueue


def _ask(queue: SampleQueue, worker: str) -> le.Grant | le.Wait:
    [answer] = queue.handle(le.RequestSamples(worker, "h0"))
    assert isinstance(answer, le.Grant | le.Wait)
    return answer


def _step(queue: SampleQueue, members: list[str]) -> list[tuple[int, int]]:
    """Have the members read and apply a step; returns what each read."""
    grants = [grant for member in members if isinstance(grant := _ask(queue, member), le.Grant)]
    parts = tuple(le.LeasedSamples(one.shard, one.attempt, one.start, one.stop) for one in grants)
    assert queue.handle(le.Proposed(queue.step + 1, parts)) == [le.ApplyParts(queue.step + 1, parts)]
    queue.handle(le.Committed(queue.step + 1, parts))
    return [(one.start, one.stop) for one in grants]


@given(
    st.integers(1, 200), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), min_size=1, max_size=8)
)
def test_a_step_takes_the_next_samples_whatever_the_batch_was_before(
    samples: int, views: list[tuple[int, int]]
) -> None:
    queue, at = SampleQueue(samples, 0), 0
    for number, share in views * samples:
        members = [f"w{i}" for i in range(number)]
        queue.divide([(member, share) for member in members])
        if queue.over:
            break
        pieces = sorted(_step(queue, list(reversed(members))))  # in whatever order they ask
        assert pieces[0][0] == at
        assert all(a[1] == b[0] for a, b in pairwise(pieces))
        assert pieces[-1][1] <= at + number * share
        at = pieces[-1][1]
        assert at >= min(samples, pieces[0][0] + number * share) - 1
    assert queue.over == (at == samples)


def test_no_rest_of_one_sample_is_left_where_a_share_can_be_smaller() -> None:
    queue = SampleQueue(9, 0)
    queue.divide([("a", 4), ("b", 4)])

    assert _step(queue, ["a", "b"]) == [(0, 4), (4, 7)]
    assert _step(queue, ["a", "b"]) == [(7, 9)]
    assert queue.ended == le.EpochCommitted(0, 2, ())


def test_what_a_lost_worker_had_is_read_next_and_its_own_part_is_refused() -> None:
    queue = SampleQueue(12, 0)
    queue.divide([("a", 2), ("b", 2)])
    first, lost = _ask(queue, "a"), _ask(queue, "b")
    assert isinstance(first, le.Grant)
    assert isinstance(lost, le.Grant)

    queue.handle(le.HolderLost("b", Cause.KILLED))

    late = le.LeasedSamples(lost.shard, lost.attempt, lost.start, lost.stop)
    mine = le.LeasedSamples(first.shard, first.attempt, first.start, first.stop)
    assert queue.handle(le.Proposed(1, (mine, late))) == [le.RefuseParts(late, "the lease has ended")]
    assert queue.handle(le.Proposed(1, (mine,))) == [le.ApplyParts(1, (mine,))]
    queue.handle(le.Committed(1, (mine,)))
    assert _step(queue, ["a"]) == [(2, 4)]
    assert isinstance(_ask(queue, "b"), le.Wait)


def test_an_epoch_goes_on_from_its_snapshot_with_what_was_left() -> None:
    queue = SampleQueue(10, 3)
    queue.divide([("a", 3), ("b", 3)])
    _step(queue, ["a", "b"])
    _ask(queue, "a")

    again = SampleQueue.restore(queue.snapshot(), incarnation=1)

    again.divide([("c", 10)])
    assert _step(again, ["c"]) == [(6, 10)]
    assert again.over
    again.handle(le.BeginEpoch(1))
    assert _step(again, ["c"]) == [(0, 10)]
    with pytest.raises(ValueError, match="is not new"):
        SampleQueue.restore(again.snapshot(), incarnation=1)
    with pytest.raises(ValueError, match="not those of an epoch"):
        SampleQueue.restore({**queue.snapshot(), "left": [[4, 10]]}, incarnation=1)


def test_samples_that_end_every_worker_end_the_job() -> None:
    queue, found = SampleQueue(4, 0), []
    for number in range(DEATHS_MIN):
        queue.divide([(f"w{number}", 4)])
        _ask(queue, f"w{number}")
        found = queue.handle(le.HolderLost(f"w{number}", Cause.CRASHED))

    assert isinstance(found[-1], le.Found)
    assert isinstance(found[-1].finding, NotTheData)
